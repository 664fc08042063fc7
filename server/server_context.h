// What every handler of the gRPC edge knows: the server's own facts, where it is in its life, and,
// once loading has ended, the model and the engine. No logic lives here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/dtype.h"
#include "model/model_config.h"

namespace longspan {

class Engine;
class RequestObserver;
class Tokenizer;

// The model as it is served, known once loading has ended.
struct ServedModel {
  std::string name;  // --served-model-name
  ModelConfig config;
  int32_t max_model_len = 0;  // context of this server: prompt and generated tokens of a sequence
  int32_t block_size = 0;
  int32_t num_blocks = 0;  // of the KV pool
  DType kv_dtype = DType::kFloat16;
  int64_t kv_bytes_per_token = 0;                   // all layers
  const Tokenizer* tokenizer = nullptr;             // not owned; nullptr: token ids only
  std::map<std::string, std::string> chosen_flags;  // what the server chose where it was asked to
};

struct DeviceInfo {
  std::string name;  // "cpu", "cuda:0"
  std::string description;
  int64_t memory_total_bytes = 0;
  std::function<int64_t()> memory_used_bytes;  // called on gRPC's threads; may be empty
};

// Facts about the process, fixed at start.
struct ServerInfo {
  std::string version;
  std::string commit;
  std::vector<DeviceInfo> devices;
  std::map<std::string, std::string> flags;  // as given, defaults included
  TimePoint start_time{};
};

enum class ServerPhase : uint8_t { kLoading, kServing, kDraining, kFailed };

// What the Admin service asks of the process.
class LifecycleHandler {
 public:
  virtual ~LifecycleHandler() = default;
  // Begins to drain as SIGTERM does; returns at once. Unset: --drain-timeout. Any thread.
  virtual void RequestDrain(std::optional<Duration> timeout) = 0;
};

// Thread-safe. Borrows everything; outlives all handlers. Phases only move forward.
class ServerContext {
 public:
  ServerContext(ServerInfo info, const Clock& clock, RequestObserver& observer,
                LifecycleHandler& lifecycle)
      : info_(std::move(info)), clock_(clock), observer_(observer), lifecycle_(lifecycle) {}

  const ServerInfo& info() const { return info_; }
  const Clock& clock() const { return clock_; }
  RequestObserver& observer() const { return observer_; }
  LifecycleHandler& lifecycle() const { return lifecycle_; }

  ServerPhase phase() const { return phase_.load(std::memory_order_acquire); }
  // Not null once the phase has been kServing; they stay valid until the server is shut down.
  const ServedModel* model() const { return model_.load(std::memory_order_acquire); }
  Engine* engine() const { return engine_.load(std::memory_order_acquire); }

  void SetServing(const ServedModel& model, Engine& engine) {
    model_.store(&model, std::memory_order_release);
    engine_.store(&engine, std::memory_order_release);
    ServerPhase loading = ServerPhase::kLoading;
    phase_.compare_exchange_strong(loading, ServerPhase::kServing);
  }
  void SetDraining() { Advance(ServerPhase::kDraining); }
  void SetFailed() { Advance(ServerPhase::kFailed); }

 private:
  void Advance(ServerPhase to) {
    ServerPhase from = phase_.load();
    while (from < to && !phase_.compare_exchange_weak(from, to)) {
    }
  }

  const ServerInfo info_;
  const Clock& clock_;
  RequestObserver& observer_;
  LifecycleHandler& lifecycle_;
  std::atomic<ServerPhase> phase_{ServerPhase::kLoading};
  std::atomic<const ServedModel*> model_{nullptr};
  std::atomic<Engine*> engine_{nullptr};
};

}  // namespace longspan
