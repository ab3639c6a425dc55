// cpus.cpp: the affinity mask, /proc/self/cgroup, /proc/self/mountinfo and the files of quotas.
#include "cpus.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace opkiln::core {
namespace {

int affinity_cpus() {
#if defined(__linux__)
  // Of the first thread, not of the caller: a thread that is pinned does not bind the others.
  for (std::size_t cpus = 1024; cpus <= 1 << 18; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(getpid(), bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

bool has(const std::string& list, const std::string& name) {
  const std::vector<std::string> parts = split(list, ',');
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

/// Where a hierarchy is mounted, and which of its groups lies there.
struct Mount {
  std::string place, group;
};

/// The mount of the controller "cpu" (v1), or of the unified hierarchy (v2).
Mount find_mount(const std::string& root, bool unified) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // ID parent device group place options ... - type source options
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    if (unified ? dash[1] == "cgroup2" : dash[1] == "cgroup" && has(dash[3], "cpu"))
      return {words[4], words[3]};
  }
  return {};
}

double number_in(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? number : 0;
}

/// CPUs that one group may use at a time; 0 for no limit.
double quota_of(const std::string& folder, bool unified) {
  double quota = 0, period = 0;
  if (unified) {
    std::ifstream file(folder + "/cpu.max");  // "max 100000" or "150000 100000"
    if (!(file >> quota >> period)) return 0;
  } else {
    quota = number_in(folder + "/cpu.cfs_quota_us");  // -1: none
    period = number_in(folder + "/cpu.cfs_period_us");
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

/// The least quota of a group and of all above it that can be seen.
double least_quota(const std::string& root, std::string group, bool unified) {
  const Mount mount = find_mount(root, unified);
  if (mount.place.empty()) return 0;
  // In a container the mount may show a part of the hierarchy, its top being the process's group.
  if (mount.group != "/") {
    const bool below = group.compare(0, mount.group.size(), mount.group) == 0;
    group = below ? group.substr(mount.group.size()) : "";
  }
  double least = 0;
  for (;;) {
    const double quota = quota_of(root + mount.place + group, unified);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

}  // namespace

int quota_cpus(const std::string& root) {
  double least = 0;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && !has(controllers, "cpu")) continue;
    const std::string group = line.substr(second + 1);
    const double quota = least_quota(root, group == "/" ? "" : group, unified);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return static_cast<int>(std::min(std::ceil(least), 1e6));
}

int usable_cpus(const std::string& root) {
  const int cpus = affinity_cpus(), quota = quota_cpus(root);
  return std::max(1, quota > 0 ? std::min(cpus, quota) : cpus);
}

}  // namespace opkiln::core
