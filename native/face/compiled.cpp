#include "face/compiled.h"

#include <structmember.h>

#include "core/table.h"
#include "face/bound.h"
#include "face/call.h"
#include "face/errors.h"
#include "face/gil.h"

namespace opkiln::face {

PyObject* g_missing = nullptr;
PyObject* g_str_out = nullptr;
PyObject* g_errstate = nullptr;
bool g_tell_all = false;

Errstate errstate_of(const Compiled* self) {
  if (OPKILN_LIKELY(!g_errstate)) return static_cast<Errstate>(self->errstate);
  PyObject* found = nullptr;
  if (PyContextVar_Get(g_errstate, Py_None, &found) < 0) throw PythonError{};
  const Ref value(found);
  if (value.get() == Py_None) return static_cast<Errstate>(self->errstate);
  return static_cast<Errstate>(PyLong_AsLong(value.get()));
}

namespace {

Compiled* as_compiled(PyObject* o) { return reinterpret_cast<Compiled*>(o); }

// ---- construction ----

int read_parameters(Compiled* self, PyObject* kinds, PyObject* is_static) {
  const Py_ssize_t n = PyTuple_GET_SIZE(self->names);
  if (PyBytes_GET_SIZE(kinds) != n || PyTuple_GET_SIZE(self->defaults) != n ||
      PyTuple_GET_SIZE(is_static) != n) {
    PyErr_SetString(PyExc_ValueError,
                    "Compiled: names, kinds, defaults and static must be of one length");
    return -1;
  }
  self->n_params = static_cast<int>(n);
  self->n_positional = 0;
  self->plain = true;
  PyObject* first = n ? PyTuple_GET_ITEM(self->names, 0) : Py_None;
  self->has_self = PyUnicode_Check(first) && PyUnicode_CompareWithASCIIString(first, "self") == 0;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* name = PyTuple_GET_ITEM(self->names, i);
    const char kind = PyBytes_AS_STRING(kinds)[i];
    const int fixed = PyObject_IsTrue(PyTuple_GET_ITEM(is_static, i));
    if (!PyUnicode_CheckExact(name) || kind < 0 || kind > 4 || fixed < 0) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Compiled: bad name or kind");
      return -1;
    }
    PyUnicode_InternInPlace(&PyTuple_GET_ITEM(self->names, i));
    if (kind <= 1) self->n_positional++;
    if (kind == 0) self->n_positional_only++;
    if (kind > 1 || fixed) self->plain = false;
    if (PyTuple_GET_ITEM(self->names, i) == g_str_out) self->takes_out = false;
    self->inside->kinds.push_back(kind);
    self->inside->is_static.push_back(static_cast<char>(fixed));
  }
  if (n > kMostQuickArgs) self->plain = false;
  self->n_quick = self->plain ? self->n_params : -1;
  return 0;
}

// Called with the weak reference of a receiver that died: its traces go with it.
PyObject* on_death(PyObject* reaper, PyObject* ref) {
  auto* self = static_cast<Compiled*>(PyCapsule_GetContext(reaper));
  if (!self || !self->inside) Py_RETURN_NONE;
  const Ref alive = Ref::borrow(reinterpret_cast<PyObject*>(self));
  const int64_t id = self->inside->interns.bury(ref);
  if (id >= 0) self->inside->records.drop(static_cast<uint64_t>(id));
  Py_RETURN_NONE;
}

PyMethodDef kOnDeath = {"on_death", on_death, METH_O, nullptr};

int watch_receivers(Compiled* self) {
  self->inside->reaper = Ref(PyCapsule_New(&kOnDeath, nullptr, nullptr));
  PyObject* reaper = self->inside->reaper.get();
  if (!reaper || PyCapsule_SetContext(reaper, self) < 0) return -1;
  PyObject* callable = PyCFunction_New(&kOnDeath, reaper);
  self->inside->interns.set_on_death(callable);
  return callable ? 0 : -1;
}

PyObject* compiled_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"frontend", "names",    "kinds",     "defaults",
                                   "static",   "errstate", "takes_out", nullptr};
  PyObject *frontend, *names, *kinds, *defaults, *is_static;
  unsigned char errstate = kIgnore;
  int takes_out = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!SO!O!|bp:Compiled",
                                   const_cast<char**>(keywords), &frontend, &PyTuple_Type, &names,
                                   &kinds, &PyTuple_Type, &defaults, &PyTuple_Type, &is_static,
                                   &errstate, &takes_out)) {
    return nullptr;
  }
  Ref owner(type->tp_alloc(type, 0));  // zero-filled
  if (!owner) return nullptr;
  Compiled* self = as_compiled(owner.get());
  try {
    self->inside = new Inside;
    if (watch_receivers(self) < 0) return nullptr;
    self->id = self->inside->state->id();
    // own tuples: the names are interned in place
    Ref list(PySequence_List(names));
    if (!list || !(self->names = PyList_AsTuple(list.get()))) return nullptr;
    self->defaults = Py_NewRef(defaults);
    self->takes_out = takes_out != 0;
    if (read_parameters(self, kinds, is_static) < 0) return nullptr;
    self->errstate = errstate;
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
    return nullptr;
  }
  self->frontend = Py_NewRef(frontend);
  self->vectorcall = call_compiled;
  return owner.release();
}

