#include "face/bind.h"

#include "face/arrays.h"
#include "face/compiled.h"
#include "face/dlpack.h"
#include "face/errors.h"

namespace opkiln::face {

const uint8_t kCodeOfType[NPY_NTYPES_LEGACY] = {
    0, 1, 5, 2, 6, 3, 7, 4, 8, 4, 8, 9, 10,              // bool .. double (x86-64, aarch64: LP64)
    kNoCode, kNoCode, kNoCode, kNoCode,                  // long double, complex
    kNoCode, kNoCode, kNoCode, kNoCode, kNoCode, kNoCode, kNoCode};  // object .. half
static_assert(sizeof(long) == 8, "the table above maps NPY_LONG to 64 bits");

const int kTypeOfCode[16] = {NPY_BOOL,   NPY_INT8,  NPY_INT16,  NPY_INT32,  NPY_INT64, NPY_UINT8,
                             NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_FLOAT, NPY_DOUBLE,
                             NPY_NOTYPE, NPY_NOTYPE, NPY_NOTYPE, NPY_NOTYPE, NPY_NOTYPE};

namespace {

const char* param_name(Compiled* self, int param) {
  const char* text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->names, param));
  return text ? text : "?";
}

Bound refuse(Compiled* self, CallArgs& call, Err kind, const char* fix, const char* what,
             PyObject* detail) {
  Ref name(function_name(self->frontend));
  if (name) {
    raise(kind, fix, "%U(): argument '%s': %s%S", name.get(), param_name(self, call.param), what,
          detail);
  }
  return Bound::error;
}

Bound refuse_type(Compiled* self, CallArgs& call, const char* fix, const char* what, PyObject* o) {
  Ref type(PyUnicode_FromString(Py_TYPE(o)->tp_name));
  if (!type) return Bound::error;
  return refuse(self, call, Err::argument, fix, what, type.get());
}

Bound refuse_dtype(Compiled* self, CallArgs& call, PyArray_Descr* descr) {
  const int type = descr->type_num;
  const bool numeric = PyTypeNum_ISNUMBER(type) || type == NPY_HALF;
  const char* fix =
      numeric ? "convert it first, for example x.astype(np.float32)"
              : "pass an array of bool, int8..int64, uint8..uint64, float32 or float64";
  return refuse(self, call, Err::dtype, fix, "expected a numeric array, got dtype ",
                reinterpret_cast<PyObject*>(descr));
}

Bound add_static(Compiled* self, CallArgs& call, PyObject* o, char tag = 's') {
  Ref value(canonical_static(o));
  if (!value) return Bound::error;
  const int64_t id = self->inside->interns.id_of(value.get());
  if (id < 0) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return Bound::error;
    PyErr_Clear();
    return refuse_type(self, call, "use a hashable value, such as a tuple instead of a list",
                       "a static argument must be hashable, got ", o);
  }
  call.key.push(tagged(tag, static_cast<uint64_t>(id)));
  if (tag != 's') return Bound::ok;
  call.leaf.push(value.get());
  call.kind.push('s');
  call.keep(value.release());
  return Bound::ok;
}

// An exact ndarray that kernels cannot read in place: a counted copy, or a refusal.
Bound add_awkward_array(Compiled* self, CallArgs& call, PyArrayObject* a) {
  PyArray_Descr* descr = PyArray_DESCR(a);
  const uint8_t code = code_of(descr);
  if (code == kNoCode) return refuse_dtype(self, call, descr);
  if (PyArray_NDIM(a) > kMaxRank) {
    Ref rank(PyLong_FromLong(PyArray_NDIM(a)));
    if (!rank) return Bound::error;
    return refuse(self, call, Err::shape, "reshape it to at most 16 axes",
                  "expected rank <= 16, got rank ", rank.get());
  }
  PyObject* copy = as_object(usable_copy(a));
  if (!copy) return Bound::error;
  call.keep(copy);
  call.copies++;
  call.add_array(copy, as_array(copy));
  return Bound::ok;
}

Bound add_int(Compiled* self, CallArgs& call, PyObject* o) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (OPKILN_LIKELY(overflow == 0)) {
    if (value == -1 && PyErr_Occurred()) return Bound::error;
    call.add_weak(o, 'i', static_cast<uint64_t>(value));
    return Bound::ok;
  }
  if (overflow > 0) {
    const unsigned long long big = PyLong_AsUnsignedLongLong(o);
    if (!PyErr_Occurred()) {
      call.add_weak(o, 'u', big);
      return Bound::ok;
    }
    PyErr_Clear();
  }
  return add_static(self, call, o);
}

