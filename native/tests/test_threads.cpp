// test_threads.cpp: ranges over several threads: every unit once, faults, exceptions, nesting,
// fork; the same bits of nests for any count; quotas of control groups.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "core/cpus.h"
#include "core/threads.h"
#include "support.h"

namespace opkiln::test {
namespace {

struct Count {
  explicit Count(int count) { set_num_threads(count); }
  ~Count() {
    set_num_threads(0);
    stop_workers();
  }
};

// So few units that none is timed first, and an estimate that is worth any number of helpers.
constexpr std::int64_t kTold = 7;
constexpr double kToldNs = 1e12;

/// Counts how often each unit ran; ranges wait for each other where `together` says so.
struct Work {
  std::vector<std::atomic<int>> ran;
  std::int64_t grain;
  std::atomic<bool> cut_between{false}, helped{false};
  std::atomic<int> ranges{0};
  std::thread::id caller = std::this_thread::get_id();
  std::int64_t throws_at = -1;
  bool helper_throws = false;
  std::barrier<>* together = nullptr;  // of the first range of each thread
  std::mutex mutex;
  std::set<std::thread::id> met;

  Work(std::int64_t units, std::int64_t grain_of)
      : ran(static_cast<std::size_t>(units)), grain(grain_of) {}

  bool first_of_thread() {
    const std::lock_guard<std::mutex> lock(mutex);
    return met.insert(std::this_thread::get_id()).second;
  }
  std::uint64_t run(std::int64_t begin, std::int64_t end, const char* own) {
    const bool helper = std::this_thread::get_id() != caller;
    if (begin % grain != 0) cut_between = true;
    if (helper) helped = true;
    CHECK(helper == (own != nullptr));
    if (together != nullptr && begin != 0 && first_of_thread()) together->arrive_and_wait();
    ++ranges;
    if (helper && helper_throws) throw KernelFailure{};
    for (std::int64_t i = begin; i < end; ++i) {
      if (i == throws_at) throw KernelFailure{};
      ++ran[static_cast<std::size_t>(i)];
    }
    return std::uint64_t{1} << (begin / grain % 60);
  }
  Range range(double estimated_ns = 1e9) {
    return {static_cast<std::int64_t>(ran.size()),
            grain,
            estimated_ns,
            64,
            [](const void* work, std::int64_t begin, std::int64_t end, char* own) {
              return static_cast<Work*>(const_cast<void*>(work))->run(begin, end, own);
            },
            this};
  }
  bool each_once() const {
    for (const std::atomic<int>& count : ran)
      if (count != 1) return false;
    return true;
  }
};

TEST(every_unit_runs_once_for_any_count) {
  for (const int count : {1, 2, 3, 8}) {
    const Count scope(count);
    for (const std::int64_t units : {1, 2, 7, 100, 1001, 65537})
      for (const std::int64_t grain : {1, 16, 100}) {
        Work work(units, grain);
        run_split(work.range());
        CHECK(work.each_once() && !work.cut_between);
        CHECK(count != 1 || (work.ranges == 1 && !work.helped));
      }
  }
}

TEST(a_worker_takes_part_and_the_caller_waits_for_it) {
  const Count scope(2);
  const std::uint64_t before = thread_counts().split;
  for (int i = 0; i < 50; ++i) {
    // Both threads must be in a range at the same time: this would hang without a worker.
    std::barrier both(2);
    Work work(kTold, 1);
    work.together = &both;
    const std::uint64_t faults = run_split(work.range(kToldNs));
    CHECK(work.helped && work.each_once() && faults != 0);
  }
  CHECK(thread_counts().workers == 1 && thread_counts().busy == 0);
  CHECK(thread_counts().split == before + 50);
}

TEST(small_work_starts_no_thread) {
  const Count scope(4);
  Work work(1000, 1);
  run_split(work.range(kSplitNs));
  CHECK(work.each_once() && thread_counts().workers == 0);
}

TEST(an_exception_comes_back_after_all_have_stopped) {
  const Count scope(3);
  for (const std::int64_t at : {0, 1, 500, 999}) {
    Work work(1000, 1);
    work.throws_at = at;
    CHECK_THROWS(KernelFailure, run_split(work.range()));
    CHECK(thread_counts().busy == 0);
    Work after(1000, 1);
    run_split(after.range());
    CHECK(after.each_once());
  }
}

TEST(an_exception_of_a_worker_reaches_the_caller) {
  const Count scope(2);
  std::barrier both(2);
  Work work(kTold, 1);
  work.together = &both;
  work.helper_throws = true;
  CHECK_THROWS(KernelFailure, run_split(work.range(kToldNs)));
  CHECK(work.helped && thread_counts().busy == 0);
}

TEST(within_a_range_calls_run_alone) {
  const Count scope(4);
  struct Outer {
    std::atomic<int> inner_ranges{0}, inner{0};
  } outer;
  const Range range{kTold,
                    1,
                    kToldNs,
                    0,
                    [](const void* context, std::int64_t begin, std::int64_t end, char*) {
                      auto* of = static_cast<Outer*>(const_cast<void*>(context));
                      for (std::int64_t i = begin; i < end; ++i) {
                        Work nested(1000, 1);
                        nested.caller = std::this_thread::get_id();
                        run_split(nested.range());
                        CHECK(nested.each_once() && !nested.helped);
                        of->inner_ranges += nested.ranges;
                        ++of->inner;
                      }
                      return std::uint64_t{0};
                    },
                    &outer};
  run_split(range);
  CHECK(outer.inner == kTold && outer.inner_ranges == kTold);
}

TEST(callers_share_the_workers_and_never_exceed_the_count) {
  constexpr int kCallers = 6, kCount = 3;
  const Count scope(kCount);
  std::atomic<int> inside{0}, helpers{0}, most_helpers{0};
  struct Shared {
    std::atomic<int>&helpers, &most;
    std::thread::id caller;
  };
  std::vector<std::thread> threads;
  std::barrier start(kCallers);
  for (int t = 0; t < kCallers; ++t)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 40; ++i) {
        const Shared shared{helpers, most_helpers, std::this_thread::get_id()};
        const Range range{512,
                          1,
                          512 * 8e6,
                          0,
                          [](const void* context, std::int64_t, std::int64_t, char*) {
                            const auto* of = static_cast<const Shared*>(context);
                            if (std::this_thread::get_id() == of->caller) return std::uint64_t{0};
                            const int now = ++of->helpers;
                            int most = of->most.load();
                            while (most < now && !of->most.compare_exchange_weak(most, now)) {
                            }
                            --of->helpers;
                            return std::uint64_t{0};
                          },
                          &shared};
        run_split(range);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(most_helpers <= kCount - 1 && thread_counts().workers <= kCount - 1);
  CHECK(thread_counts().busy == 0);
}

TEST(a_thread_may_have_a_count_of_its_own) {
  const Count scope(2);
  CHECK(set_own_num_threads(1) == 0);
  Work alone(1000, 1);
  run_split(alone.range());
  CHECK(alone.ranges == 1);
  std::thread([] {
    std::barrier both(2);
    Work work(kTold, 1);
    work.together = &both;
    run_split(work.range(kToldNs));
    CHECK(work.helped);
  }).join();
  CHECK(set_own_num_threads(0) == 1);
}

TEST(fewer_threads_end_the_surplus) {
  const Count scope(4);
  std::barrier all(4);
  Work work(kTold, 1);
  work.together = &all;
  run_split(work.range(kToldNs));
  CHECK(thread_counts().workers == 3);
  set_num_threads(2);
  while (thread_counts().workers != 1) std::this_thread::yield();
  stop_workers();
  CHECK(thread_counts().workers == 0);
  std::barrier both(2);
  Work again(kTold, 1);
  again.together = &both;
  run_split(again.range(kToldNs));
  CHECK(again.helped && again.each_once());
}

TEST(a_forked_child_starts_its_own_workers) {
  const Count scope(2);
  // A worker is in the middle of a range of another thread while this one forks.
  std::atomic<bool> may_go{false}, running{false};
  struct Held {
    std::atomic<bool>&may_go, &running;
  } held{may_go, running};
  std::thread other([&] {
    const Range range{2,
                      1,
                      8e12,
                      0,
                      [](const void* context, std::int64_t, std::int64_t, char*) {
                        const auto* of = static_cast<const Held*>(context);
                        of->running = true;
                        while (!of->may_go) std::this_thread::yield();
                        return std::uint64_t{0};
                      },
                      &held};
    run_split(range);
  });
  while (!running) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends by a signal, which is no exit
    const bool none = thread_counts().workers == 0 && thread_counts().busy == 0;
    std::barrier both(2);
    Work work(kTold, 1);
    work.together = &both;
    run_split(work.range(kToldNs));
    _exit(none && work.helped && work.each_once() ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  may_go = true;
  other.join();
}

// ---- nests ----

/// Runs an executor with several counts; every run fills `out` anew with the same bytes.
void check_same_bytes(Executor& executor, std::vector<char>* out, const char* what) {
  std::vector<char> want;
  for (const int count : {1, 2, 3, 5}) {
    const Count scope(count);
    for (int round = 0; round < (count == 1 ? 1 : 3); ++round) {
      std::fill(out->begin(), out->end(), static_cast<char>(count + 50));
      executor.run();
      if (want.empty()) want = *out;
      report(*out == want, what, __FILE__, __LINE__);
    }
  }
}

/// x of random layout -> 3 x + 5 x^T-like sums by the linear kernel, all cuts.
TEST(large_nests_have_the_same_bits_for_any_count) {
  Rng rng(11);
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{100003}, {317, 331}, {7, 11, 1301}, {50021, 3}, {3, 40009}}) {
    for (int layout = 0; layout < 4; ++layout) {
      auto plan = make_ref<Plan>();
      const int rank = static_cast<int>(shape.size());
      const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, rank);
      const int y = plan->buffer(BufferKind::kArg, DType::kI32, {}, rank);
      KernelSpec kernel;
      kernel.ns_per_element = 100;
      OperandSpec in{x, {}, false}, second{y, {}, false}, to{-1, {}, true};
      for (int axis = 0; axis < rank; ++axis) {
        kernel.extents.push_back(plan->host(HostOp::kExtent, x, -1, axis));
        in.axes.emplace_back(axis);
        second.axes.emplace_back(axis);
        to.axes.emplace_back(axis);
      }
      to.buffer = plan->buffer(BufferKind::kOut, DType::kI32, kernel.extents);
      kernel.operands = {in, second, to};
      plan->kernel(kernel);
      plan->output_buffer(to.buffer);
      plan->finish();
      add_linear(*plan, 0, DType::kI32);
      Strided a = random_layout(rng, DType::kI32, shape, true);
      Strided b = random_layout(rng, DType::kI32, shape, true);
      fill(rng, &a), fill(rng, &b);
      const ArrayView args[2] = {a.view(), b.view()};
      Instantiated made = instantiate(plan, args, nullptr);
      if (!CHECK(made.executor)) return;
      Executor& ex = *made.executor;
      CHECK(ex.nest(0).split && !ex.nest(0).simple);
      std::vector<char> out(static_cast<std::size_t>(ex.out(0).nbytes));
      for (int i = 0; i < 2; ++i) ex.args()[i] = args[i].data;
      ex.outs()[0] = out.data();
      check_same_bytes(ex, &out, "elementwise, any count");
    }
  }
}

