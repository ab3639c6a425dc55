// The shortest way through a call: positional arrays and numbers, at most out=, one array result,
// a key this thread has met. Anything else is handed over untouched to call_general().
#include "core/errors.h"
#include "core/table.h"
#include "face/call.h"
#include "face/errors.h"

namespace opkiln::face {

PyArray_Descr* g_descr[16];

namespace {

constexpr Py_ssize_t kMostArgs = 16;
constexpr size_t kMostWords = 96;

// What one call gathers; nothing is initialised before it is needed.
struct Gathered {
  size_t words = 1;
  size_t arrays = 0;
  size_t numbers = 0;
  uint64_t key[kMostWords];
  char* data[kMostArgs];
  core::HostValue weak[kMostArgs];

  bool add_layout(char tag, PyArrayObject* a) {
    const PyArray_Descr* descr = PyArray_DESCR(a);
    const uint8_t code = code_of(descr);
    const int rank = PyArray_NDIM(a);
    if (OPKILN_UNLIKELY((code == kNoCode) | (descr->byteorder == NPY_OPPBYTE) |
                        !(PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED) |
                        (words + 1 + 2 * static_cast<size_t>(rank) > kMostWords) |
                        (rank > kMaxRank))) {
      return false;
    }
    uint64_t* w = key + words;
    *w++ = array_word(tag, code, rank);
    const npy_intp* dims = PyArray_DIMS(a);
    const npy_intp* strides = PyArray_STRIDES(a);
    for (int i = 0; i < rank; i++) {
      w[i] = static_cast<uint64_t>(dims[i]);
      w[rank + i] = static_cast<uint64_t>(strides[i]);
    }
    words += 1 + 2 * static_cast<size_t>(rank);
    return true;
  }

  bool add_number(PyObject* o) {
    if (words == kMostWords) return false;
    if (PyFloat_CheckExact(o)) {
      weak[numbers++].f = PyFloat_AS_DOUBLE(o);
      key[words++] = tagged('f', 0);
      return true;
    }
    if (!PyLong_CheckExact(o)) return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) return false;
    weak[numbers++].i = value;
    key[words++] = tagged('i', 0);
    return true;
  }

  bool add(PyObject* o) {
    if (OPKILN_UNLIKELY(!PyArray_CheckExact(o))) return add_number(o);
    data[arrays++] = PyArray_BYTES(as_array(o));
    return add_layout('a', as_array(o));
  }

  // A plain out=: other cases need the longer checks.
  bool add_out(PyObject* out) {
    if (!PyArray_CheckExact(out)) return false;
    PyArrayObject* a = as_array(out);
    const int flags = PyArray_FLAGS(a);
    if (!(flags & NPY_ARRAY_WRITEABLE) ||
        !(flags & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS))) {
      return false;
    }
    return add_layout('o', a);
  }
};

bool is_c_order(const core::OutSpec& spec) {
  npy_intp expected = core::itemsize(spec.dtype);
  for (int i = spec.ndim - 1; i >= 0; i--) {
    if (spec.strides[i] != expected) return false;
    expected *= spec.shape[i];
  }
  return true;
}

// The result to return, or null with `*done` telling whether an error is set or the general way
// must be taken.
__attribute__((always_inline)) inline PyObject* quick(Compiled* self, PyObject* const* args, Py_ssize_t nargs, PyObject* out,
                       bool* done) {
  *done = false;
  Gathered g;
  g.key[0] = self->id;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    if (OPKILN_UNLIKELY(!g.add(args[i]))) return nullptr;
  }
  if (out && OPKILN_UNLIKELY(!g.add_out(out))) return nullptr;

  core::ThreadTable& table = core::ThreadTable::current();
  const core::KeyView key{g.key, g.words, hash_key(g.key, g.words)};
  core::Pool* pool = table.find(key);
  if (OPKILN_UNLIKELY(!pool || pool->idle() == 0)) return nullptr;
  core::Lease lease = pool->acquire(table.limits().pool, []() -> std::unique_ptr<core::Executor> {
    return nullptr;  // not reached: there is an idle one
  });
  core::Executor& x = *lease;
  const RecordRef record(static_cast<Record*>(x.user));
  if (OPKILN_UNLIKELY(!record.get()->quick || x.is_fallback() ||
                      x.estimated_ns() > kReleaseGilNs)) {
    lease.cancel();
    return nullptr;
  }
  char** pointers = x.args();
  for (size_t i = 0; i < g.arrays; i++) pointers[i] = g.data[i];
  Ref result;
  if (out) {
    *x.outs() = PyArray_BYTES(as_array(out));
    if (OPKILN_UNLIKELY(!x.outs_are_safe())) {
      lease.cancel();
      return nullptr;
    }
    result = Ref::borrow(out);
  } else {
    const core::OutSpec& spec = x.out(0);
    PyArray_Descr* descr = g_descr[static_cast<int>(spec.dtype)];
    Py_INCREF(descr);
    result = Ref(PyArray_NewFromDescr(&PyArray_Type, descr, spec.ndim, spec.shape,
                                      is_c_order(spec) ? nullptr : spec.strides, nullptr, 0,
                                      nullptr));
    if (OPKILN_UNLIKELY(!result)) {
      *done = true;
      return nullptr;
    }
    *x.outs() = PyArray_BYTES(as_array(result.get()));
  }
  *done = true;
  self->counters.calls++;
  uint64_t faults;
  try {
    faults = x.run(g.weak);
  } catch (const core::HostError& e) {
    throw_host_error(self, record.get(), e);
  }
  self->counters.hits++;
  lease.release();
  if (OPKILN_UNLIKELY(faults != 0)) report_faults(self, record.get(), faults);
  return result.release();
}

// Only positional arguments of a function without variadic or static parameters, and maybe out=.
inline bool is_short(Compiled* self, Py_ssize_t nargs, PyObject* kwnames) {
  if (!self->plain || nargs != self->n_params || nargs > kMostArgs) return false;
  return !kwnames || (self->takes_out && PyTuple_GET_SIZE(kwnames) == 1 &&
                      PyTuple_GET_ITEM(kwnames, 0) == g_str_out);
}

}  // namespace

PyObject* call_compiled(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<Compiled*>(o);
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  try {
    if (OPKILN_LIKELY(is_short(self, nargs, kwnames))) {
      bool done;
      PyObject* result = quick(self, args, nargs, kwnames ? args[nargs] : nullptr, &done);
      if (OPKILN_LIKELY(done)) return result;
    }
    return call_general(self, args, nargs, kwnames);
  } catch (const PythonError&) {
  } catch (...) {
    raise_current();
  }
  return nullptr;
}

}  // namespace opkiln::face
