// test_table.cpp: keys, caps and eviction, dead functions, threads, fork, no allocation when warm.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/errors.h"
#include "support.h"

namespace opkiln::test {
namespace {

void call(ProbePlan& probe, std::uint64_t salt = 0, Stream& stream = inline_cpu_stream()) {
  KeyBuilder builder(probe.function->id());
  Lease lease = ThreadTable::current().acquire(probe.key(builder, salt).view(), *probe.function,
                                               [&] { return probe.build(stream); });
  probe.bind(*lease);
  lease->run();
  lease.release();
}

/// Limits for the life of a test, on a table emptied before and after.
struct Limits {
  explicit Limits(const TableLimits& limits) : before(ThreadTable::current().limits()) {
    ThreadTable::current().trim();
    ThreadTable::current().set_limits(limits);
  }
  ~Limits() {
    ThreadTable::current().trim();
    ThreadTable::current().set_limits(before);
  }
  TableLimits before;
};

TEST(key_tells_everything_apart) {
  const std::int64_t shape[2] = {3, 4}, other[2] = {4, 3}, strides[2] = {16, 4}, back[2] = {-16, 4};
  std::vector<std::unique_ptr<KeyBuilder>> keys;
  const auto add = [&](auto&& body, std::uint64_t id = 1) {
    keys.push_back(std::make_unique<KeyBuilder>(id));
    body(*keys.back());
  };
  add([&](KeyBuilder& k) { k.array(DType::kF32, 2, shape, strides, true); });
  add([&](KeyBuilder& k) { k.array(DType::kF32, 2, shape, strides, true); }, 2);
  add([&](KeyBuilder& k) { k.array(DType::kF32, 2, shape, strides, false); });
  add([&](KeyBuilder& k) { k.array(DType::kI32, 2, shape, strides, true); });
  add([&](KeyBuilder& k) { k.array(DType::kF32, 2, other, strides, true); });
  add([&](KeyBuilder& k) { k.array(DType::kF32, 2, shape, back, true); });
  add([&](KeyBuilder& k) { k.array(DType::kF32, 1, shape, strides, true); });
  add([&](KeyBuilder& k) { k.array(DType::kF32, 0, shape, strides, true); });
  add([&](KeyBuilder& k) { k.out(DType::kF32, 2, shape, strides, true); });
  add([&](KeyBuilder& k) { k.absent_out(); });
  add([&](KeyBuilder& k) { k.weak('i'); });
  add([&](KeyBuilder& k) { k.weak('f'); });
  add([&](KeyBuilder& k) { k.stat('i'); });
  add([&](KeyBuilder& k) { k.open('t', 2); });
  add([&](KeyBuilder& k) { k.open('l', 2); });
  add([&](KeyBuilder& k) { k.open('t', 1); });
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const KeyView a = keys[i]->view(), b = keys[j]->view();
      CHECK(a.equals(b.words, b.size) == (i == j));
      CHECK((a.hash == b.hash) == (i == j));
    }
}

TEST(key_of_a_thousand_arguments) {
  const std::int64_t shape[3] = {3, 4, 5}, strides[3] = {80, 20, 4};
  KeyBuilder a(9), b(9);
  for (int i = 0; i < 1500; ++i) {
    a.array(DType::kF32, 3, shape, strides, true);
    b.array(DType::kF32, 3, shape, strides, i != 1499);
  }
  CHECK(a.size() == 1 + 1500 * 7);
  CHECK(a.view().hash == KeyBuilder::hash_words(a.view().words, a.view().words + a.size()));
  CHECK(!a.view().equals(b.view().words, b.view().size));
}

TEST(table_survives_hash_collisions) {
  const Limits scope{TableLimits{}};
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  // One hash for all, or hashes that fill neighbouring slots around the table's end.
  for (const std::uint64_t spread : {0, 1}) {
    std::vector<std::vector<std::uint64_t>> words;
    for (std::uint64_t i = 0; i < 100; ++i) words.push_back({probe.function->id(), i, spread});
    const auto view = [&](std::size_t i) {
      return KeyView{words[i].data(), words[i].size(), ~std::uint64_t{0} - spread * (i % 7)};
    };
    for (std::size_t i = 0; i < words.size(); ++i)
      table.acquire(view(i), *probe.function, [&] { return probe.build(); }).cancel();
    for (std::size_t i = 0; i < words.size(); ++i) {
      Pool* pool = table.find(view(i));
      CHECK(pool != nullptr && pool->matches(view(i)) && pool->idle() == 1);
    }
    // Erasing closes gaps without losing neighbours.
    TableLimits tight;
    tight.executors = 40;
    const TableLimits before = table.limits();
    table.set_limits(tight);
    words.push_back({probe.function->id(), 1000, spread});
    table.acquire(view(100), *probe.function, [&] { return probe.build(); }).cancel();
    std::size_t found = 0;
    for (std::size_t i = 0; i < words.size(); ++i) found += table.find(view(i)) != nullptr;
    CHECK(found == table.executor_count() && found <= 40 && found == table.pool_count());
    table.set_limits(before);
    table.trim();
    CHECK(table.pool_count() == 0 && table.bytes() == 0);
  }
}

TEST(table_evicts_the_unused) {
  TableLimits limits;
  limits.executors = 16;
  const Limits scope(limits);
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  for (std::uint64_t salt = 0; salt < 300; ++salt) {
    call(probe, 7777);  // always in use: CLOCK keeps it
    call(probe, salt);
    CHECK(table.executor_count() <= 16);
  }
  CHECK(probe.function->stats.built.load() == 301);
  CHECK(probe.function->stats.evictions.load() == 301 - table.executor_count());
  CHECK(probe.function->stats.executors.load() ==
        static_cast<std::int64_t>(table.executor_count()));
  CHECK(probe.function->stats.bytes.load() == static_cast<std::int64_t>(table.bytes()));
}

TEST(table_keeps_to_its_bytes) {
  TableLimits limits;
  limits.bytes = 20000;
  const Limits scope(limits);
  ProbePlan probe;
  for (std::uint64_t salt = 0; salt < 200; ++salt) call(probe, salt);
  CHECK(ThreadTable::current().bytes() < 20000 + 4096);
  CHECK(ThreadTable::current().executor_count() > 4);
}

TEST(table_never_evicts_what_is_in_flight_or_leased) {
  TableLimits limits;
  limits.executors = 4;
  const Limits scope(limits);
  ManualStream stream(ManualStream::kNever);
  ProbePlan probe, held;
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(held.function->id());
  Lease lease =
      table.acquire(held.key(builder).view(), *held.function, [&] { return held.build(); });
  for (std::uint64_t salt = 0; salt < 20; ++salt) call(probe, salt, stream);
  CHECK(probe.function->stats.in_flight.load() == 20);
  CHECK(table.executor_count() == 21);
  lease.release();
  stream.synchronize();
  for (std::uint64_t salt = 0; salt < 20; ++salt) call(probe, salt);
  CHECK(probe.function->stats.built.load() == 20);
  stream.synchronize();
  for (std::uint64_t salt = 100; salt < 110; ++salt) call(probe, salt);
  CHECK(table.executor_count() <= 4);
}

TEST(table_sheds_workspaces) {
  // t = 3 a + 5 b (temporary), out = 3 t + 5 a.
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
  const int n = plan->host(HostOp::kExtent, a, -1, 0);
  const int t = plan->buffer(BufferKind::kTemp, DType::kI32, {n});
  const int out = plan->buffer(BufferKind::kOut, DType::kI32, {n});
  KernelSpec first, second;
  first.extents = second.extents = {n};
  first.operands = {{a, {0}, false}, {a, {0}, false}, {t, {0}, true}};
  second.operands = {{t, {0}, false}, {a, {0}, false}, {out, {0}, true}};
  plan->kernel(first);
  plan->kernel(second);
  plan->output_buffer(out);
  plan->finish();
  add_linear(*plan, 0, DType::kI32);
  add_linear(*plan, 1, DType::kI32);
  auto function = make_ref<FunctionState>();
  TableLimits limits;
  limits.workspace_bytes = 100000;
  const Limits scope(limits);
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t size = 1000; size < 1030; ++size) {
      Strided in = dense(DType::kI32, {size}), result = dense(DType::kI32, {size});
      for (std::int64_t i = 0; i < size; ++i)
        store(in.bytes.data() + 4 * i, static_cast<std::int32_t>(i));
      const ArrayView args[1] = {in.view()};
      KeyBuilder key(function->id());
      key.array(DType::kI32, 1, args[0].shape, args[0].strides, true);
      Lease lease = ThreadTable::current().acquire(
          key.view(), *function, [&] { return instantiate(plan, args, nullptr).executor; });
      lease->args()[0] = args[0].data;
      lease->outs()[0] = result.bytes.data();
      lease->run();
      bool right = true;
      for (std::int64_t i = 0; i < size; ++i)
        right = right && load<std::int32_t>(result.bytes.data() + 4 * i) ==
                             29 * static_cast<std::int32_t>(i);
      CHECK(right);
      lease.release();
      CHECK(ThreadTable::current().workspace_bytes() < 100000 + 5000);
      CHECK(function->stats.workspace_bytes.load() ==
            static_cast<std::int64_t>(ThreadTable::current().workspace_bytes()));
    }
  }
  CHECK(function->stats.built.load() == 30);
}

