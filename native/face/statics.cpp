#include "face/statics.h"

#include "face/gil.h"

namespace opkiln::face {

namespace {

// The referent (borrowed: the caller holds the GIL and only compares it) or None.
PyObject* referent(PyObject* ref) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(ref, &object) <= 0) return Py_None;
  Py_DECREF(object);
  return object;
#else
  return PyWeakref_GetObject(ref);
#endif
}

// A hashable key in which equal means: same type and same value, bit for bit.
PyObject* make_key(PyObject* v);

PyObject* key_of_items(PyObject* type, PyObject* const* items, Py_ssize_t n) {
  Ref key(PyTuple_New(n + 1));
  if (!key) return nullptr;
  PyTuple_SET_ITEM(key.get(), 0, Py_NewRef(type));
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* item = make_key(items[i]);
    if (!item) return nullptr;
    PyTuple_SET_ITEM(key.get(), i + 1, item);
  }
  return key.release();
}

PyObject* key_of_bits(PyObject* type, double a, double b) {
  if (a != a) a = Py_NAN;  // every NaN is one value
  if (b != b) b = Py_NAN;
  const double both[2] = {a, b};
  Ref bits(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(both), sizeof both));
  return bits ? PyTuple_Pack(2, type, bits.get()) : nullptr;
}

PyObject* key_of_slice(PyObject* v) {
  const auto* s = reinterpret_cast<PySliceObject*>(v);
  PyObject* const parts[3] = {s->start, s->stop, s->step};
  return key_of_items(reinterpret_cast<PyObject*>(&PySlice_Type), parts, 3);
}

PyObject* make_key(PyObject* v) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(v));
  if (PyFloat_CheckExact(v)) return key_of_bits(type, PyFloat_AS_DOUBLE(v), 0.0);
  if (PyComplex_CheckExact(v)) {
    return key_of_bits(type, PyComplex_RealAsDouble(v), PyComplex_ImagAsDouble(v));
  }
  if (PySlice_Check(v)) return key_of_slice(v);
  if (PyTuple_Check(v)) {
    if (Py_EnterRecursiveCall(" in a static argument")) return nullptr;
    Ref items(PySequence_Tuple(v));
    PyObject* key =
        items ? key_of_items(type, &PyTuple_GET_ITEM(items.get(), 0), PyTuple_GET_SIZE(items.get()))
              : nullptr;
    Py_LeaveRecursiveCall();
    return key;
  }
  if (PyFrozenSet_CheckExact(v)) {
    Ref items(PySequence_Tuple(v));
    if (!items) return nullptr;
    Ref keys(key_of_items(type, &PyTuple_GET_ITEM(items.get(), 0), PyTuple_GET_SIZE(items.get())));
    if (!keys) return nullptr;
    Ref set(PyFrozenSet_New(keys.get()));
    return set ? PyTuple_Pack(2, type, set.get()) : nullptr;
  }
  if (PyArray_IsScalar(v, Generic)) {
    Ref plain(canonical_static(v));
    if (!plain) return nullptr;
    if (plain.get() != v) return make_key(plain.get());
    Ref dtype(reinterpret_cast<PyObject*>(PyArray_DescrFromScalar(v)));
    Ref bytes(PyObject_CallMethod(v, "tobytes", nullptr));
    return dtype && bytes ? PyTuple_Pack(3, type, dtype.get(), bytes.get()) : nullptr;
  }
  return PyTuple_Pack(2, type, v);
}

// Objects whose equality is identity (such as most `self`) are held weakly.
bool is_identity_object(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  return type->tp_hash == PyBaseObject_Type.tp_hash && PyType_SUPPORTS_WEAKREFS(type);
}

}  // namespace

PyObject* canonical_static(PyObject* v) {
  if (PyArray_IsScalar(v, Bool)) return PyBool_FromLong(PyObject_IsTrue(v));
  if (PyArray_IsScalar(v, Integer) && !PyArray_IsScalar(v, Timedelta)) return PyNumber_Index(v);
  return Py_NewRef(v);
}

Interns::~Interns() { Py_XDECREF(on_death_); }

int64_t Interns::add(PyObject* object, PyObject* referent) {
  const uint64_t id = next_id();
  values_.push_back({Py_NewRef(object), referent});
  return static_cast<int64_t>(id);
}

bool Interns::is_dead(uint64_t id) const {
  PyObject* ref = held(id).object;
  return !ref || referent(ref) == Py_None;
}