// ---- life ----

int compiled_traverse(PyObject* o, visitproc visit, void* arg) {
  Compiled* self = as_compiled(o);
  Py_VISIT(Py_TYPE(o));
  Py_VISIT(self->frontend);
  Py_VISIT(self->names);
  Py_VISIT(self->defaults);
  Py_VISIT(self->dict);
  if (!self->inside) return 0;
  int status = self->inside->interns.traverse(visit, arg);
  if (!status) status = self->inside->records.traverse(visit, arg);
  if (!status) status = self->inside->misses.traverse(visit, arg);
  return status ? status : self->inside->copies.traverse(visit, arg);
}

// Forgets every trace; calls in progress keep what they use.
void forget(Compiled* self) {
  self->inside->state->renew();
  self->id = self->inside->state->id();
  self->inside->records.clear();
  self->inside->interns.clear();
}

int compiled_clear(PyObject* o) {
  Compiled* self = as_compiled(o);
  Py_CLEAR(self->frontend);
  Py_CLEAR(self->dict);
  if (self->inside) {
    forget(self);
    self->inside->misses.clear();
    self->inside->copies.clear();
  }
  return 0;
}

void compiled_dealloc(PyObject* o) {
  Compiled* self = as_compiled(o);
  PyObject_GC_UnTrack(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  if (self->inside) {
    if (self->inside->reaper) PyCapsule_SetContext(self->inside->reaper.get(), nullptr);
    self->inside->state->retire();
    self->inside->records.clear();
    self->inside->interns.clear();
    self->inside->misses.clear();
    self->inside->copies.clear();
    delete std::exchange(self->inside, nullptr);
  }
  Py_CLEAR(self->frontend);
  Py_CLEAR(self->names);
  Py_CLEAR(self->defaults);
  Py_CLEAR(self->dict);
  PyTypeObject* type = Py_TYPE(o);
  type->tp_free(o);
  Py_DECREF(type);
}

// ---- behaviour of a function ----

PyObject* compiled_get(PyObject* self, PyObject* instance, PyObject*) {
  return instance ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* compiled_getattro(PyObject* o, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(o, name);
  Compiled* self = as_compiled(o);
  if (found || !self->frontend || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref frontend = Ref::borrow(self->frontend);
  found = PyObject_GetAttr(frontend.get(), name);
  if (!found && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Restore(type, value, traceback);  // it names the object that the user holds
    return nullptr;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return found;
}

PyObject* compiled_repr(PyObject* o) {
  Ref frontend = Ref::borrow(as_compiled(o)->frontend);
  return frontend ? PyObject_Repr(frontend.get()) : PyUnicode_FromString("<compiled function>");
}

PyObject* compiled_reduce(PyObject* o, PyObject*) {
  Ref frontend = Ref::borrow(as_compiled(o)->frontend);
  if (!frontend) return raise(Err::internal, nullptr, "opkiln: the function is being destroyed");
  return PyObject_CallMethod(frontend.get(), "__reduce__", nullptr);
}

PyObject* compiled_frontend(PyObject* o, void*) {
  PyObject* frontend = as_compiled(o)->frontend;
  return Py_NewRef(frontend ? frontend : Py_None);
}

// ---- counters and doors for Python ----

struct CounterRow {
  const char* name;
  uint64_t Counters::* field;
};
const CounterRow kCounters[] = {
    {"calls", &Counters::calls},
    {"hits", &Counters::hits},
    {"misses", &Counters::misses},
    {"traces", &Counters::traces},
    {"programs", &Counters::programs},
    {"builds", &Counters::builds},
    {"disk_hits", &Counters::disk_hits},
    {"fallbacks", &Counters::fallbacks},
    {"integer_faults", &Counters::integer_faults},
};

// Of the calling thread's executors of this function.
void count_states(const Compiled* self, int64_t& idle, int64_t& leased) {
  const core::ThreadTable* table = core::ThreadTable::known();
  if (!table) return;
  table->for_each([&](const core::Pool& pool) {
    if (pool.function_id() != self->id) return;
    idle += static_cast<int64_t>(pool.idle());
    leased += static_cast<int64_t>(pool.leased());
  });
}

PyObject* compiled_counters(PyObject* o, PyObject*) {
  Compiled* self = as_compiled(o);
  Ref dict(PyDict_New());
  const auto put = [&](const char* name, int64_t value) {
    Ref number(dict ? PyLong_FromLongLong(value) : nullptr);
    if (!number || PyDict_SetItemString(dict.get(), name, number.get()) < 0) dict = Ref();
  };
  for (const CounterRow& row : kCounters) {
    put(row.name, static_cast<int64_t>(self->counters.*row.field));
  }
  put("copies", static_cast<int64_t>(self->inside->copies.total()));
  const core::FunctionStats& stats = self->inside->state->stats;
  int64_t idle = 0, leased = 0;
  count_states(self, idle, leased);
  put("idle", idle);
  put("leased", leased);
  put("executors", stats.executors.load());
  put("in_flight", stats.in_flight.load());
  put("waits", static_cast<int64_t>(stats.waits.load()));
  put("bytes", stats.bytes.load());
  put("workspace_bytes", stats.workspace_bytes.load());
  put("executors_built", static_cast<int64_t>(stats.built.load()));
  put("evictions", static_cast<int64_t>(stats.evictions.load()));
  put("grew_past_limit", static_cast<int64_t>(stats.grew_past_limit.load()));
  put("packs", static_cast<int64_t>(stats.packs.load()));
  put("signatures", static_cast<int64_t>(self->inside->records.size()));
  return dict.release();
}

PyObject* compiled_count(PyObject* o, PyObject* args) {
  const char* name;
  long long n = 1;
  if (!PyArg_ParseTuple(args, "s|L:_count", &name, &n)) return nullptr;
  for (const CounterRow& row : kCounters) {
    if (std::strcmp(row.name, name) != 0) continue;
    as_compiled(o)->counters.*row.field += static_cast<uint64_t>(n);
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_ValueError, "no counter named %s", name);
}

PyObject* compiled_misses(PyObject* o, PyObject*) {
  const Inside* inside = as_compiled(o)->inside;
  Ref list(inside->misses.list());
  return list ? Py_BuildValue("(KO)", static_cast<unsigned long long>(inside->misses.count()),
                              list.get())
              : nullptr;
}

PyObject* compiled_copies(PyObject* o, PyObject*) { return as_compiled(o)->inside->copies.list(); }

PyObject* compiled_errstate(PyObject* o, PyObject*) {
  try {
    return PyLong_FromLong(errstate_of(as_compiled(o)));
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* compiled_bind(PyObject* o, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return bind_to_arrays(as_compiled(o), args, nargs, kwnames);
}

PyObject* compiled_clear_method(PyObject* o, PyObject*) {
  forget(as_compiled(o));
  Py_RETURN_NONE;
}

PyObject* compiled_static_id(PyObject* o, PyObject* value) {
  try {
    Interns& interns = as_compiled(o)->inside->interns;
    int64_t id = interns.known_identity(value);  // a receiver
    Ref plain(id < 0 ? canonical_static(value) : nullptr);
    if (plain) id = interns.id_of(plain.get());
    return id < 0 ? nullptr : PyLong_FromLongLong(id);
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
    return nullptr;
  }
}

// `use(call, out)` on bound arguments, with symbolic ones refused; what it throws becomes an error.
template <class Use>
PyObject* with_bound(PyObject* o, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                     Use&& use) {
  Compiled* self = as_compiled(o);
  try {
    CallArgs call(self->id);
    PyObject* out = nullptr;
    const Bound bound = bind_call(self, call, args, nargs, kwnames, &out);
    if (bound == Bound::error) return nullptr;
    if (bound == Bound::traced) {
      return raise(Err::trace, "call it with arrays", "cannot flatten symbolic arguments");
    }
    call.args_size = call.key.size();
    return use(self, call, out == Py_None ? nullptr : out);
  } catch (const PythonError&) {
    return nullptr;
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
    return nullptr;
  }
}

// _flatten(*args, **kwargs) -> (tree, leaves, kinds): what trace() would be given.
PyObject* compiled_flatten(PyObject* o, PyObject* const* args, Py_ssize_t nargs,
                           PyObject* kwnames) {
  const auto use = [](Compiled* self, CallArgs& call, PyObject*) -> PyObject* {
    Ref tree(tree_of_key(self, call.key.data(), call.key.size()));
    Ref leaves(leaves_list(call));
    if (!tree || !leaves) return nullptr;
    return Py_BuildValue("(OOs#)", tree.get(), leaves.get(), call.kind.data(),
                         static_cast<Py_ssize_t>(call.kind.size()));
  };
  return with_bound(o, args, nargs, kwnames, use);
}

// _missing(*args, **kwargs) -> (record, requests): what the call would have built.
PyObject* compiled_missing(PyObject* o, PyObject* const* args, Py_ssize_t nargs,
                           PyObject* kwnames) {
  const auto use = [](Compiled* self, CallArgs& call, PyObject* out) -> PyObject* {
    OutArgs outs;
    if (!out) return missing_for(self, call, nullptr);
    if (!read_outs(call, out, outs)) return nullptr;
    return into_outs(
        outs, [&] { return missing_for(self, call, &outs); },
        [&] { return missing_for(self, call, nullptr); });
  };
  return with_bound(o, args, nargs, kwnames, use);
}

template <class F>
PyCFunction method(F* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef kMethods[] = {
    {"__reduce__", compiled_reduce, METH_NOARGS, nullptr},
    {"_counters", compiled_counters, METH_NOARGS, "All counters of this function, by name."},
    {"_count", compiled_count, METH_VARARGS, "_count(name, n=1): adds to a counter."},
    {"_bind", method(compiled_bind), METH_FASTCALL | METH_KEYWORDS,
     "_bind(*args, **kwargs) -> a callable that repeats the call on the same arrays."},
    {"_misses", compiled_misses, METH_NOARGS,
     "How many executors were made, and the newest of these misses."},
    {"_copies", compiled_copies, METH_NOARGS, "Copies made: (why, result, name, times)."},
    {"_errstate", compiled_errstate, METH_NOARGS,
     "What an integer division fault does here: 0 ignore, 1 warn, 2 raise."},
    {"_clear", compiled_clear_method, METH_NOARGS, "Forgets traces and executors."},
    {"_static_id", compiled_static_id, METH_O,
     "The number that stands for a static value in keys; used for that value only."},
    {"_flatten", method(compiled_flatten), METH_FASTCALL | METH_KEYWORDS,
     "_flatten(*args, **kwargs) -> (tree, leaves, kinds)."},
    {"_missing", method(compiled_missing), METH_FASTCALL | METH_KEYWORDS,
     "_missing(*args, **kwargs) -> (record, requests): what the call would have built."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetSet[] = {
    {"_frontend", compiled_frontend, nullptr, "The Python object with the hooks.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Compiled, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Compiled, weakrefs), READONLY, nullptr},
    {"_id", T_ULONGLONG, offsetof(Compiled, id), READONLY, "Of its executors; clear() renews it."},
    {"__dictoffset__", T_PYSSIZET, offsetof(Compiled, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, slot(compiled_new)},
                        {Py_tp_dealloc, slot(compiled_dealloc)},
                        {Py_tp_traverse, slot(compiled_traverse)},
                        {Py_tp_clear, slot(compiled_clear)},
                        {Py_tp_call, slot(PyVectorcall_Call)},
                        {Py_tp_descr_get, slot(compiled_get)},
                        {Py_tp_getattro, slot(compiled_getattro)},
                        {Py_tp_setattro, slot(PyObject_GenericSetAttr)},
                        {Py_tp_repr, slot(compiled_repr)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kGetSet},
                        {Py_tp_members, kMembers},
                        {0, nullptr}};

PyType_Spec kSpec = {"opkiln.native._core.Compiled", sizeof(Compiled), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                         Py_TPFLAGS_METHOD_DESCRIPTOR,
                     kSlots};

}  // namespace

int add_compiled_type(PyObject* module) {
  struct Name {
    PyObject** place;
    const char* text;
  };
  const Name names[] = {{&g_str_out, "out"},
                        {&g_hooks.trace, "trace"},
                        {&g_hooks.build, "build"},
                        {&g_hooks.interpret, "interpret"},
                        {&g_hooks.inline_, "inline"},
                        {&g_hooks.host_error, "host_error"},
                        {&g_hooks.op_error, "op_error"},
                        {&g_hooks.fault, "fault"},
                        {&g_hooks.export_, "export"},
                        {&g_hooks.missed, "missed"},
                        {&g_hooks.leased, "leased"}};
  for (const Name& name : names) {
    if (!(*name.place = PyUnicode_InternFromString(name.text))) return -1;
  }
  Ref type(PyType_FromSpec(&kSpec));
  if (!type) return -1;
  return PyModule_AddObjectRef(module, "Compiled", type.get());
}

}  // namespace opkiln::face