/// Where two threads meet in their first row of a range that is not timed.
std::barrier<>* rows_meet = nullptr;
thread_local bool row_met = false;

/// Keeps 2 x of a row in scratch for its second loop, and the row's sum in the kernel's own.
std::uint64_t keeping(const KernelArgs* a, std::int64_t begin, std::int64_t end) {
  if (a == nullptr) return 64;
  for (std::int64_t r = begin; r < end; ++r) {
    const char* x = a->ptr[0] + r * a->row[0];
    char *kept = a->ptr[1] + r * a->row[1], *out = a->ptr[3] + r * a->row[3];
    store<std::int64_t>(a->scratch, 0);
    for (std::int64_t c = 0; c < a->cols; ++c) {
      store<std::int32_t>(kept + c * a->col[1], 2 * load<std::int32_t>(x + c * a->col[0]));
      store<std::int64_t>(
          a->scratch, load<std::int64_t>(a->scratch) + load<std::int32_t>(kept + c * a->col[1]));
    }
    if (rows_meet != nullptr && begin != 0 && !std::exchange(row_met, true))
      rows_meet->arrive_and_wait();
    const char* back = a->ptr[2] + r * a->row[2];
    for (std::int64_t c = 0; c < a->cols; ++c)
      store<std::int32_t>(out + c * a->col[3],
                          load<std::int32_t>(back + c * a->col[2]) +
                              static_cast<std::int32_t>(load<std::int64_t>(a->scratch)));
  }
  return 0;
}