Bound add_float(CallArgs& call, PyObject* o) {
  const double value = PyFloat_AsDouble(o);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  call.add_weak(o, 'f', bits);
  return Bound::ok;
}

Bound add_numpy_scalar(Compiled* self, CallArgs& call, PyObject* o) {
  if (PyUnicode_Check(o) || PyBytes_Check(o)) return add_static(self, call, o);
  PyArray_Descr* descr = PyArray_DescrFromScalar(o);
  if (!descr) return Bound::error;
  if (code_of(descr) == kNoCode) {
    const Bound refused = refuse_dtype(self, call, descr);
    Py_DECREF(descr);
    return refused;
  }
  PyObject* array = PyArray_FromScalar(o, descr);  // takes the descr
  if (!array) return Bound::error;
  call.keep(array);
  call.add_array(array, as_array(array));
  return Bound::ok;
}

Bound add_sequence(Compiled* self, CallArgs& call, PyObject* o, char tag) {
  if (Py_EnterRecursiveCall(" in the arguments of a compiled function")) return Bound::error;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  call.key.push(tagged(tag, static_cast<uint64_t>(n)));
  Bound status = Bound::ok;
  for (Py_ssize_t i = 0; i < n && status == Bound::ok; i++) {
    if (PySequence_Fast_GET_SIZE(o) != n) {
      PyErr_SetString(PyExc_RuntimeError, "list changed size during the call");
      status = Bound::error;
      break;
    }
    PyObject* item = Py_NewRef(PySequence_Fast_GET_ITEM(o, i));
    call.keep(item);
    status = add_leaf(self, call, item);
  }
  Py_LeaveRecursiveCall();
  return status;
}

Bound add_dict(Compiled* self, CallArgs& call, PyObject* o) {
  if (Py_EnterRecursiveCall(" in the arguments of a compiled function")) return Bound::error;
    Ref items(PyDict_Items(o));  // a snapshot: hashing keys may run the user's code
  const Py_ssize_t n = items ? PyList_GET_SIZE(items.get()) : 0;
  Bound status = items ? Bound::ok : Bound::error;
  if (items) call.key.push(tagged('D', static_cast<uint64_t>(n)));
  for (Py_ssize_t i = 0; i < n && status == Bound::ok; i++) {
    PyObject* pair = PyList_GET_ITEM(items.get(), i);
    status = add_static(self, call, PyTuple_GET_ITEM(pair, 0), 'k');
    if (status != Bound::ok) break;
    PyObject* value = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    call.keep(value);
    status = add_leaf(self, call, value);
  }
  Py_LeaveRecursiveCall();
  return status;
}

bool type_has(PyObject* o, const char* name) {
  PyObject* found = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), name);
  if (!found) PyErr_Clear();
  Py_XDECREF(found);
  return found != nullptr;
}

// 1 an Enum member, 0 not, -1 error.
int is_enum(PyObject* o) {
  static PyObject* enum_class = nullptr;
  if (Py_TYPE(Py_TYPE(o)) == &PyType_Type) return 0;  // Enum classes have a metaclass
  if (!enum_class) {
    Ref module(PyImport_ImportModule("enum"));
    if (!module) return -1;
    PyObject* cls = PyObject_GetAttrString(module.get(), "Enum");
    if (!cls) return -1;
    if (enum_class) {
      Py_DECREF(cls);
    } else {
      enum_class = cls;
    }
  }
  return PyObject_IsInstance(o, enum_class);
}

Bound add_foreign(Compiled* self, CallArgs& call, PyObject* o) {
  PyObject* array = array_from_dlpack(o, false);
  if (!array) {
    if (PyErr_Occurred()) return Bound::error;
    return refuse_type(self, call, "pass np.asarray(x)", "cannot use an object of type ", o);
  }
  call.keep(array);
  if (!call.foreign && !(call.foreign = library_of(o))) return Bound::error;
  if (!usable_as_is(as_array(array))) return add_awkward_array(self, call, as_array(array));
  call.add_array(array, as_array(array));
  return Bound::ok;
}

