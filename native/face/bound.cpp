#include "face/bound.h"

#include <structmember.h>
#include <unistd.h>

#include <string>

#include "face/allocator.h"
#include "face/call.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/gil.h"
#include "face/streams.h"

namespace opkiln::face {

namespace {

// An array that a kernel reads or writes, as it was when it was bound. NumPy lets anyone change an
// array in place (shape, dtype, resize), so every run looks.
struct Held {
  PyArrayObject* array;
  char* data;
  PyArray_Descr* descr;  // borrowed: compared only, and the array owned it when it was bound
  int rank;
  int flags;      // that must be set
  size_t layout;  // of the first of `rank` extents and `rank` strides among the words
};

struct Fixed {
  Ref function;  // the Compiled
  RecordRef record;
  std::unique_ptr<core::Executor> executor;  // null: each run is an ordinary call
  bool releases_gil = false;
  pid_t busy = 0;  // the process in which a thread runs it without the GIL
  std::vector<Held> held;
  std::vector<npy_intp> words;
  std::vector<uint64_t> weak;
  std::vector<Ref> values;  // what the caller gets, per output; null: a scalar from its cell
  std::vector<Cell> cells;  // memory of scalar results, per output
  std::vector<Ref> args;    // the whole call, for error texts and ordinary calls
  size_t n_args = 0;        // the first of them are positional
  Ref kwnames;              // with the results as out=
};

struct BoundCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* weakrefs;
  Fixed* fixed;
};

PyTypeObject* g_bound_type = nullptr;

BoundCall* as_bound(PyObject* o) { return reinterpret_cast<BoundCall*>(o); }
Compiled* compiled_of(const Fixed& in) { return reinterpret_cast<Compiled*>(in.function.get()); }

// ---- a run ----

bool unchanged(const Held& h, const npy_intp* words) {
  const npy_intp* dims = PyArray_DIMS(h.array);
  const npy_intp* strides = PyArray_STRIDES(h.array);
  words += h.layout;
  if (PyArray_BYTES(h.array) != h.data || PyArray_DESCR(h.array) != h.descr ||
      PyArray_NDIM(h.array) != h.rank || (PyArray_FLAGS(h.array) & h.flags) != h.flags) {
    return false;
  }
  for (int i = 0; i < h.rank; i++) {
    if (dims[i] != words[i] || strides[i] != words[h.rank + i]) return false;
  }
  return true;
}

// The parameter that an array was given for, as text; "out", or what else it is.
PyObject* label_of(const Fixed& in, PyArrayObject* a) {
  const Compiled* f = compiled_of(in);
  for (size_t i = 0; i < in.args.size(); i++) {
    if (in.args[i].get() != as_object(a)) continue;
    const auto at = static_cast<Py_ssize_t>(i), n = static_cast<Py_ssize_t>(in.n_args);
    if (at >= n) return Py_NewRef(PyTuple_GET_ITEM(in.kwnames.get(), at - n));
    if (at < f->n_positional) return Py_NewRef(PyTuple_GET_ITEM(f->names, at));
  }
  return PyUnicode_FromString("an array inside an argument, a captured array or a result");
}

__attribute__((noinline, cold)) PyObject* refuse_changed(const Fixed& in, const Held& h) {
  Ref name(function_name(compiled_of(in)->frontend));
  Ref label(label_of(in, h.array));
  if (!name || !label) return nullptr;
  if ((h.flags & NPY_ARRAY_WRITEABLE) && !PyArray_ISWRITEABLE(h.array)) {
    return raise(Err::readonly, "make it writable, or bind another array",
                 "%U(): %U became read-only after it was bound", name.get(), label.get());
  }
  return raise(Err::shape, "bind the call again",
               "%U(): %U changed its shape, strides, dtype or memory after it was bound",
               name.get(), label.get());
}

// Kernels that take long run without the GIL: then nobody else may start them.
uint64_t run_released(Fixed& in, core::Executor& x, const core::HostValue* weak) {
  struct Busy {
    pid_t& flag;
    explicit Busy(pid_t& f) : flag(f) { flag = getpid(); }
    ~Busy() { flag = 0; }
  } busy(in.busy);
  const WithoutGil released;
  return x.run(weak);
}

// Scalar results, made anew from their cells.
PyObject* with_scalars(const Fixed& in, const core::Executor& x, const Record* record) {
  std::vector<Ref> made(in.values.size());
  Small<PyObject*, 8> shown;
  for (size_t i = 0; i < in.values.size(); i++) {
    if (!in.values[i]) {
      const auto k = static_cast<size_t>(record->out_of_output[i]);
      PyArray_Descr* descr = descr_of(x.out(k).dtype);
      Cell cell = in.cells[k];
      made[i] = Ref(PyArray_Scalar(&cell, descr, nullptr));
      if (!made[i]) return nullptr;
    }
    shown.push(made[i] ? made[i].get() : in.values[i].get());
  }
  return record->tree.build(shown.data());
}

PyObject* built(const Fixed& in, const core::Executor& x, const Record* record) {
  if (!in.cells.empty()) return with_scalars(in, x, record);
  Small<PyObject*, 8> shown;
  for (const Ref& value : in.values) shown.push(value.get());
  return record->tree.build(shown.data());
}

PyObject* run_ordinary(const Fixed& in) {
  Small<PyObject*, 24> args;
  for (const Ref& arg : in.args) args.push(arg.get());
  return call_general(compiled_of(in), args.data(), static_cast<Py_ssize_t>(in.n_args),
                      in.kwnames.get());
}

PyObject* run_bound(Fixed& in) {
  if (OPKILN_UNLIKELY(!in.executor)) return run_ordinary(in);
  if (OPKILN_UNLIKELY(g_async_live != 0)) {
    if (stream_here()) return run_ordinary(in);
    order_after_queued(*in.executor, nullptr);
  }
  // An error must leave the results of the last run untouched.
  if (OPKILN_UNLIKELY(in.record.get()->divides) && errstate_of(compiled_of(in)) == kRaise) {
    return run_ordinary(in);
  }
  const npy_intp* words = in.words.data();
  for (const Held& h : in.held) {
    if (OPKILN_UNLIKELY(!unchanged(h, words))) return refuse_changed(in, h);
  }
  Compiled* f = compiled_of(in);
  core::Executor& x = *in.executor;
  Record* record = in.record.get();
  const auto* weak = reinterpret_cast<const core::HostValue*>(in.weak.data());
  uint64_t faults;
  try {
    if (OPKILN_LIKELY(!in.releases_gil)) {
      faults = x.run(weak);
    } else if (in.busy == getpid()) {  // a fork leaves a flag that no thread will clear
      Ref name(function_name(f->frontend));
      return name ? raise(Err::busy, "bind the call once per thread: each has its own results",
                          "%U(): this bound call runs on another thread", name.get())
                  : nullptr;
    } else {
      faults = run_released(in, x, weak);
    }
  } catch (const core::HostError& e) {
    x.ended();
    throw_host_error(f, record, e);
  } catch (const core::OpError& e) {
    x.ended();
    throw_op_error(f, record, e);
  }
  x.ended();
  f->counters.calls++;
  f->counters.hits++;
  if (OPKILN_UNLIKELY(faults != 0)) report_faults(f, record, faults);
  return OPKILN_LIKELY(record->tree.is_single() && in.cells.empty()) ? Py_NewRef(in.values[0].get())
                                                                     : built(in, x, record);
}

PyObject* call_bound_call(PyObject* o, PyObject* const*, size_t nargsf, PyObject* kwnames) {
  Fixed& in = *as_bound(o)->fixed;
  if (OPKILN_UNLIKELY(PyVectorcall_NARGS(nargsf) != 0) ||
      OPKILN_UNLIKELY(kwnames && PyTuple_GET_SIZE(kwnames))) {
    return raise(Err::argument, "write new data into the bound arrays, or call the function itself",
                 "a bound call takes no arguments");
  }
  if (OPKILN_UNLIKELY(!in.function)) {
    return raise(Err::internal, nullptr, "opkiln: the bound call is being destroyed");
  }
  try {
    return run_bound(in);
  } catch (const PythonError&) {
    return nullptr;
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
    return nullptr;
  }
}

// ---- binding ----

struct Binding {
  Compiled* self;
  CallArgs& call;
  OutArgs& outs;
  bool given;  // there is an out=
  Fixed& in;

