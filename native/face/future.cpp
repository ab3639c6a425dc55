#include "face/future.h"

#include <structmember.h>

#include <exception>

#include "core/blocking.h"
#include "core/queue.h"
#include "face/errors.h"
#include "face/gil.h"
#include "face/streams.h"

namespace opkiln::face {

uint32_t g_queued_writers = 0;

namespace {

PyTypeObject* g_future_type = nullptr;
std::atomic<Pending*> g_finished{nullptr};  // a stack: the last one first
std::atomic<bool> g_announced{false};       // the interpreter has been asked to call reclaim()
std::chrono::nanoseconds g_exit_patience = std::chrono::seconds(5);
std::atomic<bool> g_exiting{false};  // no more Python from other threads

Future* as_future(PyObject* o) { return reinterpret_cast<Future*>(o); }
PyObject* as_python(Future* f) { return reinterpret_cast<PyObject*>(f); }

Pending* g_tracked = nullptr;  // the newest queued call that reclaim() has not seen yet

int reclaim_pending(void*) {
  reclaim();
  return 0;
}

void call_all(PyObject* callbacks) {
  for (Py_ssize_t i = 0; callbacks && i < PyList_GET_SIZE(callbacks); i++) {
    const Ref done(in_python([&] { return PyObject_CallNoArgs(PyList_GET_ITEM(callbacks, i)); }));
    if (!done) PyErr_WriteUnraisable(PyList_GET_ITEM(callbacks, i));
  }
}

// "f()" of the call, for messages (new reference or null).
PyObject* call_name(const Pending& p) {
  return p.function ? function_name(p.function->frontend) : PyUnicode_FromString("function");
}

}  // namespace

// ---- the worker's half ----

bool Pending::failed() const noexcept {
  return cause_ || broken_ != nullptr || lost() || faults_raise(faults, errstate);
}

void Pending::run() noexcept {
  for (Pending* need : needs) {
    if (!need->failed()) continue;
    cause_ = need->cause_ ? need->cause_ : need;
    break;
  }
  if (!cause_) {
    faults = executor->launch(broken_);
  }
  watched_ = state_.exchange(kDone, std::memory_order_acq_rel) == kWatched;
}

void Pending::finished() noexcept {
  if (watched_ && !g_exiting.load()) {
    const WithGil gil;
    call_all(Ref(std::exchange(callbacks, nullptr)).get());
  }
  retire();
  if (!g_exiting.load() && !g_announced.exchange(true) &&
      Py_AddPendingCall(reclaim_pending, nullptr) < 0) {
    g_announced.store(false);  // the next call, or another one's end, will do
  }
}

void Pending::dropped() noexcept {
  state_.store(kLost, std::memory_order_release);
  retire();
}

void Pending::retire() noexcept {
  Pending* head = g_finished.load(std::memory_order_relaxed);
  do {
    next_done_ = head;
  } while (!g_finished.compare_exchange_weak(head, this, std::memory_order_release,
                                             std::memory_order_relaxed));
}

// ---- Python's half ----

Pending::~Pending() {
  Py_XDECREF(reinterpret_cast<PyObject*>(function));
  Py_XDECREF(callbacks);
  Py_XDECREF(value);
  Py_XDECREF(error);
}

void Pending::track() {
  g_async_live++;
  if (given.size()) g_queued_writers++;
  after_ = std::exchange(g_tracked, this);
  if (after_) after_->before_ = this;
}

void Pending::count() {
  if (faults && !std::exchange(counted_, true)) count_faults(function, faults);
}

void Pending::settle() {
  g_async_live--;
  if (given.size()) g_queued_writers--;
  (before_ ? before_->after_ : g_tracked) = after_;
  if (after_) after_->before_ = before_;
  executor = nullptr;
  count();
  needs.resize_down(0);
  Py_XINCREF(cause_ ? as_python(cause_->owner_) : nullptr);  // what is in kept holds it so far
  kept.clear();
  if (cause_) kept.push(as_python(cause_->owner_));
}

void reclaim() {
  g_announced.store(false, std::memory_order_relaxed);
  if (OPKILN_LIKELY(!g_finished.load(std::memory_order_relaxed))) return;
  Pending* list = g_finished.exchange(nullptr, std::memory_order_acquire);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // what is let go may run any code
  while (list) {
    Pending* p = list;
    list = p->next_done_;
    p->settle();
    Py_DECREF(as_python(p->owner_));
  }
  PyErr_Restore(type, value, traceback);
}

namespace {

// The queued calls that `conflicts` with what comes next are waited for, by the stream or here.
template <class Conflicts>
void order_after(core::Stream* stream, bool writes, Conflicts&& conflicts) {
  if (!g_queued_writers && !writes) return;  // all of them only read what a caller can name
  for (Pending* p = g_tracked; p;) {
    const bool other = !stream || p->stream != stream->id();
    if (!other || p->done() || !conflicts(*p->executor)) {
      p = p->next_tracked();
    } else if (stream) {
      stream->wait(*p->event(), p->generation());
      p = p->next_tracked();
    } else {
      wait_here({core::Ref<core::Event>(p->event()), p->generation()}, Py_None, "");
      p = g_tracked;  // any code may have run
    }
  }
}

}  // namespace

void order_after_queued(const core::Executor& x, core::Stream* stream) {
  bool writes = false;
  for (size_t k = 0; k < x.out_count(); k++) writes |= x.out(k).given;
  order_after(stream, writes,
              [&](const core::Executor& queued) { return x.conflicts_with(queued); });
}

void order_after_queued(PyArrayObject* written) {
  const core::ArrayView view = view_of(written);
  order_after(nullptr, true, [&](const core::Executor& queued) {
    return queued.touches(view.data, core::byte_range(view), false);
  });
}

void order_after_writers() {
  order_after(nullptr, false, [](const core::Executor&) { return true; });
}

Future* future_of(PyObject* o) { return Py_TYPE(o) == g_future_type ? as_future(o) : nullptr; }

Future* new_future() {
  PyObject* made = g_future_type->tp_alloc(g_future_type, 0);
  if (made) new (as_future(made)->storage) Pending(as_future(made));
  return as_future(made);
}

bool wait_for(Future* future, PyObject* timeout) {
  const Ref alive = Ref::borrow(as_python(future));
  Pending& p = future->pending();
  try {
    if (!p.done()) {
      const core::EventRecord record{core::Ref<core::Event>(p.event()), p.generation()};
      Ref name(call_name(p));
      Ref what(name ? PyUnicode_FromFormat("%U():", name.get()) : nullptr);
      const char* text = what ? PyUnicode_AsUTF8(what.get()) : nullptr;
      if (!text) return false;
      wait_here(record, timeout, text);
    } else {
      timeout_of(timeout);  // a wrong one is one even then
    }
  } catch (const PythonError&) {
    return false;
  }
  reclaim();
  p.count();  // reclaim() comes to it only when its worker has let go of it
  return true;
}

namespace {

void set_op_error(const Pending& p, const core::OpError& e) {
  try {
    throw_op_error(p.function, p.record.get(), e);
  } catch (const PythonError&) {
  }
}

}  // namespace

// The error of one that is done, or null: none, or (with an error set) it cannot be made. Borrowed.
PyObject* failure(Future* future) {
  Pending& p = future->pending();
  p.seen = true;
  if (p.cause_) return failure(p.cause_->owner_);
  if (p.error || p.value) return p.error;
  if (p.faults && !p.failed() && !p.told) {  // may warn, which may raise
    try {
      tell_faults(p.function, p.record.get(), p.faults, p.errstate);
    } catch (const PythonError&) {
      return nullptr;
    }
    p.told = true;
  }
  if (!p.failed()) return nullptr;
  Ref name(call_name(p));
  if (!name) return nullptr;
  if (p.lost()) {
    raise(Err::stream, "ask for results before the process ends, and in the process that called",
          "%U(): not computed: the stream was given up before its turn came", name.get());
  } else {
    try {
      if (p.broken_) std::rethrow_exception(p.broken_);
      tell_faults(p.function, p.record.get(), p.faults, p.errstate);
    } catch (const core::OpError& e) {
      set_op_error(p, e);
    } catch (const PythonError&) {
    } catch (...) {
      raise_current();
    }
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  p.error = value;
  return p.error;
}

PyObject* value_of(Future* future) {
  Pending& p = future->pending();
  if (PyObject* error = failure(future)) {
    PyException_SetTraceback(error, Py_None);  // else it grows with each time
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
    return nullptr;
  }
  if (PyErr_Occurred()) return nullptr;
  if (p.value) return Py_NewRef(p.value);
  try {
    Objects seen;
    for (size_t k = 0; k < p.results.size(); k++) {
      PyObject* given = k < p.given.size() ? p.given[k] : nullptr;
      seen.push(shown(p.function, p.origin, given, p.results[k]));
      if (!seen[k]) return nullptr;
    }
    PyObject* made = assemble(p.record.get(), seen, p.numbers);
    if (!made) return nullptr;
    PyObject* other = std::exchange(p.value, made);  // making it may have run any code
    Py_XDECREF(other);
  } catch (const PythonError&) {
    return nullptr;
  }
  return Py_NewRef(p.value);
}

PyObject* arrays_of(Future* future) {
  const Pending& p = future->pending();
  return assemble(p.record.get(), p.results, p.numbers);
}

bool watch(Future* future, PyObject* callback) {
  Pending& p = future->pending();
  no_fork();  // the worker will need it
  if (!p.callbacks && !(p.callbacks = PyList_New(0))) return false;
  if (PyList_Append(p.callbacks, callback) < 0) return false;
  int queued = Pending::kQueued;
  if (p.event() && (p.state_.compare_exchange_strong(queued, Pending::kWatched) ||
                    queued == Pending::kWatched)) {
    return true;
  }
  // Done already, and the worker has not seen the list.
  const Ref list(std::exchange(p.callbacks, nullptr));
  call_all(list.get());
  return true;
}

namespace {

// ---- methods ----

PyObject* timeout_argument(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nargs + keywords == 0) return Py_None;
  const bool named = keywords == 1 &&
                     PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "timeout") == 0;
  if (nargs + keywords == 1 && (nargs == 1 || named)) return args[0];
  return raise(Err::argument, nullptr, "expected at most one argument: timeout");
}

PyObject* future_result(PyObject* o, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* timeout = timeout_argument(args, nargs, kwnames);
  if (!timeout || !wait_for(as_future(o), timeout)) return nullptr;
  return value_of(as_future(o));
}

PyObject* future_exception(PyObject* o, PyObject* const* args, Py_ssize_t nargs,
                           PyObject* kwnames) {
  PyObject* timeout = timeout_argument(args, nargs, kwnames);
  if (!timeout || !wait_for(as_future(o), timeout)) return nullptr;
  PyObject* error = failure(as_future(o));
  if (!error && PyErr_Occurred()) return nullptr;
  return Py_NewRef(error ? error : Py_None);
}

PyObject* future_done(PyObject* o, PyObject*) {
  return PyBool_FromLong(as_future(o)->pending().done());
}

PyObject* future_on_done(PyObject* o, PyObject* callback) {
  return watch(as_future(o), callback) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* future_array(PyObject* o, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"dtype", "copy", nullptr};
  PyObject *dtype = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", const_cast<char**>(keywords),
                                   &dtype, &copy) ||
      !wait_for(as_future(o))) {
    return nullptr;
  }
  Ref value(value_of(as_future(o)));
  Ref numpy(value ? PyImport_ImportModule("numpy") : nullptr);
  Ref function(numpy ? PyObject_GetAttrString(numpy.get(), "array") : nullptr);
  Ref positional(function ? PyTuple_Pack(1, value.get()) : nullptr);
  Ref named(positional ? Py_BuildValue("{s:O,s:O}", "dtype", dtype, "copy", copy) : nullptr);
  return named ? PyObject_Call(function.get(), positional.get(), named.get()) : nullptr;
}

