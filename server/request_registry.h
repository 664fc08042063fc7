// The Generate calls in the server by request id: one id at a time, found for Abort and listings.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace longspan {

class GenerateCall;

// Thread-safe.
class RequestRegistry {
 public:
  // False, and no effect, when the id is in use.
  bool Add(const std::string& id, std::shared_ptr<GenerateCall> call);
  void Remove(const std::string& id);
  // nullptr when there is none.
  std::shared_ptr<GenerateCall> Find(const std::string& id) const;
  std::vector<std::shared_ptr<GenerateCall>> All() const;
  int32_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<GenerateCall>> calls_;
};

// 128 random bits in hexadecimal, for requests without an id.
std::string MakeRequestId();
// A seed for requests without one.
uint64_t DrawSeed();

}  // namespace longspan