TEST(table_sweeps_dead_functions) {
  const Limits scope{TableLimits{}};
  ThreadTable& table = ThreadTable::current();
  ProbePlan gone, stays, cleared;
  for (std::uint64_t salt = 0; salt < 20; ++salt) {
    call(gone, salt);
    call(cleared, salt);
    call(stays, salt);
  }
  KeyBuilder builder(gone.function->id());
  Lease held =
      table.acquire(gone.key(builder, 3).view(), *gone.function, [&] { return gone.build(); });
  const std::uint64_t old = cleared.function->id();
  gone.function->retire();
  cleared.function->renew();
  CHECK(cleared.function->id() != old);
  call(stays, 0);  // a hit: nothing is swept
  CHECK(table.pool_count() == 60);
  call(stays, 999);
  CHECK(table.pool_count() == 22);
  CHECK(gone.function->stats.executors.load() == 1);  // the leased one
  held.release();
  CHECK(gone.function->stats.executors.load() == 0);
  call(cleared, 0);
  CHECK(table.pool_count() == 22);  // the dead pool went, a new one came
  CHECK(DeadFunctions::size() == 0);
}

TEST(threads_own_their_executors) {
  ThreadTable::current();
  const std::size_t tables = ThreadTable::live_tables();
  const std::int64_t events = EventPool::outstanding();
  ProbePlan shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&shared] {
      for (int round = 0; round < 60; ++round)
        for (std::uint64_t salt = 0; salt < 50; ++salt) call(shared, salt);
      ThreadTable& table = ThreadTable::current();
      CHECK(table.pool_count() == 50 && table.executor_count() == 50 && table.stats().misses == 50);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(shared.function->stats.built.load() == 400);
  CHECK(shared.function->stats.executors.load() == 0);
  CHECK(shared.function->stats.bytes.load() == 0);
  CHECK(ThreadTable::live_tables() == tables);
  CHECK(EventPool::outstanding() == events);
  CHECK(shared.plan->use_count() == 1 && shared.function->use_count() == 1);
}

