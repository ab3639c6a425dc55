// The hit path of a call, from the vectorcall arguments to the returned object.
#include "face/call.h"

#include "core/errors.h"
#include "core/table.h"
#include "face/allocator.h"
#include "face/dlpack.h"
#include "face/doors.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/gil.h"
#include "face/pools.h"
#include "face/streams.h"

namespace opkiln::face {

HookNames g_hooks;

namespace {

constexpr uint64_t kDivided = core::kFaultDivideByZero | core::kFaultDivideOverflow;

struct Computation {
  Compiled* self;
  CallArgs& call;
  OutArgs* outs;           // null: all results are fresh
  bool direct;             // kernels write into outs
  Objects results{};       // per out buffer
  Small<Cell, 8> cells{};  // memory of fresh results of rank 0, which become scalars
};

// Copies results into the arrays given as out=, after checking all of them.
bool copy_out(Computation& c, Record* record) {
  OutArgs& outs = *c.outs;
  for (size_t k = 0; k < record->n_outs; k++) {
    if (!outs.arrays[k]) continue;
    if (!PyArray_Check(c.results[k])) {  // the interpreter may return scalars
      Ref array(PyArray_FromAny(c.results[k], nullptr, 0, 0, 0, nullptr));
      if (!array) return false;
      PyObject* scalar = std::exchange(c.results[k], array.release());
      Py_DECREF(scalar);
    }
    PyArrayObject* r = as_array(c.results[k]);
    if (!check_out(outs, k, PyArray_NDIM(r), PyArray_DIMS(r),
                   static_cast<core::DType>(code_of(PyArray_DESCR(r)))))
      return false;
  }
  for (size_t k = 0; k < record->n_outs; k++) {
    if (!outs.arrays[k]) continue;
    if (OPKILN_UNLIKELY(g_async_live != 0)) order_after_queued(outs.arrays[k]);
    if (PyArray_CopyInto(outs.arrays[k], as_array(c.results[k])) < 0) return false;
    const int place = outs.why == 'o' ? outs.overlap[k] : -1;
    c.self->inside->copies.add(outs.why, static_cast<int>(k), record->label(place));
  }
  return true;
}

// What the caller sees for each result.
bool present(Computation& c, Record* record) {
  if (c.outs && !c.direct && !copy_out(c, record)) return false;
  for (size_t k = 0; k < record->n_outs; k++) {
    PyObject* given = c.outs ? c.outs->given[k] : nullptr;
    Ref now(shown(c.self, c.call.origin, given, c.results[k]));
    if (!now) return false;
    const Ref before(std::exchange(c.results[k], now.release()));
  }
  return true;
}

// A plan without kernels: the frontend's interpreter computes the outputs.
PyObject* interpret(Computation& c, Record* record) {
  if (OPKILN_UNLIKELY(g_async_live != 0)) order_after_writers();
  c.self->counters.fallbacks++;
  c.direct = false;
  if (c.outs) c.outs->why = 'i';
  Ref leaves(leaves_list(c.call));
  if (!leaves) return nullptr;
  Ref outputs = call_hook(c.self, g_hooks.interpret, record->object, leaves.get());
  Ref items(PySequence_Tuple(outputs.get()));
  if (!items) return nullptr;
  if (static_cast<size_t>(PyTuple_GET_SIZE(items.get())) != record->out_of_output.size()) {
    return raise(Err::internal, nullptr, "opkiln: the interpreter returned %zd outputs, not %zu",
                 PyTuple_GET_SIZE(items.get()), record->out_of_output.size());
  }
  for (size_t k = 0; k < record->n_outs; k++) c.results.push(nullptr);
  Objects numbers;
  for (size_t i = 0; i < record->out_of_output.size(); i++) {
    PyObject* item = Py_NewRef(PyTuple_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i)));
    const int ordinal = record->out_of_output[i];
    if (ordinal < 0) {
      numbers.push(item);
    } else {
      PyObject* old = std::exchange(c.results[static_cast<size_t>(ordinal)], item);
      Py_XDECREF(old);
    }
  }
  return present(c, record) ? assemble(record, c.results, numbers) : nullptr;
}

