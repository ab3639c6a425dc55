// The miss path of a call: signature, trace, instantiate, build, instantiate again, note the cost.
#include "core/errors.h"
#include "face/call.h"
#include "face/doors.h"
#include "face/errors.h"
#include "face/gil.h"
#include "face/streams.h"

namespace opkiln::face {

namespace {

using Views = Small<core::ArrayView, 24>;

PyObject* kinds_str(const CallArgs& call) {
  return PyUnicode_FromStringAndSize(call.kind.data(), static_cast<Py_ssize_t>(call.kind.size()));
}

Record* matching(Compiled* self, const std::vector<uint64_t>& signature, const Views& args) {
  const std::vector<Record*>* known = self->inside->records.find(signature);
  if (!known) return nullptr;
  for (Record* r : *known) {
    if (r->plan->pins_hold(args.data())) return r;
  }
  return nullptr;
}

void trace(Compiled* self, CallArgs& call, const std::vector<uint64_t>& signature,
           const Views& args, RecordRef& result) {
  Ref tree(tree_of_key(self, call.key.data(), call.key.size()));
  Ref leaves(leaves_list(call));
  Ref kinds(kinds_str(call));
  if (!tree || !leaves || !kinds) throw PythonError{};
  Ref object = call_hook(self, g_hooks.trace, tree.get(), leaves.get(), kinds.get());
  Record* made = Record::make(object.get());
  if (!made) throw PythonError{};
  result.reset(made);
  made->drop();
  const core::Plan& plan = *made->plan;
  if (plan.args().size() != args.size() || plan.program().weak_count() > call.weak.size()) {
    raise(Err::internal, nullptr, "opkiln: the traced plan does not take these arguments");
    throw PythonError{};
  }
  for (size_t i = 0; i < args.size(); i++) {
    const core::BufferSpec& spec = plan.buffers()[static_cast<size_t>(plan.args()[i])];
    if (spec.dtype != args[i].dtype || spec.rank != args[i].ndim) {
      raise(Err::internal, nullptr, "opkiln: array argument %zu does not match the traced plan", i);
      throw PythonError{};
    }
  }
  if (!plan.pins_hold(args.data())) {
    raise(Err::internal, nullptr, "opkiln: the traced plan pins other sizes than the call's");
    throw PythonError{};
  }
  // After a clear() the signature's numbers mean nothing any more: the record serves this call
  // only.
  if (call.key[0] == self->id) result.reset(self->inside->records.add(signature, made));
}

// Views of the captures as the kernels will see them: awkward ones through a copy kept by the call.
void capture_views(CallArgs& call, Record* record, Views& views) {
  for (PyArrayObject* a : record->captures) {
    if (!usable_as_is(a)) {
      PyArrayObject* copy = usable_copy(a);
      if (!copy) throw PythonError{};
      call.keep(as_object(copy));
      a = copy;
    }
    views.push(view_of(a));
  }
}

bool is_as_traced(PyArrayObject* a, const CaptureLayout& was) {
  const size_t rank = was.shape.size();
  return static_cast<size_t>(PyArray_NDIM(a)) == rank &&
         !std::memcmp(PyArray_DIMS(a), was.shape.data(), rank * sizeof(npy_intp)) &&
         !std::memcmp(PyArray_STRIDES(a), was.strides.data(), rank * sizeof(npy_intp)) &&
         code_of(PyArray_DESCR(a)) == was.code && usable_as_is(a) == was.usable;
}

bool captures_unchanged(Compiled* self, Record* record) {
  for (size_t i = 0; i < record->captures.size(); i++) {
    if (OPKILN_LIKELY(is_as_traced(record->captures[i], record->capture_layouts[i]))) continue;
    Ref name(function_name(self->frontend));
    if (name) {
      const Py_ssize_t args = PyTuple_GET_SIZE(record->labels) - std::ssize(record->captures);
      raise(Err::shape, "call f.clear() after changing the layout of a captured array",
            "%U(): %S changed its shape, strides or dtype since the trace", name.get(),
            record->label(args + static_cast<Py_ssize_t>(i)));
    }
    return false;
  }
  return true;
}

}  // namespace

PyObject* leaves_list(CallArgs& call) {
  if (!materialise(call)) return nullptr;
  const size_t n = call.leaf.size();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(n));
  for (size_t i = 0; list && i < n; i++) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), Py_NewRef(call.leaf[i]));
  }
  return list;
}

