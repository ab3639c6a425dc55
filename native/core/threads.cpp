// threads.cpp: a list of open jobs, workers that join them, and when a job is worth opening.
#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

#include "cpus.h"

namespace opkiln::core {
namespace {

using Clock = std::chrono::steady_clock;

// Estimates are guesses, so the first units are timed: those estimated to take as long as this.
constexpr double kProbeNs = 20'000;
// What cannot be timed because its units are few is taken to be so many times faster than guessed.
constexpr double kOverestimate = 8;
// Ranges are not cut shorter than this part of the work that pays for a helper, nor longer than so
// much: another program may take a worker's CPU away for as long as it likes.
constexpr double kRange = 0.4, kLongestNs = 150'000;
// How long a worker looks for the next job, and a caller for the last range, before they sleep.
constexpr std::chrono::microseconds kSpin{40};

template <class Done>
void spin_until(Done&& done) {
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return;
      relax();
    }
  } while (Clock::now() < end);
}

std::int64_t round_up(std::int64_t units, std::int64_t grain) {
  return (units + grain - 1) / grain * grain;
}

/// The units that take so long, a whole number of grains, or all.
std::int64_t units_in(const Range& range, double ns, double unit_ns) {
  const double units = std::max(1.0, ns / unit_ns);
  if (units >= static_cast<double>(range.units)) return range.units;
  return std::min(round_up(static_cast<std::int64_t>(units), range.grain), range.units);
}

/// One call that others may help with. Lives on its caller's stack.
struct Job {
  const Range& range;
  const int width;                 // of the caller: busy threads that it goes with
  const std::int64_t share;        // of what is left, one part in so many is taken at a time,
  const std::int64_t least, most;  // within these
  std::atomic<std::int64_t> next;
  std::atomic<std::uint64_t> faults{0};
  std::atomic<int> helpers{0};  // in it now; changed under the mutex
  int wanted = 0;               // may still join; from here on all is guarded by the mutex
  std::exception_ptr error = {};
  Job* after = nullptr;

  bool take(std::int64_t* begin, std::int64_t* end) noexcept {
    std::int64_t at = next.load(std::memory_order_relaxed);
    for (;;) {
      const std::int64_t left = range.units - at;
      if (left <= 0) return false;
      const std::int64_t count =
          std::min(round_up(std::clamp(left / share, least, most), range.grain), left);
      if (!next.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) continue;
      *begin = at, *end = at + count;
      return true;
    }
  }
  void stop() noexcept { next.store(range.units, std::memory_order_relaxed); }
};

struct AlignedFree {
  void operator()(char* p) const noexcept { ::operator delete(p, std::align_val_t{64}); }
};

/// Of one process: a forked child makes its own. Never destroyed: workers may outlive main().
struct Workers {
  std::mutex mutex;
  std::condition_variable work, left;
  Job* jobs = nullptr;
  std::vector<std::thread> threads, ended;  // the latter are to be joined
  int alive = 0, helping = 0;
  int most = 0;                // that may live
  std::atomic<int> wanted{0};  // by all jobs
  std::atomic<int> busy{0};    // callers and helpers
  std::atomic<std::uint64_t> split{0}, helped{0};
  Workers* former;  // of the parent process

  explicit Workers(Workers* parents) : former(parents) {}
  void open(Job* job, int helpers);
  void close(Job* job);
  void start(int count, int limit);
  Job* joinable() noexcept;
  void help(Job* job, std::unique_lock<std::mutex>* lock);
  void retire();
  void run();
};

std::atomic<Workers*> g_workers{nullptr};
Workers* g_parents = nullptr;
std::atomic<int> g_count{0}, g_default{0};  // 0: not set, not known
std::atomic<double> g_helper_ns{kHelperNs};
thread_local int t_own_count = 0;
thread_local bool t_inside = false;

/// The workers did not come along, and their locks may be held for ever.
void in_child() noexcept {
  if (Workers* parents = g_workers.exchange(nullptr)) g_parents = parents;
  g_default.store(0);
}

Workers& workers() {
  Workers* found = g_workers.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) pthread_atfork(nullptr, nullptr, &in_child);
  auto* made = new Workers(g_parents);
  if (g_workers.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

/// Signals are for the threads of the program.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &former_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &former_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t former_;
};

