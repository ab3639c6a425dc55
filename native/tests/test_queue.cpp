// test_queue.cpp: the asynchronous CPU stream: order, dependencies, its thread's life, fork, the
// pool.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/blocking.h"
#include "core/queue.h"
#include "support.h"

namespace opkiln::test {
namespace {

/// Holds a queue up until it is opened: an event that a manual clock completes.
struct Gate {
  ManualStream clock{1, {0, 0}};
  Ref<Event> event = make_ref<Event>(DeviceId{}, false);
  explicit Gate(Stream& stream) {
    event->record(clock);
    event->device_wait(stream);
  }
  ~Gate() { open(); }
  void open() { clock.advance(1); }
};

/// Writes its number into a log.
struct Note final : Work {
  Note(std::vector<int>* target, int n) : log(target), number(n) {}
  void run() noexcept override { log->push_back(number); }
  void finished() noexcept override { delete this; }
  void dropped() noexcept override {
    log->push_back(-number);
    delete this;
  }
  std::vector<int>* log;
  int number;
};

Ref<Event> submit(Stream& stream, std::vector<int>* log, int number) {
  auto event = make_ref<Event>(DeviceId{}, false);
  auto note = std::make_unique<Note>(log, number);
  event->record(stream, *note);
  static_cast<void>(note.release());
  return event;
}

/// Polls what another thread will make true.
template <class Holds>
bool eventually(Holds&& holds) {
  for (int i = 0; i < 20000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return false;
}

TEST(queue_does_work_in_order) {
  std::vector<int> log, wanted;
  QueueStream stream;
  CHECK(!stream.has_thread() && stream.pending() == 0);
  Ref<Event> last;
  {
    const Gate gate(stream);
    for (int i = 1; i <= 100; ++i) {
      last = submit(stream, &log, i);
      wanted.push_back(i);
    }
    CHECK(!last->query() && stream.pending() == 101 && stream.has_thread());
  }
  last->wait();
  CHECK(log == wanted);
  stream.synchronize();
  CHECK(eventually([&] { return stream.pending() == 0; }));
}

TEST(queue_keeps_dependencies_between_streams) {
  for (int round = 0; round < 50; ++round) {
    std::vector<int> log;  // written by two threads in turn, as the events order them
    QueueStream first, second;
    const Ref<Event> a = submit(first, &log, 1);
    a->device_wait(second);
    const Ref<Event> b = submit(second, &log, 2);
    b->device_wait(first);
    submit(first, &log, 3)->wait();
    CHECK(log == std::vector<int>({1, 2, 3}));
  }
}

TEST(queue_thread_ends_when_idle_and_starts_again) {
  std::vector<int> log;
  QueueStream stream(std::chrono::milliseconds(1));
  submit(stream, &log, 1)->wait();
  CHECK(eventually([&] { return !stream.has_thread(); }));
  submit(stream, &log, 2)->wait();
  CHECK(log == std::vector<int>({1, 2}));
}

TEST(queue_close_finishes_what_is_queued) {
  std::vector<int> log;
  QueueStream stream;
  {
    const Gate gate(stream);
    submit(stream, &log, 1);
    stream.close();
    const auto event = make_ref<Event>(DeviceId{}, false);
    {
      Note refused(&log, 2);
      CHECK_THROWS(StreamClosed, event->record(stream, refused));
    }
    CHECK_THROWS(StreamClosed, event->record(stream));
    CHECK(event->state() == Event::kUnrecorded && stream.pending() == 2);
  }
  stream.synchronize();
  CHECK(log == std::vector<int>({1}));
  CHECK(eventually([&] { return !stream.has_thread(); }));
}

TEST(queue_outlives_its_stream) {
  std::vector<int> log;
  Ref<Event> last;
  ManualStream clock(1, {0, 0});
  const auto gate = make_ref<Event>(DeviceId{}, false);
  {
    QueueStream stream;
    gate->record(clock);
    gate->device_wait(stream);
    last = submit(stream, &log, 1);
  }
  CHECK(!last->query());
  clock.advance(1);
  last->wait();
  CHECK(log == std::vector<int>({1}));
}

TEST(queue_drops_in_order) {
  for (int i = 0; i < 300; ++i) {  // the thread has begun to wait, or is about to
    std::vector<int> log;
    QueueStream stream;
    Gate gate(stream);
    const Ref<Event> first = submit(stream, &log, 1), second = submit(stream, &log, 2);
    CHECK(stream.pending() == 3);
    Queues::drop_all();
    CHECK(first->query() && second->query());
    CHECK(log == std::vector<int>({-1, -2}));
    CHECK_THROWS(StreamClosed, submit(stream, &log, 3));
  }
}

TEST(queue_from_many_threads) {
  QueueStream streams[2];
  std::vector<int> logs[2];
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&streams, &logs, t] {
      for (int i = 0; i < 500; ++i) {
        submit(streams[t % 2], &logs[t % 2], i);
        if (i % 50 == 0) submit(streams[t % 2], &logs[t % 2], i)->device_wait(streams[(t + 1) % 2]);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (QueueStream& stream : streams) stream.synchronize();
  CHECK(logs[0].size() == 1020 && logs[1].size() == 1020);
}

/// Launches an executor, as the face's calls do.
struct Launch final : Work {
  explicit Launch(Executor* executor) : x(executor) {}
  void run() noexcept override {
    std::exception_ptr error;
    x->launch(error);
  }
  void finished() noexcept override { delete this; }
  void dropped() noexcept override {}
  Executor* x;
};

TEST(queue_executors_come_back_when_their_event_is_done) {
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  QueueStream stream;
  const auto call = [&] {
    Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(); });
    probe.bind(*lease);
    lease->set_up(nullptr);
    Executor* x = &*lease;
    lease.submit(stream, *new Launch(x));
    return x;
  };
  {
    const Gate gate(stream);
    const Executor* first = call();
    const Executor* second = call();
    CHECK(first != second);
    CHECK(probe.function->stats.in_flight.load() == 2);
  }
  stream.synchronize();
  call();
  stream.synchronize();
  CHECK(probe.function->stats.executors.load() == 2);
  stream.close();
  {
    Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(); });
    Launch refused(&*lease);
    CHECK_THROWS(StreamClosed, lease.submit(stream, refused));
    CHECK(static_cast<bool>(lease));
  }
  table.trim(probe.function->id());
  CHECK(probe.function->stats.executors.load() == 0);
}

