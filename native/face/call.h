// In: bound arguments; out: the result. The hit path looks up, leases, allocates, runs; the miss
// path asks the frontend for what is missing and goes on.
#pragma once

#include "core/errors.h"
#include "core/executor.h"
#include "core/key.h"
#include "face/arrays.h"
#include "face/compiled.h"

namespace opkiln::face {

struct Restart {};  // thrown when the function was cleared meanwhile: bind again

// Owned objects, some still null.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects() { clear(); }
  void push(PyObject* owned) { list_.push(owned); }
  PyObject*& operator[](size_t i) { return list_[i]; }
  PyObject* operator[](size_t i) const { return list_[i]; }
  size_t size() const { return list_.size(); }
  PyObject* const* data() const { return list_.data(); }
  void clear() {
    while (list_.size()) {  // one by one: letting go may run any code
      PyObject* last = list_[list_.size() - 1];
      list_.resize_down(list_.size() - 1);
      Py_XDECREF(last);
    }
  }

 private:
  Small<PyObject*, 4> list_;
};

constexpr double kReleaseGilNs = 5000;  // longer kernels run without the GIL
constexpr int kMostQuickArgs = 16;      // more parameters never go the short way

// The vectorcall of Compiled: the short way when it applies, else call_general().
PyObject* call_compiled(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// Any call. May throw PythonError, core errors.
PyObject* call_general(Compiled* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

// Counts integer faults, and tells the frontend of those that matter; throws PythonError when that
// raises.
void report_faults(Compiled* self, Record* record, uint64_t faults);
// Its two halves. `state` is what a division fault does.
void count_faults(Compiled* self, uint64_t faults);
void tell_faults(Compiled* self, Record* record, uint64_t faults, Errstate state);
// Whether tell_faults() will raise.
bool faults_raise(uint64_t faults, Errstate state);

// A call of bound arguments that is queued on `call.stream`: a Future (new reference or null).
// Where it must run at once it waits for the stream and gives a Future that is done.
PyObject* launch(Compiled* self, CallArgs& call, PyObject* out);

// The same call, run here and now: the result itself. `out` null: fresh results.
PyObject* compute_now(Compiled* self, CallArgs& call, PyObject* out);

// Every word is mixed on its own, so that the multiplications overlap; equality is checked in full.
inline uint64_t hash_key(const uint64_t* words, size_t n) {
  uint64_t h = n, a = 0xa0761d6478bd642full, b = 0xe7037ed1a0b428dbull;
  size_t i = 0;
  for (; i + 1 < n; i += 2) {
    h += core::detail::mum(words[i] ^ a, words[i + 1] ^ b);
    a += 0x9e3779b97f4a7c15ull;
    b += 0xd6e8feb86659fd93ull;
  }
  if (i < n) h += core::detail::mum(words[i] ^ a, b);
  return core::detail::mum(h ^ 0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull);
}

// A new executor for the call's exact layouts; runs the frontend's hooks for what is missing.
// `outs` null: fresh outputs. `why`: see MissLog::add(). `held` keeps the record
// when the function was cleared meanwhile. Throws PythonError, core errors.
std::unique_ptr<core::Executor> make_executor(Compiled* self, CallArgs& call, const OutArgs* outs,
                                              char why, RecordRef& held);

// (record object, requests): what the call would ask frontend.build for, with nothing built or run
// (new reference or null). Throws as make_executor().
PyObject* missing_for(Compiled* self, CallArgs& call, const OutArgs* outs);

// `direct()` where kernels can write the given arrays themselves, else `copied()`; null with an
// error where the arrays cannot take the results at all.
template <class Direct, class Copied>
PyObject* into_outs(OutArgs& outs, Direct&& direct, Copied&& copied) {
  if (!outs.direct) return copied();
  try {
    return direct();
  } catch (const core::OutMismatch& e) {
    if (!check_out(outs, static_cast<size_t>(e.out), static_cast<int>(e.shape.size()),
                   e.shape.data(), static_cast<core::DType>(e.dtype))) {
      return nullptr;
    }
  }
  return copied();
}

// Lets the frontend word the error that a custom op reported; always throws PythonError.
[[noreturn]] void throw_op_error(Compiled* self, Record* record, const core::OpError& e);

// Lets the frontend word a host error; always throws PythonError. `shapes` is a tuple with the
// shape of each array and capture, where they are at hand.
[[noreturn]] void throw_host_error(Compiled* self, Record* record, const core::HostError& e,
                                   PyObject* shapes = nullptr);

// Pointers of captured arrays into the executor; false with an error when one changed its layout.
bool bind_captures(Compiled* self, CallArgs& call, Record* record, core::Executor& x);

// The Python number of a host register; null with an error.
PyObject* host_number(const core::Executor& x, int reg);

// The executor of a call, whose key has so many words; `outs` where results go straight into given
// arrays. `held` keeps the record of one that is made, `hit` tells whether there was one. Throws
// PythonError, Restart.
core::Lease lease_executor(Compiled* self, CallArgs& call, size_t key_size, OutArgs* outs,
                           RecordRef& held, bool& hit);

// Output memory of a run, a result per array output: the caller's, or a new array; of rank 0 a cell
// where there are cells. False with an error set.
bool bind_outs(Compiled* self, CallArgs& call, OutArgs* outs, bool direct, size_t n,
               core::Executor& x, Objects& results, Small<Cell, 8>* cells);

// False, with the reason in `outs`, when results must not go straight into the caller's arrays.
bool may_write_outs(const Compiled* self, const Record* record, const core::Executor& x,
                    OutArgs& outs);

// The results that are no arrays, after prepare(); false with an error set.
bool host_numbers(const Record* record, const core::Executor& x, Objects& numbers);

// What the caller sees for a result: its own out, another library's array, a scalar, or the array.
PyObject* shown(Compiled* self, const Origin* origin, PyObject* given, PyObject* result);

// The returned value, of results as they are shown (new reference or null).
PyObject* assemble(const Record* record, const Objects& results, const Objects& numbers);

// The leaves as a list, for hooks (new reference or null).
PyObject* leaves_list(CallArgs& call);

// Calls frontend.<name>(...) with up to four arguments; throws PythonError when it raises.
Ref call_hook(Compiled* self, PyObject* name, PyObject* a, PyObject* b, PyObject* c = nullptr,
              PyObject* d = nullptr);

struct HookNames {
  PyObject *trace, *build, *interpret, *inline_, *host_error, *op_error, *fault, *export_, *missed,
      *leased;
};
extern HookNames g_hooks;

}  // namespace opkiln::face