/// A worker goes where the process may, though the thread that started it may be pinned.
void settle_thread() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(getpid(), sizeof set, &set) == 0)
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#endif
}

/// Under the mutex: workers until `count` are idle, at most `limit` in all.
void Workers::start(int count, int limit) {
  most = std::max(most, limit);
  count = std::min(count - (alive - helping), limit - alive);
  if (count <= 0) return;
  for (std::thread& thread : ended) thread.join();  // at once: they have left the mutex
  ended.clear();
  const SignalsBlocked blocked;
  try {
    for (; count > 0; --count) {
      threads.emplace_back([this] { run(); });
      ++alive;
#if defined(__linux__)
      pthread_setname_np(threads.back().native_handle(), "opkiln-worker");  // before it runs
#endif
    }
  } catch (const std::exception&) {
    // No room for more threads (pids.max, RLIMIT_NPROC, memory): those that run must do.
  }
}

void Workers::open(Job* job, int helpers) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    start(helpers, job->width - 1);
    job->wanted = helpers;
    job->after = jobs;
    jobs = job;
    wanted.fetch_add(helpers, std::memory_order_relaxed);
  }
  split.fetch_add(1, std::memory_order_relaxed);
  work.notify_one();
  if (helpers > 1) work.notify_one();  // each that joins wakes further ones
}

