// threads.h: the process's worker threads: units of one kernel in, cut into ranges that several
// threads run.
//
// Workers are started by the first call that is worth it and serve one caller after another, or
// several at once. The caller always takes part, so a worker that comes late or not at all costs
// time, never a result. Callers and busy workers together are at most num_threads(): a caller that
// finds the others taken runs alone.
#pragma once

#include <cstdint>

namespace opkiln::core {

/// What a loop does that waits for another thread without sleeping.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Units [0, units) of some work that may be cut at every multiple of `grain`.
struct Range {
  std::int64_t units;
  std::int64_t grain;
  double estimated_ns;     // of all; right within a factor of about ten
  std::int64_t own_bytes;  // memory that each thread but the caller's needs for itself
  /// Runs [begin, end) and returns fault bits. `own` is null on the caller's thread.
  std::uint64_t (*run)(const void* context, std::int64_t begin, std::int64_t end, char* own);
  const void* context;
};

/// Work that is estimated to take less is never cut.
constexpr double kSplitNs = 40'000;

/// Runs all units and returns their fault bits, on several threads where that is faster. Whatever
/// was thrown first is thrown again, after all threads have stopped. Any thread may call it; within
/// a range it runs alone.
std::uint64_t run_split(const Range& range);

/// Threads that work on one call at most, the caller included.
int num_threads();
/// 0 for the default: as many as usable_cpus(). Surplus workers end, idle ones at once.
void set_num_threads(int count);
/// For calls of this thread alone, in place of num_threads() while not 0; returns the former value.
int set_own_num_threads(int count) noexcept;

/// The work that pays for one more thread; with 0 all that is estimated to take kSplitNs is cut as
/// small as it can be, for tests.
constexpr double kHelperNs = 20'000;
void set_helper_ns(double ns) noexcept;

struct ThreadCounts {
  int workers;           // threads that live
  int busy;              // callers and workers that run large kernels now
  std::uint64_t split;   // calls that were cut so far
  std::uint64_t helped;  // their ranges that workers ran
};
ThreadCounts thread_counts();

/// Ends all workers and waits for them; later calls start new ones.
void stop_workers();

}  // namespace opkiln::core
