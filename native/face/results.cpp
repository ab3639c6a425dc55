#include "face/results.h"

#include <algorithm>

#include "core/key.h"
#include "face/bind.h"
#include "face/errors.h"
#include "face/module.h"

namespace opkiln::face {

// ---- the returned value ----

int OutTree::add(PyObject* node, size_t n_outputs) {
  if (Py_EnterRecursiveCall(" in the results of a compiled function")) return -1;
  int status = 0;
  const Slot* slot = slot_of(node);
  if (slot) {
    items_.push_back({'s', slot->index, nullptr});
    if (slot->index >= n_outputs) {
      raise(Err::internal, nullptr, "opkiln: out_tree names output %u of %zu", slot->index,
            n_outputs);
      status = -1;
    }
  } else if (PyTuple_CheckExact(node) || PyList_CheckExact(node)) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(node);
    items_.push_back({PyTuple_CheckExact(node) ? 'T' : 'L', static_cast<uint32_t>(n), nullptr});
    for (Py_ssize_t i = 0; i < n && status == 0; i++) {
      status = add(PySequence_Fast_GET_ITEM(node, i), n_outputs);
    }
  } else if (PyDict_CheckExact(node)) {
    items_.push_back({'D', static_cast<uint32_t>(PyDict_GET_SIZE(node)), nullptr});
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (status == 0 && PyDict_Next(node, &at, &key, &value)) {
      items_.push_back({'k', 0, Py_NewRef(key)});
      status = add(value, n_outputs);
    }
  } else {
    items_.push_back({'c', 0, Py_NewRef(node)});
  }
  Py_LeaveRecursiveCall();
  return status;
}

int OutTree::compile(PyObject* tree, size_t n_outputs) {
  const int status = add(tree, n_outputs);
  single_ = status == 0 && items_.size() == 1 && items_[0].tag == 's' && items_[0].n == 0;
  return status;
}

PyObject* OutTree::read(size_t& at, PyObject* const* values) const {
  const Item& item = items_[at++];
  const Py_ssize_t n = item.n;
  switch (item.tag) {
    case 's':
      return Py_NewRef(values[item.n]);
    case 'T':
    case 'L': {
      const bool is_tuple = item.tag == 'T';
      Ref container(is_tuple ? PyTuple_New(n) : PyList_New(n));
      for (Py_ssize_t i = 0; container && i < n; i++) {
        PyObject* part = read(at, values);
        if (!part) return nullptr;
        if (is_tuple) {
          PyTuple_SET_ITEM(container.get(), i, part);
        } else {
          PyList_SET_ITEM(container.get(), i, part);
        }
      }
      return container.release();
    }
    case 'D': {
      Ref dict(PyDict_New());
      for (Py_ssize_t i = 0; dict && i < n; i++) {
        PyObject* key = items_[at++].object;
        Ref part(read(at, values));
        if (!part || PyDict_SetItem(dict.get(), key, part.get()) < 0) return nullptr;
      }
      return dict.release();
    }
    default:
      return Py_NewRef(item.object);
  }
}

PyObject* OutTree::build(PyObject* const* values) const {
  size_t at = 0;
  return read(at, values);
}

int OutTree::traverse(visitproc visit, void* arg) const {
  for (const Item& item : items_) Py_VISIT(item.object);
  return 0;
}

void OutTree::clear() {
  std::vector<Item> old;
  old.swap(items_);
  single_ = false;
  for (const Item& item : old) Py_XDECREF(item.object);
}

// ---- records ----

int Record::read_captures() {
  Ref tuple(PyObject_GetAttrString(object, "captures"));
  if (!tuple) return -1;
  Ref items(PySequence_Tuple(tuple.get()));
  if (!items) return -1;
  const std::vector<int>& wanted = plan->captures();
  const Py_ssize_t n = PyTuple_GET_SIZE(items.get());
  if (static_cast<size_t>(n) != wanted.size()) {
    raise(Err::internal, nullptr, "opkiln: the plan has %zu captures, the record %zd",
          wanted.size(), n);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* o = PyTuple_GET_ITEM(items.get(), i);
    const core::BufferSpec& spec =
        plan->buffers()[static_cast<size_t>(wanted[static_cast<size_t>(i)])];
    if (!PyArray_CheckExact(o) ||
        code_of(PyArray_DESCR(as_array(o))) != static_cast<uint8_t>(spec.dtype) ||
        PyArray_NDIM(as_array(o)) != spec.rank) {
      raise(Err::internal, nullptr, "opkiln: capture %zd does not match its buffer", i);
      return -1;
    }
    PyArrayObject* a = as_array(o);
    const int rank = PyArray_NDIM(a);
    capture_layouts.push_back({{PyArray_DIMS(a), PyArray_DIMS(a) + rank},
                               {PyArray_STRIDES(a), PyArray_STRIDES(a) + rank},
                               code_of(PyArray_DESCR(a)),
                               usable_as_is(a)});
    captures.push_back(as_array(Py_NewRef(o)));
  }
  return 0;
}

