// The shortest way through a call: positional arrays and numbers, at most out=, one array result,
// a key this thread has met. Anything else is handed over untouched to call_general().
//
// A warm call is bound by the number of instructions, so: the arguments are compared with the key
// of the last call's pool while they are read, no words are written and nothing is hashed; no lease
// is taken, since nothing else can happen between the last check and the end of the kernel; and
// what is rare lies in functions of its own, which leaves the registers to the rest.
#include "core/errors.h"
#include "core/table.h"
#include "face/allocator.h"
#include "face/call.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/gil.h"
#include "face/streams.h"

namespace opkiln::face {

namespace {

constexpr size_t kMostWords = 96;

struct NumpyScalar {
  char* value;  // null: not one of these
  uint64_t word;
};

// The commonest NumPy scalars are arrays of rank 0 whose value lies in the object itself.
NumpyScalar numpy_scalar(PyObject* o) {
  const auto strong = [](void* value, core::DType code) -> NumpyScalar {
    return {static_cast<char*>(value), array_word('a', static_cast<uint8_t>(code), 0)};
  };
  const PyTypeObject* type = Py_TYPE(o);
  if (type == &PyDoubleArrType_Type)
    return strong(&PyArrayScalar_VAL(o, Double), core::DType::kF64);
  if (type == &PyFloatArrType_Type) return strong(&PyArrayScalar_VAL(o, Float), core::DType::kF32);
  if (type == &PyLongArrType_Type) return strong(&PyArrayScalar_VAL(o, Long), core::DType::kI64);
  return {nullptr, 0};
}

// A plain out=: other cases need the longer checks.
bool is_plain_out(PyObject* out) {
  if (!PyArray_CheckExact(out)) return false;
  const int flags = PyArray_FLAGS(as_array(out));
  return (flags & NPY_ARRAY_WRITEABLE) &&
         (flags & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS));
}

// The key of one call; nothing is initialised before it is needed.
struct Gathered {
  size_t words = 1;
  uint64_t key[kMostWords];

