// What the engine tells about its steps, as values. The server's metrics implement it; tests record
// it.
#pragma once

#include <cstdint>

namespace longspan {

enum class StepKind : uint8_t { kIdle, kPrefill, kDecode, kMixed };

// Gauges at the end of a step, counters as totals since the engine started.
struct EngineStats {
  // Gauges.
  int32_t requests_running = 0;
  int32_t requests_waiting = 0;
  int32_t requests_paused = 0;
  int64_t waiting_tokens = 0;  // prompt tokens not yet computed of waiting requests
  int32_t blocks_total = 0;
  int32_t blocks_free = 0;
  int32_t blocks_held = 0;
  int32_t blocks_evictable = 0;
  int32_t blocks_leaked = 0;       // 0, or there is a bug
  double tokens_per_second = 0.0;  // generated, over the last seconds

  // Counters.
  int64_t preemptions = 0;
  int64_t prefix_queries_tokens = 0;
  int64_t prefix_hits_tokens = 0;
  int64_t prefix_evictions_blocks = 0;
  int64_t kv_bytes_read = 0;

  // The step itself; kIdle when the stats are reported without one (abort, idle).
  StepKind kind = StepKind::kIdle;
  int32_t step_tokens = 0;
  int32_t step_sequences = 0;
  int64_t step_kv_bytes_read = 0;
  double step_seconds = 0.0;
  double step_scheduler_seconds = 0.0;  // Schedule and Update
  double step_attention_seconds = 0.0;
  int32_t step_attention_splits = 0;  // most work items per sequence and KV head; 0: unknown
  double longest_decode_stall_seconds =
      0.0;  // longest gap between two tokens of one running sequence seen now
};

// Called on the engine thread, once per step and when the engine falls idle. Must not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStats(const EngineStats& stats) = 0;
};

}  // namespace longspan