// Everything that is not one of the common exact types.
Bound add_unusual(Compiled* self, CallArgs& call, PyObject* o) {
  if (PyArray_IsScalar(o, Generic)) return add_numpy_scalar(self, call, o);
  if (PyArray_Check(o)) {
    return refuse_type(self, call, "pass np.asarray(x) (a masked array: x.filled())",
                       "expected a plain ndarray, got the subclass ", o);
  }
  if (type_has(o, "__opkiln_tracer__")) return Bound::traced;
  const int enumerated = is_enum(o);
  if (enumerated < 0) return Bound::error;
  if (enumerated || PyUnicode_Check(o) || PyBytes_Check(o) || PyType_Check(o) || PySlice_Check(o) ||
      PyArray_DescrCheck(o) || o == Py_Ellipsis) {
    return add_static(self, call, o);
  }
  if (PyLong_Check(o)) return add_int(self, call, o);
  if (PyFloat_Check(o)) return add_float(call, o);
  if (PyComplex_Check(o)) {
    return refuse(self, call, Err::not_yet, "pass the real and imaginary parts as two arguments",
                  "complex numbers are not supported yet, got ", o);
  }
  if (PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o)) {
    return refuse_type(self, call, "pass a plain tuple, list or dict, for example tuple(x)",
                       "expected a plain container, got the subclass ", o);
  }
  if (type_has(o, "to_numpy")) {
    return refuse_type(self, call, "pass x.to_numpy()", "expected an array, got ", o);
  }
  if (type_has(o, "__dlpack__")) return add_foreign(self, call, o);
  return refuse_type(self, call,
                     "pass an array or a number, or name the parameter in compile(static=...)",
                     "cannot use an object of type ", o);
}

}  // namespace

Bound add_leaf(Compiled* self, CallArgs& call, PyObject* o) {
  const PyTypeObject* type = Py_TYPE(o);
  if (OPKILN_LIKELY(type == &PyArray_Type)) {
    PyArrayObject* a = as_array(o);
    if (OPKILN_UNLIKELY(!usable_as_is(a))) return add_awkward_array(self, call, a);
    call.add_array(o, a);
    return Bound::ok;
  }
  if (type == &PyFloat_Type) return add_float(call, o);
  if (type == &PyLong_Type) return add_int(self, call, o);
  if (o == Py_None || type == &PyBool_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
    return add_static(self, call, o);
  }
  if (type == &PyTuple_Type) return add_sequence(self, call, o, 'T');
  if (type == &PyList_Type) return add_sequence(self, call, o, 'L');
  if (type == &PyDict_Type) return add_dict(self, call, o);
  return add_unusual(self, call, o);
}

namespace {

// Recursive descent over the key's words; leaves are numbered as they come.
struct TreeReader {
  Compiled* self;
  const uint64_t* word;
  const uint64_t* end;
  Py_ssize_t next_leaf = 0;