  bool add_layout(char tag, PyArrayObject* a) {
    const PyArray_Descr* descr = PyArray_DESCR(a);
    const uint8_t code = code_of(descr);
    const int rank = PyArray_NDIM(a);
    if (code == kNoCode || descr->byteorder == NPY_OPPBYTE || rank > kMaxRank ||
        !(PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED) ||
        words + 1 + 2 * static_cast<size_t>(rank) > kMostWords) {
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
    uint64_t word = tagged('f', 0);
    if (PyLong_CheckExact(o)) {
      int overflow = 0;
      PyLong_AsLongLongAndOverflow(o, &overflow);
      if (overflow) return false;
      word = tagged('i', 0);
    } else if (!PyFloat_CheckExact(o)) {
      const NumpyScalar scalar = numpy_scalar(o);
      if (!scalar.value) return false;
      word = scalar.word;
    }
    if (words == kMostWords) return false;
    key[words++] = word;
    return true;
  }

  bool add(PyObject* o) {
    return PyArray_CheckExact(o) ? add_layout('a', as_array(o)) : add_number(o);
  }
};

#define OPKILN_INLINE __attribute__((always_inline)) inline
#define OPKILN_APART __attribute__((noinline))

// What a call brought, read against a key.
struct Inputs {
  char* data[kMostQuickArgs];
  core::HostValue weak[kMostQuickArgs];
};

// A number where the key says `word`: its value goes to `*weak` or, of a NumPy scalar, its address
// to `*data`.
OPKILN_APART bool read_number(PyObject* o, uint64_t word, char** data, core::HostValue* weak) {
  if (PyFloat_CheckExact(o)) {
    weak->f = PyFloat_AS_DOUBLE(o);
    return word == tagged('f', 0);
  }
  if (PyLong_CheckExact(o)) {
    int overflow = 0;
    weak->i = PyLong_AsLongLongAndOverflow(o, &overflow);
    return !overflow && word == tagged('i', 0);
  }
  const NumpyScalar scalar = numpy_scalar(o);
  *data = scalar.value;
  return scalar.value && word == scalar.word;
}

// The array has the layout that the words at `word` say.
OPKILN_INLINE bool has_layout(PyArrayObject* a, char tag, const uint64_t* word) {
  const uint64_t w = *word;
  const auto rank = static_cast<unsigned>(w >> 16);  // more than the rank if it is no array's word
  const PyArray_Descr* descr = PyArray_DESCR(a);
  // NumPy's own descriptor says dtype and byte order at once; another may say the same.
  if (OPKILN_UNLIKELY(descr != g_descr[word_code(w) % core::kMostDTypes]) &&
      (code_of(descr) != word_code(w) || descr->byteorder == NPY_OPPBYTE)) {
    return false;
  }
  if (OPKILN_UNLIKELY(static_cast<unsigned>(PyArray_NDIM(a)) != rank) ||
      OPKILN_UNLIKELY(!(PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED)) ||
      OPKILN_UNLIKELY(word_tag(w) != static_cast<uint8_t>(tag))) {
    return false;
  }
  const npy_intp* dims = PyArray_DIMS(a);
  const npy_intp* strides = PyArray_STRIDES(a);
  if (OPKILN_LIKELY(rank == 1)) {
    return OPKILN_LIKELY(word[1] == static_cast<uint64_t>(*dims)) &&
           OPKILN_LIKELY(word[2] == static_cast<uint64_t>(*strides));
  }
  for (unsigned i = 0; i < rank; i++) {
    if (word[1 + i] != static_cast<uint64_t>(dims[i]) ||
        word[1 + rank + i] != static_cast<uint64_t>(strides[i])) {
      return false;
    }
  }
  return true;
}

inline const uint64_t* after_layout(const uint64_t* word) { return word + 1 + 2 * (*word >> 16); }

// Reads the arguments when `pool` is the one of their key: the number of arrays, -1 when it is not.
OPKILN_INLINE Py_ssize_t read(Compiled* self, core::Pool* pool, PyObject* const* args,
                              Py_ssize_t nargs, PyObject* out, Inputs& in) {
  const uint64_t* word = pool->words();
  if (OPKILN_UNLIKELY(*word++ != self->id)) return -1;
  const PyTypeObject* array = &PyArray_Type;
  char** data = in.data;
  core::HostValue* weak = in.weak;
  for (PyObject* const* end = args + nargs; args != end; args++) {
    PyObject* o = *args;
    if (OPKILN_LIKELY(Py_TYPE(o) == array)) {
      if (OPKILN_UNLIKELY(!has_layout(as_array(o), 'a', word))) return -1;
      *data++ = PyArray_BYTES(as_array(o));
      word = after_layout(word);
    } else {
      if (!read_number(o, *word, data, weak)) return -1;
      word_tag(*word++) == 'a' ? void(data++) : void(weak++);
    }
  }
  if (out) {
    if (OPKILN_UNLIKELY(!has_layout(as_array(out), 'o', word))) return -1;
    word = after_layout(word);
  }
  return OPKILN_LIKELY(*word == 0) ? data - in.data : -1;
}

// The last hit's pool, when it is alive and of this thread.
inline core::Pool* guessed(const Compiled* self, const core::ThreadTable* table) {
  return OPKILN_LIKELY(table && self->guess_generation == table->generation()) ? self->guess
                                                                               : nullptr;
}

// The pool of the arguments' key by its hash; null when there is none or the call is not simple.
core::Pool* find_pool(Compiled* self, PyObject* const* args, Py_ssize_t nargs, PyObject* out) {
  Gathered g;
  g.key[0] = self->id;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    if (!g.add(args[i])) return nullptr;
  }
  if (out && !g.add_layout('o', as_array(out))) return nullptr;
  core::ThreadTable& table = core::ThreadTable::current();
  core::Pool* pool = table.find({g.key, g.words, hash_key(g.key, g.words)});
  if (pool) {
    self->guess = pool;
    self->guess_generation = table.generation();
  }
  return pool;
}

// Sets the Python error of the exception that is being handled.
PyObject* error_set() {
  try {
    throw;
  } catch (const PythonError&) {
  }
  OPKILN_CATCH_THREAD_EXIT
  catch (...) {
    raise_current();
  }
  return nullptr;
}

// run() threw. What is due then is a lease's work: it drops the executor if a kernel had begun.
OPKILN_APART PyObject* run_failed(Compiled* self, core::Pool* pool, PyObject* result) {
  const Ref owned(result);
  self->counters.calls++;
  try {
    const core::PoolLimits unused;  // with an idle executor nothing is limited
    const core::Lease lease = pool->acquire(unused, []() -> std::unique_ptr<core::Executor> {
      return nullptr;  // not reached: the executor that failed is idle
    });
    const RecordRef record(static_cast<Record*>(lease->user));
    try {
      throw;
    } catch (const core::HostError& e) {
      throw_host_error(self, record.get(), e);
    }
  } catch (...) {
    return error_set();
  }
}

// False with an error set when the faults are one.
OPKILN_APART bool faults_pass(Compiled* self, Record* record, uint64_t faults) {
  const RecordRef hold(record);
  try {
    report_faults(self, record, faults);
    return true;
  } catch (...) {
    return error_set() != nullptr;
  }
}

// There was no array: an allocator is in force, or memory is short, which the general way may help.
OPKILN_APART bool may_go_the_general_way() {
  if (!PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
  PyErr_Clear();
  return true;
}

// The result to return, or null with `*done` telling whether an error is set or the general way
// must be taken.
OPKILN_INLINE PyObject* run(Compiled* self, const core::ThreadTable& table, core::Pool* pool,
                            const Inputs& in, Py_ssize_t arrays, PyObject* out, bool* done) {
  *done = false;
  core::Executor* x = pool->peek_idle();
  if (OPKILN_UNLIKELY(!x || !x->user_flag)) return nullptr;
  const core::OutSpec& spec = x->out(0);
  PyArray_Descr* descr = descr_of(spec.dtype);
  PyObject* result = out;
  char* target;
  Cell cell;
  if (out) {
    target = PyArray_BYTES(as_array(out));
  } else if (OPKILN_UNLIKELY(spec.ndim == 0)) {
    target = reinterpret_cast<char*>(&cell);
  } else {
    const uint64_t generation = table.generation(), id = self->id;
    Py_INCREF(descr);
    // Strides that NumPy finds by itself cost less than checking given ones.
    result = g_new_array(&PyArray_Type, descr, spec.ndim, spec.shape,
                         OPKILN_LIKELY(spec.c_order) ? nullptr : spec.strides, nullptr, 0, nullptr);
    if (OPKILN_UNLIKELY(!result)) {
      *done = !may_go_the_general_way();
      return nullptr;
    }
    target = PyArray_BYTES(as_array(result));
    // The allocation may have run any code: is the executor still there, idle, and its record too?
    if (OPKILN_UNLIKELY(table.generation() != generation) || OPKILN_UNLIKELY(self->id != id) ||
        OPKILN_UNLIKELY(pool->peek_idle() != x)) {
      Py_DECREF(result);
      return nullptr;
    }
  }
  char** pointers = x->args();  // not before: a nested call may have used them
#pragma GCC unroll 1            // few, and the code stays small
  for (Py_ssize_t i = 0; i < arrays; i++) pointers[i] = in.data[i];
  *x->outs() = target;
  if (out) {
    if (OPKILN_UNLIKELY(!x->outs_are_safe())) return nullptr;
    // With an errstate the long way decides: an error must leave `out` untouched.
    if (OPKILN_UNLIKELY(g_errstate) || OPKILN_UNLIKELY(self->errstate)) {
      if (static_cast<Record*>(x->user)->divides) return nullptr;
    }
    Py_INCREF(out);
  }
  *done = true;
  uint64_t faults;
  try {
    faults = x->run(in.weak);
  } catch (...) {
    return run_failed(self, pool, result);
  }
  x->ended();
  self->counters.calls++;
  self->counters.hits++;
  if (OPKILN_UNLIKELY(faults != 0) && !faults_pass(self, static_cast<Record*>(x->user), faults)) {
    Py_XDECREF(result);
    return nullptr;
  }
  return OPKILN_LIKELY(result != nullptr) ? result : PyArray_Scalar(&cell, descr, nullptr);
}

// Arguments by parameter when all of them are plain: the caller's own list, or `bound` filled from
// it, the keywords and the defaults. Null when the long way must decide (also to word an error).
inline PyObject* const* bind_plain(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                                   PyObject* kwnames, PyObject** bound, PyObject** out) {
  const Py_ssize_t n = self->n_params;
  if (!self->plain || nargs > n) return nullptr;
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

OPKILN_APART PyObject* general(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                               PyObject* kwnames) {
  try {
    return call_general(self, args, nargs, kwnames);
  } catch (...) {
    return error_set();
  }
}

// Keywords, defaults, out=, or a key that is not the last one (then `guess` is false).
OPKILN_APART PyObject* call_bound(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                                  PyObject* kwnames, bool guess) {
  try {
    PyObject* bound[kMostQuickArgs];
    PyObject* out = nullptr;
    PyObject* const* values = bind_plain(self, args, nargs, kwnames, bound, &out);
    if (out == Py_None) out = nullptr;
    if (OPKILN_LIKELY(values != nullptr) && (!out || is_plain_out(out))) {
      const Py_ssize_t n = self->n_params;
      core::ThreadTable& table = core::ThreadTable::current();
      core::Pool* pool = guess ? guessed(self, &table) : nullptr;
      Inputs in;
      Py_ssize_t arrays = pool ? read(self, pool, values, n, out, in) : -1;
      if (OPKILN_UNLIKELY(arrays < 0)) {
        pool = find_pool(self, values, n, out);
        if (pool) arrays = read(self, pool, values, n, out, in);
      }
      if (OPKILN_LIKELY(arrays >= 0)) {
        bool done;
        PyObject* result = run(self, table, pool, in, arrays, out, &done);
        if (OPKILN_LIKELY(done)) return result;
      }
    }
    return call_general(self, args, nargs, kwnames);
  } catch (...) {
    return error_set();
  }
}

// Some context is in a `with stream:` block, or calls are queued.
OPKILN_APART PyObject* call_beside_streams(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                                           PyObject* kwnames) {
  try {
    // What is queued may write what this call reads, or read what its out= is.
    if (g_queued_writers || kwnames || stream_here())
      return call_general(self, args, nargs, kwnames);
  } catch (...) {
    return error_set();
  }
  return call_bound(self, args, nargs, kwnames, true);
}

}  // namespace

PyObject* call_compiled(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<Compiled*>(o);
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  if (OPKILN_UNLIKELY(g_async_live != 0)) return call_beside_streams(self, args, nargs, kwnames);
  if (OPKILN_UNLIKELY(kwnames != nullptr) || OPKILN_UNLIKELY(nargs != self->n_quick)) {
    return call_bound(self, args, nargs, kwnames, true);
  }
  const core::ThreadTable* table = core::ThreadTable::known();
  core::Pool* pool = guessed(self, table);
  Inputs in;
  const Py_ssize_t arrays =
      OPKILN_LIKELY(pool != nullptr) ? read(self, pool, args, nargs, nullptr, in) : -1;
  if (OPKILN_UNLIKELY(arrays < 0)) return call_bound(self, args, nargs, nullptr, false);
  bool done;
  PyObject* result = run(self, *table, pool, in, arrays, nullptr, &done);
  return OPKILN_LIKELY(done) ? result : general(self, args, nargs, nullptr);
}

}  // namespace opkiln::face