PyObject* future_await(PyObject* o) {
  Ref module(PyImport_ImportModule("opkiln.runtime.awaiting"));
  Ref waits(module ? PyObject_CallMethod(module.get(), "settled", "O", o) : nullptr);
  return waits ? PyObject_CallMethod(waits.get(), "__await__", nullptr) : nullptr;
}

PyObject* future_repr(PyObject* o) {
  const Pending& p = as_future(o)->pending();
  Ref name(call_name(p));
  const char* state = !p.done() ? "pending" : p.failed() ? "failed" : "done";
  return name ? PyUnicode_FromFormat("<Future of %U: %s>", name.get(), state) : nullptr;
}

// ---- life ----

int future_traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(o));
  const Pending& p = as_future(o)->pending();
  Py_VISIT(reinterpret_cast<PyObject*>(p.function));
  Py_VISIT(p.callbacks);
  Py_VISIT(p.value);
  Py_VISIT(p.error);
  for (const Objects* list : {&p.results, &p.given, &p.numbers, &p.kept}) {
    for (size_t i = 0; i < list->size(); i++) Py_VISIT((*list)[i]);
  }
  return 0;
}

// Only what can close a cycle: those that are queued are held by the queue.
int future_clear(PyObject* o) {
  Pending& p = as_future(o)->pending();
  Py_CLEAR(p.callbacks);
  Py_CLEAR(p.value);
  Py_CLEAR(p.error);
  p.results.clear();
  p.given.clear();
  p.numbers.clear();
  return 0;
}

