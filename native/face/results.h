// In: the frontend's record of a traced signature; out: its plan, captures and the shape of the
// returned value, ready for use without attribute look-ups.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/plan.h"
#include "face/common.h"

namespace opkiln::face {

// A leaf of out_tree: output `index` of the plan. Made by Python, read here.
struct Slot {
  uint32_t index;
};

// The nested tuple/list/dict a call returns, as a flat list in prefix order.
class OutTree {
 public:
  // -1 with an error set when a Slot is out of range.
  int compile(PyObject* tree, size_t n_outputs);
  // The returned value (new reference or null) from one borrowed object per plan output.
  PyObject* build(PyObject* const* values) const;
  bool is_single() const { return single_; }  // the whole tree is Slot(0)
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Item {
    char tag;          // 's' slot, 'c' constant, 'T' 'L' 'D' containers, 'k' key of the next item
    uint32_t n;        // slot index, or number of items
    PyObject* object;  // constant or key, owned
  };
  int add(PyObject* node, size_t n_outputs);
  PyObject* read(size_t& at, PyObject* const* values) const;

  std::vector<Item> items_;
  bool single_ = false;
};

// A captured array's layout when it was traced; it may not change afterwards.
struct CaptureLayout {
  std::vector<npy_intp> shape, strides;
  uint8_t code;
  bool usable;  // native and aligned: read in place, else copied on each call
};

// One traced signature. Owned by its function; a call in progress holds a reference. GIL only.
class Record {
 public:
  static Record* make(PyObject* object);  // one reference, or null with an error set

  void retain() { refs_++; }
  void drop() {
    if (--refs_ == 0) delete this;
  }
  int traverse(visitproc visit, void* arg) const;
  void clear();  // breaks reference cycles; the record is not used afterwards
  // The name of an array leaf or capture, by its place among all of them; None beyond (borrowed).
  PyObject* label(Py_ssize_t place) const;

  PyObject* object = nullptr;
  PyObject* labels = nullptr;  // names of the array leaves, then of the captures: a tuple
  core::Ref<core::Plan> plan;
  OutTree tree;
  std::vector<PyArrayObject*> captures;
  std::vector<CaptureLayout> capture_layouts;
  std::vector<int> out_of_output;  // per plan output: ordinal of its out buffer, or -1 for a number
  size_t n_outs = 0;
  bool quick = false;    // the whole result is one array, nothing is captured
  bool by_copy = false;  // an error that depends on data must leave out= untouched
  bool divides = false;  // kernels may meet an integer division that faults
  bool told = false;     // explain() knows of the trace

 private:
  Record() = default;
  ~Record() { clear(); }
  int read_captures();
  uint32_t refs_ = 1;
};

class RecordRef {
 public:
  RecordRef() = default;
  explicit RecordRef(Record* r) : r_(r) {
    if (r_) r_->retain();
  }
  RecordRef(const RecordRef&) = delete;
  RecordRef& operator=(const RecordRef&) = delete;
  ~RecordRef() {
    if (r_) r_->drop();
  }
  void reset(Record* r) {
    if (r) r->retain();
    if (r_) r_->drop();
    r_ = r;
  }
  Record* get() const { return r_; }

 private:
  Record* r_ = nullptr;
};

// Signature words -> records, the first whose pins hold is used.
class RecordMap {
 public:
  const std::vector<Record*>* find(const std::vector<uint64_t>& signature) const;
  // Adds a reference of its own unless a record of the same Python object is there already; returns
  // the one that stays.
  Record* add(const std::vector<uint64_t>& signature, Record* record);
  // Drops the records whose signature holds this static id.
  void drop(uint64_t id);
  int traverse(visitproc visit, void* arg) const;
  void clear();
  size_t size() const;

 private:
  struct Hash {
    size_t operator()(const std::vector<uint64_t>& words) const;
  };
  std::unordered_map<std::vector<uint64_t>, std::vector<Record*>, Hash> map_;
};

}  // namespace opkiln::face
