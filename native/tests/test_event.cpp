// test_event.cpp: states, generations, waits across threads, free lists and their double release.
#include <atomic>
#include <chrono>
#include <thread>

#include "core/event.h"
#include "core/threads.h"
#include "support.h"

namespace opkiln::test {
namespace {

TEST(event_states) {
  const auto ref = make_ref<Event>(DeviceId{1, 0}, false);
  CHECK_THROWS(EventError, ref->query());
  CHECK_THROWS(EventError, ref->wait());
  ManualStream stream(2);
  CHECK(ref->record(stream) == 1 && ref->state() == Event::kPending && !ref->query());
  stream.advance(1);
  CHECK(!ref->query());
  // A second record overwrites: the first one's completion no longer counts.
  CHECK(ref->record(stream) == 2);
  stream.advance(1);
  CHECK(!ref->query() && ref->generation() == 2);
  stream.advance(1);
  CHECK(ref->query());
  ref->wait();
  CHECK(ref->record(inline_cpu_stream()) == 3 && ref->query());
}

TEST(event_wait_and_timeout) {
  ManualStream stream(1);
  const auto event = make_ref<Event>(DeviceId{1, 0}, false);
  event->record(stream);
  CHECK_THROWS(EventTimeout, event->wait(std::chrono::milliseconds(1)));
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) waiters.emplace_back([&event] { event->wait(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  stream.advance(1);
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(event->query());
  CHECK(event->age_s() > 0);
}

/// Leaves it to the test to complete what is recorded.
struct IdleStream final : Stream {
  IdleStream() : Stream({1, 0}, false) {}
  void submit(Work&) override {}
  void enqueue(Event&, std::uint64_t) override {}
  void wait(Event&, std::uint64_t) override {}
};

// A record that ends just when the next one is made is over for good: nobody would end it again.
TEST(event_overtaken_as_it_ends) {
  IdleStream stream;
  constexpr std::uint64_t kRecords = 10'000;
  const auto event = make_ref<Event>(DeviceId{1, 0}, false);
  std::atomic<std::uint64_t> ending{0};
  std::thread device([&] {
    for (std::uint64_t i = 1; i <= kRecords; ++i) {
      while (event->generation() < i) relax();
      ending.store(i);
      event->complete(i);
    }
  });
  for (std::uint64_t i = 1; i <= kRecords; ++i) {
    event->record(stream);
    while (ending.load() < i) relax();
    for (std::uint64_t spin = i % 32; spin > 0; --spin) relax();
  }
  device.join();
  std::uint64_t lost = 0;
  for (std::uint64_t i = 1; i <= kRecords; ++i) lost += event->passed(i) ? 0 : 1;
  CHECK(lost == 0);
}

TEST(event_elapsed) {
  ManualStream stream(1);
  const auto start = make_ref<Event>(DeviceId{1, 0}, true),
             end = make_ref<Event>(DeviceId{1, 0}, true);
  const auto plain = make_ref<Event>(DeviceId{1, 0}, false);
  start->record(stream);
  stream.advance(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  end->record(stream);
  CHECK_THROWS(EventError, end->elapsed_ms(*start));
  stream.advance(1);
  CHECK(end->elapsed_ms(*start) >= 1.9);
  plain->record(inline_cpu_stream());
  CHECK_THROWS(EventError, end->elapsed_ms(*plain));
}

TEST(event_free_lists) {
  EventPool::clear();
  const std::int64_t before = EventPool::outstanding();
  EventLease first = EventPool::acquire({2, 0});
  const Event* address = &*first;
  EventLease timed = EventPool::acquire({2, 0}, true);
  CHECK(EventPool::outstanding() == before + 2);
  first->record(inline_cpu_stream());
  first.release();
  CHECK_THROWS(EventError, first.release());
  CHECK(EventPool::free_count() == 1);
  EventLease other_device = EventPool::acquire({2, 1});
  CHECK(EventPool::free_count() == 1);
  EventLease again = EventPool::acquire({2, 0});
  CHECK(&*again == address && again->state() == Event::kUnrecorded);
  CHECK_THROWS(EventError, again->query());
  // Pending at its return: the stream keeps it, nobody gets it again.
  ManualStream stream(1);
  again->record(stream);
  again.release();
  CHECK(EventPool::free_count() == 0);
  stream.advance(1);
  timed = EventLease();
  other_device = EventLease();
  CHECK(EventPool::outstanding() == before);
  EventPool::clear();
}

TEST(event_handles_go_stale) {
  EventLease lease = EventPool::acquire({3, 0});
  const Ref<Event> event(&*lease);
  ManualStream stream(1);
  const EventHandle first(event, event->record(stream));
  CHECK(!first.query());
  stream.advance(1);
  CHECK(first.query());
  EventHandle second(event, event->record(inline_cpu_stream()));
  CHECK_THROWS(EventError, first.query());
  second.wait();
  lease.release();
  CHECK_THROWS(EventError, second.query());
  CHECK_THROWS(EventError, second.wait());
  EventPool::clear();
}

TEST(event_free_lists_from_many_threads) {
  const std::int64_t before = EventPool::outstanding();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        EventLease a = EventPool::acquire({0, 0}), b = EventPool::acquire({1, 0});
        a->record(inline_cpu_stream());
        CHECK(a->query());
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(EventPool::outstanding() == before);
}

}  // namespace
}  // namespace opkiln::test