/// Nobody may join any more; returns when the last helper has left.
void Workers::close(Job* job) {
  std::unique_lock<std::mutex> lock(mutex);
  Job** place = &jobs;
  while (*place != job) place = &(*place)->after;
  *place = job->after;
  wanted.fetch_sub(job->wanted, std::memory_order_relaxed);
  if (job->helpers.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  spin_until([job] { return job->helpers.load(std::memory_order_relaxed) == 0; });
  lock.lock();
  left.wait(lock, [job] { return job->helpers.load(std::memory_order_relaxed) == 0; });
}

Job* Workers::joinable() noexcept {
  const int now = busy.load(std::memory_order_relaxed);
  for (Job* job = jobs; job != nullptr; job = job->after)
    if (job->wanted > 0 && now < job->width) return job;
  return nullptr;
}

/// `all` of a helper.
void run_ranges(Job* job, char* own, Workers* all) {
  std::int64_t begin, end;
  while (job->take(&begin, &end)) {
    const std::uint64_t faults = job->range.run(job->range.context, begin, end, own);
    if (faults != 0) job->faults.fetch_or(faults, std::memory_order_relaxed);
    if (all == nullptr) continue;
    all->helped.fetch_add(1, std::memory_order_relaxed);
    // Another caller has come since: this thread's CPU is his.
    if (all->busy.load(std::memory_order_relaxed) > job->width) return;
  }
}

void Workers::help(Job* job, std::unique_lock<std::mutex>* lock) {
  --job->wanted;
  wanted.fetch_sub(1, std::memory_order_relaxed);
  job->helpers.fetch_add(1, std::memory_order_relaxed);
  ++helping;
  busy.fetch_add(1, std::memory_order_relaxed);
  const int more = job->wanted;
  lock->unlock();
  if (more > 0) work.notify_one();
  if (more > 1) work.notify_one();
  std::exception_ptr error;
  {
    const auto bytes = static_cast<std::size_t>(job->range.own_bytes);
    const std::unique_ptr<char, AlignedFree> own(
        bytes == 0 ? nullptr
                   : static_cast<char*>(::operator new(bytes, std::align_val_t{64}, std::nothrow)));
    try {
      if (own || bytes == 0) run_ranges(job, own.get(), this);
    } catch (...) {
      job->stop();
      error = std::current_exception();
    }
  }
  busy.fetch_sub(1, std::memory_order_relaxed);
  lock->lock();
  --helping;
  if (error && !job->error) job->error = std::move(error);
  if (job->helpers.fetch_sub(1, std::memory_order_relaxed) == 1) left.notify_all();
}

/// Under the mutex: this worker is about to end.
void Workers::retire() {
  const auto mine = std::find_if(threads.begin(), threads.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  ended.push_back(std::move(*mine));
  threads.erase(mine);
  --alive;
  left.notify_all();
}

/// The life of a worker.
void Workers::run() {
  settle_thread();
  t_inside = true;
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    if (Job* job = joinable()) {
      help(job, &lock);
      lock.unlock();
      spin_until([this] { return wanted.load(std::memory_order_relaxed) > 0; });
      lock.lock();
    } else if (alive > most) {
      return retire();
    } else {
      work.wait(lock);
    }
  }
}

/// The calling thread is busy with a large kernel while this lives, and calls within it run alone.
class Busy {
 public:
  explicit Busy(Workers& all)
      : all_(all), count_(all.busy.fetch_add(1, std::memory_order_relaxed) + 1) {
    t_inside = true;
  }
  ~Busy() {
    t_inside = false;
    all_.busy.fetch_sub(1, std::memory_order_relaxed);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  int count() const noexcept { return count_; }

 private:
  Workers& all_;
  int count_;
};

/// Units from `begin` on, with helpers.
std::uint64_t run_helped(Workers& all, const Range& range, std::int64_t begin, int width,
                         int helpers, double range_ns, double unit_ns) {
  const std::int64_t shortest = units_in(range, range_ns, unit_ns);
  Job job{range,
          width,
          2 * (helpers + 1),
          shortest,
          std::max(shortest, units_in(range, kLongestNs, unit_ns)),
          {begin}};
  all.open(&job, helpers);
  try {
    run_ranges(&job, nullptr, nullptr);
  } catch (...) {
    job.stop();
    all.close(&job);
    throw;
  }
  all.close(&job);
  if (job.error) std::rethrow_exception(job.error);
  return job.faults.load(std::memory_order_relaxed);
}

}  // namespace

std::uint64_t run_split(const Range& range) {
  if (t_inside) return range.run(range.context, 0, range.units, nullptr);
  Workers& all = workers();
  const Busy busy(all);
  const int width = t_own_count != 0 ? t_own_count : num_threads();
  const int free = width - busy.count();
  if (free < 1) return range.run(range.context, 0, range.units, nullptr);
  double unit_ns = range.estimated_ns / static_cast<double>(range.units);
  std::int64_t begin = units_in(range, kProbeNs, unit_ns);
  std::uint64_t faults = 0;
  if (begin <= range.units / 8) {
    const Clock::time_point start = Clock::now();
    faults = range.run(range.context, 0, begin, nullptr);
    const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
    unit_ns = std::max(taken.count(), 1.0) / static_cast<double>(begin);
  } else {
    begin = 0;
    unit_ns /= kOverestimate;
  }
  const double pays_ns = g_helper_ns.load(std::memory_order_relaxed);
  const double helpers = unit_ns * static_cast<double>(range.units - begin) / pays_ns;
  if (helpers < 1) return faults | range.run(range.context, begin, range.units, nullptr);
  return faults | run_helped(all, range, begin, width,
                             static_cast<int>(std::min<double>(free, helpers)), kRange * pays_ns,
                             unit_ns);
}

int num_threads() {
  const int count = g_count.load(std::memory_order_relaxed);
  if (count != 0) return count;
  int known = g_default.load(std::memory_order_relaxed);
  if (known == 0) g_default.store(known = usable_cpus(), std::memory_order_relaxed);
  return known;
}

void set_num_threads(int count) {
  g_count.store(count, std::memory_order_relaxed);
  if (count == 0) g_default.store(0, std::memory_order_relaxed);  // the mask may be another by now
  Workers* all = g_workers.load(std::memory_order_acquire);
  if (all == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(all->mutex);
    all->most = num_threads() - 1;
  }
  all->work.notify_all();
}

void set_helper_ns(double ns) noexcept { g_helper_ns.store(ns, std::memory_order_relaxed); }

int set_own_num_threads(int count) noexcept { return std::exchange(t_own_count, count); }

ThreadCounts thread_counts() {
  Workers* all = g_workers.load(std::memory_order_acquire);
  if (all == nullptr) return {};
  const std::lock_guard<std::mutex> lock(all->mutex);
  return {all->alive, all->busy.load(std::memory_order_relaxed),
          all->split.load(std::memory_order_relaxed), all->helped.load(std::memory_order_relaxed)};
}

void stop_workers() {
  Workers* all = g_workers.load(std::memory_order_acquire);
  if (all == nullptr) return;
  std::unique_lock<std::mutex> lock(all->mutex);
  all->most = 0;
  all->work.notify_all();
  all->left.wait(lock, [all] { return all->alive == 0; });
  std::vector<std::thread> ended = std::exchange(all->ended, {});
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
}

}  // namespace opkiln::core
