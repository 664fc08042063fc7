// longspan-server: blocks signals, parses the command line, and runs the application; the exit code
// is the application's.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "server/address_space.h"
#include "server/application.h"
#include "server/options.h"
#include "server/process_memory.h"
#include "server/signals.h"
#include "server/version.h"

namespace {

// A standard file that the caller closed would otherwise be the first socket that we open, and get
// our log lines.
void OpenStandardFiles() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && ::open("/dev/null", O_RDWR) != fd) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using longspan::ParsedCommandLine;
  OpenStandardFiles();
  if (const longspan::Status room = longspan::CheckAddressSpace(longspan::kAddressSpaceToStart);
      !room.ok()) {
    std::fprintf(stderr, "longspan-server: %s\n", longspan::StatusMessage(room).c_str());
    return static_cast<int>(longspan::ExitCode::kResources);
  }
  longspan::BlockSignals();
  longspan::BoundReadAhead();
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
  // The only exceptions that are not somebody's answer: the system has no memory or thread to give.
  try {
    longspan::Application application(parsed->options);
    return static_cast<int>(application.Run());
  } catch (const std::bad_alloc&) {
    std::fputs(
        "longspan-server: out of memory (a limit of address space is too low for this model)\n",
        stderr);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "longspan-server: the system refuses a resource: %s\n", error.what());
  }
  return static_cast<int>(longspan::ExitCode::kResources);
}
