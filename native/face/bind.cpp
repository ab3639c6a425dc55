#include "face/bind.h"

#include "face/compiled.h"
#include "face/errors.h"

namespace opkiln::face {

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

Bound too_many_error(Compiled* self, PyObject* const* args, Py_ssize_t given,
                     Py_ssize_t keyword_only_given) {
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
    const bool extra_array = given == most + 1 && PyArray_Check(args[most]);
    const char* fix = extra_array ? "for an array to write into, use the keyword out=" : nullptr;
    raise(Err::argument, fix, "%U() takes %U positional argument%s but %zd %s given", name.get(),
          takes.get(), plural, given, given == 1 ? "was" : "were");
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
  Small<PyObject*, 24> bound;  // per parameter, borrowed; null for the variadic ones
  Small<Py_ssize_t, 8> extra;  // keywords for **kwargs, by their place in kwnames
  int var_keyword = -1;
};

Bound bind_keywords(Compiled* self, Params& params, PyObject* const* values, PyObject* kwnames,
                    PyObject** out) {
  const Py_ssize_t n = PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    if (self->takes_out && (keyword == g_str_out || PyUnicode_Compare(keyword, g_str_out) == 0)) {
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
    return too_many_error(self, args, nargs, keyword_only);
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