// Turns the cells of rank-0 results into NumPy scalars.
bool make_scalars(Computation& c, const core::Executor& x) {
  size_t next = 0;
  for (size_t k = 0; next < c.cells.size(); k++) {
    if (c.results[k]) continue;
    c.results[k] = PyArray_Scalar(&c.cells[next++], descr_of(x.out(k).dtype), nullptr);
    if (!c.results[k]) return false;
  }
  return true;
}

uint64_t run_kernels(Computation& c, Record* record, core::Executor& x) {
  const auto* weak = reinterpret_cast<const core::HostValue*>(c.call.weak.data());
  try {
    if (OPKILN_UNLIKELY(x.estimated_ns() > kReleaseGilNs)) {
      WithoutGil released;
      return x.run(weak);
    }
    return x.run(weak);
  } catch (const core::HostError& e) {
    throw_host_error(c.self, record, e);
  } catch (const core::OpError& e) {
    throw_op_error(c.self, record, e);
  }
}

// `missed`: an executor has been made for this call, which is a miss whatever is found now.
PyObject* compute(Compiled* self, CallArgs& call, size_t key_size, OutArgs* outs, bool direct,
                  bool missed = false) {
  bool hit;
  RecordRef held;
  core::Lease lease = lease_executor(self, call, key_size, direct ? outs : nullptr, held, hit);
  core::Executor& x = *lease;
  const RecordRef hold(static_cast<Record*>(x.user));
  Record* record = hold.get();

  // An empty tuple adds nothing to the key, so even a hit says nothing about the count.
  if (OPKILN_UNLIKELY(outs) && !check_out_count(*outs, record->n_outs)) return nullptr;
  if (OPKILN_UNLIKELY(record->by_copy) && outs && direct) {
    outs->why = 'p';
    direct = false;
  }
  Computation c{self, call, outs, direct};
  if (OPKILN_UNLIKELY(x.is_fallback())) {
    lease.cancel();
    ++(hit && !missed ? self->counters.hits : self->counters.misses);
    return interpret(c, record);
  }
  std::memcpy(x.args(), call.data.data(), call.data.size() * sizeof(char*));
  if (OPKILN_UNLIKELY(!record->captures.empty()) && !bind_captures(self, call, record, x)) {
    return nullptr;
  }
  if (!bind_outs(c.self, call, outs, direct, record->n_outs, x, c.results, &c.cells))
    return nullptr;
  if (direct && OPKILN_UNLIKELY(!may_write_outs(self, record, x, *outs))) {
    lease.cancel();
    return compute(self, call, call.args_size, outs, false, missed || !hit);
  }
  if (OPKILN_UNLIKELY(g_async_live != 0)) order_after_queued(x, nullptr);
  const uint64_t faults = run_kernels(c, record, x);
  ++(hit && !missed ? self->counters.hits : self->counters.misses);

  Objects numbers;
  if (OPKILN_UNLIKELY(record->out_of_output.size() != record->n_outs)) {
    if (!host_numbers(record, x, numbers)) return nullptr;
  }
  if (OPKILN_UNLIKELY(c.cells.size() != 0) && !make_scalars(c, x)) return nullptr;
  lease.release();
  if (OPKILN_UNLIKELY(faults != 0)) report_faults(self, record, faults);
  if (OPKILN_UNLIKELY((outs && !direct) || call.origin) && !present(c, record)) return nullptr;
  if (record->tree.is_single() && record->out_of_output[0] == 0) {
    return std::exchange(c.results[0], nullptr);
  }
  return assemble(record, c.results, numbers);
}

// The keyword out=, which is not None.
__attribute__((noinline)) PyObject* compute_into(Compiled* self, CallArgs& call, PyObject* out) {
  OutArgs outs;
  if (!read_outs(call, out, outs)) return nullptr;
  return into_outs(
      outs, [&] { return compute(self, call, call.key.size(), &outs, true); },
      [&] { return compute(self, call, call.args_size, &outs, false); });
}