TEST(threads_share_a_plan_while_variants_arrive) {
  Rng rng(11);
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, DType::kI32, {}, 1);
  const int n = plan->host(HostOp::kExtent, a, -1, 0);
  const int out = plan->buffer(BufferKind::kOut, DType::kI32, {n});
  KernelSpec kernel;
  kernel.extents = {n};
  kernel.operands = {{a, {0}, false}, {a, {0}, false}, {out, {0}, true}};
  plan->kernel(kernel);
  plan->output_buffer(out);
  plan->finish();
  std::atomic<int> worked{0};
  auto function = make_ref<FunctionState>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Strided in = dense(DType::kI32, {5});
      const ArrayView args[1] = {in.view()};
      for (int i = 0; i < 200; ++i) {
        if (instantiate(plan, args, nullptr).executor) ++worked;
        if (i == 100) add_linear(*plan, 0, DType::kI32);
        if (i % 50 == 0) function->renew();
        ProbePlan own;
        call(own);
        own.function->retire();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(worked >= 4 * 99);
}

TEST(thread_limit_names_its_numbers) {
  ThreadTable::current();
  const std::size_t live = ThreadTable::live_tables();
  ThreadTable::set_max_thread_pools(live);
  std::thread([live] {
    bool seen = false;
    try {
      ThreadTable::current();
    } catch (const ThreadPoolLimit& e) {
      seen = e.limit == live && e.live == live;
    }
    CHECK(seen);
  }).join();
  ThreadTable::set_max_thread_pools(0);
  std::thread([] { ThreadTable::current(); }).join();
  CHECK(ThreadTable::live_tables() == live);
}

TEST(fork_leaves_the_child_usable) {
  ProbePlan probe;
  call(probe);
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    while (!stop) {
      ProbePlan own;
      call(own);
      own.function->retire();
    }
  });
  int bad = 0;
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      call(probe, 1);
      probe.function->retire();
      call(probe, 2);
      _exit(ThreadTable::live_tables() == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    bad += status != 0;
  }
  stop = true;
  busy.join();
  CHECK(bad == 0);
  ThreadTable::current().trim();
}

TEST(warm_call_allocates_nothing) {
  ProbePlan probe(2);
  call(probe);
  const long before = allocation_count();
  for (int i = 0; i < 100; ++i) call(probe);
  CHECK(allocation_count() == before);
}

}  // namespace
}  // namespace opkiln::test
