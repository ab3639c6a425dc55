// pool.cpp: the acquire steps beyond "newest idle", and what happens to an executor that comes
// back.
#include "pool.h"

#include <algorithm>

#include "blocking.h"
#include "checks.h"
#include "errors.h"
#include "table.h"

namespace opkiln::core {
namespace {

std::atomic<std::size_t> leaked_executors{0};

}  // namespace

std::size_t leaked_executor_count() noexcept {
  return leaked_executors.load(std::memory_order_relaxed);
}

bool wait_until(const Ref<Event>& event, Clock::time_point deadline) {
  return wait_interruptibly({event, event->generation()}, deadline - Clock::now());
}

Pool::Pool(const KeyView& key, Ref<FunctionState> function, ThreadTable* table)
    : hash_(key.hash),
      size_(key.size),
      words_(new std::uint64_t[key.size + 1]),
      function_(std::move(function)),
      table_(table) {
  std::copy(key.words, key.words + key.size, words_.get());
  words_[size_] = 0;
}

Pool::~Pool() {
  while (!idle_.empty()) drop_idle();
  while (!in_flight_.empty()) forget(pop_in_flight(0));
}

std::unique_ptr<Executor> Pool::pop_in_flight(std::size_t at) noexcept {
  std::unique_ptr<Executor> executor = std::move(in_flight_[at].executor);
  in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(at));
  function_->stats.in_flight.fetch_sub(1, std::memory_order_relaxed);
  return executor;
}

/// An older one on the same stream is unfinished: whatever is left before it is, see
/// take_finished().
bool Pool::is_blocked(std::size_t at) const noexcept {
  for (std::size_t i = 0; i < at; ++i)
    if (in_flight_[i].stream == in_flight_[at].stream) return true;
  return false;
}

/// Oldest first; past an unfinished one only on other streams, since a stream finishes in order.
/// Allocates nothing: room is made under it, where nothing may fail.
std::unique_ptr<Executor> Pool::take_finished() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (is_blocked(i) || !in_flight_[i].executor->event().query()) {
      ++i;
      continue;
    }
    const bool doomed = in_flight_[i].doomed || in_flight_[i].executor->failed();
    std::unique_ptr<Executor> finished = pop_in_flight(i);
    if (!doomed) return finished;
    forget(std::move(finished));
  }
  return nullptr;
}

void Pool::collect_finished() noexcept {
  while (std::unique_ptr<Executor> executor = take_finished()) idle_.push_back(std::move(executor));
}

bool Pool::may_grow(const PoolLimits& limits) const noexcept {
  if (live() >= limits.hard_cap) return false;
  // All are leased by this very thread: waiting for them would never end.
  if (in_flight_.empty()) return true;
  return limits.queue_limited == QueuePolicy::kGrow && in_flight_.front().queue_limited;
}

void Pool::fail() const {
  std::vector<double> ages;
  for (const InFlight& entry : in_flight_) ages.push_back(entry.executor->event().age_s());
  throw PoolTimeout({words_.get(), words_.get() + size_}, idle_.size(), leased_, in_flight_.size(),
                    std::move(ages));
}

/// Whatever runs meanwhile may take, add and drop executors of this pool, but not the pool.
void Pool::wait_oldest(Clock::time_point deadline) {
  if (in_flight_.empty()) fail();
  function_->stats.waits.fetch_add(1, std::memory_order_relaxed);
  const Ref<Event> oldest(&in_flight_.front().executor->event());
  struct Waiting {
    std::size_t& count;
    ~Waiting() { --count; }
  } const waiting{++waiting_};
  if (!wait_until(oldest, deadline)) fail();
}

std::unique_ptr<Executor> Pool::take_slow(const PoolLimits& limits, bool* build) {
  const Clock::time_point deadline = Clock::now() + limits.timeout;
  for (;; wait_oldest(deadline)) {
    check();
    if (!idle_.empty()) {  // given back during a wait
      std::unique_ptr<Executor> executor = std::move(idle_.back());
      idle_.pop_back();
      ++leased_;
      return executor;
    }
    if (std::unique_ptr<Executor> executor = take_finished()) {
      ++leased_;
      return executor;
    }
    const bool grow = live() >= limits.limit && may_grow(limits);
    if (live() >= limits.limit && !grow) continue;
    if (grow) function_->stats.grew_past_limit.fetch_add(1, std::memory_order_relaxed);
    ++leased_;  // before room is made, so that this pool stays
    if (table_ != nullptr) table_->make_room();
    *build = true;
    return nullptr;
  }
}