__attribute__((noinline)) PyObject* inline_call(Compiled* self, PyObject* const* args,
                                                Py_ssize_t nargs, PyObject* kwnames) {
  Ref positional(PyTuple_New(nargs));
  Ref keywords(PyDict_New());
  if (!positional || !keywords) return nullptr;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
  }
  const Py_ssize_t n = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    if (self->takes_out && PyUnicode_Compare(keyword, g_str_out) == 0) {
      if (args[nargs + i] == Py_None) continue;
      Ref name(function_name(self->frontend));
      return name ? raise(Err::trace, "use the returned value, for example y = f(x)",
                          "%U(): out= cannot be given while another function is traced", name.get())
                  : nullptr;
    }
    if (PyDict_SetItem(keywords.get(), keyword, args[nargs + i]) < 0) return nullptr;
  }
  return call_hook(self, g_hooks.inline_, positional.get(), keywords.get()).release();
}

}  // namespace

core::Lease lease_executor(Compiled* self, CallArgs& call, size_t key_size, OutArgs* outs,
                           RecordRef& held, bool& hit) {
  const uint64_t* words = call.key.data();
  const core::KeyView key{words, key_size, hash_key(words, key_size)};
  core::ThreadTable& table = core::ThreadTable::current();
  hit = true;
  const auto build = [&] {
    hit = false;
    const core::Pool* pool = table.find(key);
    const bool in_use = pool && pool->live() > 1;  // the one to be made counts
    return make_executor(self, call, outs, in_use ? 'u' : '-', held);
  };
  const auto acquire = [&] { return table.acquire(key, *self->inside->state, build); };
  const auto told = [&] {
    const PoolWatch watch(self, table);
    core::Lease lease = acquire();
    watch.tell(key);
    return lease;
  };
  try {
    core::Lease lease = OPKILN_LIKELY(!g_tell_all) ? acquire() : told();
    if (OPKILN_UNLIKELY(hit && words[0] != self->id)) throw Restart{};  // its record may be gone
    return lease;
  } catch (const core::PoolTimeout& e) {
    raise_pool_timeout(self, e);
    throw PythonError{};
  }
}

PyObject* shown(Compiled* self, const Origin* origin, PyObject* given, PyObject* result) {
  if (given) return Py_NewRef(given);
  if (origin) {
    if (!PyArray_Check(result) && !PyArray_IsScalar(result, Generic)) return Py_NewRef(result);
    Ref array(PyArray_FromAny(result, nullptr, 0, 0, 0, nullptr));
    return array ? call_hook(self, g_hooks.export_, origin->name, array.get()).release() : nullptr;
  }
  if (PyArray_CheckExact(result) && PyArray_NDIM(as_array(result)) == 0) {
    return PyArray_Return(as_array(Py_NewRef(result)));
  }
  return Py_NewRef(result);
}

PyObject* assemble(const Record* record, const Objects& results, const Objects& numbers) {
  Small<PyObject*, 8> values;
  size_t next = 0;
  for (const int ordinal : record->out_of_output) {
    values.push(ordinal >= 0 ? results[static_cast<size_t>(ordinal)] : numbers[next++]);
  }
  return record->tree.build(values.data());
}

bool host_numbers(const Record* record, const core::Executor& x, Objects& numbers) {
  for (const core::OutputRef& output : record->plan->outputs()) {
    if (!output.host) continue;
    numbers.push(host_number(x, output.index));
    if (!numbers[numbers.size() - 1]) return false;
  }
  return true;
}

bool bind_outs(Compiled* self, CallArgs& call, OutArgs* outs, bool direct, size_t n,
               core::Executor& x, Objects& results, Small<Cell, 8>* cells) {
  if (cells) cells->reserve(n);  // pointers into it stay good
  for (size_t k = 0; k < n; k++) {
    const core::OutSpec& spec = x.out(k);
    if (direct && outs->arrays[k]) {
      results.push(Py_NewRef(outs->given[k]));
      x.outs()[k] = PyArray_BYTES(outs->arrays[k]);
    } else if (call.origin && call.origin->api && !(outs && outs->arrays[k])) {
      PyObject* made = fresh_in(*call.origin->api, spec, &x.outs()[k]);
      if (!made) return false;
      results.push(made);
    } else if (cells && spec.ndim == 0 && !call.origin && !(outs && outs->arrays[k])) {
      cells->push_reserved({});
      results.push(nullptr);
      x.outs()[k] = reinterpret_cast<char*>(cells->end() - 1);
    } else {
      PyObject* array = fresh_array(self, x, k);
      if (!array) return false;
      results.push(array);
      x.outs()[k] = PyArray_BYTES(as_array(array));
    }
  }
  return true;
}

