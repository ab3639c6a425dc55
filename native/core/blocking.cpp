// blocking.cpp: a wait as slices of sleep, since a signal does not wake a condition variable.
#include "blocking.h"

#include <algorithm>
#include <atomic>

namespace opkiln::core {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

std::atomic<void* (*)()> blocking_begin{nullptr};
std::atomic<void (*)(void*)> blocking_end{nullptr};
std::atomic<void (*)()> blocking_check{nullptr};

/// The face's interpreter lock is given up while this object lives.
class BlockingSection {
 public:
  BlockingSection() {
    void* (*begin)() = blocking_begin.load(std::memory_order_acquire);
    if (begin != nullptr) state_ = begin();
  }
  ~BlockingSection() {
    void (*end)(void*) = blocking_end.load(std::memory_order_acquire);
    if (end != nullptr) end(state_);
  }
  BlockingSection(const BlockingSection&) = delete;
  BlockingSection& operator=(const BlockingSection&) = delete;

 private:
  void* state_ = nullptr;
};

bool wait_slice(const EventRecord& record, std::chrono::nanoseconds slice) {
  const BlockingSection section;
  return record.event->wait_for(record.generation, slice);
}

}  // namespace

void set_blocking_hooks(BlockingHooks hooks) noexcept {
  blocking_begin.store(hooks.begin, std::memory_order_release);
  blocking_end.store(hooks.end, std::memory_order_release);
  blocking_check.store(hooks.check, std::memory_order_release);
}

bool wait_interruptibly(const EventRecord& record, Timeout timeout) {
  if (record.event->passed(record.generation)) return true;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    std::chrono::nanoseconds slice = kSlice;
    if (timeout) slice = std::min(slice, *timeout - (Clock::now() - begin));
    const bool last = slice.count() <= 0;  // a look after the hooks had their turn, however late
    if (wait_slice(record, last ? std::chrono::nanoseconds{} : slice)) return true;
    void (*check)() = blocking_check.load(std::memory_order_acquire);
    if (check != nullptr) check();
    if (last) return false;
  }
}

}  // namespace opkiln::core