Record* Record::make(PyObject* object) {
  struct Guard {
    Record* r;
    ~Guard() {
      if (r) r->drop();
    }
  } guard{new Record};
  Record* r = guard.r;
  r->object = Py_NewRef(object);
  Ref plan(PyObject_GetAttrString(object, "plan"));
  if (!plan) return nullptr;
  core::Plan* inner = plan_of(plan.get());
  if (!inner || !inner->finished()) {
    raise(Err::internal, nullptr, "opkiln: record.plan must be a finished Plan");
    return nullptr;
  }
  r->plan = core::Ref<core::Plan>(inner);
  r->n_outs = inner->outs().size();
  r->by_copy = inner->may_raise();
  for (const core::OutputRef& output : inner->outputs()) {
    r->out_of_output.push_back(output.host ? -1 : output.index);
  }
  Ref labels(PyObject_GetAttrString(object, "labels"));
  Ref divides(labels ? PyObject_GetAttrString(object, "divides") : nullptr);
  if (!divides) return nullptr;
  if (!PyTuple_Check(labels.get())) {
    raise(Err::internal, nullptr, "opkiln: record.labels must be a tuple");
    return nullptr;
  }
  r->divides = PyObject_IsTrue(divides.get()) == 1;
  r->labels = labels.release();
  Ref tree(PyObject_GetAttrString(object, "out_tree"));
  if (!tree || r->tree.compile(tree.get(), inner->outputs().size()) < 0) return nullptr;
  if (r->read_captures() < 0) return nullptr;
  r->quick = r->tree.is_single() && r->out_of_output == std::vector<int>{0} && r->n_outs == 1 &&
             r->captures.empty();
  return std::exchange(guard.r, nullptr);
}

PyObject* Record::label(Py_ssize_t place) const {
  const bool known = labels && place >= 0 && place < PyTuple_GET_SIZE(labels);
  return known ? PyTuple_GET_ITEM(labels, place) : Py_None;
}

int Record::traverse(visitproc visit, void* arg) const {
  Py_VISIT(object);
  Py_VISIT(labels);
  for (PyArrayObject* a : captures) Py_VISIT(as_object(a));
  return tree.traverse(visit, arg);
}

void Record::clear() {
  tree.clear();
  std::vector<PyArrayObject*> old;
  old.swap(captures);
  Py_CLEAR(object);
  Py_CLEAR(labels);
  for (PyArrayObject* a : old) Py_DECREF(as_object(a));
}

size_t RecordMap::Hash::operator()(const std::vector<uint64_t>& words) const {
  return core::KeyBuilder::hash_words(words.data(), words.data() + words.size());
}

const std::vector<Record*>* RecordMap::find(const std::vector<uint64_t>& signature) const {
  const auto it = map_.find(signature);
  return it == map_.end() ? nullptr : &it->second;
}

Record* RecordMap::add(const std::vector<uint64_t>& signature, Record* record) {
  std::vector<Record*>& list = map_[signature];
  for (Record* known : list) {
    if (known->object == record->object) return known;
  }
  list.push_back(record);
  record->retain();
  return record;
}

void RecordMap::drop(uint64_t id) {
  std::vector<Record*> old;  // dropped last: that may run the user's code
  const auto names = [&](uint64_t word) {
    return word == tagged('s', id) || word == tagged('k', id);
  };
  for (auto it = map_.begin(); it != map_.end();) {
    if (std::none_of(it->first.begin(), it->first.end(), names)) {
      ++it;
      continue;
    }
    old.insert(old.end(), it->second.begin(), it->second.end());
    it = map_.erase(it);
  }
  for (Record* r : old) r->drop();
}

int RecordMap::traverse(visitproc visit, void* arg) const {
  for (const auto& entry : map_) {
    for (const Record* r : entry.second) {
      const int status = r->traverse(visit, arg);
      if (status) return status;
    }
  }
  return 0;
}

void RecordMap::clear() {
  auto old = std::move(map_);
  map_.clear();
  for (auto& entry : old) {
    for (Record* r : entry.second) r->drop();
  }
}

size_t RecordMap::size() const {
  size_t n = 0;
  for (const auto& entry : map_) n += entry.second.size();
  return n;
}

}  // namespace opkiln::face
