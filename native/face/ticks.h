// A clock that costs 10 ns, for what is timed on each miss: counts of the CPU's own counter, turned
// into nanoseconds only when someone asks.
#pragma once

#include <chrono>
#include <cstdint>

namespace opkiln::face {

inline uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// The rate of the counter, measured from when this object was made until it is asked.
class TickRate {
 public:
  double nanoseconds(uint64_t count) const {
    const std::chrono::duration<double, std::nano> passed = Clock::now() - begin_;
    const uint64_t counted = ticks() - first_;
    return counted ? static_cast<double>(count) * (passed.count() / static_cast<double>(counted))
                   : 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
  uint64_t first_ = ticks();
};

}  // namespace opkiln::face