void Pool::adopt(Executor& executor) {
  idle_.reserve(live());  // so that giving back never allocates
  in_flight_.reserve(live());
  executor.pool_ = this;
  executor.function_ = function_;
  FunctionStats& stats = function_->stats;
  stats.executors.fetch_add(1, std::memory_order_relaxed);
  stats.built.fetch_add(1, std::memory_order_relaxed);
  stats.bytes.fetch_add(static_cast<std::int64_t>(executor.bytes()), std::memory_order_relaxed);
  if (table_ != nullptr) {
    ++table_->executors_;
    table_->bytes_ += executor.bytes();
  }
}

void Pool::forget(std::unique_ptr<Executor> executor) noexcept {
  executor->drop_workspace();
  FunctionStats& stats = function_->stats;
  stats.executors.fetch_sub(1, std::memory_order_relaxed);
  stats.bytes.fetch_sub(static_cast<std::int64_t>(executor->bytes()), std::memory_order_relaxed);
  if (table_ != nullptr) {
    --table_->executors_;
    table_->bytes_ -= executor->bytes();
  }
}

void Pool::on_workspace(std::int64_t delta, const Executor* executor) noexcept {
  function_->stats.workspace_bytes.fetch_add(delta, std::memory_order_relaxed);
  if (table_ != nullptr) table_->on_workspace(delta, executor);
}

bool Pool::drop_idle() noexcept {
  if (idle_.empty()) return false;
  std::unique_ptr<Executor> oldest = std::move(idle_.front());
  idle_.erase(idle_.begin());
  forget(std::move(oldest));
  return true;
}

void Pool::give_back(std::unique_ptr<Executor> executor, const Stream* launched_on,
                     bool discard) noexcept {
  --leased_;
  executor->phase_ = Executor::Phase::kHost;
  discard = discard || dead_;
  if (launched_on != nullptr && executor->event().state() == Event::kPending) {
    in_flight_.push_back({std::move(executor), next_stamp_++, launched_on->id(),
                          launched_on->queue_limited(), discard});
    function_->stats.in_flight.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (discard || executor->failed())
    forget(std::move(executor));
  else
    idle_.push_back(std::move(executor));
}

/// At the end of the thread: frees what is done in time. What is not, the device may still write
/// to: it is left in memory for good, and counted.
void Pool::drain(Clock::time_point deadline) noexcept {
  while (!in_flight_.empty()) {
    std::unique_ptr<Executor> executor = pop_in_flight(0);
    try {
      executor->event().wait(std::max<std::chrono::nanoseconds>(deadline - Clock::now(), {}));
      forget(std::move(executor));
    } catch (const Error&) {
      executor->pool_ = nullptr;
      static_cast<void>(executor.release());
      leaked_executors.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

#ifdef OPKILN_CHECKS
/// The invariants of a pool, in builds for tests. That a leased executor is nowhere else is plain
/// from its type: it is moved.
void Pool::check() const {
  for (const auto& executor : idle_) {
    require(executor != nullptr, "an idle place is empty");
    require(executor->event().state() != Event::kPending, "an idle executor has a pending event");
    require(executor->phase() == Executor::Phase::kHost, "an idle executor runs");
  }
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    require(in_flight_[i].executor->event().state() != Event::kUnrecorded,
            "an executor in flight has no record");
    require(i == 0 || in_flight_[i - 1].stamp < in_flight_[i].stamp, "in flight out of order");
  }
}
#endif

void Lease::cancel() noexcept { pool_->give_back(std::move(executor_), nullptr, false); }

void Lease::discard() noexcept {
  executor_->phase_ = Executor::Phase::kDevice;
  abandon();
}

void Lease::abandon() noexcept {
  const Executor::Phase phase = executor_->phase();
  executor_->clear_pointers();
  bool launched = phase != Executor::Phase::kHost && executor_->launches();
  bool discard = phase == Executor::Phase::kDevice;
  if (launched) {
    try {
      // Recording failed or was not reached: whatever was launched must still be waited for.
      executor_->event().record(executor_->stream());
    } catch (...) {
      discard = true;
      launched = false;
      try {
        executor_->stream().synchronize();
      } catch (...) {  // nothing more can be done for it
      }
    }
  }
  const Stream* stream = launched ? &executor_->stream() : nullptr;
  pool_->give_back(std::move(executor_), stream, discard);
}

}  // namespace opkiln::core
