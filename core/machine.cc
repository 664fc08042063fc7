// Reads /proc and the cgroup v2 files anew at each call; a file that is missing or says "max" sets
// no limit. cgroup v1 is not read.
#include "core/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace longspan {
namespace {

// The folder of this process's cgroup below the v2 mount, "" when there is none.
std::string CgroupFolder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "";
}

// Calls visit(folder) for the cgroup's folder and every one above it.
template <typename Visit>
void ForEachCgroup(Visit visit) {
  std::string folder = CgroupFolder();
  const std::string root = "/sys/fs/cgroup";
  while (folder.size() >= root.size()) {
    visit(folder);
    const size_t slash = folder.find_last_of('/');
    if (slash == std::string::npos || folder == root) break;
    folder.resize(slash);
  }
}

}  // namespace

int64_t MemoryLimitBytes() {
  int64_t limit = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  ForEachCgroup([&](const std::string& folder) {
    std::ifstream file(folder + "/memory.max");
    int64_t value = 0;  // "max" does not parse and sets no limit
    if (file >> value && value > 0) limit = std::min(limit, value);
  });
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    limit = std::min(limit, static_cast<int64_t>(address_space.rlim_cur));
  }
  return limit;
}

int64_t ResidentMemoryBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  ForEachCgroup([&](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    int64_t quota = 0, period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) {
      cores =
          std::min(cores, static_cast<int>(std::max<int64_t>(1, (quota + period - 1) / period)));
    }
  });
  return cores;
}

}  // namespace longspan
