// The settings and counts of the worker threads for Python, and the symbol that tells threadpoolctl
// which library they belong to.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "core/cpus.h"
#include "core/threads.h"
#include "face/gil.h"
#include "face/module.h"

namespace nb = nanobind;
using namespace nb::literals;

extern "C" __attribute__((visibility("default"), used)) int opkiln_num_threads() {
  return opkiln::core::num_threads();
}

namespace opkiln::face {

void bind_threads(nb::module_& m) {
  m.def("num_threads", &core::num_threads,
        "Threads that work on one call at most: what was set, else usable_cpus().");
  m.def("set_num_threads", &core::set_num_threads, "count"_a,
        "For the whole process; 0 for the default.");
  m.def("set_own_num_threads", &core::set_own_num_threads, "count"_a,
        "For calls of this thread, until it is set to 0; returns the former value.");
  m.def(
      "usable_cpus", [](const std::string& root) { return core::usable_cpus(root); }, "root"_a = "",
      "CPUs that affinity and control groups leave to this process.");
  m.def(
      "worker_stats",
      [] {
        const core::ThreadCounts counts = core::thread_counts();
        nb::dict d;
        d["workers"] = counts.workers;
        d["busy"] = counts.busy;
        d["split"] = counts.split;
        d["helped"] = counts.helped;
        return d;
      },
      "Workers that live, threads that run large kernels now, calls that were cut so far, and how "
      "many of their ranges workers ran.");
  m.def(
      "set_helper_ns",
      [](std::optional<double> ns) { core::set_helper_ns(ns.value_or(core::kHelperNs)); },
      "ns"_a.none(), "The work that pays for one more thread; 0 cuts all (tests), None as before.");
  m.def(
      "stop_workers",
      [] {
        const WithoutGil released;
        core::stop_workers();
      },
      "Ends the workers and waits for them; later calls start new ones.");
}

}  // namespace opkiln::face
