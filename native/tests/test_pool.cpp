// test_pool.cpp: the pool's policy on a manual clock, exceptions at every step, nesting.
#include <algorithm>
#include <deque>
#include <map>
#include <thread>

#include "core/blocking.h"
#include "core/errors.h"
#include "support.h"

namespace opkiln::test {
namespace {

/// Exactly one state each, no pending event on an idle one, in-flight order is record order.
void check_counts(const ThreadTable& table, const FunctionState& function, std::int64_t live) {
  CHECK(function.stats.executors.load() == live);
  CHECK(table.executor_count() >= static_cast<std::size_t>(live));
}

ManualStream* waited_on = nullptr;
std::uint64_t* waited_clock = nullptr;

/// A blocking wait lets time pass until something finishes.
void* pass_time() {
  const std::size_t before = waited_on->pending();
  while (waited_on->pending() == before) {
    waited_on->advance(1);
    ++*waited_clock;
  }
  return nullptr;
}

struct Hooks {
  Hooks(ManualStream* stream, std::uint64_t* clock) {
    waited_on = stream;
    waited_clock = clock;
    set_blocking_hooks({&pass_time, [](void*) {}, nullptr});
  }
  ~Hooks() { set_blocking_hooks({}); }
};

/// `calls` calls, one tick each, on a stream that finishes `lag` ticks after the record; compared
/// call by call with a model of SEMANTICS 5.
void simulate(std::uint64_t lag, std::size_t limit, int calls) {
  ManualStream stream(lag);
  std::uint64_t clock = 0;
  const Hooks hooks(&stream, &clock);
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  PoolLimits limits;
  limits.limit = limit;
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  int built = 0;
  const auto build = [&] {
    ++built;
    return probe.build(stream);
  };

  struct Entry {
    int id;
    std::uint64_t due;
  };
  std::deque<Entry> model;  // in flight, oldest first
  std::vector<int> idle;
  std::map<const Executor*, int> ids;
  int model_built = 0;
  std::uint64_t model_waits = 0, model_clock = 0;
  bool same_order = true, same_clock = true;
  for (int call = 0; call < calls; ++call) {
    int expected = -1;
    if (!idle.empty()) {
      expected = idle.back();
      idle.pop_back();
    } else if (!model.empty() && model.front().due <= model_clock) {
      expected = model.front().id;
      model.pop_front();
    } else if (model.size() < limit) {
      expected = model_built++;
    } else {
      ++model_waits;
      model_clock = model.front().due;
      expected = model.front().id;
      model.pop_front();
    }
    // The table's own limits are for other tests: acquire on the pool itself.
    Pool* pool = table.find(key);
    Lease lease =
        pool != nullptr ? pool->acquire(limits, build) : table.acquire(key, *probe.function, build);
    const auto known = ids.emplace(&*lease, static_cast<int>(ids.size())).first;
    same_order = same_order && known->second == expected;
    same_clock = same_clock && clock == model_clock;
    probe.bind(*lease);
    lease->run();
    lease.release();
    if (lag == 0)
      idle.push_back(expected);
    else
      model.push_back({expected, model_clock + lag});
    stream.advance(1);
    ++clock;
    ++model_clock;
    pool = table.find(key);
    CHECK(pool->leased() == 0 && pool->idle() == idle.size() && pool->in_flight() == model.size());
  }
  CHECK(same_order);
  CHECK(same_clock);
  CHECK(built == model_built);
  CHECK(probe.function->stats.waits.load() == model_waits);
  const std::size_t busy = static_cast<std::size_t>(std::max<std::uint64_t>(lag, 1));
  CHECK(static_cast<std::size_t>(built) == std::min(busy, limit));
  CHECK((model_waits != 0) == (lag > limit));
  stream.synchronize();
  table.trim(probe.function->id());
  check_counts(table, *probe.function, 0);
}

TEST(pool_on_a_manual_clock) {
  for (const std::uint64_t lag : {0, 1, 3, 20})
    for (const std::size_t limit :
         {std::size_t{1}, std::size_t{4}, std::size_t{10}, std::size_t{21}})
      simulate(lag, limit, 100);
}

TEST(pool_never_finishing_stream_times_out) {
  ManualStream stream(ManualStream::kNever);
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  TableLimits limits;
  const TableLimits before = table.limits();
  limits.pool.timeout = std::chrono::milliseconds(2);
  table.set_limits(limits);
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  const auto call = [&] {
    Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(stream); });
    probe.bind(*lease);
    lease->run();
    lease.release();
  };
  for (int i = 0; i < 10; ++i) call();
  bool seen = false;
  try {
    call();
  } catch (const PoolTimeout& e) {
    seen = e.in_flight == 10 && e.idle == 0 && e.leased == 0 && e.event_age_s.size() == 10 &&
           e.event_age_s.front() >= e.event_age_s.back() && key.equals(e.key.data(), e.key.size());
  }
  CHECK(seen);
  CHECK(probe.function->stats.waits.load() == 1);
  check_counts(table, *probe.function, 10);
  stream.synchronize();
  call();
  check_counts(table, *probe.function, 10);
  table.set_limits(before);
  stream.synchronize();
  table.trim(probe.function->id());
}