int64_t Interns::bury(PyObject* ref) {
  const auto it = by_ref_.find(ref);
  if (it == by_ref_.end()) return -1;
  const uint64_t id = it->second;
  by_ref_.erase(it);
  Held& entry = values_.at(id - first_);
  const auto place = weak_pointer_.find(entry.referent);
  if (place != weak_pointer_.end() && place->second == id) weak_pointer_.erase(place);
  Py_CLEAR(entry.object);  // the id stays taken
  return static_cast<int64_t>(id);
}

int64_t Interns::known_identity(PyObject* value) const {
  const auto strong = by_pointer_.find(value);
  if (strong != by_pointer_.end()) return static_cast<int64_t>(strong->second);
  const auto weak = weak_pointer_.find(value);
  return weak != weak_pointer_.end() && !is_dead(weak->second) ? static_cast<int64_t>(weak->second)
                                                               : -1;
}

int64_t Interns::id_of_identity(PyObject* value) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) {
    const auto known = by_pointer_.find(value);
    if (known != by_pointer_.end()) return static_cast<int64_t>(known->second);
    const int64_t id = add(value, nullptr);
    by_pointer_[value] = static_cast<uint64_t>(id);
    return id;
  }
  const auto it = weak_pointer_.find(value);
  if (it != weak_pointer_.end() && !is_dead(it->second)) return static_cast<int64_t>(it->second);
  // Whatever lived at this address before is dead, if its callback has not come yet.
  Ref ref(PyWeakref_NewRef(value, on_death_));
  if (!ref) return -1;
  const int64_t id = add(ref.get(), value);
  weak_pointer_[value] = by_ref_[ref.get()] = static_cast<uint64_t>(id);
  return id;
}

int64_t Interns::id_of(PyObject* value) {
  if (value == Py_None) return static_cast<int64_t>(kNone);
  if (value == Py_False) return static_cast<int64_t>(kFalse);
  if (value == Py_True) return static_cast<int64_t>(kTrue);
  const auto known = by_pointer_.find(value);
  if (known != by_pointer_.end()) return static_cast<int64_t>(known->second);
  if (is_identity_object(value)) return id_of_identity(value);
  Ref key(make_key(value));
  if (!key) return -1;
  if (!by_key_ && !(by_key_ = PyDict_New())) return -1;
  // The user's __hash__ and __eq__ run below and may clear() this table: the dict must outlive
  // them, and what was found in it is then an old id, of which the caller learns by its function's
  // id.
  Ref dict = Ref::borrow(by_key_);
  PyObject* found = in_python([&] { return PyDict_GetItemWithError(dict.get(), key.get()); });
  if (found) return PyLong_AsLongLong(found);
  if (PyErr_Occurred()) return -1;
  Ref fresh(PyLong_FromUnsignedLongLong(next_id()));
  if (!fresh) return -1;
  PyObject* kept = in_python([&] { return PyDict_SetDefault(dict.get(), key.get(), fresh.get()); });
  if (!kept) return -1;
  if (kept != fresh.get()) return PyLong_AsLongLong(kept);
  if (PyLong_AsUnsignedLongLong(fresh.get()) != next_id()) {
    // __eq__ interned other values meanwhile: file this one under the next number
    Ref later(PyLong_FromUnsignedLongLong(next_id()));
    if (!later || PyDict_SetItem(dict.get(), key.get(), later.get()) < 0) return -1;
  }
  const int64_t id = add(value, nullptr);
  if (dict.get() == by_key_) by_pointer_[value] = static_cast<uint64_t>(id);
  return id;
}

PyObject* Interns::value(uint64_t id) const {
  if (id == kNone) return Py_NewRef(Py_None);
  if (id == kFalse) return Py_NewRef(Py_False);
  if (id == kTrue) return Py_NewRef(Py_True);
  const Held& entry = held(id);
  PyObject* object = entry.referent && entry.object ? referent(entry.object) : entry.object;
  if (!object || (entry.referent && object == Py_None)) {
    PyErr_SetString(PyExc_RuntimeError, "opkiln: a static object vanished during the call");
    return nullptr;
  }
  return Py_NewRef(object);
}

int Interns::traverse(visitproc visit, void* arg) const {
  Py_VISIT(by_key_);
  Py_VISIT(on_death_);
  for (const Held& entry : values_) Py_VISIT(entry.object);
  return 0;
}

void Interns::clear() {
  by_pointer_.clear();
  weak_pointer_.clear();
  by_ref_.clear();
  first_ = next_id();
  std::vector<Held> old;
  old.swap(values_);
  PyObject* dict = std::exchange(by_key_, nullptr);
  Py_XDECREF(dict);
  for (const Held& entry : old) Py_XDECREF(entry.object);
}

}  // namespace opkiln::face
