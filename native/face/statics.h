// In: a static argument (None, bool, str, dtype, Enum, tuple of such, any hashable object); out: a
// small number that stands for its type and value in keys. One table per compiled function.
#pragma once

#include <unordered_map>
#include <vector>

#include "face/common.h"

namespace opkiln::face {

class Interns {
 public:
  ~Interns();

  static constexpr uint64_t kNone = 0, kFalse = 1, kTrue = 2, kFirstFree = 3;

  // The id of `value`, or -1 with a Python error set (unhashable: plain TypeError).
  // 1, 1.0 and True differ, 0.0 and -0.0 differ, NaN equals itself, numpy ints equal Python ints.
  // An id is never used again, not even after clear(): a call in progress may still carry it.
  int64_t id_of(PyObject* value);
  // The id of an object that is meant by identity, whatever its __eq__ says: held weakly if it can
  // be. Its death calls `on_death` (see below) with the weak reference.
  int64_t id_of_identity(PyObject* value);
  // The id that stands for exactly this object already, or -1 without an error.
  int64_t known_identity(PyObject* value) const;
  // The object an id stands for (new reference), null with an error when it is gone.
  PyObject* value(uint64_t id) const;

  // The Python callable for weak references (a new reference).
  void set_on_death(PyObject* callable) { on_death_ = callable; }
  // Forgets the object of a weak reference that died; its id, or -1 when the reference is old.
  int64_t bury(PyObject* ref);

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Held {
    PyObject* object;    // strong: the value, or a weak reference to it; null when dead
    PyObject* referent;  // of a weak reference: an address to compare with, else null
  };
  int64_t add(PyObject* object, PyObject* referent);
  uint64_t next_id() const { return first_ + values_.size(); }
  const Held& held(uint64_t id) const { return values_.at(id - first_); }
  bool is_dead(uint64_t id) const;

  PyObject* by_key_ = nullptr;                            // canonical key -> id
  std::unordered_map<PyObject*, uint64_t> by_pointer_;    // strongly held values only
  std::unordered_map<PyObject*, uint64_t> weak_pointer_;  // checked against the weak reference
  std::unordered_map<PyObject*, uint64_t> by_ref_;        // weak reference -> id
  PyObject* on_death_ = nullptr;
  uint64_t first_ = kFirstFree;  // id of values_[0]
  std::vector<Held> values_;
};

// numpy integers and bools become Python's, everything else stays (new reference or null).
PyObject* canonical_static(PyObject* value);

}  // namespace opkiln::face