TEST(pool_queue_limited_grows_to_the_hard_cap) {
  ManualStream stream(ManualStream::kNever, {1, 0}, true);
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  PoolLimits limits;
  limits.queue_limited = QueuePolicy::kGrow;
  limits.timeout = std::chrono::milliseconds(1);
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  const auto build = [&] { return probe.build(stream); };
  const auto call = [&] {
    Pool* pool = table.find(key);
    Lease lease =
        pool != nullptr ? pool->acquire(limits, build) : table.acquire(key, *probe.function, build);
    probe.bind(*lease);
    lease->run();
    lease.release();
  };
  for (int i = 0; i < 64; ++i) call();
  CHECK(probe.function->stats.grew_past_limit.load() == 54);
  CHECK_THROWS(PoolTimeout, call());
  check_counts(table, *probe.function, 64);
  stream.synchronize();
  table.trim(probe.function->id());
}

TEST(pool_passes_an_unfinished_executor_on_another_stream_only) {
  ManualStream slow(ManualStream::kNever), quick(1);
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  const Executor* made[3] = {};
  ManualStream* const streams[3] = {&slow, &quick, &slow};
  for (int i = 0; i < 3; ++i) {
    Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(*streams[i]); });
    made[i] = &*lease;
    probe.bind(*lease);
    lease->run();
    lease.release();
  }
  quick.advance(1);
  const auto no_build = []() -> std::unique_ptr<Executor> { throw Error("built"); };
  Lease lease = table.acquire(key, *probe.function, no_build);
  CHECK(&*lease == made[1]);
  lease.cancel();
  CHECK(table.find(key)->in_flight() == 2 && table.find(key)->idle() == 1);
  slow.synchronize();
  table.trim(probe.function->id());
}

/// Fails to record once armed.
class FaultyStream final : public Stream {
 public:
  FaultyStream() : Stream({1, 0}, false) {}
  void enqueue(Event& event, std::uint64_t generation) override {
    if (armed) throw KernelFailure{};
    event.complete(generation);
  }
  void submit(Work& work) override { work.dropped(); }
  void wait(Event& event, std::uint64_t generation) override { event.wait_for(generation); }
  void synchronize() override { ++synchronized; }
  bool armed = false;
  int synchronized = 0;
};

