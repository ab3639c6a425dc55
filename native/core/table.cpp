// table.cpp: life of a thread's table: first use, misses, caps, dead functions, thread exit, fork.
#include "table.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>

#include "checks.h"
#include "errors.h"

namespace opkiln::core {
namespace {

constexpr std::size_t kFirstSlots = 64;
constexpr std::chrono::seconds kExitPatience{5};

struct Registry {
  std::mutex mutex;
  std::vector<ThreadTable*> tables;
  TableLimits limits;
  std::atomic<std::size_t> max_tables{0};
};

Registry& registry() {
  static Registry* state = [] {
    static auto* made = new Registry;  // never destroyed: threads may end after main
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] {
                     // Only the forking thread lives on; the other tables are out of reach.
                     ThreadTable* mine = nullptr;
                     for (ThreadTable* table : made->tables)
                       if (table->of_this_thread()) mine = table;
                     made->tables.clear();
                     if (mine != nullptr) made->tables.push_back(mine);
                     made->mutex.unlock();
                   });
    return made;
  }();
  return *state;
}

}  // namespace

constinit thread_local ThreadTable* ThreadTable::current_
    __attribute__((tls_model("initial-exec"))) = nullptr;

/// Destroys the table when its thread ends, also when that thread failed.
struct ThreadTableOwner {
  std::unique_ptr<ThreadTable> table;
  ThreadTableOwner() = default;
  ThreadTableOwner(const ThreadTableOwner&) = delete;
  ThreadTableOwner& operator=(const ThreadTableOwner&) = delete;
  ~ThreadTableOwner();
};

namespace {
thread_local bool thread_ended = false;  // trivially destructible: readable to the very end
thread_local ThreadTableOwner owner;
}  // namespace

ThreadTableOwner::~ThreadTableOwner() {
  thread_ended = true;
  table.reset();
  ThreadTable::current_ = nullptr;
}

namespace {
std::atomic<std::uint64_t> next_generation{1};
std::uint64_t new_generation() { return next_generation.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

ThreadTable::ThreadTable()
    : slots_(new Slot[kFirstSlots]), mask_(kFirstSlots - 1), generation_(new_generation()) {}

ThreadTable& ThreadTable::make_current() {
  if (thread_ended) throw Error("the thread is ending: its executors are gone");
  Registry& all = registry();
  std::unique_ptr<ThreadTable> made(new ThreadTable);
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::size_t most = all.max_tables.load(std::memory_order_relaxed);
    if (most != 0 && all.tables.size() >= most) {
      made->slots_.reset();
      throw ThreadPoolLimit(most, all.tables.size());
    }
    made->limits_ = all.limits;
    made->seen_epoch_.store(DeadFunctions::epoch(), std::memory_order_relaxed);
    all.tables.push_back(made.get());
  }
  owner.table = std::move(made);
  current_ = owner.table.get();
  return *current_;
}

ThreadTable::~ThreadTable() {
  Registry& all = registry();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.tables.erase(std::remove(all.tables.begin(), all.tables.end(), this), all.tables.end());
  }
  if (!slots_) return;
  const Clock::time_point deadline = Clock::now() + kExitPatience;
  for (std::size_t i = 0; i <= mask_; ++i) {
    if (slots_[i].pool == nullptr) continue;
    slots_[i].pool->drain(deadline);
    slots_[i].pool->function_->stats.bytes.fetch_sub(
        static_cast<std::int64_t>(slots_[i].pool->key_bytes()), std::memory_order_relaxed);
    delete slots_[i].pool;
  }
}

std::size_t ThreadTable::live_tables() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.tables.size();
}

void ThreadTable::set_max_thread_pools(std::size_t limit) noexcept {
  registry().max_tables.store(limit, std::memory_order_relaxed);
}

void ThreadTable::set_default_limits(const TableLimits& limits) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.limits = limits;
}

Pool* ThreadTable::begin_miss(const KeyView& key, FunctionState& function) {
  ++stats_.misses;
  if (dead_pools_ != 0 || DeadFunctions::epoch() != seen_epoch_.load(std::memory_order_relaxed))
    sweep_dead();
  return insert(key, function);
}

Pool* ThreadTable::insert(const KeyView& key, FunctionState& function) {
  if (2 * (used_ + 1) > mask_ + 1) grow();
  auto* pool = new Pool(key, Ref<FunctionState>(&function), this);
  std::size_t at = key.hash & mask_;
  while (slots_[at].pool != nullptr) at = (at + 1) & mask_;
  slots_[at] = {key.hash, pool};
  ++used_;
  bytes_ += pool->key_bytes();
  function.stats.bytes.fetch_add(static_cast<std::int64_t>(pool->key_bytes()),
                                 std::memory_order_relaxed);
  return pool;
}

void ThreadTable::grow() {
  const std::size_t mask = 2 * (mask_ + 1) - 1;
  std::unique_ptr<Slot[]> bigger(new Slot[mask + 1]);
  for (std::size_t i = 0; i <= mask_; ++i) {
    if (slots_[i].pool == nullptr) continue;
    std::size_t at = slots_[i].hash & mask;
    while (bigger[at].pool != nullptr) at = (at + 1) & mask;
    bigger[at] = slots_[i];
  }
  slots_ = std::move(bigger);
  mask_ = mask;
  hand_ = 0;
}

