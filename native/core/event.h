// event.h: a point in a stream's work that can be asked for, waited for and reused.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "errors.h"
#include "ref.h"
#include "stream.h"

namespace opkiln::core {

using Clock = std::chrono::steady_clock;
using Timeout = std::optional<std::chrono::nanoseconds>;  // empty: no limit

/// UNRECORDED -> record -> PENDING -> DONE; a new record starts the next generation.
class Event final : public RefCounted {
 public:
  enum State : std::uint64_t { kUnrecorded = 0, kPending = 1, kDone = 2 };

  Event(DeviceId device, bool timing) : device_(device), timing_(timing) {}

  /// Returns the record's generation (1, 2, ...). One thread records an event at a time. Throws
  /// StreamClosed, and then the last record is still the last one.
  std::uint64_t record(Stream& stream);
  /// The same, done when `work` is, which the stream runs in its turn.
  std::uint64_t record(Stream& stream, Work& work);
  /// True when the last record is done. Throws EventError when never recorded.
  bool query() const;
  /// Blocks until the record that was last when called is done. EventTimeout, EventError.
  void wait(Timeout timeout = {});
  /// Queues a wait on another stream. On an inline stream that is a blocking wait.
  void device_wait(Stream& stream);

  /// That record is done; never an error.
  bool passed(std::uint64_t generation) const;
  /// Blocks until passed(); false when the time is over first.
  bool wait_for(std::uint64_t generation, Timeout timeout = {});
  /// Milliseconds from `start` to this event; both need timing and must be done.
  double elapsed_ms(const Event& start) const;

  /// Called by the stream. A generation that is no longer the last is ignored.
  void complete(std::uint64_t generation);
  void reset() noexcept;  // back to UNRECORDED, for the free list
  /// In the child of a fork: complete() where another thread may have held the locks.
  void complete_in_child(std::uint64_t generation) noexcept;

  State state() const noexcept {
    return static_cast<State>(word_.load(std::memory_order_acquire) & 3);
  }
  std::uint64_t generation() const noexcept { return word_.load(std::memory_order_acquire) >> 2; }
  DeviceId device() const noexcept { return device_; }
  bool timing() const noexcept { return timing_; }
  double age_s() const noexcept;  // since the last record

 private:
  std::uint64_t record_slowly(Stream& stream, std::uint64_t generation);
  template <class Queue>
  std::uint64_t record_pending(std::uint64_t generation, Queue&& queue);

  std::atomic<std::uint64_t> word_{0};  // generation << 2 | state
  std::atomic<std::int64_t> recorded_ns_{0};
  std::atomic<std::int64_t> done_ns_{0};
  const DeviceId device_;
  const bool timing_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::uint64_t> overtaken_;  // records that were pending when the next one was made
};

/// What a stream does in its turn. After submit() exactly one of these happens: run(), the event's
/// completion and finished(), or dropped() and the event's completion. The face allocates one of
/// these per asynchronous call, so the links of the queue are in it.
class Work {
 public:
  Work() = default;
  /// Of a record that is pending already: Stream::enqueue().
  Work(Event& event, std::uint64_t generation) : event_(&event), generation_(generation) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;

  virtual void run() noexcept = 0;       // on a thread of the stream
  virtual void finished() noexcept = 0;  // after that, once the event is done; may delete this
  /// The stream is given up before its turn came. May delete this.
  virtual void dropped() noexcept = 0;
  /// The same in the child of a fork, where a thread of the parent may have been in run().
  virtual void lost() noexcept { dropped(); }

  /// The record that is done with this work; null before submit().
  Event* event() const noexcept { return event_.get(); }
  std::uint64_t generation() const noexcept { return generation_; }

 private:
  friend class Event;
  friend class WorkQueue;
  Work* next_ = nullptr;
  Ref<Event> event_;
  std::uint64_t generation_ = 0;
};

inline std::uint64_t Event::record(Stream& stream) {
  const std::uint64_t word = word_.load(std::memory_order_relaxed);
  const std::uint64_t generation = (word >> 2) + 1;
  if (__builtin_expect(stream.completes_inline() && !timing_ && (word & 3) != kPending, 1)) {
    word_.store(generation << 2 | kDone, std::memory_order_release);
    return generation;
  }
  return record_slowly(stream, generation);
}

/// One record of an event, which may be recorded again meanwhile.
struct EventRecord {
  Ref<Event> event;
  std::uint64_t generation = 0;
};

/// An event borrowed from the free list of its (device, timing); goes back exactly once.
class EventLease {
 public:
  EventLease() = default;
  EventLease(EventLease&& other) noexcept : event_(std::move(other.event_)) {}
  EventLease& operator=(EventLease&& other) noexcept;
  ~EventLease();

  Event& operator*() const { return *event_; }
  Event* operator->() const { return event_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(event_); }
  /// Gives the event back; EventError the second time. A pending event is dropped, not reused.
  void release();

 private:
  friend class EventPool;
  explicit EventLease(Ref<Event> event) : event_(std::move(event)) {}
  Ref<Event> event_;
};

/// A record by number: EventError once the event was recorded again or went back.
class EventHandle {
 public:
  EventHandle(Ref<Event> event, std::uint64_t generation)
      : event_(std::move(event)), generation_(generation) {}
  bool query() const;
  void wait(Timeout timeout = {});

 private:
  void check() const;
  Ref<Event> event_;
  std::uint64_t generation_;
};

/// Process-wide free lists, one per (device, timing).
class EventPool {
 public:
  static EventLease acquire(DeviceId device, bool timing = false);
  static std::int64_t outstanding();  // leased and not yet back: what a finaliser reports
  static std::size_t free_count();
  static void clear();  // drops the free lists

 private:
  friend class EventLease;
  static void give_back(Ref<Event> event);
};

}  // namespace opkiln::core
