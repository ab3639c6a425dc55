// pool.h: the executors of one key on one thread (IDLE, LEASED, INFLIGHT) and the exclusive lease.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "errors.h"
#include "executor.h"
#include "function.h"
#include "key.h"

namespace opkiln::core {

class Lease;
class ThreadTable;

enum class QueuePolicy : std::uint8_t { kWait, kGrow };

struct PoolLimits {
  std::size_t limit = 10;
  std::size_t hard_cap = 64;
  QueuePolicy queue_limited = QueuePolicy::kWait;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
};

/// Blocks until the record that is the event's last is done; false when the time is over first.
bool wait_until(const Ref<Event>& event, Clock::time_point deadline);

/// Executors whose work had not ended when their threads did; their memory stays for good.
std::size_t leaked_executor_count() noexcept;

/// Belongs to one thread; no lock anywhere. An executor is in exactly one state.
class Pool {
 public:
  Pool(const KeyView& key, Ref<FunctionState> function, ThreadTable* table);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Newest idle; else oldest in flight that is done; else a new one; else waits for the oldest.
  /// `build()` returns std::unique_ptr<Executor>, may throw, may call compiled functions itself; so
  /// may whatever runs on this thread during a wait. Throws PoolTimeout.
  template <class Build>
  Lease acquire(const PoolLimits& limits, Build&& build);

  std::size_t idle() const noexcept { return idle_.size(); }
  std::size_t leased() const noexcept { return leased_; }  // being built counts
  std::size_t in_flight() const noexcept { return in_flight_.size(); }
  std::size_t live() const noexcept { return idle_.size() + leased_ + in_flight_.size(); }
  /// Holds nothing, and no acquire() further up the stack waits in it: may be deleted.
  bool unused() const noexcept { return live() == 0 && waiting_ == 0; }
  bool matches(const KeyView& key) const noexcept { return key.equals(words_.get(), size_); }
  /// The key, followed by a word 0, which begins no item of a key.
  const std::uint64_t* words() const noexcept { return words_.get(); }
  /// The executor that acquire() would give at once, or null. It may be run without a lease where
  /// nothing else can happen on this thread until it is done, and its stream is inline; see
  /// ended().
  Executor* peek_idle() noexcept {
    referenced_ = true;
    return __builtin_expect(!idle_.empty(), 1) ? (idle_.end() - 1)->get() : nullptr;
  }
  std::uint64_t hash() const noexcept { return hash_; }
  std::uint64_t function_id() const noexcept { return words_[0]; }
  std::size_t key_size() const noexcept { return size_; }
  /// look(executor, is_in_flight) for those that are here: idle, then in flight, oldest first.
  template <class Look>
  void for_each(Look&& look) const {
    for (const std::unique_ptr<Executor>& executor : idle_) look(*executor, false);
    for (const InFlight& entry : in_flight_) look(*entry.executor, true);
  }
  std::size_t key_bytes() const noexcept {
    return sizeof(Pool) + (size_ + 1) * sizeof(std::uint64_t);
  }

 private:
  friend class Executor;
  friend class Lease;
  friend class ThreadTable;

  struct InFlight {
    std::unique_ptr<Executor> executor;
    std::uint64_t stamp;
    std::uint64_t stream;  // its id: the stream itself may be gone
    bool queue_limited;
    bool doomed;  // failed in device code: freed, never reused, when done
  };

  std::unique_ptr<Executor> take_slow(const PoolLimits& limits, bool* build);
  std::unique_ptr<Executor> take_finished();
  bool is_blocked(std::size_t at) const noexcept;
  bool may_grow(const PoolLimits& limits) const noexcept;
  void wait_oldest(Clock::time_point deadline);
  [[noreturn]] void fail() const;
#ifdef OPKILN_CHECKS
  void check() const;
#else
  void check() const noexcept {}
#endif
  std::unique_ptr<Executor> pop_in_flight(std::size_t at) noexcept;
  void adopt(Executor& executor);  // a new one, leased
  void forget(std::unique_ptr<Executor> executor) noexcept;
  void give_back(std::unique_ptr<Executor> executor, const Stream* launched_on,
                 bool discard) noexcept;
  void on_workspace(std::int64_t delta, const Executor* executor) noexcept;
  void collect_finished() noexcept;
  bool drop_idle() noexcept;
  void drain(Clock::time_point deadline) noexcept;

