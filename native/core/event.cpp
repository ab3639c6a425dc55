// event.cpp: waiting, the generation checks, and the process-wide free lists.
#include "event.h"

#include <pthread.h>

#include <algorithm>
#include <new>

namespace opkiln::core {
namespace {

struct FreeList {
  DeviceId device;
  bool timing;
  std::vector<Ref<Event>> events;
};

struct PoolState {
  std::mutex mutex;
  std::vector<FreeList> lists;
  std::atomic<std::int64_t> outstanding{0};
};

PoolState& pool_state() {
  static PoolState* state = [] {
    static auto* made = new PoolState;  // never destroyed: threads may end after main
    // A fork while another thread holds the lock must not leave it locked in the child.
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *state;
}

FreeList& list_for(PoolState& state, DeviceId device, bool timing) {
  for (FreeList& list : state.lists)
    if (list.device == device && list.timing == timing) return list;
  state.lists.push_back({device, timing, {}});
  return state.lists.back();
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace

bool Event::query() const {
  const State now = state();
  if (now == kUnrecorded) throw EventError("query of an event that was never recorded");
  return now == kDone;
}

void Event::wait(Timeout timeout) {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  if ((word & 3) == kUnrecorded) throw EventError("wait for an event that was never recorded");
  if (!wait_for(word >> 2, timeout)) throw EventTimeout("event not done in time");
}

bool Event::passed(std::uint64_t generation) const {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  if (word >> 2 == generation) return (word & 3) != kPending;
  if (word >> 2 < generation) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(overtaken_.begin(), overtaken_.end(), generation) == overtaken_.end();
}

bool Event::wait_for(std::uint64_t generation, Timeout timeout) {
  if (passed(generation)) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto settled = [&] {
    const std::uint64_t word = word_.load(std::memory_order_acquire);
    if (word >> 2 == generation) return (word & 3) != kPending;
    return std::find(overtaken_.begin(), overtaken_.end(), generation) == overtaken_.end();
  };
  if (timeout) return done_.wait_for(lock, *timeout, settled);
  done_.wait(lock, settled);
  return true;
}

void Event::device_wait(Stream& stream) {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  if (!query()) stream.wait(*this, word >> 2);
}

/// The record is pending before `queue` hands it to the stream, which may complete it at once.
template <class Queue>
std::uint64_t Event::record_pending(std::uint64_t generation, Queue&& queue) {
  std::uint64_t before;
  recorded_ns_.store(now_ns(), std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(mutex_);  // the last record may be done at any moment
    before = word_.load(std::memory_order_relaxed);
    if ((before & 3) == kPending) overtaken_.push_back(before >> 2);
    word_.store(generation << 2 | kPending, std::memory_order_release);
  }
  try {
    queue();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto last = std::find(overtaken_.begin(), overtaken_.end(), before >> 2);
    const bool pending = last != overtaken_.end();
    if (pending) overtaken_.erase(last);
    word_.store((before & 3) == kPending && !pending ? before >> 2 << 2 | kDone : before,
                std::memory_order_release);
    throw;
  }
  return generation;
}

std::uint64_t Event::record_slowly(Stream& stream, std::uint64_t generation) {
  return record_pending(generation, [&] {
    if (stream.completes_inline())
      complete(generation);
    else
      stream.enqueue(*this, generation);
  });
}

std::uint64_t Event::record(Stream& stream, Work& work) {
  const std::uint64_t next = generation() + 1;
  work.event_ = Ref<Event>(this);
  work.generation_ = next;
  return record_pending(next, [&] { stream.submit(work); });
}

double Event::elapsed_ms(const Event& start) const {
  if (!timing_ || !start.timing_) throw EventError("elapsed_ms: both events need timing");
  if (state() != kDone || start.state() != kDone)
    throw EventError("elapsed_ms: both events must be done");
  const std::int64_t ns =
      done_ns_.load(std::memory_order_relaxed) - start.done_ns_.load(std::memory_order_relaxed);
  return static_cast<double>(ns) * 1e-6;
}

void Event::complete(std::uint64_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (timing_ && this->generation() == generation)
    done_ns_.store(now_ns(), std::memory_order_relaxed);
  std::uint64_t expected = generation << 2 | kPending;
  word_.compare_exchange_strong(expected, generation << 2 | kDone, std::memory_order_acq_rel);
  if (!overtaken_.empty()) std::erase(overtaken_, generation);
  done_.notify_all();
}

void Event::complete_in_child(std::uint64_t generation) noexcept {
  new (&mutex_) std::mutex;
  new (&done_) std::condition_variable;
  overtaken_.clear();
  if (this->generation() == generation)
    word_.store(generation << 2 | kDone, std::memory_order_release);
}

void Event::reset() noexcept {
  word_.store((word_.load(std::memory_order_relaxed) >> 2) << 2 | kUnrecorded,
              std::memory_order_release);
}

double Event::age_s() const noexcept {
  return static_cast<double>(now_ns() - recorded_ns_.load(std::memory_order_relaxed)) * 1e-9;
}

EventLease& EventLease::operator=(EventLease&& other) noexcept {
  if (this != &other) {
    if (event_) EventPool::give_back(std::move(event_));
    event_ = std::move(other.event_);
  }
  return *this;
}

EventLease::~EventLease() {
  if (event_) EventPool::give_back(std::move(event_));
}

void EventLease::release() {
  if (!event_) throw EventError("event released twice");
  EventPool::give_back(std::move(event_));
}

void EventHandle::check() const {
  if (event_->generation() != generation_ || event_->state() == Event::kUnrecorded)
    throw EventError("stale event handle: the event was recorded again or returned");
}

bool EventHandle::query() const {
  check();
  return event_->query();
}

void EventHandle::wait(Timeout timeout) {
  check();
  event_->wait(timeout);
}

EventLease EventPool::acquire(DeviceId device, bool timing) {
  PoolState& state = pool_state();
  Ref<Event> event;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    FreeList& list = list_for(state, device, timing);
    if (!list.events.empty()) {
      event = std::move(list.events.back());
      list.events.pop_back();
    }
  }
  if (!event) event = make_ref<Event>(device, timing);
  state.outstanding.fetch_add(1, std::memory_order_relaxed);
  return EventLease(std::move(event));
}

void EventPool::give_back(Ref<Event> event) {
  PoolState& state = pool_state();
  state.outstanding.fetch_sub(1, std::memory_order_relaxed);
  if (event->state() == Event::kPending) return;  // the stream still refers to it
  event->reset();
  const std::lock_guard<std::mutex> lock(state.mutex);
  FreeList& list = list_for(state, event->device(), event->timing());
  list.events.push_back(std::move(event));
}

std::int64_t EventPool::outstanding() {
  return pool_state().outstanding.load(std::memory_order_relaxed);
}

std::size_t EventPool::free_count() {
  PoolState& state = pool_state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  std::size_t count = 0;
  for (const FreeList& list : state.lists) count += list.events.size();
  return count;
}

void EventPool::clear() {
  PoolState& state = pool_state();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.lists.clear();
}

}  // namespace opkiln::core