Ref call_hook(Compiled* self, PyObject* name, PyObject* a, PyObject* b, PyObject* c, PyObject* d) {
  Ref frontend = Ref::borrow(self->frontend);
  if (!frontend) {
    raise(Err::internal, nullptr, "opkiln: the compiled function is being destroyed");
    throw PythonError{};
  }
  Ref result(in_python(
      [&] { return PyObject_CallMethodObjArgs(frontend.get(), name, a, b, c, d, nullptr); }));
  if (!result) throw PythonError{};
  return result;
}

void throw_op_error(Compiled* self, Record* record, const core::OpError& e) {
  Ref kernel(PyLong_FromLong(e.kernel));
  const std::string_view words(e.what());
  Ref said(PyUnicode_DecodeUTF8(words.data(), std::ssize(words), "replace"));
  if (!kernel || !said) throw PythonError{};
  RecordRef hold(record);
  call_hook(self, g_hooks.op_error, record->object, kernel.get(), said.get());
  raise(Err::internal, nullptr, "opkiln: %s", e.what());
  throw PythonError{};
}

void throw_host_error(Compiled* self, Record* record, const core::HostError& e, PyObject* shapes) {
  Ref values(PyTuple_New(3));
  Ref a(e.a_unsigned ? PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(e.a))
                     : PyLong_FromLongLong(e.a));
  Ref b(PyLong_FromLongLong(e.b));
  Ref kind(PyUnicode_FromString(core::host_error_name(e.kind)));
  Ref reg(PyLong_FromLong(e.reg));
  Ref known(shapes ? Py_NewRef(shapes) : PyTuple_New(0));
  if (!values || !a || !b || !kind || !reg || !known) throw PythonError{};
  PyTuple_SET_ITEM(values.get(), 0, a.release());
  PyTuple_SET_ITEM(values.get(), 1, b.release());
  PyTuple_SET_ITEM(values.get(), 2, known.release());
  RecordRef hold(record);
  call_hook(self, g_hooks.host_error, record->object, kind.get(), reg.get(), values.get());
  raise(Err::internal, nullptr, "opkiln: %s", e.what());
  throw PythonError{};
}

namespace {

// The shapes of arguments and captures, in the order of the graph's inputs; throws PythonError.
Ref shapes_of(const Views& args, const Views& captures) {
  Ref shapes(PyTuple_New(static_cast<Py_ssize_t>(args.size() + captures.size())));
  if (!shapes) throw PythonError{};
  Py_ssize_t at = 0;
  for (const Views* views : {&args, &captures}) {
    for (size_t i = 0; i < views->size(); i++) {
      const core::ArrayView& view = views->data()[i];
      PyObject* shape = shape_tuple(view.ndim, view.shape);
      if (!shape) throw PythonError{};
      PyTuple_SET_ITEM(shapes.get(), at++, shape);
    }
  }
  return shapes;
}

// The record of a call and the views of its arrays: all that instantiation needs.
struct Prepared {
  RecordRef record;
  Views args, outs, captures;

  // Traces if need be. `given` null: fresh outputs.
  Prepared(Compiled* self, CallArgs& call, const OutArgs* given) {
    std::vector<uint64_t> signature;
    signature_of_key(call.key.data(), call.key.size(), signature);
    if (!materialise(call)) throw PythonError{};
    for (PyArrayObject* a : call.arrays) args.push(view_of(a));
    record.reset(matching(self, signature, args));
    if (!record.get()) trace(self, call, signature, args, record);
    if (given) {
      if (!check_out_count(*given, record.get()->n_outs)) throw PythonError{};
      if (!record.get()->by_copy) {  // else results are fresh, then copied
        for (PyArrayObject* a : given->arrays) outs.push(a ? view_of(a) : core::absent_array());
      }
    }
    if (!captures_unchanged(self, record.get())) throw PythonError{};
    capture_views(call, record.get(), captures);
  }