  void hold(PyArrayObject* a, int flags) {
    const int rank = PyArray_NDIM(a);
    in.held.push_back({a, PyArray_BYTES(a), PyArray_DESCR(a), rank, flags, in.words.size()});
    in.words.insert(in.words.end(), PyArray_DIMS(a), PyArray_DIMS(a) + rank);
    in.words.insert(in.words.end(), PyArray_STRIDES(a), PyArray_STRIDES(a) + rank);
    Py_INCREF(a);
  }

  // Results per array output: the caller's own, a new array, or null for a scalar.
  bool make_results(core::Executor& x, std::vector<Ref>& results) {
    std::memcpy(x.args(), call.data.data(), call.data.size() * sizeof(char*));
    for (size_t k = 0; k < x.out_count(); k++) {
      const core::OutSpec& spec = x.out(k);
      const bool mine = given && outs.arrays[k];
      results.push_back(mine ? Ref::borrow(outs.given[k]) : Ref());
      if (mine || spec.ndim == 0) continue;
      results[k] = Ref(fresh_array(self, x, k));
      if (!results[k]) return false;
      x.outs()[k] = PyArray_BYTES(as_array(results[k].get()));
    }
    return true;
  }

  // The executor may run on the held pointers for ever; else each run is an ordinary call.
  bool fix(core::Executor& x, const Record* record, const std::vector<Ref>& results, bool direct) {
    if (x.is_fallback() || !x.stream().completes_inline() || call.copied.size() ||
        record->by_copy || (given && !direct)) {
      return false;
    }
    for (size_t i = 0; i < call.arrays.size(); i++) {
      x.args()[i] = call.data[i];
      hold(call.arrays[i], NPY_ARRAY_ALIGNED);
    }
    for (size_t i = 0; i < record->captures.size(); i++) {
      if (!record->capture_layouts[i].usable) return false;
      x.captures()[i] = PyArray_BYTES(record->captures[i]);
      hold(record->captures[i], NPY_ARRAY_ALIGNED);
    }
    in.cells.resize(x.out_count());
    for (size_t k = 0; k < x.out_count(); k++) {
      PyArrayObject* a = given && outs.arrays[k] ? outs.arrays[k] : as_array(results[k].get());
      x.outs()[k] = a ? PyArray_BYTES(a) : reinterpret_cast<char*>(&in.cells[k]);
      if (a) hold(a, NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE);
    }
    return x.outs_are_safe();
  }