bool may_write_outs(const Compiled* self, const Record* record, const core::Executor& x,
                    OutArgs& outs) {
  if (OPKILN_UNLIKELY(!x.outs_are_safe())) {
    outs.why = 'o';
    for (uint32_t k = 0; k < x.out_count(); k++) outs.overlap.push(x.overlap_of_out(k));
    return false;
  }
  if (OPKILN_UNLIKELY(record->divides) && errstate_of(self) == kRaise) {
    outs.why = 'e';
    return false;
  }
  return true;
}

PyObject* compute_now(Compiled* self, CallArgs& call, PyObject* out) {
  return out ? compute_into(self, call, out) : compute(self, call, call.args_size, nullptr, false);
}

PyObject* host_number(const core::Executor& x, int reg) {
  const core::HostValue value = x.reg(reg);
  switch (x.plan().program().at(reg).type) {
    case core::HostType::kFloat:
      return PyFloat_FromDouble(value.f);
    case core::HostType::kUnsigned:
      return PyLong_FromUnsignedLongLong(value.u);
    default:
      return PyLong_FromLongLong(value.i);
  }
}

void count_faults(Compiled* self, uint64_t faults) {
  if (faults & kDivided) self->counters.integer_faults++;
}

bool faults_raise(uint64_t faults, Errstate state) {
  return (faults & ~kDivided) || (faults && state == kRaise);
}

void tell_faults(Compiled* self, Record* record, uint64_t faults, Errstate state) {
  if (!(faults & kDivided)) state = kIgnore;
  const bool refused = faults & ~kDivided;
  if (!refused && state == kIgnore) return;
  Ref bits(PyLong_FromUnsignedLongLong(faults));
  Ref raises(PyBool_FromLong(state == kRaise));
  if (!bits || !raises) throw PythonError{};
  call_hook(self, g_hooks.fault, record->object, bits.get(), raises.get());
  if (!refused && state == kWarn) return;
  raise(Err::internal, nullptr, "opkiln: frontend.fault did not raise");
  throw PythonError{};
}

void report_faults(Compiled* self, Record* record, uint64_t faults) {
  count_faults(self, faults);
  tell_faults(self, record, faults, faults & kDivided ? errstate_of(self) : kIgnore);
}

namespace {

// `counted`: this call has been counted.
PyObject* call_once(Compiled* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                    bool& counted) {
  CallArgs call(self->id);
  const std::shared_ptr<core::Stream> stream = g_async_live ? stream_here() : nullptr;
  call.stream = stream.get();
  struct CountCopies {
    Compiled* self;
    const CallArgs& call;
    ~CountCopies() {
      for (const CopyNote& note : call.copied) {
        self->inside->copies.add(note.why, -1, PyTuple_GET_ITEM(self->names, note.param));
      }
    }
  } const count_copies{self, call};
  PyObject* out = nullptr;
  const Bound bound = bind_call(self, call, args, nargs, kwnames, &out);
  if (OPKILN_UNLIKELY(bound != Bound::ok)) {
    return bound == Bound::traced ? inline_call(self, args, nargs, kwnames) : nullptr;
  }
  // Hashing an argument may run the user's code, and that may clear the function.
  if (OPKILN_UNLIKELY(call.key[0] != self->id)) throw Restart{};
  if (!counted) self->counters.calls++;
  counted = true;
  call.args_size = call.key.size();
  if (out == Py_None) out = nullptr;
  return OPKILN_UNLIKELY(call.stream != nullptr) ? launch(self, call, out)
                                                 : compute_now(self, call, out);
}

}  // namespace

PyObject* call_general(Compiled* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  constexpr int kAttempts = 100;
  bool counted = false;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    try {
      return call_once(self, args, nargs, kwnames, counted);
    } catch (const Restart&) {
    }
  }
  return raise(Err::internal, nullptr, "opkiln: the function is cleared in each of its calls");
}

}  // namespace opkiln::face
