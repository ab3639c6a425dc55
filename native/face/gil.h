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
#include <chrono>
#include <utility>

#include "core/threads.h"
#include "face/common.h"
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

// When the thread that holds the lock took it back after a kernel; 0 once it gave it up.
inline std::atomic<int64_t> g_taken_ns{0};

inline int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

inline PyThreadState* give_up_gil() {
  int64_t taken = g_taken_ns.load(std::memory_order_relaxed);
  PyThreadState* state = PyEval_SaveThread();
  g_taken_ns.compare_exchange_strong(taken, 0, std::memory_order_relaxed);
  return state;
}

// Between two kernels a thread holds the lock for less than a microsecond. To sleep for that would
// cost some twenty, so it is awaited here first.
inline void take_gil(PyThreadState* state) {
  constexpr int64_t kShortNs = 3000;
  for (;;) {
    const int64_t taken = g_taken_ns.load(std::memory_order_relaxed);
    if (taken == 0 || now_ns() - taken > kShortNs) break;
    core::relax();
  }
  in_python([&] { PyEval_RestoreThread(state); });
  g_taken_ns.store(now_ns(), std::memory_order_relaxed);
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
