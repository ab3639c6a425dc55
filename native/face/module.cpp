// The extension module _core: in goes the native core, out come its Python names. Nothing here is
// on the path of a warm call; that is the plain type Compiled.
#define OPKILN_FACE_OWNS_NUMPY_API
#include "face/module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "core/blas.h"
#include "core/blocking.h"
#include "core/table.h"
#include "face/allocator.h"
#include "face/arrays.h"
#include "face/bound.h"
#include "face/call.h"
#include "face/compiled.h"
#include "face/doors.h"
#include "face/errors.h"
#include "face/future.h"
#include "face/gil.h"
#include "face/library.h"
#include "face/pools.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

void bind_op(nb::module_& m);       // op_py.cpp
void bind_plan(nb::module_& m);     // plan_py.cpp
void bind_streams(nb::module_& m);  // streams.cpp
void bind_threads(nb::module_& m);  // threads_py.cpp
void bind_probe(nb::module_& m);    // probe.cpp
void before_wait();                 // probe.cpp

namespace {

struct Missing {};

struct Library {
  std::shared_ptr<LibraryHandle> handle;
};

void* begin_blocking() {
  before_wait();
  return give_up_gil();
}
void end_blocking(void* state) { take_gil(static_cast<PyThreadState*>(state)); }
void check_signals() {
  if (PyErr_CheckSignals() < 0) throw PythonError{};
}

// A path as the bytes of the file system; raises what os.fsencode would.
nb::object path_bytes(nb::handle path) {
  nb::object text = nb::steal(PyOS_FSPath(path.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  nb::object bytes = nb::steal(PyUnicode_Check(text.ptr()) ? PyUnicode_EncodeFSDefault(text.ptr())
                                                           : Py_NewRef(text.ptr()));
  if (!bytes.is_valid()) throw nb::python_error();
  return bytes;
}

void bind_library(nb::module_& m) {
  nb::class_<Library>(m, "Library", "A loaded shared library; stays loaded while a plan uses it.")
      .def(
          "__init__",
          [](Library* self, nb::object path) {
            const nb::object bytes = path_bytes(path);
            auto handle = LibraryHandle::open(PyBytes_AS_STRING(bytes.ptr()));
            if (!handle) throw nb::python_error();
            new (self) Library{std::move(handle)};
          },
          "path"_a)
      .def(
          "symbol",
          [](const Library& self, const std::string& name) {
            void* address = self.handle->symbol(name);
            if (!address) throw nb::python_error();
            return reinterpret_cast<uintptr_t>(address);
          },
          "name"_a)
      .def(
          "claim",
          [](const Library& self, nb::object file, uint64_t at) {
            return self.handle->claim(PyBytes_AS_STRING(path_bytes(file).ptr()), at);
          },
          "file"_a, "at"_a)
      .def_prop_ro("users", [](const Library& self) { return self.handle.use_count() - 1; })
      .def_prop_ro("path",
                   [](const Library& self) {
                     return nb::steal(PyUnicode_DecodeFSDefault(self.handle->path().c_str()));
                   })
      .def_prop_ro(
          "handle",
          [](const Library& self) { return reinterpret_cast<uintptr_t>(self.handle->handle()); })
      .def("__repr__",
           [](const Library& self) { return "Library('" + self.handle->path() + "')"; });
}

void bind_slot(nb::module_& m) {
  nb::class_<Slot>(m, "Slot", "A leaf of out_tree: output `index` of the plan.")
      .def(nb::init<uint32_t>(), "index"_a)
      .def_ro("index", &Slot::index)
      .def(
          "__eq__",
          [](const Slot& self, nb::handle other) {
            const Slot* slot = slot_of(other.ptr());
            return slot && slot->index == self.index;
          },
          nb::arg("other").none())
      .def("__hash__", [](const Slot& self) { return static_cast<Py_hash_t>(self.index) + 7; })
      .def("__repr__", [](const Slot& self) { return "Slot(" + std::to_string(self.index) + ")"; });
  nb::class_<Missing>(m, "Missing", "The type of MISSING: a parameter without default.")
      .def("__repr__", [](const Missing&) { return "MISSING"; });
  nb::object missing = nb::cast(Missing{});
  m.attr("MISSING") = missing;
  g_missing = missing.release().ptr();
}

nb::dict thread_stats() {
  const core::ThreadTable& table = core::ThreadTable::current();
  nb::dict d;
  d["pools"] = table.pool_count();
  d["executors"] = table.executor_count();
  d["bytes"] = table.bytes();
  d["workspace_bytes"] = table.workspace_bytes();
  d["misses"] = table.stats().misses;
  d["evictions"] = table.stats().evictions;
  d["swept"] = table.stats().swept;
  d["live_tables"] = core::ThreadTable::live_tables();
  d["dead_functions"] = core::DeadFunctions::size();
  d["events_outstanding"] = core::EventPool::outstanding();
  d["events_free"] = core::EventPool::free_count();
  d["leaked_executors"] = core::leaked_executor_count();
  return d;
}

// Every value given replaces the present one, for this thread and for threads that start later.
void set_limits(std::optional<size_t> pool_limit, std::optional<size_t> hard_cap,
                std::optional<double> timeout_s, std::optional<size_t> executors,
                std::optional<size_t> bytes, std::optional<size_t> workspace_bytes,
                std::optional<bool> grow) {
  core::ThreadTable& table = core::ThreadTable::current();
  core::TableLimits limits = table.limits();
  if (pool_limit) limits.pool.limit = *pool_limit;
  if (hard_cap) limits.pool.hard_cap = *hard_cap;
  if (timeout_s) {
    limits.pool.timeout = std::chrono::nanoseconds(  // at most 30 years: a clock must hold its end
        static_cast<int64_t>(std::min(std::max(*timeout_s, 0.0), 1e9) * 1e9));
  }
  if (executors) limits.executors = *executors;
  if (bytes) limits.bytes = *bytes;
  if (workspace_bytes) limits.workspace_bytes = *workspace_bytes;
  if (grow) limits.pool.queue_limited = *grow ? core::QueuePolicy::kGrow : core::QueuePolicy::kWait;
  table.set_limits(limits);
  core::ThreadTable::set_default_limits(limits);
}

nb::dict get_limits() {
  const core::TableLimits& limits = core::ThreadTable::current().limits();
  nb::dict d;
  d["pool_limit"] = limits.pool.limit;
  d["hard_cap"] = limits.pool.hard_cap;
  d["timeout_s"] = std::chrono::duration<double>(limits.pool.timeout).count();
  d["executors"] = limits.executors;
  d["bytes"] = limits.bytes;
  d["workspace_bytes"] = limits.workspace_bytes;
  d["grow"] = limits.pool.queue_limited == core::QueuePolicy::kGrow;
  return d;
}

void bind_limits(nb::module_& m) {
  m.def("thread_stats", &thread_stats, "Numbers of the calling thread's executor table.");
  m.def(
      "list_pools",
      [] {
        PyObject* list = list_pools();
        if (!list) throw nb::python_error();
        return nb::steal(list);
      },
      "(function id, key, idle, leased, in flight, bytes) of each pool of the calling thread.");
  m.def("get_limits", &get_limits);
  m.def("set_limits", &set_limits, nb::kw_only(), "pool_limit"_a = nb::none(),
        "hard_cap"_a = nb::none(), "timeout_s"_a = nb::none(), "executors"_a = nb::none(),
        "bytes"_a = nb::none(), "workspace_bytes"_a = nb::none(), "grow"_a = nb::none(),
        "Replaces limits of this thread's table and of tables made later.");
  m.def("set_max_thread_pools", &core::ThreadTable::set_max_thread_pools, "limit"_a,
        "Most threads that may hold executor pools; 0 for no limit.");
  m.def(
      "trim", [](uint64_t function_id) { return core::ThreadTable::current().trim(function_id); },
      "function_id"_a = 0,
      "Drops the calling thread's executors, of one function or all; returns how many. Waits for "
      "those in flight, as long as a call would.");
}

// The C++ library of this module, against which that of a user's compiler is compared.
void bind_facts(nb::module_& m) {
#if defined(_LIBCPP_VERSION)
  m.attr("CXX_LIBRARY") = "libc++";
#elif defined(__GLIBCXX__)
  m.attr("CXX_LIBRARY") = _GLIBCXX_USE_CXX11_ABI ? "libstdc++, C++11 strings" : "libstdc++";
#else
  m.attr("CXX_LIBRARY") = "";
#endif
}

// What the frontend's settings change in the native path.
void bind_switches(nb::module_& m) {
  m.def(
      "use_errstate",
      [](nb::handle variable) {
        PyObject* old = std::exchange(g_errstate, Py_NewRef(variable.ptr()));
        Py_XDECREF(old);
      },
      "variable"_a, "The context variable that says what an integer division fault does.");
  m.def(
      "use_allocator",
      [](nb::handle variable, nb::handle fallback) {
        use_allocator(variable.ptr(), fallback.ptr());
      },
      "variable"_a, "fallback"_a.none(),
      "The context variable that holds the allocator of results, and what holds where it is unset; "
      "None for NumPy's.");
  m.def(
      "tell_all_misses", [](bool on) { g_tell_all = on; }, "on"_a,
      "Whether `missed` is also called where an executor was all that was missing.");
  m.def(
      "set_gemm",
      [](int dtype, uintptr_t address, bool wide, std::int64_t least) {
        if (dtype < 0 || dtype >= core::kMostDTypes)
          throw nb::value_error("no dtype has this code");
        core::set_gemm(static_cast<core::DType>(dtype), reinterpret_cast<void*>(address), wide,
                       least);
      },
      "dtype"_a, "address"_a, "wide"_a, "least"_a,
      "The cblas_?gemm of a dtype, or 0; the library must stay loaded. `wide`: of 64-bit "
      "integers.");
}

void translate_core_errors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonError&) {  // the error is set
  } catch (const core::Error&) {
    raise_current();  // anything else goes on to nanobind's own translator
  }
}

}  // namespace