  bool referenced_ = false;  // CLOCK bit: used again since the hand passed
  bool dead_ = false;        // its function is gone: nothing is kept
  std::size_t leased_ = 0;
  std::size_t waiting_ = 0;  // acquire() calls of this thread that wait, one inside the other
  std::vector<std::unique_ptr<Executor>> idle_;  // newest last
  std::vector<InFlight> in_flight_;              // by stamp
  std::uint64_t next_stamp_ = 0;
  std::uint64_t hash_;
  std::size_t size_;
  std::unique_ptr<std::uint64_t[]> words_;
  Ref<FunctionState> function_;
  ThreadTable* table_;
};

/// Exclusive use of one executor, move-only. Without release() the destructor treats the call as
/// failed: the executor is discarded when the failure happened in device code, else kept.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept : pool_(other.pool_), executor_(std::move(other.executor_)) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (executor_) abandon();
  }
  explicit operator bool() const noexcept { return static_cast<bool>(executor_); }
  Executor& operator*() const noexcept { return *executor_; }
  Executor* operator->() const noexcept { return executor_.get(); }

  /// Records the event if kernels ran and gives the executor back.
  void release() {
    Executor& executor = *executor_;
    const bool launched = executor.phase_ == Executor::Phase::kLaunched && executor.launches();
    if (launched) executor.event().record(executor.stream());
    executor.phase_ = Executor::Phase::kHost;
    if (__builtin_expect(!launched || executor.stream().completes_inline(), 1) && !pool_->dead_) {
      --pool_->leased_;
      pool_->idle_.push_back(std::move(executor_));  // capacity reserved: cannot throw
      return;
    }
    pool_->give_back(std::move(executor_), launched ? &executor.stream() : nullptr, false);
  }
  /// Queues `work`, which launches the executor in its turn, and gives the executor back in flight.
  /// Throws StreamClosed; then it is still leased.
  void submit(Stream& stream, Work& work) {
    executor_->event().record(stream, work);
    pool_->give_back(std::move(executor_), &stream, false);
  }
  /// Gives the executor back without recording: nothing was launched.
  void cancel() noexcept;
  /// Throws the executor away.
  void discard() noexcept;

 private:
  friend class Pool;
  Lease(Pool* pool, std::unique_ptr<Executor> executor) noexcept
      : pool_(pool), executor_(std::move(executor)) {}
  void abandon() noexcept;

  Pool* pool_ = nullptr;
  std::unique_ptr<Executor> executor_;
};

template <class Build>
Lease Pool::acquire(const PoolLimits& limits, Build&& build) {
  if (__builtin_expect(!idle_.empty(), 1)) {
    referenced_ = true;
    ++leased_;
    Lease lease(this, std::move(idle_.back()));
    idle_.pop_back();
    return lease;
  }
  referenced_ = live() != 0;  // a key that is used once only is the first to go
  bool must_build = false;
  std::unique_ptr<Executor> executor = take_slow(limits, &must_build);
  if (!must_build) return Lease(this, std::move(executor));
  // take_slow() counted the newcomer as leased already, so nested calls see it.
  struct Undo {
    Pool* pool;
    ~Undo() {
      if (pool) --pool->leased_;
    }
  } undo{this};
  executor = build();
  if (!executor) throw PlanError("build returned no executor");
  adopt(*executor);
  undo.pool = nullptr;
  return Lease(this, std::move(executor));
}

}  // namespace opkiln::core
