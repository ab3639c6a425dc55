// function.h: the native identity of one compiled function: a never-reused id and its counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "ref.h"

namespace opkiln::core {

/// Counters that change off the warm path, possibly at thread exit without the interpreter lock.
struct FunctionStats {
  std::atomic<std::int64_t> executors{0};  // live, all threads
  std::atomic<std::int64_t> in_flight{0};  // released, events pending
  std::atomic<std::int64_t> bytes{0};      // executors and keys, without workspaces
  std::atomic<std::int64_t> workspace_bytes{0};
  std::atomic<std::uint64_t> built{0};  // executors ever made
  std::atomic<std::uint64_t> waits{0};
  std::atomic<std::uint64_t> evictions{0};
  std::atomic<std::uint64_t> grew_past_limit{0};
  std::atomic<std::uint64_t> packs{0};  // operand copies made for reductions
};

/// Held by the face's object and by every pool of the function, on any thread.
class FunctionState : public RefCounted {
 public:
  FunctionState();

  std::uint64_t id() const noexcept { return id_.load(std::memory_order_relaxed); }
  /// Marks the present id dead (its pools go at each thread's next miss) and takes a new one:
  /// f.clear().
  void renew();
  /// Marks the id dead for good: the function object dies.
  void retire();

  FunctionStats stats;

 private:
  std::atomic<std::uint64_t> id_;
};

/// Ids of dead functions, process-wide. A thread looks only when `epoch()` moved since its last
/// miss.
class DeadFunctions {
 public:
  static std::uint64_t epoch() noexcept;
  static void mark(std::uint64_t id);
  /// Sorted ids marked dead after `since`.
  static std::vector<std::uint64_t> after(std::uint64_t since, std::uint64_t* now);
  /// Forgets marks up to and including `epoch`: every live thread has seen them.
  static void forget_until(std::uint64_t epoch);
  static std::size_t size();
};

}  // namespace opkiln::core
