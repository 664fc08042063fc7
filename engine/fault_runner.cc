// A runner around a runner: counts steps and fails the chosen one.
#include "engine/fault_runner.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace longspan {
#ifdef LONGSPAN_FAULTS
namespace {

class StepErrorRunner final : public ModelRunner {
 public:
  StepErrorRunner(std::unique_ptr<ModelRunner> runner, int64_t step)
      : runner_(std::move(runner)), steps_left_(step) {}

  void Launch(const SchedulerOutput& output) override { runner_->Launch(output); }
  Status Collect(StepResult& result) override {
    RETURN_IF_ERROR(runner_->Collect(result));
    if (--steps_left_ == 0) return MakeStatus(absl::StatusCode::kInternal, "injected device error");
    return Status();
  }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  int64_t steps_left_;
};

}  // namespace
#endif

StatusOr<std::unique_ptr<ModelRunner>> WithFault(std::unique_ptr<ModelRunner> runner,
                                                 const std::string& fault) {
  if (fault.empty()) return runner;
#ifdef LONGSPAN_FAULTS
  constexpr std::string_view kStepError = "step-error@";
  int64_t step = 0;
  const char* end = fault.data() + fault.size();
  if (fault.rfind(kStepError, 0) == 0 &&
      std::from_chars(fault.data() + kStepError.size(), end, step).ptr == end && step > 0) {
    return std::unique_ptr<ModelRunner>(std::make_unique<StepErrorRunner>(std::move(runner), step));
  }
  return InvalidArgument("--fault: \"{}\" is not step-error@N", fault);
#else
  return InvalidArgument("--fault: this build has no fault injection");
#endif
}

}  // namespace longspan