  bool keep_values(core::Executor& x, const Record* record, const std::vector<Ref>& results) {
    in.weak.assign(call.weak.begin(), call.weak.end());
    if (record->out_of_output.size() != record->n_outs) {  // numbers: the same in every run
      x.prepare(reinterpret_cast<const core::HostValue*>(in.weak.data()));
    }
    bool scalars = false;
    const std::vector<core::OutputRef>& outputs = record->plan->outputs();
    for (size_t i = 0; i < outputs.size(); i++) {
      const int k = record->out_of_output[i];
      in.values.push_back(k < 0 ? Ref(host_number(x, outputs[i].index))
                                : Ref::borrow(results[static_cast<size_t>(k)].get()));
      if (k < 0 && !in.values[i]) return false;
      scalars = scalars || !in.values[i];
    }
    if (!scalars) in.cells.clear();
    return true;
  }

  // The call as it was made, with the results as its out=.
  bool keep_call(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                 const std::vector<Ref>& results) {
    Ref names(PyList_New(0));
    const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    in.n_args = static_cast<size_t>(nargs);
    for (Py_ssize_t i = 0; i < nargs; i++) in.args.push_back(Ref::borrow(args[i]));
    for (Py_ssize_t i = 0; names && i < keywords; i++) {
      PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
      if (self->takes_out && PyUnicode_Compare(keyword, g_str_out) == 0) continue;
      if (PyList_Append(names.get(), keyword) < 0) return false;
      in.args.push_back(Ref::borrow(args[nargs + i]));
    }
    bool some = false;
    for (const Ref& result : results) some = some || result;
    if (names && some && self->takes_out) {
      const auto n = static_cast<Py_ssize_t>(results.size());
      Ref tuple(PyTuple_New(n));
      if (!tuple || PyList_Append(names.get(), g_str_out) < 0) return false;
      for (Py_ssize_t k = 0; k < n; k++) {
        PyObject* result = results[static_cast<size_t>(k)].get();
        PyTuple_SET_ITEM(tuple.get(), k, Py_NewRef(result ? result : Py_None));
      }
      in.args.push_back(n == 1 ? Ref::borrow(results[0].get()) : std::move(tuple));
    }
    in.kwnames = Ref(names ? PyList_AsTuple(names.get()) : nullptr);
    return static_cast<bool>(in.kwnames);
  }

