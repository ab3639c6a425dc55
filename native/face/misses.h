// What explain() reads: in go the misses and copies of one function as they happen, out come the
// newest misses with their exact layouts, and how often what was copied for which reason.
#pragma once

#include <cstdint>
#include <vector>

#include "face/bind.h"
#include "face/ticks.h"

namespace opkiln::face {

// The newest kKept misses. One is written in some 30 ns, without Python and without allocation once
// the ring is full; it is read when someone asks.
class MissLog {
 public:
  static constexpr size_t kKept = 256;

  // `why` another executor: 'u' those of the key are in use, 'b' bind() has its own, else '-'.
  // Returns the miss's number, which counts from 1. `spent` is in ticks(), `labels` (borrowed)
  // names the array leaves of the key.
  uint64_t add(const uint64_t* key, size_t n, PyObject* labels, uint64_t spent, char why);
  // (number, nanoseconds, thread, function id, why, labels, layouts) of each, oldest first. A
  // layout is (dtype code, shape, strides), None an out= left out; those of out= come last.
  PyObject* list() const;
  uint64_t count() const { return count_; }

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Miss {
    uint64_t number;
    uint64_t spent;  // ticks
    unsigned long thread;
    char why;
    std::vector<uint64_t> key;
    PyObject* labels;
  };
  PyObject* item(const Miss& miss) const;

  TickRate rate_;
  std::vector<Miss> ring_;
  uint64_t count_ = 0;
};

// Copies by why (a letter that runtime/explain.py words), result (or -1) and name (or None).
class CopyLog {
 public:
  void add(char why, int result, PyObject* name);
  // (why, result, name, times) of each, in the order of their first.
  PyObject* list() const;
  uint64_t total() const { return total_; }

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Entry {
    char why;
    int result;
    PyObject* name;  // owned
    uint64_t times;
  };
  std::vector<Entry> entries_;
  uint64_t total_ = 0;
};

}  // namespace opkiln::face
