// In: calls that may wait for the interpreter's lock; out: they return, or, when the interpreter is
// shutting down, the thread sleeps until the process ends.
//
// Until Python 3.14 a daemon thread that wants the lock during shutdown is ended by pthread_exit,
// which unwinds the stack like an exception. It must not pass our frames: `catch (...)` would
// swallow it (the C library then aborts), and destructors would give references back without the
// lock. So it is stopped before the first of our frames, where Python is called for long, and the
// thread sleeps, as Python 3.14 does it.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
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

// No fork while it is held. A thread that Python did not start makes its state without the
// interpreter's lock, under one of the runtime that until Python 3.12 the child of a fork in that
// moment waits for, in fork() itself and for ever. To be called first with the interpreter's lock.
inline std::mutex& no_fork() {
  static std::mutex* mutex = [] {
    static auto* made = new std::mutex;  // never destroyed: threads may end after main
    pthread_atfork([] { made->lock(); }, [] { made->unlock(); }, [] { made->unlock(); });
    return made;
  }();
  return *mutex;
}

// The lock is held while this object lives, by a thread of whatever origin.
class WithGil {
 public:
  WithGil() : known_(PyGILState_GetThisThreadState() != nullptr) {
    if (known_) {
      in_python([&] { before_ = PyGILState_Ensure(); });
      return;
    }
    PyThreadState* made;
    {
      const std::lock_guard<std::mutex> lock(no_fork());
      made = PyThreadState_New(PyInterpreterState_Main());
    }
    if (!made) Py_FatalError("opkiln: no memory for the state of a thread");
    in_python([&] { PyEval_RestoreThread(made); });
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() {
    if (known_) {
      PyGILState_Release(before_);
    } else {
      PyThreadState_Clear(PyThreadState_Get());
      PyThreadState_DeleteCurrent();
    }
  }

 private:
  const bool known_;
  PyGILState_STATE before_{};
};

}  // namespace opkiln::face
