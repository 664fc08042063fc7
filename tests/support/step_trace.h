// Steps as lines of text, to record what was scheduled and to replay it: one line for a step's
// output, one for its result. Exact: reading gives back every field bit for bit. Opens no files.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/scheduler_output.h"

namespace longspan {

// Space-separated numbers after a word that names the line ("output", "result"); lists are preceded
// by their length. No line break.
std::string WriteOutputLine(const SchedulerOutput& output);
std::string WriteResultLine(const StepResult& result);

// False when the line is not exactly one of the above; then the value is unspecified.
bool ReadOutputLine(std::string_view line, SchedulerOutput& output);
bool ReadResultLine(std::string_view line, StepResult& result);

}  // namespace longspan