// An error that nobody has asked for is not lost.
void tell_unseen(Future* future) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyObject* error = failure(future)) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  }
  if (PyErr_Occurred()) PyErr_WriteUnraisable(as_python(future));
  PyErr_Restore(type, value, traceback);
}

void future_finalize(PyObject* o) {
  const Pending& p = as_future(o)->pending();
  const bool own = p.done() && p.failed() && !p.lost() && !p.was_not_run();
  if (own && !p.seen) tell_unseen(as_future(o));
}

void future_dealloc(PyObject* o) {
  if (PyObject_CallFinalizerFromDealloc(o) < 0) return;
  PyObject_GC_UnTrack(o);
  Future* self = as_future(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  self->pending().~Pending();
  PyTypeObject* type = Py_TYPE(o);
  type->tp_free(o);
  Py_DECREF(type);
}

template <class F>
PyCFunction method(F* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef kMethods[] = {
    {"result", method(future_result), METH_FASTCALL | METH_KEYWORDS,
     "result(timeout=None): the value, waited for; raises what the call would have raised."},
    {"exception", method(future_exception), METH_FASTCALL | METH_KEYWORDS,
     "exception(timeout=None): the error, waited for, or None."},
    {"done", future_done, METH_NOARGS, "Whether result() returns at once."},
    {"_on_done", future_on_done, METH_O,
     "Calls this, without arguments, when it is done, on whatever thread that is noticed."},
    {"__array__", method(future_array), METH_VARARGS | METH_KEYWORDS,
     "The value as an array, waited for."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef kMembers[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Future, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

const char kDoc[] = "The result of a compiled call that is queued on a stream.";

PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                        {Py_tp_dealloc, slot(future_dealloc)},
                        {Py_tp_finalize, slot(future_finalize)},
                        {Py_tp_traverse, slot(future_traverse)},
                        {Py_tp_clear, slot(future_clear)},
                        {Py_tp_repr, slot(future_repr)},
                        {Py_am_await, slot(future_await)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_members, kMembers},
                        {0, nullptr}};

PyType_Spec kSpec = {"opkiln.native._core.Future", sizeof(Future), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                     kSlots};

// ---- the end ----

// Waits for all queues, for so long or until Ctrl-C.
void finish_queues() {
  const core::Clock::time_point end = core::Clock::now() + g_exit_patience;
  try {
    for (const core::EventRecord& last : core::Queues::marks()) {
      const auto left = end - core::Clock::now();
      if (left.count() <= 0 || !core::wait_interruptibly(last, left)) return;
    }
  } catch (const PythonError&) {
    PyErr_WriteUnraisable(nullptr);
  }
}

PyObject* at_exit(PyObject*, PyObject*) {
  finish_queues();
  g_exiting.store(true);
  const size_t dropped = core::Queues::drop_all();
  if (dropped) {
    PySys_FormatStderr(
        "opkiln: %zu queued calls or waits were dropped at exit; call ok.synchronize() before it\n",
        dropped);
  }
  reclaim();
  Py_RETURN_NONE;
}

PyMethodDef kAtExit = {"finish_streams", at_exit, METH_NOARGS, nullptr};

}  // namespace

void set_exit_patience(std::chrono::nanoseconds patience) { g_exit_patience = patience; }

void finish_at_exit() {
  static bool asked = false;
  if (std::exchange(asked, true)) return;
  Ref module(PyImport_ImportModule("atexit"));
  Ref function(module ? PyCFunction_New(&kAtExit, nullptr) : nullptr);
  Ref done(function ? PyObject_CallMethod(module.get(), "register", "O", function.get()) : nullptr);
  if (!done) throw PythonError{};
}

int add_future_type(PyObject* module) {
  Ref type(PyType_FromSpec(&kSpec));
  if (!type) return -1;
  g_future_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  return PyModule_AddObjectRef(module, "Future", type.get());
}

}  // namespace opkiln::face
