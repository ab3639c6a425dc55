// The shortest way through a call: positional arrays and numbers, at most out=, one array result,
// a key this thread has met. Anything else is handed over untouched to call_general().
#include "core/errors.h"
#include "core/table.h"
#include "face/call.h"
#include "face/errors.h"
#include "face/gil.h"

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
    if (!PyLong_CheckExact(o)) return add_numpy_scalar(o);
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) return false;
    weak[numbers++].i = value;
    key[words++] = tagged('i', 0);
    return true;
  }

  // The commonest NumPy scalars are arrays of rank 0 whose value lies in the object itself.
  bool add_numpy_scalar(PyObject* o) {
    const PyTypeObject* type = Py_TYPE(o);
    void* value;
    core::DType code;
    if (type == &PyDoubleArrType_Type) {
      value = &PyArrayScalar_VAL(o, Double);
      code = core::DType::kF64;
    } else if (type == &PyFloatArrType_Type) {
      value = &PyArrayScalar_VAL(o, Float);
      code = core::DType::kF32;
    } else if (type == &PyLongArrType_Type) {
      value = &PyArrayScalar_VAL(o, Long);
      code = core::DType::kI64;
    } else {
      return false;
    }
    data[arrays++] = static_cast<char*>(value);
    key[words++] = array_word('a', static_cast<uint8_t>(code), 0);
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

inline bool is_c_order(const core::OutSpec& spec, npy_intp expected) {
  for (int i = spec.ndim - 1; i >= 0; i--) {
    if (spec.strides[i] != expected) return false;
    expected *= spec.shape[i];
  }
  return true;
}

// The pool of the gathered key: the one of the last hit when its key is equal, which needs no hash.
inline core::Pool* find_pool(Compiled* self, const Gathered& g) {
  core::KeyView key{g.key, g.words, 0};
  core::ThreadTable& table = core::ThreadTable::current();
  if (OPKILN_LIKELY(self->guess_generation == table.generation() && self->guess->matches(key))) {
    return self->guess;
  }
  key.hash = hash_key(g.key, g.words);
  core::Pool* pool = table.find(key);
  if (pool) {
    self->guess = pool;
    self->guess_generation = table.generation();
  }
  return pool;
}

const core::PoolLimits kUnusedLimits;  // with an idle executor nothing is limited

// The result to return, or null with `*done` telling whether an error is set or the general way
// must be taken.
__attribute__((always_inline)) inline PyObject* quick(Compiled* self, PyObject* const* args,
                                                      Py_ssize_t nargs, PyObject* out, bool* done) {
  *done = false;
  Gathered g;
  g.key[0] = self->id;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    if (OPKILN_UNLIKELY(!g.add(args[i]))) return nullptr;
  }
  if (out && OPKILN_UNLIKELY(!g.add_out(out))) return nullptr;

  core::Pool* pool = find_pool(self, g);
  if (OPKILN_UNLIKELY(!pool || pool->idle() == 0)) return nullptr;
  core::Lease lease = pool->acquire(kUnusedLimits, []() -> std::unique_ptr<core::Executor> {
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
  uint64_t cell;  // memory of a result of rank 0, which becomes a scalar
  const core::OutSpec& spec = x.out(0);
  if (out) {
    *x.outs() = PyArray_BYTES(as_array(out));
    if (OPKILN_UNLIKELY(!x.outs_are_safe())) {
      lease.cancel();
      return nullptr;
    }
    result = Ref::borrow(out);
  } else if (OPKILN_UNLIKELY(spec.ndim == 0)) {
    *x.outs() = reinterpret_cast<char*>(&cell);
  } else {
    PyArray_Descr* descr = g_descr[static_cast<int>(spec.dtype)];
    Py_INCREF(descr);
    const bool c_order = is_c_order(spec, PyDataType_ELSIZE(descr));
    result = Ref(PyArray_NewFromDescr(&PyArray_Type, descr, spec.ndim, spec.shape,
                                      c_order ? nullptr : spec.strides, nullptr, 0, nullptr));
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
  const int code = static_cast<int>(spec.dtype);
  lease.release();
  if (OPKILN_UNLIKELY(faults != 0)) report_faults(self, record.get(), faults);
  return OPKILN_LIKELY(result) ? result.release() : PyArray_Scalar(&cell, g_descr[code], nullptr);
}

// Arguments by parameter when all of them are plain: the caller's own list, or `bound` filled from
// it, the keywords and the defaults. Null when the long way must decide (also to word an error).
inline PyObject* const* bind_plain(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                                   PyObject* kwnames, PyObject** bound, PyObject** out) {
  const Py_ssize_t n = self->n_params;
  if (!self->plain || nargs > n || n > kMostArgs) return nullptr;
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nargs == n) {
    if (!keywords) return args;
    if (keywords > 1 || !self->takes_out || PyTuple_GET_ITEM(kwnames, 0) != g_str_out) {
      return nullptr;
    }
    *out = args[nargs];
    return args;
  }
  for (Py_ssize_t i = 0; i < n; i++) bound[i] = i < nargs ? args[i] : nullptr;
  for (Py_ssize_t k = 0; k < keywords; k++) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, k);
    if (keyword == g_str_out && self->takes_out) {
      *out = args[nargs + k];
      continue;
    }
    Py_ssize_t p = nargs;
    while (p < n && PyTuple_GET_ITEM(self->names, p) != keyword) p++;
    if (p == n || p < self->n_positional_only) return nullptr;
    bound[p] = args[nargs + k];
  }
  for (Py_ssize_t i = nargs; i < n; i++) {
    if (bound[i]) continue;
    bound[i] = PyTuple_GET_ITEM(self->defaults, i);
    if (bound[i] == g_missing) return nullptr;
  }
  return bound;
}

}  // namespace

PyObject* call_compiled(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<Compiled*>(o);
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  try {
    PyObject* bound[kMostArgs];
    PyObject* out = nullptr;
    PyObject* const* values = bind_plain(self, args, nargs, kwnames, bound, &out);
    if (out == Py_None) out = nullptr;
    if (OPKILN_LIKELY(values != nullptr)) {
      bool done;
      PyObject* result = quick(self, values, self->n_params, out, &done);
      if (OPKILN_LIKELY(done)) return result;
    }
    return call_general(self, args, nargs, kwnames);
  } catch (const PythonError&) {
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
  }
  return nullptr;
}

}  // namespace opkiln::face
