// In: calls that may wait for the interpreter's lock; out: they return, or, when the interpreter is
// shutting down, the thread sleeps until the process ends.
//
// Until Python 3.14 a daemon thread that wants the lock during shutdown is ended by pthread_exit,
// which unwinds the stack like an exception. It must not pass our frames: `catch (...)` would
// swallow it (the C library then aborts), and destructors would give references back without the
// lock. So it is stopped before the first of our frames, where Python is called for long, and the
// thread sleeps, as Python 3.14 does it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <utility>

#include "core/threads.h"
#include "face/common.h"
#include "face/ticks.h"
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace opkiln::face {

[[noreturn]] inline void sleep_until_exit() {
  for (;;) pause();
}

#if defined(__GLIBCXX__)
#define OPKILN_CATCH_THREAD_EXIT        \
  catch (abi::__forced_unwind&) {       \
    ::opkiln::face::sleep_until_exit(); \
  }
#else
#define OPKILN_CATCH_THREAD_EXIT
#endif

// The result of a call into Python.
template <class F>
auto in_python(F&& call) -> decltype(call()) {
  struct Never {};  // a try block needs a handler where no C++ runtime unwinds threads
  try {
    return std::forward<F>(call)();
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (const Never&) {
    sleep_until_exit();
  }
}

// When the thread that holds the lock took it back after a kernel, in ticks; 0 once it gave it up.
inline std::atomic<uint64_t> g_taken{0};

inline PyThreadState* give_up_gil() {
  uint64_t taken = g_taken.load(std::memory_order_relaxed);
  PyThreadState* state = PyEval_SaveThread();
  if (taken) g_taken.compare_exchange_strong(taken, 0, std::memory_order_relaxed);
  return state;
}

// Between two kernels a thread holds the lock for less than a microsecond. To sleep for that would
// cost some twenty, so it is awaited here first, for up to ten.
inline void take_gil(PyThreadState* state) {
  constexpr uint64_t kShort = 26'000;  // ticks: some ten microseconds
  for (int turn = 0; turn < 600; turn++) {
    const uint64_t taken = g_taken.load(std::memory_order_relaxed);
    if (!taken || ticks() - taken > kShort) break;
    core::relax();
  }
  in_python([&] { PyEval_RestoreThread(state); });
  g_taken.store(ticks(), std::memory_order_relaxed);
}

// The lock is given up while this object lives.
class WithoutGil {
 public:
  WithoutGil() : state_(give_up_gil()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace opkiln::face
