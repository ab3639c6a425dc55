#include "face/misses.h"

#include <pthread.h>

namespace opkiln::face {

namespace {

#ifdef PY_HAVE_THREAD_NATIVE_ID
thread_local unsigned long t_native_id = 0;  // a system call each time would show in a miss
#endif

// Not the identifier of pthreads, which the next thread may have again.
unsigned long this_thread() {
#ifdef PY_HAVE_THREAD_NATIVE_ID
  if (t_native_id == 0) {  // the one thread of a forked child has another
    static const int once = pthread_atfork(nullptr, nullptr, [] { t_native_id = 0; });
    static_cast<void>(once);
    t_native_id = PyThread_get_thread_native_id();
  }
  return t_native_id;
#else
  return PyThread_get_thread_ident();
#endif
}

PyObject* numbers(const uint64_t* words, int n) {
  Ref tuple(PyTuple_New(n));
  for (int i = 0; tuple && i < n; i++) {
    PyObject* number = PyLong_FromLongLong(static_cast<int64_t>(words[i]));
    if (!number) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), i, number);
  }
  return tuple.release();
}

// The arrays of a key, then those of out=.
PyObject* layouts(const std::vector<uint64_t>& key) {
  Ref list(PyList_New(0));
  for (size_t i = 1; list && i < key.size(); i++) {
    const uint64_t word = key[i];
    const uint8_t tag = word_tag(word);
    if (tag == 'n') {
      if (PyList_Append(list.get(), Py_None) < 0) return nullptr;
    } else if (tag == 'a' || tag == 'o') {
      const int rank = word_rank(word);
      Ref shape(numbers(&key[i] + 1, rank));
      Ref strides(numbers(&key[i] + 1 + rank, rank));
      if (!shape || !strides) return nullptr;
      Ref one(Py_BuildValue("(iOO)", word_code(word), shape.get(), strides.get()));
      if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
      i += 2 * static_cast<size_t>(rank);
    }
  }
  return list.release();
}

}  // namespace

uint64_t MissLog::add(const uint64_t* key, size_t n, PyObject* labels, uint64_t spent, char why) {
  const size_t at = count_ % kKept;
  if (at == ring_.size()) ring_.push_back({0, 0, 0, '-', {}, nullptr});
  Miss& miss = ring_[at];
  miss.key.assign(key, key + n);
  miss.number = ++count_;
  miss.spent = spent;
  miss.thread = this_thread();
  miss.why = why;
  PyObject* old = std::exchange(miss.labels, Py_NewRef(labels));
  Py_XDECREF(old);
  return count_;
}

PyObject* MissLog::item(const Miss& miss) const {
  Ref arrays(layouts(miss.key));
  if (!arrays) return nullptr;
  return Py_BuildValue("(KLkKCOO)", static_cast<unsigned long long>(miss.number),
                       static_cast<long long>(rate_.nanoseconds(miss.spent)), miss.thread,
                       static_cast<unsigned long long>(miss.key[0]), miss.why, miss.labels,
                       arrays.get());
}

PyObject* MissLog::list() const {
  // Making objects may start a garbage collection and with it any code, a call of this function
  // too, which then writes into the ring.
  const std::vector<Miss> kept = ring_;
  const uint64_t count = count_;
  for (const Miss& miss : kept) Py_INCREF(miss.labels);
  Ref list(PyList_New(0));
  const size_t n = kept.size(), oldest = n < kKept ? 0 : count % kKept;
  for (size_t i = 0; list && i < n; i++) {
    Ref one(item(kept[(oldest + i) % n]));
    if (!one || PyList_Append(list.get(), one.get()) < 0) list = Ref();
  }
  for (const Miss& miss : kept) Py_DECREF(miss.labels);
  return list.release();
}

int MissLog::traverse(visitproc visit, void* arg) const {
  for (const Miss& miss : ring_) Py_VISIT(miss.labels);
  return 0;
}

void MissLog::clear() {
  std::vector<Miss> old;
  old.swap(ring_);
  count_ = 0;
  for (const Miss& miss : old) Py_XDECREF(miss.labels);
}

void CopyLog::add(char why, int result, PyObject* name) {
  total_++;
  for (Entry& entry : entries_) {
    if (entry.why != why || entry.result != result) continue;
    if (entry.name == name || (PyUnicode_Check(entry.name) && PyUnicode_Check(name) &&
                               PyUnicode_Compare(entry.name, name) == 0)) {
      entry.times++;
      return;
    }
  }
  entries_.push_back({why, result, Py_NewRef(name), 1});
}

PyObject* CopyLog::list() const {
  const std::vector<Entry> kept = entries_;  // see MissLog::list(); entries are never taken away
  Ref list(PyList_New(0));
  for (const Entry& e : kept) {
    Ref one(list ? Py_BuildValue("(CiOK)", e.why, e.result, e.name,
                                 static_cast<unsigned long long>(e.times))
                 : nullptr);
    if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
  }
  return list.release();
}

int CopyLog::traverse(visitproc visit, void* arg) const {
  for (const Entry& entry : entries_) Py_VISIT(entry.name);
  return 0;
}

void CopyLog::clear() {
  std::vector<Entry> old;
  old.swap(entries_);
  for (const Entry& entry : old) Py_XDECREF(entry.name);
}

}  // namespace opkiln::face
