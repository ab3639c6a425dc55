// Plan for Python: in go the lowering's numbers, out comes a core plan that calls can run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/executor.h"
#include "face/arrays.h"
#include "face/errors.h"
#include "face/library.h"
#include "face/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

std::shared_ptr<LibraryHandle> library_handle_of(nb::handle o);  // module.cpp
void bind_plan(nb::module_& m);

namespace {

// The Python object holds one reference of the plan; executors on any thread hold others.
struct PyPlan {
  core::Ref<core::Plan> plan = core::make_ref<core::Plan>();
};

core::DType dtype_of(int code) {
  if (code < 0 || code >= core::kMostDTypes || !g_descr[code])
    throw nb::value_error("no dtype has this code");
  return static_cast<core::DType>(code);
}

// Per axis of a buffer: the iteration axis, registers of the step and of the start; or -1.
using AxesTuple = std::vector<std::tuple<int, int, int>>;
using OperandTuple = std::tuple<int, AxesTuple, bool>;

std::vector<core::Along> axes_of(const AxesTuple& axes) {
  std::vector<core::Along> made;
  for (const auto& [axis, step, start] : axes) made.emplace_back(axis, step, start);
  return made;
}

int add_kernel(PyPlan& self, std::vector<int> extents, uint32_t reduce_mask,
               const std::vector<OperandTuple>& operands, std::vector<int> scalars,
               double ns_per_element, bool may_raise, bool product, int view,
               const std::shared_ptr<core::OpSpec>& op, std::vector<int> ranks) {
  core::KernelSpec spec;
  spec.extents = std::move(extents);
  spec.reduce_mask = reduce_mask;
  for (const auto& [buffer, axes, write] : operands) {
    spec.operands.push_back({buffer, axes_of(axes), write});
  }
  spec.scalars = std::move(scalars);
  spec.ns_per_element = ns_per_element;
  spec.may_raise = may_raise;
  spec.product = product;
  spec.view = view;
  spec.op = op;
  spec.ranks = std::move(ranks);
  return self.plan->kernel(std::move(spec));
}

void add_variant(PyPlan& self, int kernel, const std::string& column_class, uintptr_t address,
                 nb::object keepalive) {
  std::shared_ptr<void> held;
  if (!keepalive.is_none()) {
    held = library_handle_of(keepalive);
    if (!held) throw nb::type_error("keepalive must be a Library or None");
  }
  if (!address) throw nb::value_error("the address of a variant must not be null");
  self.plan->add_variant(kernel, column_class, reinterpret_cast<void*>(address), std::move(held));
}

std::vector<core::ArrayView> views_of(const std::vector<nb::object>& arrays) {
  std::vector<core::ArrayView> views;
  for (const nb::object& o : arrays) {
    if (!PyArray_CheckExact(o.ptr()) || !usable_as_is(as_array(o.ptr()))) {
      throw nb::type_error("expected native aligned ndarrays of supported dtypes");
    }
    views.push_back(view_of(as_array(o.ptr())));
  }
  return views;
}

// The variants that a call with these arrays would ask frontend.build for.
std::vector<std::pair<int, std::string>> missing_for(const PyPlan& self,
                                                     const std::vector<nb::object>& arrays,
                                                     const std::vector<nb::object>& captures) {
  const auto args = views_of(arrays);
  const auto fixed = views_of(captures);
  if (args.size() != self.plan->args().size() || fixed.size() != self.plan->captures().size()) {
    throw nb::value_error("wrong number of arrays or captures");
  }
  const core::Instantiated made = core::instantiate(self.plan, args.data(), fixed.data(), nullptr);
  std::vector<std::pair<int, std::string>> list;
  for (const core::Missing& m : made.missing) list.emplace_back(m.kernel, m.column_class);
  return list;
}

}  // namespace

core::Plan* plan_of(PyObject* o) {
  PyPlan* plan = nullptr;
  if (!nb::try_cast<PyPlan*>(nb::handle(o), plan) || !plan) return nullptr;
  return plan->plan.get();
}