TEST(rows_that_keep_something_have_it_for_each_thread) {
  Rng rng(5);
  constexpr std::int64_t kRows = 801, kCols = 97;
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, 2);
  const int rows = plan->host(HostOp::kExtent, x, -1, 0),
            cols = plan->host(HostOp::kExtent, x, -1, 1);
  const int kept = plan->buffer(BufferKind::kTemp, DType::kI32, {cols});
  const int out = plan->buffer(BufferKind::kOut, DType::kI32, {rows, cols});
  KernelSpec kernel;
  kernel.ns_per_element = 100;
  kernel.extents = {rows, cols};
  kernel.reduce_mask = 2;
  kernel.operands = {
      {x, {0, 1}, false}, {kept, {1}, true}, {kept, {1}, false}, {out, {0, 1}, true}};
  plan->kernel(kernel);
  plan->output_buffer(out);
  plan->finish();
  Strided a = dense(DType::kI32, {kRows, kCols});
  fill(rng, &a);
  const ArrayView args[1] = {a.view()};
  const auto ex = make(plan, args, nullptr, [&](const Missing& m) {
    plan->add_variant(m.kernel, m.column_class, reinterpret_cast<void*>(&keeping));
  });
  const Nest& nest = ex->nest(0);
  CHECK(nest.split && nest.nheld == 2 && nest.own_bytes >= 64 + kCols * 4);
  std::vector<char> result(static_cast<std::size_t>(ex->out(0).nbytes));
  ex->args()[0] = args[0].data;
  ex->outs()[0] = result.data();
  check_same_bytes(*ex, &result, "scratch of rows, any count");
  const std::vector<char> want = result;
  std::fill(result.begin(), result.end(), 9);
  const Count scope(2);
  set_helper_ns(0);
  std::barrier both(2);
  rows_meet = &both;
  row_met = false;
  ex->run();
  rows_meet = nullptr;
  set_helper_ns(kHelperNs);
  CHECK(result == want);
}