TEST(pool_survives_an_exception_at_each_step) {
  const std::int64_t events_before = EventPool::outstanding();
  FaultyStream stream;
  ProbePlan probe(3);
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  enum Step { kBuild, kBind, kLaunch0, kLaunch1, kLaunch2, kRecord, kCollect, kNone };
  const auto call = [&](Step step) {
    Lease lease = table.acquire(key, *probe.function, [&] {
      if (step == kBuild) throw KernelFailure{};
      return probe.build(stream);
    });
    if (step == kBind) throw KernelFailure{};
    probe.bind(*lease);
    probe_launches = 0;
    probe_throw_at = step >= kLaunch0 && step <= kLaunch2 ? step - kLaunch0 : -1;
    lease->run();
    if (step == kCollect) throw KernelFailure{};
    stream.armed = step == kRecord;
    lease.release();
  };
  CHECK_THROWS(KernelFailure, call(kBuild));
  CHECK(table.find(key) == nullptr);  // nothing is kept of a key that never worked
  for (int step = kBind; step < kNone; ++step) {
    for (int round = 0; round < 3; ++round) {
      call(kNone);
      CHECK(probe_launches == 3);
      const std::uint64_t built = probe.function->stats.built.load();
      CHECK_THROWS(KernelFailure, call(static_cast<Step>(step)));
      stream.armed = false;
      probe_throw_at = -1;
      const Pool* pool = table.find(key);
      const bool kept = step == kBind || step == kCollect;
      CHECK(pool->leased() == 0 && pool->live() == (kept ? 1u : 0u));
      call(kNone);
      CHECK(probe.function->stats.built.load() == built + (kept ? 0 : 1));
    }
  }
  CHECK(stream.synchronized == 3);
  CHECK(EventPool::outstanding() == events_before + 1);
  table.trim(probe.function->id());
  CHECK(EventPool::outstanding() == events_before);
  check_counts(table, *probe.function, 0);
}

TEST(pool_keeps_a_failed_executor_until_its_work_is_done) {
  ManualStream stream(5);
  ProbePlan probe(2);
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  const auto build = [&] { return probe.build(stream); };
  probe_launches = 0;
  probe_throw_at = 1;
  CHECK_THROWS(KernelFailure, {
    Lease lease = table.acquire(key, *probe.function, build);
    probe.bind(*lease);
    lease->run();
  });
  probe_throw_at = -1;
  CHECK(table.find(key)->in_flight() == 1);
  stream.advance(5);
  {
    Lease lease = table.acquire(key, *probe.function, build);
    CHECK(probe.function->stats.built.load() == 2);  // the failed one is never reused
    lease.cancel();
  }
  check_counts(table, *probe.function, 1);
  table.trim(probe.function->id());
}

/// Calls itself while it holds a lease, or while it builds.
void recurse(ProbePlan& probe, const KeyView& key, int depth, std::vector<const Executor*>* held,
             bool in_build) {
  ThreadTable& table = ThreadTable::current();
  Lease lease = table.acquire(key, *probe.function, [&] {
    if (in_build && depth > 1) recurse(probe, key, depth - 1, held, true);
    return probe.build();
  });
  CHECK(std::find(held->begin(), held->end(), &*lease) == held->end());
  held->push_back(&*lease);
  probe.bind(*lease);
  lease->run();
  if (!in_build && depth > 1) recurse(probe, key, depth - 1, held, false);
  held->pop_back();
  lease.release();
}

TEST(pool_nested_calls_get_executors_of_their_own) {
  std::vector<const Executor*> held;
  for (const int depth : {1, 3, 12, 64}) {
    ProbePlan probe;
    KeyBuilder builder(probe.function->id());
    const KeyView key = probe.key(builder).view();
    recurse(probe, key, depth, &held, false);
    check_counts(ThreadTable::current(), *probe.function, depth);
    ThreadTable::current().trim(probe.function->id());
  }
  ProbePlan probe;
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  CHECK_THROWS(PoolTimeout, recurse(probe, key, 65, &held, false));  // all leased by this thread
  CHECK(ThreadTable::current().find(key)->leased() == 0);
  ThreadTable::current().trim(probe.function->id());
  ProbePlan building;
  KeyBuilder second(building.function->id());
  held.clear();
  recurse(building, building.key(second).view(), 3, &held, true);
  // The innermost is idle again when the next asks: it was built all the same, one each at most.
  CHECK(building.function->stats.built.load() == 3);
  ThreadTable::current().trim(building.function->id());
}

TEST(pool_nothing_launched_is_idle_at_once) {
  ManualStream stream(ManualStream::kNever);
  ProbePlan probe(1, 0);
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  ThreadTable& table = ThreadTable::current();
  for (int i = 0; i < 5; ++i) {
    Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(stream); });
    probe.bind(*lease);
    lease->run();
    lease.release();
  }
  check_counts(table, *probe.function, 1);
  CHECK(table.find(key)->idle() == 1 && stream.pending() == 0);
  table.trim(probe.function->id());
}

}  // namespace
}  // namespace opkiln::test