  bool make(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool direct) {
    std::unique_ptr<core::Executor> x =
        make_executor(self, call, given && direct ? &outs : nullptr, 'b', in.record);
    const Record* record = in.record.get();
    if (given && !check_out_count(outs, record->n_outs)) return false;
    for (size_t k = 0; given && k < record->n_outs; k++) {
      const core::OutSpec& spec = x->out(k);
      if (outs.arrays[k] && !check_out(outs, k, spec.ndim, spec.shape, spec.dtype)) {
        return false;
      }
    }
    std::vector<Ref> results;
    if (!make_results(*x, results) || !keep_call(args, nargs, kwnames, results)) return false;
    if (!fix(*x, record, results, direct)) return true;
    if (!keep_values(*x, record, results)) return false;
    in.releases_gil = x->estimated_ns() > kReleaseGilNs;
    in.executor = std::move(x);
    return true;
  }
};

bool refuse_tensor(Compiled* self) {
  Ref name(function_name(self->frontend));
  if (name) {
    raise(Err::argument, "bind an array that shares its memory, for example t.numpy()",
          "%U(): another library may move a tensor's memory, so it cannot be bound", name.get());
  }
  return false;
}

bool bind_once(Compiled* self, Fixed& in, PyObject* const* args, Py_ssize_t nargs,
               PyObject* kwnames) {
  CallArgs call(self->id);
  PyObject* out = nullptr;
  const Bound bound = bind_call(self, call, args, nargs, kwnames, &out);
  if (bound == Bound::error) return false;
  if (bound == Bound::traced) {
    raise(Err::trace, "call the function itself", "bind() cannot be traced");
    return false;
  }
  if (call.key[0] != self->id) throw Restart{};
  if (call.origin || call.borrowed) return refuse_tensor(self);
  call.args_size = call.key.size();
  OutArgs outs;
  const bool given = out && out != Py_None;
  if (given && !read_outs(call, out, outs)) return false;
  for (PyObject* o : outs.given) {
    if (o && !PyArray_Check(o)) return refuse_tensor(self);
  }
  in.function = Ref::borrow(reinterpret_cast<PyObject*>(self));
  Binding binding{self, call, outs, given, in};
  const auto make = [&](bool direct) -> PyObject* {
    return binding.make(args, nargs, kwnames, direct) ? in.function.get() : nullptr;
  };
  return given ? into_outs(
                     outs, [&] { return make(true); }, [&] { return make(false); })
               : make(true);
}

// ---- life ----

void drop(Fixed* in) {
  for (const Held& h : in->held) Py_DECREF(h.array);
  delete in;
}

void bound_dealloc(PyObject* o) {
  BoundCall* self = as_bound(o);
  PyObject_GC_UnTrack(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  if (self->fixed) drop(std::exchange(self->fixed, nullptr));
  PyTypeObject* type = Py_TYPE(o);
  type->tp_free(o);
  Py_DECREF(type);
}

// The record is the function's, which visits it.
int bound_traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(o));
  const Fixed* in = as_bound(o)->fixed;
  if (!in) return 0;
  Py_VISIT(in->function.get());
  Py_VISIT(in->kwnames.get());
  for (const Ref& item : in->args) Py_VISIT(item.get());
  for (const Ref& value : in->values) Py_VISIT(value.get());
  for (const Held& h : in->held) Py_VISIT(as_object(h.array));
  return 0;
}

int bound_clear(PyObject* o) {
  Fixed* in = as_bound(o)->fixed;
  if (!in) return 0;
  const Ref function = std::move(in->function);
  std::vector<Ref> args;
  args.swap(in->args);
  return 0;
}

PyObject* bound_repr(PyObject* o) {
  const Fixed& in = *as_bound(o)->fixed;
  Ref name(function_name(in.function ? compiled_of(in)->frontend : nullptr));
  return name ? PyUnicode_FromFormat("<bound call of %U>", name.get()) : nullptr;
}

PyObject* bound_function(PyObject* o, void*) {
  PyObject* function = as_bound(o)->fixed->function.get();
  return Py_NewRef(function ? function : Py_None);
}

PyGetSetDef kGetSet[] = {
    {"__wrapped__", bound_function, nullptr, "The compiled function.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoundCall, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(BoundCall, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_dealloc, slot(bound_dealloc)},
                        {Py_tp_traverse, slot(bound_traverse)},
                        {Py_tp_clear, slot(bound_clear)},
                        {Py_tp_call, slot(PyVectorcall_Call)},
                        {Py_tp_repr, slot(bound_repr)},
                        {Py_tp_getset, kGetSet},
                        {Py_tp_members, kMembers},
                        {0, nullptr}};

PyType_Spec kSpec = {"opkiln.native._core.BoundCall", sizeof(BoundCall), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                         Py_TPFLAGS_DISALLOW_INSTANTIATION,
                     kSlots};

}  // namespace

PyObject* bind_to_arrays(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                         PyObject* kwnames) {
  Ref owner(g_bound_type->tp_alloc(g_bound_type, 0));  // zero-filled
  if (!owner) return nullptr;
  BoundCall* made = as_bound(owner.get());
  made->vectorcall = call_bound_call;
  constexpr int kAttempts = 100;
  try {
    for (int attempt = 0; attempt < kAttempts; attempt++) {
      if (made->fixed) drop(std::exchange(made->fixed, nullptr));
      made->fixed = new Fixed;
      try {
        return bind_once(self, *made->fixed, args, nargs, kwnames) ? owner.release() : nullptr;
      } catch (const Restart&) {
      }
    }
  } catch (const PythonError&) {
    return nullptr;
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
    return nullptr;
  }
  return raise(Err::internal, nullptr, "opkiln: the function is cleared in each of its calls");
}

int add_bound_type(PyObject* module) {
  Ref type(PyType_FromSpec(&kSpec));
  if (!type) return -1;
  g_bound_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  return PyModule_AddObjectRef(module, "BoundCall", type.get());
}

}  // namespace opkiln::face