void bind_plan(nb::module_& m) {
  nb::class_<PyPlan>(m, "Plan",
                     "Host program, buffers, kernels and variants of one traced signature.")
      .def(nb::init<>())
      .def(
          "host",
          [](PyPlan& self, const std::string& op, int a, int b, int64_t ival, double fval) {
            return self.plan->host(core::host_op_from_name(op), a, b, ival, fval);
          },
          "op"_a, "a"_a = -1, "b"_a = -1, "ival"_a = 0, "fval"_a = 0.0)
      .def(
          "buffer",
          [](PyPlan& self, const std::string& kind, int dtype, std::vector<int> extents, int rank,
             bool dense) {
            return self.plan->buffer(core::buffer_kind_from_name(kind), dtype_of(dtype),
                                     std::move(extents), rank, dense);
          },
          "kind"_a, "dtype"_a, "extents"_a = std::vector<int>(), "rank"_a = -1, "dense"_a = false)
      .def(
          "view",
          [](PyPlan& self, int dtype, std::vector<int> extents, int buffer, const AxesTuple& axes,
             std::vector<int> space, int copy) {
            return self.plan->view(dtype_of(dtype), std::move(extents),
                                   {buffer, axes_of(axes), std::move(space), copy});
          },
          "dtype"_a, "extents"_a, "buffer"_a, "axes"_a, "space"_a, "copy"_a)
      .def(
          "scalar",
          [](PyPlan& self, int reg, int dtype, const std::string& mode) {
            return self.plan->scalar(reg, dtype_of(dtype), core::scalar_mode_from_name(mode));
          },
          "reg"_a, "dtype"_a, "mode"_a)
      .def("kernel", &add_kernel, "extents"_a, "reduce_mask"_a, "operands"_a,
           "scalars"_a = std::vector<int>(), "ns_per_element"_a = 1.0, "may_raise"_a = false,
           "product"_a = false, "view"_a = -1, "op"_a = nb::none(), "ranks"_a = std::vector<int>())
      .def(
          "output_buffer", [](PyPlan& self, int buffer) { self.plan->output_buffer(buffer); },
          "buffer"_a)
      .def(
          "output_host", [](PyPlan& self, int reg) { self.plan->output_host(reg); }, "reg"_a)
      .def(
          "pin",
          [](PyPlan& self, int arg_buffer, int axis, int64_t value) {
            self.plan->pin(arg_buffer, axis, value);
          },
          "arg_buffer"_a, "axis"_a, "value"_a)
      .def(
          "pin_equal",
          [](PyPlan& self, int arg_buffer, int axis, int other_buffer, int other_axis) {
            self.plan->pin_equal(arg_buffer, axis, other_buffer, other_axis);
          },
          "arg_buffer"_a, "axis"_a, "other_buffer"_a, "other_axis"_a)
      .def("finish", [](PyPlan& self) { self.plan->finish(); })
      .def("add_variant", &add_variant, "kernel"_a, "column_class"_a, "address"_a,
           "keepalive"_a = nb::none())
      .def(
          "has_variant",
          [](const PyPlan& self, int kernel, const std::string& column_class) {
            const auto count = static_cast<int>(self.plan->kernels().size());
            return kernel >= 0 && kernel < count && self.plan->finished() &&
                   self.plan->find_variant(kernel, column_class) != nullptr;
          },
          "kernel"_a, "column_class"_a)
      .def("missing", &missing_for, "arrays"_a, "captures"_a = std::vector<nb::object>())
      .def("set_fallback", [](PyPlan& self) { self.plan->set_fallback(); })
      .def_prop_ro("fallback", [](const PyPlan& self) { return self.plan->fallback(); })
      .def_prop_ro("finished", [](const PyPlan& self) { return self.plan->finished(); })
      .def_prop_ro("n_kernels", [](const PyPlan& self) { return self.plan->kernels().size(); })
      .def_prop_ro("n_outputs", [](const PyPlan& self) { return self.plan->outputs().size(); });
}

}  // namespace opkiln::face
