// In: the arguments of one call and the function's parameters; out: its leaves in order, and the
// exact key that the executor table is asked with.
//
// The key is the function's id, then a prefix code of 64-bit words, the tag in the low byte:
//   'a' | dtype << 8 | rank << 16   then rank extents, then rank byte strides (an array)
//   'i' 'u' 'f'                     a weak scalar (its value is read on every call, never a key)
//   's' | id << 8                   a static value by its interned id
//   'T' 'L' 'D' 'V' 'K' | n << 8    n items of a tuple, list, dict, *args, **kwargs
//   'k' | id << 8                   the key of the dict item that follows
//   'o' | dtype << 8 | rank << 16   then extents and strides: an out= array;  'n' no array there
#pragma once

#include "face/dtypes.h"

namespace opkiln::core {
class Stream;
}

namespace opkiln::face {

struct Compiled;
struct Origin;

constexpr int kMaxRank = 16;

inline uint8_t word_tag(uint64_t w) { return static_cast<uint8_t>(w); }
inline uint64_t word_value(uint64_t w) { return w >> 8; }
inline uint64_t array_word(char tag, uint8_t code, int rank) {
  return static_cast<uint8_t>(tag) | static_cast<uint64_t>(code) << 8 |
         static_cast<uint64_t>(rank) << 16;
}
inline uint64_t tagged(char tag, uint64_t value) { return static_cast<uint8_t>(tag) | value << 8; }
inline uint8_t word_code(uint64_t w) { return static_cast<uint8_t>(w >> 8); }
inline int word_rank(uint64_t w) { return static_cast<uint8_t>(w >> 16); }

// An exact ndarray the kernels can use as it is: supported dtype, native order, aligned, rank fits.
inline bool usable_as_is(PyArrayObject* a) {
  const PyArray_Descr* descr = PyArray_DESCR(a);
  return code_of(descr) != kNoCode && descr->byteorder != NPY_OPPBYTE &&
         (PyArray_FLAGS(a) & NPY_ARRAY_ALIGNED) && PyArray_NDIM(a) <= kMaxRank;
}

// An argument that was copied before the call could use it: 'b' byte order, 'u' alignment.
struct CopyNote {
  char why;
  int param;
};

// Everything one call gathers from its arguments. Plain arrays on the stack; no Python object is
// made for ordinary arguments. Holds references where the caller's own might not last.
struct CallArgs {
  Small<uint64_t, 160> key;
  Small<PyObject*, 24> leaf;         // every leaf, in order
  Small<char, 24> kind;              // its letter: a i u f s
  Small<PyArrayObject*, 24> arrays;  // null: borrowed, until materialise() is asked
  Small<char*, 24> data;             // of each array
  Small<uint64_t, 24> weak;          // int64, uint64 or double bits of each weak scalar
  Small<PyObject*, 8> owned;
  const Origin* origin = nullptr;  // whose arrays came in, or null
  int torch_is_watching = -1;      // unknown before the first tensor
  bool borrowed = false;           // some of `arrays` are null
  Small<CopyNote, 4> copied;
  core::Stream* stream = nullptr;  // that the call is queued on; null: it runs inline
  Small<PyObject*, 4> needs;       // Futures among the arguments that are not done (borrowed)
  size_t args_size = 0;            // words of the key before those of out=
  int param = 0;                   // being flattened, for messages

  explicit CallArgs(uint64_t function_id) { key.push_reserved(function_id); }
  ~CallArgs() {
    for (PyObject* o : owned) Py_DECREF(o);
  }
  void keep(PyObject* stolen) { owned.push(stolen); }

  // Appends a usable array to the leaves and the key.
  void add_array(PyObject* as_given, PyArrayObject* a) {
    const int rank = PyArray_NDIM(a);
    const npy_intp* dims = PyArray_DIMS(a);
    const npy_intp* strides = PyArray_STRIDES(a);
    key.reserve(1 + 2 * static_cast<size_t>(rank));
    key.push_reserved(array_word('a', code_of(PyArray_DESCR(a)), rank));
    for (int i = 0; i < rank; i++) key.push_reserved(static_cast<uint64_t>(dims[i]));
    for (int i = 0; i < rank; i++) key.push_reserved(static_cast<uint64_t>(strides[i]));
    leaf.push(as_given);
    kind.push('a');
    arrays.push(a);
    data.push(PyArray_BYTES(a));
  }
  void add_weak(PyObject* o, char letter, uint64_t bits) {
    key.push(tagged(letter, 0));
    leaf.push(o);
    kind.push(letter);
    weak.push(bits);
  }
};

enum class Bound { ok, error, traced };  // traced: an argument is symbolic, the call must inline

// The whole of binding: keywords, defaults, flattening. `*out` receives the `out` keyword
// (borrowed) or null. May throw std::bad_alloc.
Bound bind_call(Compiled* self, CallArgs& call, PyObject* const* args, Py_ssize_t nargs,
                PyObject* kwnames, PyObject** out);

// A static value: 's' adds a leaf, 'k' only names the dict item that follows.
Bound add_static(Compiled* self, CallArgs& call, PyObject* o, char tag = 's');

// One argument of a parameter that is not static.
Bound add_leaf(Compiled* self, CallArgs& call, PyObject* o);

// The nested tuple of leaf numbers the frontend sees, rebuilt from the key (new reference or null).
PyObject* tree_of_key(Compiled* self, const uint64_t* key, size_t n);

// Appends to `sig` the key without function id, extents, strides; stops at the first 'o' or 'n'.
template <class Vector>
void signature_of_key(const uint64_t* key, size_t n, Vector& sig) {
  for (size_t i = 1; i < n;) {
    const uint8_t tag = word_tag(key[i]);
    if (tag == 'o' || tag == 'n') break;
    sig.push_back(key[i]);
    i += tag == 'a' ? 1 + 2 * static_cast<size_t>(word_rank(key[i])) : 1;
  }
}

}  // namespace opkiln::face