  PyObject* read() {
    if (word >= end) return raise(Err::internal, nullptr, "opkiln: truncated key");
    const uint64_t w = *word++;
    const auto n = static_cast<Py_ssize_t>(word_value(w));
    switch (word_tag(w)) {
      case 'a':
        word += 2 * word_rank(w);
        return PyLong_FromSsize_t(next_leaf++);
      case 'T':
      case 'V':
        return read_items(PyTuple_New(n), n, true);
      case 'L':
        return read_items(PyList_New(n), n, false);
      case 'D':
      case 'K':
        return read_dict(n);
      default:
        return PyLong_FromSsize_t(next_leaf++);
    }
  }
  PyObject* read_items(PyObject* container, Py_ssize_t n, bool is_tuple) {
    Ref owner(container);
    for (Py_ssize_t i = 0; container && i < n; i++) {
      PyObject* item = read();
      if (!item) return nullptr;
      if (is_tuple) {
        PyTuple_SET_ITEM(container, i, item);
      } else {
        PyList_SET_ITEM(container, i, item);
      }
    }
    return owner.release();
  }
  PyObject* read_dict(Py_ssize_t n) {
    Ref dict(PyDict_New());
    for (Py_ssize_t i = 0; dict && i < n; i++) {
      Ref key(self->inside->interns.value(word_value(*word++)));
      if (!key) return nullptr;
      Ref value(read());
      if (!value || PyDict_SetItem(dict.get(), key.get(), value.get()) < 0) return nullptr;
    }
    return dict.release();
  }
};

// ---- parameters ----

constexpr char kPositionalOnly = 0, kVarPositional = 2, kKeywordOnly = 3, kVarKeyword = 4;

PyObject* quoted_list(PyObject* names) {  // "'x', 'y', and 'z'" as Python words it
  const Py_ssize_t n = PyList_GET_SIZE(names);
  Ref text(PyUnicode_FromString(""));
  for (Py_ssize_t i = 0; text && i < n; i++) {
    const char* before = i == 0 ? "" : i + 1 < n ? ", " : n == 2 ? " and " : ", and ";
    text = Ref(PyUnicode_FromFormat("%U%s%R", text.get(), before, PyList_GET_ITEM(names, i)));
  }
  return text.release();
}

Bound arity_error(Compiled* self, const char* format, PyObject* detail) {
  Ref name(function_name(self->frontend));
  if (name) raise(Err::argument, nullptr, format, name.get(), detail);
  return Bound::error;
}

Bound missing_error(Compiled* self, PyObject* const* bound, bool keyword_only) {
  Ref names(PyList_New(0));
  for (int p = 0; names && p < self->n_params; p++) {
    const char kind = self->inside->kinds[static_cast<size_t>(p)];
    if (bound[p] || kind == kVarPositional || kind == kVarKeyword) continue;
    if ((kind == kKeywordOnly) != keyword_only) continue;
    if (PyList_Append(names.get(), PyTuple_GET_ITEM(self->names, p)) < 0) return Bound::error;
  }
  if (!names) return Bound::error;
  Ref list(quoted_list(names.get()));
  Ref name(function_name(self->frontend));
  if (!list || !name) return Bound::error;
  const Py_ssize_t n = PyList_GET_SIZE(names.get());
  raise(Err::argument, nullptr, "%U() missing %zd required %s argument%s: %U", name.get(), n,
        keyword_only ? "keyword-only" : "positional", n == 1 ? "" : "s", list.get());
  return Bound::error;
}

Bound too_many_error(Compiled* self, Py_ssize_t given, Py_ssize_t keyword_only_given) {
  int required = 0;
  for (int p = 0; p < self->n_positional; p++) {
    if (PyTuple_GET_ITEM(self->defaults, p) == g_missing) required++;
  }
  const int most = self->n_positional;
  Ref name(function_name(self->frontend));
  Ref takes(required < most ? PyUnicode_FromFormat("from %d to %d", required, most)
                            : PyUnicode_FromFormat("%d", most));
  if (!name || !takes) return Bound::error;
  const char* plural = required < most || most != 1 ? "s" : "";
  if (keyword_only_given) {
    raise(Err::argument, nullptr,
          "%U() takes %U positional argument%s but %zd positional argument%s (and %zd keyword-only "
          "argument%s) were given",
          name.get(), takes.get(), plural, given, given == 1 ? "" : "s", keyword_only_given,
          keyword_only_given == 1 ? "" : "s");
  } else {
    raise(Err::argument, nullptr, "%U() takes %U positional argument%s but %zd %s given",
          name.get(), takes.get(), plural, given, given == 1 ? "was" : "were");
  }
  return Bound::error;
}

// The parameter a keyword names; -1 none, -2 error.
int find_param(Compiled* self, PyObject* keyword) {
  for (int p = 0; p < self->n_params; p++) {
    if (PyTuple_GET_ITEM(self->names, p) == keyword) return p;
  }
  for (int p = 0; p < self->n_params; p++) {
    const int order = PyUnicode_Compare(PyTuple_GET_ITEM(self->names, p), keyword);
    if (order == -1 && PyErr_Occurred()) return -2;
    if (order == 0) return p;
  }
  return -1;
}

struct Params {
  Small<PyObject*, 24> bound;    // per parameter, borrowed; null for the variadic ones
  Small<Py_ssize_t, 8> extra;    // keywords for **kwargs, by their place in kwnames
  int var_keyword = -1;
};

Bound bind_keywords(Compiled* self, Params& params, PyObject* const* values, PyObject* kwnames,
                    PyObject** out) {
  const Py_ssize_t n = PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    if (self->takes_out &&
        (keyword == g_str_out || PyUnicode_Compare(keyword, g_str_out) == 0)) {
      *out = values[i];
      continue;
    }
    const int p = find_param(self, keyword);
    if (p == -2) return Bound::error;
    const char kind = p < 0 ? kVarKeyword : self->inside->kinds[static_cast<size_t>(p)];
    const bool named = kind != kPositionalOnly && kind != kVarPositional && kind != kVarKeyword;
    if (named) {
      if (params.bound[static_cast<size_t>(p)]) {
        return arity_error(self, "%U() got multiple values for argument %R", keyword);
      }
      params.bound[static_cast<size_t>(p)] = values[i];
    } else if (params.var_keyword >= 0) {
      params.extra.push(i);
    } else if (kind == kPositionalOnly) {
      return arity_error(
          self, "%U() got some positional-only arguments passed as keyword arguments: %R", keyword);
    } else {
      return arity_error(self, "%U() got an unexpected keyword argument %R", keyword);
    }
  }
  return Bound::ok;
}

