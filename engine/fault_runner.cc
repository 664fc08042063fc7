// A runner around a runner: counts steps; the chosen one fails or never ends.
#include "engine/fault_runner.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>

#include "core/log.h"

namespace longspan {
#ifdef LONGSPAN_FAULTS
namespace {

enum class Fault : uint8_t { kError, kStuck };

class FaultRunner final : public ModelRunner {
 public:
  FaultRunner(std::unique_ptr<ModelRunner> runner, Fault fault, int64_t step)
      : runner_(std::move(runner)), fault_(fault), steps_left_(step) {}

  void Launch(const SchedulerOutput& output) override { runner_->Launch(output); }
  Status Collect(StepResult& result) override {
    RETURN_IF_ERROR(runner_->Collect(result));
    if (--steps_left_ != 0) return Status();
    while (fault_ == Fault::kStuck) std::this_thread::sleep_for(std::chrono::hours(1));
    return MakeStatus(absl::StatusCode::kInternal, "injected device error");
  }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  const Fault fault_;
  int64_t steps_left_;
};

// The N of "NAME@N"; 0 when the text is something else.
int64_t StepOf(std::string_view fault, std::string_view name) {
  if (!fault.starts_with(name)) return 0;
  fault.remove_prefix(name.size());
  const char* end = fault.data() + fault.size();
  int64_t step = 0;
  return std::from_chars(fault.data(), end, step).ptr == end ? step : 0;
}

}  // namespace
#endif

StatusOr<std::unique_ptr<ModelRunner>> WithFault(std::unique_ptr<ModelRunner> runner,
                                                 const std::string& fault) {
  if (fault.empty()) return runner;
#ifdef LONGSPAN_FAULTS
  for (const auto& [name, kind] :
       {std::pair{"step-error@", Fault::kError}, std::pair{"step-stuck@", Fault::kStuck}}) {
    const int64_t step = StepOf(fault, name);
    if (step < 1) continue;
    return std::unique_ptr<ModelRunner>(
        std::make_unique<FaultRunner>(std::move(runner), kind, step));
  }
  return InvalidArgument("--fault: \"{}\" is not step-error@N or step-stuck@N", Escaped(fault));
#else
  return InvalidArgument("--fault: this build has no fault injection");
#endif
}

}  // namespace longspan