const Slot* slot_of(PyObject* o) {
  Slot* slot = nullptr;
  return nb::try_cast<Slot*>(nb::handle(o), slot) ? slot : nullptr;
}

std::shared_ptr<LibraryHandle> library_handle_of(nb::handle o) {
  Library* library = nullptr;
  if (!nb::try_cast<Library*>(o, library) || !library) return nullptr;
  return library->handle;
}

int import_numpy() {
  import_array1(-1);
  reset_new_array();
  return 0;
}

NB_MODULE(_core, m) {
  nb::set_leak_warnings(
      false);  // functions that live in modules outlive us at exit, as they should
  if (PyInterpreterState_Get() != PyInterpreterState_Main())
    throw nb::import_error("the native core has state of the process's first interpreter");
  if (import_numpy() < 0) throw nb::python_error();
  m.doc() = "The native core of opkiln: plans, executors and the callable type.";
  nb::register_exception_translator(translate_core_errors);
  core::set_blocking_hooks({begin_blocking, end_blocking, check_signals});
  if (add_dtypes() < 0) throw nb::python_error();
  bind_slot(m);
  bind_library(m);
  bind_op(m);
  bind_plan(m);
  bind_streams(m);
  bind_limits(m);
  bind_threads(m);
  bind_facts(m);
  bind_probe(m);
  m.def(
      "foreign_array",
      [](nb::handle o) {
        PyObject* array = foreign_array(o.ptr());
        if (!array) throw nb::python_error();
        return nb::steal(array);
      },
      "array"_a, "An ndarray over the memory of another library's array.");
  m.def(
      "dtype_code",
      [](nb::handle dtype) {
        if (!PyArray_DescrCheck(dtype.ptr())) throw nb::type_error("expected a numpy.dtype");
        const uint8_t code = code_of(reinterpret_cast<PyArray_Descr*>(dtype.ptr()));
        if (code == kNoCode) throw nb::type_error("opkiln computes in no such dtype");
        return static_cast<int>(code);
      },
      "dtype"_a, "The native core's number of a dtype.");
  m.def(
      "dtype_of",
      [](int code) {
        if (code < 0 || code >= core::kMostDTypes || !g_descr[code])
          throw nb::value_error("no dtype has this code");
        return nb::borrow(reinterpret_cast<PyObject*>(g_descr[code]));
      },
      "code"_a, "The dtype of a number that dtype_code() gave.");
  bind_switches(m);
  if (add_compiled_type(m.ptr()) < 0 || add_bound_type(m.ptr()) < 0 || add_future_type(m.ptr()) < 0)
    throw nb::python_error();
}

}  // namespace opkiln::face