void ThreadTable::erase_at(std::size_t at) noexcept {
  Pool* pool = slots_[at].pool;
  // Close the gap, so that look-ups need no tombstones.
  std::size_t hole = at;
  for (std::size_t next = (at + 1) & mask_; slots_[next].pool != nullptr;
       next = (next + 1) & mask_) {
    const std::size_t home = slots_[next].hash & mask_;
    if (((next - home) & mask_) < ((next - hole) & mask_)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = Slot{};
  --used_;
  if (pool->dead_) --dead_pools_;
  bytes_ -= pool->key_bytes();
  pool->function_->stats.bytes.fetch_sub(static_cast<std::int64_t>(pool->key_bytes()),
                                         std::memory_order_relaxed);
  generation_ = new_generation();
  delete pool;
}

void ThreadTable::erase(Pool* pool) noexcept {
  std::size_t at = pool->hash() & mask_;
  while (slots_[at].pool != pool) at = (at + 1) & mask_;
  erase_at(at);
}

void ThreadTable::remove_if_empty(Pool* pool) noexcept {
  if (pool->unused()) erase(pool);
}

void ThreadTable::sweep_dead() {
  std::uint64_t now = 0;
  const std::vector<std::uint64_t> dead =
      DeadFunctions::after(seen_epoch_.load(std::memory_order_relaxed), &now);
  std::vector<Pool*> gone;
  for (std::size_t i = 0; i <= mask_; ++i) {
    Pool* pool = slots_[i].pool;
    if (pool == nullptr) continue;
    if (!pool->dead_ && std::binary_search(dead.begin(), dead.end(), pool->function_id())) {
      pool->dead_ = true;
      ++dead_pools_;
      for (Pool::InFlight& entry : pool->in_flight_) entry.doomed = true;
    }
    if (!pool->dead_) continue;
    while (pool->drop_idle()) ++stats_.swept;
    pool->take_finished();  // frees what is doomed and done
    if (pool->unused()) gone.push_back(pool);
  }
  for (Pool* pool : gone) erase(pool);
  seen_epoch_.store(now, std::memory_order_relaxed);
  Registry& all = registry();
  std::uint64_t oldest = now;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const ThreadTable* table : all.tables)
      oldest = std::min(oldest, table->seen_epoch_.load(std::memory_order_relaxed));
  }
  DeadFunctions::forget_until(oldest);
}

/// CLOCK over the pools: an unused one loses its idle executors, oldest first. In flight and leased
/// stay.
void ThreadTable::make_room() noexcept {
  const std::size_t rounds = 2 * (mask_ + 1);
  for (std::size_t i = 0;
       i < rounds && (executors_ + 1 > limits_.executors || bytes_ > limits_.bytes); ++i) {
    hand_ = (hand_ + 1) & mask_;
    Pool* pool = slots_[hand_].pool;
    if (pool == nullptr) continue;
    if (pool->referenced_) {
      pool->referenced_ = false;
      continue;
    }
    pool->collect_finished();
    while (pool->drop_idle()) {
      ++stats_.evictions;
      pool->function_->stats.evictions.fetch_add(1, std::memory_order_relaxed);
    }
    if (!pool->unused()) continue;
    erase_at(hand_);
    hand_ = (hand_ - 1) & mask_;  // another may have moved here
  }
  check();
}

void ThreadTable::on_workspace(std::int64_t delta, const Executor* executor) noexcept {
  workspace_bytes_ = static_cast<std::size_t>(static_cast<std::int64_t>(workspace_bytes_) + delta);
  if (delta > 0 && workspace_bytes_ > limits_.workspace_bytes) shed_workspaces(executor);
}

/// Not that of `except`, which is about to run, be it without a lease.
void ThreadTable::shed_workspaces(const Executor* except) noexcept {
  for (std::size_t i = 0; i <= mask_; ++i) {
    if (slots_[i].pool == nullptr) continue;
    for (const std::unique_ptr<Executor>& executor : slots_[i].pool->idle_) {
      if (executor.get() == except) continue;
      executor->drop_workspace();
      if (workspace_bytes_ <= limits_.workspace_bytes) return;
    }
  }
}

/// Frees what is done, erases what is then unused, and tells of one event that is not done.
std::size_t ThreadTable::drop_finished(const TrimWhat& what, Ref<Event>* oldest) noexcept {
  std::size_t dropped = 0;
  *oldest = {};
  for (std::size_t i = 0; i <= mask_;) {
    Pool* pool = slots_[i].pool;
    const bool meant = pool != nullptr &&
                       (what.function_id == 0 || pool->function_id() == what.function_id) &&
                       (what.key == nullptr || pool->matches(*what.key));
    if (meant) {
      const std::size_t before = pool->live();
      pool->collect_finished();
      while (pool->drop_idle()) {
      }
      dropped += before - pool->live();
      if (!*oldest && pool->in_flight() != 0)
        *oldest = Ref<Event>(&pool->in_flight_.front().executor->event());
      if (pool->unused()) {
        erase_at(i);
        continue;  // another may have moved here
      }
    }
    ++i;
  }
  return dropped;
}

std::size_t ThreadTable::trim(const TrimWhat& what, std::chrono::nanoseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  std::size_t dropped = 0;
  for (Ref<Event> oldest;;) {
    dropped += drop_finished(what, &oldest);
    if (!oldest || patience.count() <= 0 || !wait_until(oldest, deadline)) return dropped;
  }
}

#ifdef OPKILN_CHECKS
void ThreadTable::check() const {
  std::size_t pools = 0, held = 0, live = 0;
  for (std::size_t i = 0; i <= mask_; ++i) {
    const Pool* pool = slots_[i].pool;
    if (pool == nullptr) continue;
    ++pools;
    held += pool->idle() + pool->in_flight();
    live += pool->live();
    require(slots_[i].hash == pool->hash(), "a slot has another hash than its pool");
  }
  require(pools == used_, "the table counts its pools wrongly");
  // One that is being built is leased, but not yet counted.
  require(held <= executors_ && executors_ <= live, "the table counts its executors wrongly");
}
#endif

}  // namespace opkiln::core
