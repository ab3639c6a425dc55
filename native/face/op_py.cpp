// Custom ops for Python: in goes the address of what a library exports, out come calls of it.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>

#include "core/errors.h"
#include "core/op.h"
#include "face/arrays.h"
#include "face/dlpack_abi.h"
#include "face/errors.h"
#include "face/gil.h"
#include "face/library.h"
#include "face/module.h"
#include "face/torch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace opkiln::face {

static_assert(sizeof(ok_tensor) == sizeof(DLTensor) &&
              offsetof(ok_tensor, device) == offsetof(DLTensor, device) &&
              offsetof(ok_tensor, ndim) == offsetof(DLTensor, ndim) &&
              offsetof(ok_tensor, dtype) == offsetof(DLTensor, dtype) &&
              offsetof(ok_tensor, shape) == offsetof(DLTensor, shape) &&
              offsetof(ok_tensor, strides) == offsetof(DLTensor, strides) &&
              offsetof(ok_tensor, byte_offset) == offsetof(DLTensor, byte_offset));

std::shared_ptr<LibraryHandle> library_handle_of(nb::handle o);  // module.cpp
void bind_op(nb::module_& m);

namespace {

using Spec = core::OpSpec;

// Kind, and the text of a string.
using ScalarTuple = std::tuple<int, std::string>;
// Address, device type and number, code and bits of the elements, shape, strides in bytes.
using OperandTuple =
    std::tuple<uintptr_t, int, int, int, int, std::vector<int64_t>, std::vector<int64_t>>;

std::shared_ptr<Spec> make_spec(uintptr_t address, nb::object library, std::vector<bool> given,
                                const std::vector<ScalarTuple>& scalars, bool any_layout) {
  auto spec = std::make_shared<Spec>();
  if (!address) throw nb::value_error("the address of an op must not be null");
  spec->op = core::read_op(reinterpret_cast<const void*>(address));
  if (!library.is_none()) {
    spec->keepalive = library_handle_of(library);
    if (!spec->keepalive) throw nb::type_error("library must be a Library or None");
  }
  spec->given = std::move(given);
  for (const auto& [kind, text] : scalars) spec->scalars.push_back({kind, text});
  spec->any_layout = any_layout;
  return spec;
}

// The numbers of a call, in order; those that are strings belong to the spec.
std::vector<uint64_t> slots_of(const Spec& spec, nb::sequence numbers) {
  std::vector<uint64_t> slots;
  size_t next = 0;
  for (const Spec::Scalar& scalar : spec.scalars) {
    if (scalar.kind == OK_SCALAR_STRING) continue;
    nb::object number = numbers[next++];
    slots.push_back(scalar.kind == OK_SCALAR_FLOAT
                        ? std::bit_cast<uint64_t>(nb::cast<double>(number))
                        : std::bit_cast<uint64_t>(nb::cast<int64_t>(number)));
  }
  return slots;
}

// A call with what it runs on; the arrays are borrowed.
struct Prepared {
  std::vector<core::OpCall::Operand> operands;
  std::vector<char*> data;

  explicit Prepared(nb::sequence given) {
    for (nb::handle o : given) {
      core::OpCall::Operand operand;
      if (PyArray_Check(o.ptr())) {
        const core::ArrayView view = view_of(as_array(o.ptr()));
        operand.dtype = core::op_dtype(view.dtype);
        operand.shape.assign(view.shape, view.shape + view.ndim);
        operand.strides.assign(view.strides, view.strides + view.ndim);
        data.push_back(view.data);
      } else {
        auto [address, type, id, code, bits, shape, strides] = nb::cast<OperandTuple>(o);
        if (shape.size() != strides.size()) throw nb::value_error("a stride per axis is wanted");
        operand.device = {type, id};
        operand.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
        operand.shape = std::move(shape);
        operand.strides = std::move(strides);
        data.push_back(reinterpret_cast<char*>(address));
      }
      operands.push_back(std::move(operand));
    }
  }
};

// How many operands were copied.
size_t run(const std::shared_ptr<Spec>& spec, nb::sequence operands, nb::sequence numbers,
           uintptr_t workspace, uintptr_t stream) {
  Prepared prepared(operands);
  if (prepared.operands.size() < spec->inputs()) throw nb::value_error("operands are missing");
  const std::vector<uint64_t> slots = slots_of(*spec, numbers);
  core::OpCall call(spec, std::move(prepared.operands));
  const WithoutGil released;
  const std::unique_ptr<char[]> scratch(
      call.scratch() != 0 ? new char[static_cast<size_t>(call.scratch())] : nullptr);
  call.run(prepared.data.data(), slots.data(), scratch.get(), reinterpret_cast<void*>(workspace),
           reinterpret_cast<void*>(stream));
  return call.copies();
}

uint64_t workspace(const std::shared_ptr<Spec>& spec, nb::sequence operands, nb::sequence numbers) {
  Prepared prepared(operands);
  const std::vector<uint64_t> slots = slots_of(*spec, numbers);
  core::OpCall call(spec, std::move(prepared.operands));
  return call.workspace(slots.data());
}

// Code and bits of the elements, and the shape, of each output.
std::vector<std::tuple<int, int, std::vector<int64_t>>> infer(const std::shared_ptr<Spec>& spec,
                                                              nb::sequence operands,
                                                              nb::sequence numbers, int outputs) {
  Prepared prepared(operands);
  const std::vector<uint64_t> slots = slots_of(*spec, numbers);
  for (int i = 0; i < outputs; i++) prepared.operands.emplace_back();
  core::OpCall call(spec, std::move(prepared.operands));
  std::vector<std::tuple<int, int, std::vector<int64_t>>> found;
  for (core::OpCall::Operand& made : call.infer(slots.data())) {
    found.emplace_back(made.dtype.code, made.dtype.bits, std::move(made.shape));
  }
  return found;
}

// The file that a function or object of this process lies in, and where in it; or None.
nb::object place_of(uintptr_t address) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || !info.dli_fname) return nb::none();
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  return nb::make_tuple(nb::steal(PyUnicode_DecodeFSDefault(info.dli_fname)), address - base);
}

}  // namespace

void bind_op(nb::module_& m) {
  nb::class_<Spec>(m, "OpSpec", "A custom op with the tensors and strings that it is given.")
      .def(nb::new_(&make_spec), "address"_a, "library"_a.none(), "given"_a, "scalars"_a,
           "any_layout"_a)
      .def_prop_ro("infers", [](const Spec& self) { return self.op.infer != nullptr; })
      .def_prop_ro("wants_workspace", [](const Spec& self) { return self.op.workspace != nullptr; })
      .def("run", &run, "operands"_a, "numbers"_a, "workspace"_a = 0, "stream"_a = 0)
      .def("workspace", &workspace, "operands"_a, "numbers"_a)
      .def("infer", &infer, "operands"_a, "numbers"_a, "outputs"_a);
  m.def(
      "check_tensor",
      [](nb::handle tensor) {
        const int watching = torch_is_watching();
        if (watching < 0 || !check_torch(tensor.ptr(), watching != 0, false))
          throw nb::python_error();
      },
      "tensor"_a, "Refuses a torch tensor of which code must not read the memory.");
  m.def("place_of", &place_of, "address"_a,
        "The shared library that holds an address, and the offset in it; or None.");
}

}  // namespace opkiln::face
