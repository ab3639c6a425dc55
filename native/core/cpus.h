// cpus.h: how many CPUs this process may keep busy, as its affinity and its control groups say.
#pragma once

#include <string>

namespace opkiln::core {

/// CPUs of the process's affinity mask, or fewer where a CPU quota of a control group (v1 or v2,
/// its own or one above it) allows less; at least 1. `root` is put before every path (tests).
int usable_cpus(const std::string& root = "");

/// What the quotas alone allow, rounded up; 0 without any.
int quota_cpus(const std::string& root = "");

}  // namespace opkiln::core
