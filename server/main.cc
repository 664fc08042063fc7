// longspan-server: parses the command line and runs the application.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "server/application.h"
#include "server/options.h"
#include "server/signals.h"
#include "server/version.h"

int main(int argc, char** argv) {
  using longspan::ParsedCommandLine;
  longspan::BlockSignals();
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
  const auto parsed = longspan::ParseCommandLine(args, environment);
  if (!parsed.ok()) {
    std::fprintf(stderr, "longspan-server: %s\n", longspan::StatusMessage(parsed.status()).c_str());
    return static_cast<int>(longspan::ExitCode::kOptions);
  }
  switch (parsed->action) {
    case ParsedCommandLine::Action::kHelp:
      std::fputs(longspan::HelpText().c_str(), stdout);
      return 0;
    case ParsedCommandLine::Action::kVersion:
      std::printf("longspan-server %s %s\n", longspan::kVersion, longspan::kCommit);
      return 0;
    case ParsedCommandLine::Action::kFlagsMarkdown:
      std::fputs(longspan::FlagsMarkdown().c_str(), stdout);
      return 0;
    case ParsedCommandLine::Action::kRun:
      break;
  }
  longspan::Application application(parsed->options);
  return static_cast<int>(application.Run());
}