Bound bind_params(Compiled* self, Params& params, PyObject* const* args, Py_ssize_t nargs,
                  PyObject* kwnames, PyObject** out) {
  const std::vector<char>& kinds = self->inside->kinds;
  bool variadic = false;
  params.bound.reserve(static_cast<size_t>(self->n_params));
  for (int p = 0; p < self->n_params; p++) {
    const char kind = kinds[static_cast<size_t>(p)];
    variadic |= kind == kVarPositional;
    if (kind == kVarKeyword) params.var_keyword = p;
    params.bound.push(p < self->n_positional && p < nargs ? args[p] : nullptr);
  }
  if (kwnames) {
    const Bound status = bind_keywords(self, params, args + nargs, kwnames, out);
    if (status != Bound::ok) return status;
  }
  if (nargs > self->n_positional && !variadic) {
    Py_ssize_t keyword_only = 0;
    for (int p = self->n_positional; p < self->n_params; p++) {
      keyword_only += params.bound[static_cast<size_t>(p)] != nullptr;
    }
    return too_many_error(self, nargs, keyword_only);
  }
  bool missing_positional = false, missing_keyword = false;
  for (int p = 0; p < self->n_params; p++) {
    const char kind = kinds[static_cast<size_t>(p)];
    PyObject*& value = params.bound[static_cast<size_t>(p)];
    if (value || kind == kVarPositional || kind == kVarKeyword) continue;
    PyObject* fallback = PyTuple_GET_ITEM(self->defaults, p);
    if (fallback != g_missing) {
      value = fallback;
    } else {
      (kind == kKeywordOnly ? missing_keyword : missing_positional) = true;
    }
  }
  if (missing_positional) return missing_error(self, params.bound.data(), false);
  if (missing_keyword) return missing_error(self, params.bound.data(), true);
  return Bound::ok;
}

}  // namespace

PyObject* tree_of_key(Compiled* self, const uint64_t* key, size_t n) {
  TreeReader reader{self, key + 1, key + n};
  PyObject* tree = PyTuple_New(self->n_params);
  return reader.read_items(tree, self->n_params, true);
}

Bound bind_call(Compiled* self, CallArgs& call, PyObject* const* args, Py_ssize_t nargs,
                PyObject* kwnames, PyObject** out) {
  Params params;
  Bound status = bind_params(self, params, args, nargs, kwnames, out);
  for (int p = 0; p < self->n_params && status == Bound::ok; p++) {
    const size_t at = static_cast<size_t>(p);
    const bool is_static = self->inside->is_static[at] != 0;
    const auto add = [&](PyObject* o) {
      return is_static ? add_static(self, call, o) : add_leaf(self, call, o);
    };
    call.param = p;
    if (self->inside->kinds[at] == kVarPositional) {
      const Py_ssize_t first = self->n_positional;
      const Py_ssize_t n = nargs > first ? nargs - first : 0;
      call.key.push(tagged('V', static_cast<uint64_t>(n)));
      for (Py_ssize_t i = 0; i < n && status == Bound::ok; i++) status = add(args[first + i]);
    } else if (p == params.var_keyword) {
      call.key.push(tagged('K', params.extra.size()));
      for (size_t i = 0; i < params.extra.size() && status == Bound::ok; i++) {
        status = add_static(self, call, PyTuple_GET_ITEM(kwnames, params.extra[i]), 'k');
        if (status == Bound::ok) status = add(args[nargs + params.extra[i]]);
      }
    } else {
      status = add(params.bound[at]);
    }
  }
  return status;
}

}  // namespace opkiln::face
