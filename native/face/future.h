// The result of a call that is queued on a stream: in goes what the worker leaves, out comes the
// value or the error. The object is itself the queue's item, so a call allocates it once.
#pragma once

#include <atomic>

#include "core/event.h"
#include "core/executor.h"
#include "core/queue.h"
#include "face/arrays.h"
#include "face/call.h"

namespace opkiln::face {

struct Future;

// The native half of a Future. What the worker touches needs no Python.
class Pending final : public core::Work {
 public:
  explicit Pending(Future* owner) : owner_(owner) {}
  ~Pending() override;

  void run() noexcept override;
  void finished() noexcept override;
  void dropped() noexcept override;

  /// Puts it among the queued ones, until settle().
  void track();
  /// Once it is done: adds its faults to the counters, the first time.
  void count();
  Pending* next_tracked() const { return after_; }
  bool done() const noexcept { return !event() || event()->passed(generation()); }
  bool failed() const noexcept;                                    // once it is done
  bool was_not_run() const noexcept { return cause_ != nullptr; }  // since an argument failed
  bool lost() const noexcept { return state_.load(std::memory_order_acquire) == kLost; }

  Compiled* function = nullptr;  // owned, as all pointers to Python objects here
  RecordRef record;
  core::Executor* executor = nullptr;  // until done
  const Origin* origin = nullptr;
  uint64_t stream = 0;  // its id
  uint64_t faults = 0;
  Errstate errstate = kIgnore;    // what held where the call was made
  Objects results;                // an array per array result
  Objects given;                  // of out=, or null, per array result
  Objects numbers;                // results that are no arrays
  Objects kept;                   // what the kernels read, until done
  Small<Pending*, 4> needs;       // futures among the arguments; kept holds them
  PyObject* callbacks = nullptr;  // a list, when someone watches
  PyObject* value = nullptr;
  PyObject* error = nullptr;
  bool told = false;  // the faults that are no error
  bool seen = false;  // someone has asked for the value or the error

 private:
  friend void reclaim();
  friend bool watch(Future* future, PyObject* callback);
  friend PyObject* failure(Future* future);
  enum State : int { kQueued, kWatched, kDone, kLost };
  void retire() noexcept;
  void settle();

  Future* owner_;              // counted while it is queued
  Pending* before_ = nullptr;  // of those that are tracked
  Pending* after_ = nullptr;
  std::atomic<int> state_{kQueued};
  bool watched_ = false;       // as run() found it
  bool counted_ = false;       // the faults
  std::exception_ptr broken_;  // what a kernel threw
  Pending* cause_ = nullptr;   // the first that failed, so that this was not run; kept holds it
  Pending* next_done_ = nullptr;
};

struct Future {
  PyObject_HEAD PyObject* weakrefs;
  alignas(Pending) char storage[sizeof(Pending)];
  Pending& pending() { return *reinterpret_cast<Pending*>(storage); }
};

// The Future inside a Python object, or null.
Future* future_of(PyObject* o);
// A new one; null with an error set.
Future* new_future();
// Waits with signals heard; false with an error set.
bool wait_for(Future* future, PyObject* timeout = Py_None);
// The value of one that is done, or null with its error set (new reference).
PyObject* value_of(Future* future);
// The results as arrays that are being written, in the tree of the value (new reference or null).
PyObject* arrays_of(Future* future);

// Memory that a call given `stream` (null: inline) is about to use, beside queued calls that use it
// too where one of them writes: the stream waits for those of other streams, an inline call here.
// Throws PythonError, StreamClosed.
void order_after_queued(const core::Executor& x, core::Stream* stream);
// The same before an array is written here.
void order_after_queued(PyArrayObject* written);
// The same before any array is read here.
void order_after_writers();
// Queued calls that write into arrays which the caller holds: out=.
extern uint32_t g_queued_writers;

// Lets go of what finished calls have kept alive. Called wherever the GIL is held and it is cheap.
void reclaim();
// Once per process: what is queued at exit is finished within some seconds, or dropped in order.
void finish_at_exit();
void set_exit_patience(std::chrono::nanoseconds patience);

int add_future_type(PyObject* module);

}  // namespace opkiln::face
