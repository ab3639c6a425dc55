// table.h: the calling thread's table from exact key to pool; owns no Python object, dies with the
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "function.h"
#include "key.h"
#include "pool.h"

namespace opkiln::core {

struct TableLimits {
  PoolLimits pool;
  std::size_t executors = 1024;
  std::size_t bytes = 8u << 20;            // outside workspaces
  std::size_t workspace_bytes = 1u << 30;  // beyond it idle executors lose their workspaces
};

struct TableStats {
  std::uint64_t misses = 0, evictions = 0, swept = 0;
};

class ThreadTable {
 public:
  /// This thread's table. The first call of a thread may throw ThreadPoolLimit.
  static ThreadTable& current() {
    ThreadTable* table = current_;
    return __builtin_expect(table != nullptr, 1) ? *table : make_current();
  }
  /// The same without making one.
  static ThreadTable* known() noexcept { return current_; }
  static std::size_t live_tables();
  /// 0: no limit. Process-wide.
  static void set_max_thread_pools(std::size_t limit) noexcept;
  /// For tables made from now on; set_limits() changes this thread's.
  static void set_default_limits(const TableLimits& limits);
  void set_limits(const TableLimits& limits) { limits_ = limits; }
  const TableLimits& limits() const noexcept { return limits_; }

  /// The warm look-up; null on a miss.
  Pool* find(const KeyView& key) const noexcept {
    std::size_t at = key.hash & mask_;
    for (;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.pool == nullptr) return nullptr;
      if (slot.hash == key.hash && __builtin_expect(slot.pool->matches(key), 1)) {
        return slot.pool;
      }
    }
  }

  /// Look up and lease; `build()` makes an executor when there is none to take. `hit` (may be null)
  /// tells whether the key was known.
  template <class Build>
  Lease acquire(const KeyView& key, FunctionState& function, Build&& build) {
    Pool* pool = find(key);
    if (__builtin_expect(pool != nullptr, 1)) return pool->acquire(limits_.pool, build);
    return acquire_missing(key, function, build);
  }

  /// Which pools trim() means; nothing set: all of them.
  struct TrimWhat {
    std::uint64_t function_id = 0;
    const KeyView* key = nullptr;
  };
  /// Drops idle executors, then waits for those in flight and drops them too. Those not done in
  /// time stay in flight. Returns how many went. Any code may run during the wait.
  std::size_t trim(const TrimWhat& what, std::chrono::nanoseconds patience);
  std::size_t trim(std::uint64_t function_id = 0) {
    return trim({function_id, nullptr}, limits_.pool.timeout);
  }
  /// The same at once, for want of memory: nothing is waited for.
  std::size_t drop_idle() { return trim({}, {}); }

  template <class Look>
  void for_each(Look&& look) const {
    for (std::size_t i = 0; i <= mask_; ++i)
      if (slots_[i].pool != nullptr) look(*slots_[i].pool);
  }

  /// Unique in the process; renewed when a pool of this table is deleted. A caller that kept
  /// {generation, Pool*} of a hit may use the pool again while the generation is the same.
  std::uint64_t generation() const noexcept { return generation_; }
  std::size_t pool_count() const noexcept { return used_; }
  std::size_t executor_count() const noexcept { return executors_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  const TableStats& stats() const noexcept { return stats_; }
  bool of_this_thread() const noexcept { return this == current_; }

  ~ThreadTable();
  ThreadTable(const ThreadTable&) = delete;
  ThreadTable& operator=(const ThreadTable&) = delete;

 private:
  friend class Pool;
  friend class Lease;
  friend class Executor;
  friend struct ThreadTableOwner;
  struct Slot {
    std::uint64_t hash = 0;
    Pool* pool = nullptr;
  };

  ThreadTable();
  static ThreadTable& make_current();
  template <class Build>
  Lease acquire_missing(const KeyView& key, FunctionState& function, Build&& build) {
    Pool* pool = begin_miss(key, function);
    struct Undo {
      ThreadTable* table;
      Pool* pool;
      ~Undo() {
        if (pool) table->remove_if_empty(pool);
      }
    } undo{this, pool};
    Lease lease = pool->acquire(limits_.pool, build);
    undo.pool = nullptr;
    return lease;
  }
  Pool* begin_miss(const KeyView& key, FunctionState& function);
  Pool* insert(const KeyView& key, FunctionState& function);
  void grow();
  void erase_at(std::size_t at) noexcept;
  void remove_if_empty(Pool* pool) noexcept;
  void erase(Pool* pool) noexcept;
  void sweep_dead();
  void make_room() noexcept;
  std::size_t drop_finished(const TrimWhat& what, Ref<Event>* oldest) noexcept;
#ifdef OPKILN_CHECKS
  void check() const;
#else
  void check() const noexcept {}
#endif
  void on_workspace(std::int64_t delta, const Executor* executor) noexcept;
  void shed_workspaces(const Executor* except) noexcept;

  // constinit: no wrapper call around each access; initial-exec: the address is one load, also
  // inside a shared library
  static constinit thread_local ThreadTable* current_ __attribute__((tls_model("initial-exec")));

  std::unique_ptr<Slot[]> slots_;
  std::size_t mask_ = 0;
  std::size_t used_ = 0;
  std::size_t hand_ = 0;  // CLOCK
  std::size_t executors_ = 0;
  std::size_t bytes_ = 0;
  std::size_t workspace_bytes_ = 0;
  std::size_t dead_pools_ = 0;
  std::uint64_t generation_ = 0;
  std::atomic<std::uint64_t> seen_epoch_{0};  // read by other threads
  TableLimits limits_;
  TableStats stats_;
};

}  // namespace opkiln::core
