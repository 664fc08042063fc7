// Executes steps: the seam between scheduling and arithmetic. The engine drives it; tests replace
// it by a fake. It owns weights and step inputs and borrows the KV pool; it never changes
// scheduling state.
#pragma once

#include "core/status.h"
#include "scheduler/scheduler_output.h"

namespace longspan {

// Engine thread only. Launch and Collect alternate; every Launch is followed by one Collect.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Enqueues one step: released slots, admissions, block copies, then the scheduled tokens.
  // `output` is read during the call only.
  virtual void Launch(const SchedulerOutput& output) = 0;

  // Waits for the launched step and fills `result` (its capacity is reused). A status is a device
  // error: the engine is finished.
  virtual Status Collect(StepResult& result) = 0;
};

}  // namespace longspan