// ---- quotas ----

/// A made-up root with the files that tell of control groups.
struct Root {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("opkiln-root-" + std::to_string(getpid()));
  Root() { std::filesystem::create_directories(path); }
  ~Root() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text << "\n";
  }
};

TEST(quotas_of_control_groups_v2) {
  const Root root;
  const std::string at = root.path.string();
  CHECK(quota_cpus(at) == 0);  // no files
  root.write("proc/self/cgroup", "0::/jobs/mine");
  root.write("proc/self/mountinfo",
             "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate");
  root.write("sys/fs/cgroup/jobs/mine/cpu.max", "max 100000");
  CHECK(quota_cpus(at) == 0);
  root.write("sys/fs/cgroup/jobs/cpu.max", "250000 100000");  // of a group above it
  CHECK(quota_cpus(at) == 3);
  root.write("sys/fs/cgroup/jobs/mine/cpu.max", "50000 100000");
  CHECK(quota_cpus(at) == 1 && usable_cpus(at) == 1);
}

TEST(quotas_of_a_container) {
  const Root root;  // it sees its own part of the hierarchy only
  root.write("proc/self/cgroup", "0::/");
  root.write("proc/self/mountinfo", "30 23 0:26 /docker/7f /sys/fs/cgroup ro - cgroup2 cgroup rw");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000");
  CHECK(quota_cpus(root.path.string()) == 2);
}

TEST(quotas_of_control_groups_v1) {
  const Root root;
  const std::string at = root.path.string();
  root.write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/7f\n0::/");
  root.write("proc/self/mountinfo",
             "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "32 23 0:28 /docker/7f /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  CHECK(quota_cpus(at) == 0);
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000");
  CHECK(quota_cpus(at) == 2);
}

}  // namespace
}  // namespace opkiln::test
