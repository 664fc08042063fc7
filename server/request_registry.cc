// A map under a mutex. A call that leaves it is destroyed outside the lock. Also where request ids
// and seeds are drawn.
#include "server/request_registry.h"

#include <fmt/format.h>

#include <random>
#include <utility>

namespace longspan {
namespace {

// One generator per thread, seeded by the system: no lock, no two alike.
std::mt19937_64& Generator() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator;
}

}  // namespace

bool RequestRegistry::Add(const std::string& id, std::shared_ptr<GenerateCall> call) {
  const std::lock_guard lock(mutex_);
  return calls_.try_emplace(id, std::move(call)).second;
}

void RequestRegistry::Remove(const std::string& id) {
  std::shared_ptr<GenerateCall> last;  // its destructor runs without the lock
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  last = std::move(it->second);
  calls_.erase(it);
}

std::shared_ptr<GenerateCall> RequestRegistry::Find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(id);
  return it == calls_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<GenerateCall>> RequestRegistry::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GenerateCall>> out;
  out.reserve(calls_.size());
  for (const auto& [id, call] : calls_) out.push_back(call);
  return out;
}

int32_t RequestRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(calls_.size());
}

std::string MakeRequestId() { return fmt::format("{:016x}{:016x}", Generator()(), Generator()()); }

uint64_t DrawSeed() { return Generator()(); }

}  // namespace longspan