TEST(queue_executor_that_failed_is_not_used_again) {
  ProbePlan probe;
  ThreadTable& table = ThreadTable::current();
  KeyBuilder builder(probe.function->id());
  const KeyView key = probe.key(builder).view();
  ManualStream stream(1, {0, 0});  // runs work on this thread, where the probes are told to fail
  Lease lease = table.acquire(key, *probe.function, [&] { return probe.build(); });
  probe.bind(*lease);
  Executor* failing = &*lease;
  lease.submit(stream, *new Launch(failing));
  probe_launches = 0;
  probe_throw_at = 0;
  stream.advance(1);
  probe_throw_at = -1;
  CHECK(failing->failed());
  Lease next = table.acquire(key, *probe.function, [&] { return probe.build(); });
  CHECK(probe.function->stats.built.load() == 2 && probe.function->stats.executors.load() == 1);
  next.cancel();
  table.trim(probe.function->id());
}

TEST(event_that_is_overtaken_is_done_in_its_own_time) {
  ManualStream slow(2, {0, 0}), fast(1, {0, 0});
  const auto event = make_ref<Event>(DeviceId{}, false);
  const std::uint64_t first = event->record(slow), second = event->record(fast);
  fast.advance(1);
  CHECK(event->passed(second) && !event->passed(first) && event->query());
  CHECK(!event->wait_for(first, std::chrono::milliseconds(1)));
  slow.advance(2);
  CHECK(event->passed(first) && event->wait_for(first));
}

int interrupts_left = 0;
struct Interrupted {};

TEST(wait_ends_with_a_signal) {
  ManualStream never(ManualStream::kNever, {0, 0});
  const auto event = make_ref<Event>(DeviceId{}, false);
  event->record(never);
  const EventRecord record{event, event->generation()};
  interrupts_left = 2;
  set_blocking_hooks({nullptr, nullptr, [] {
                        if (--interrupts_left == 0) throw Interrupted{};
                      }});
  CHECK_THROWS(Interrupted, wait_interruptibly(record));
  CHECK(!wait_interruptibly(record, std::chrono::milliseconds(1)));
  set_blocking_hooks({});
}

#if !defined(__SANITIZE_THREAD__)  // it starts no thread in the child of a process with threads
TEST(queue_after_fork) {
  std::vector<int> log;
  QueueStream stream;
  Gate gate(stream);
  const Ref<Event> event = submit(stream, &log, 1);
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    if (!event->query()) wrong |= 1;
    if (log != std::vector<int>({-1})) wrong |= 2;
    try {
      submit(stream, &log, 2);
      wrong |= 4;
    } catch (const StreamClosed&) {
    }
    QueueStream own;
    submit(own, &log, 3)->wait();
    if (log.back() != 3) wrong |= 8;
    _exit(wrong);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(!event->query());
  gate.open();
  event->wait();
  CHECK(log == std::vector<int>({1}));
}
#endif

}  // namespace
}  // namespace opkiln::test