  core::Instantiated instantiate(Compiled* self) {
    try {
      return core::instantiate(record.get()->plan, args.data(), captures.data(),
                               outs.size() ? outs.data() : nullptr, current_stream());
    } catch (const core::HostError& e) {
      throw_host_error(self, record.get(), e, shapes_of(args, captures).get());
    }
  }
};

// (kernel, column class) for each, as frontend.build() takes them; throws PythonError.
Ref requests_list(const std::vector<core::Missing>& missing) {
  Ref requests(PyList_New(0));
  for (const core::Missing& m : missing) {
    Ref pair(Py_BuildValue("(is#)", m.kernel, m.column_class.data(),
                           static_cast<Py_ssize_t>(m.column_class.size())));
    if (!requests || !pair || PyList_Append(requests.get(), pair.get()) < 0) throw PythonError{};
  }
  if (!requests) throw PythonError{};
  return requests;
}

// Notes the miss for explain(); the frontend adds what only it knows, if a hook of it has run.
void note(Compiled* self, const CallArgs& call, size_t key_size, Record* record, PyObject* built,
          char why, uint64_t start) {
  const uint64_t number =
      self->inside->misses.add(call.key.data(), key_size, record->labels, ticks() - start, why);
  if (record->told && built == Py_None && OPKILN_LIKELY(!g_tell_all)) return;
  record->told = true;
  Ref boxed(PyLong_FromUnsignedLongLong(number));
  if (!boxed) throw PythonError{};
  call_hook(self, g_hooks.missed, record->object, boxed.get(), built);
}

}  // namespace

std::unique_ptr<core::Executor> make_executor(Compiled* self, CallArgs& call, const OutArgs* outs,
                                              char why, RecordRef& held) {
  const uint64_t start = ticks();
  Ref built = Ref::borrow(Py_None);
  Prepared ready(self, call, outs);
  Record* record = ready.record.get();
  constexpr int kAttempts = 3;  // one build is enough; a second may follow a race with clear()
  for (int attempt = 1;; attempt++) {
    core::Instantiated made = ready.instantiate(self);
    if (made.executor) {
      note(self, call, outs ? call.key.size() : call.args_size, record, built.get(), why, start);
      // A hook may have emptied the map; the executor, which no later call finds, needs its record.
      held.reset(record);
      core::Executor& x = *made.executor;
      x.user = record;
      x.user_flag = record->quick && !(outs && record->by_copy) && !x.is_fallback() &&
                    x.estimated_ns() <= kReleaseGilNs && x.stream().completes_inline() &&
                    !g_tell_all;  // the short way tells nothing
      return std::move(made.executor);
    }
    if (attempt == kAttempts) {
      raise(Err::internal, nullptr, "opkiln: kernel %d has no variant %s after a build",
            made.missing.at(0).kernel, made.missing.at(0).column_class.c_str());
      throw PythonError{};
    }
    built = call_hook(self, g_hooks.build, record->object, requests_list(made.missing).get());
  }
}

PyObject* missing_for(Compiled* self, CallArgs& call, const OutArgs* outs) {
  Prepared ready(self, call, outs);
  const core::Instantiated made = ready.instantiate(self);
  return PyTuple_Pack(2, ready.record.get()->object, requests_list(made.missing).get());
}

bool bind_captures(Compiled* self, CallArgs& call, Record* record, core::Executor& x) {
  if (!captures_unchanged(self, record)) return false;
  for (size_t i = 0; i < record->captures.size(); i++) {
    PyArrayObject* a = record->captures[i];
    if (OPKILN_UNLIKELY(!record->capture_layouts[i].usable)) {
      PyArrayObject* copy = usable_copy(a);
      if (!copy) return false;
      call.keep(as_object(copy));
      const auto place = static_cast<Py_ssize_t>(record->plan->args().size() + i);
      self->inside->copies.add('h', -1, record->label(place));
      a = copy;
    }
    x.captures()[i] = PyArray_BYTES(a);
  }
  return true;
}

}  // namespace opkiln::face
