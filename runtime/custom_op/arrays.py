"""Eager calls: arrays of one library in, the op's results as such arrays out, on their device."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opkiln import native
from opkiln.ops.definitions import CustomOp
from opkiln.ops.dtypes import as_dtype, find_row
from opkiln.runtime import debug, interop
from opkiln.runtime.custom_op.registry import Definition
from opkiln.runtime.custom_op.shapes import Result, results_of
from opkiln.runtime.errors import (
    ArgumentError,
    CustomOpError,
    DeviceMismatch,
    UnsupportedDType,
)
from opkiln.runtime.trace.session import failure, is_a

DT = np.dtype[Any]
CPU, CUDA = 1, 2  # of opkiln/op.h
_CODES = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}


def dlpack_type(dtype: DT) -> tuple[int, int]:
    """Code and bits of the elements."""
    code = 4 if dtype.kind == "V" else _CODES[dtype.kind]
    return code, 8 * dtype.itemsize


class Kind:
    """How to deal with the arrays of one library; this one with NumPy's."""

    def dtype(self, array: Any) -> DT:
        """NumPy's name for what the elements are; a TypeError if it has none."""
        found: DT = array.dtype.newbyteorder("=")
        return found

    def device(self, array: Any) -> str:
        """As "cpu" or "cuda:0"."""
        del array
        return "cpu"

    def usable(self, array: Any, dense: bool) -> Any:
        """The array, or a copy that native code can read: in C order if asked for."""
        del dense  # on the CPU the native side copies what does not lie so
        if array.dtype.isnative and array.flags.aligned:
            return array
        return np.require(array, array.dtype.newbyteorder("="), "A")

    def operand(self, array: Any, dtype: DT) -> Any:
        """What the native side takes."""
        del dtype
        return array

    def empty(self, shape: tuple[int, ...], dtype: DT, like: Any) -> Any:
        """A new array beside another one."""
        del like
        return np.empty(shape, dtype)

    def stream(self, like: Any) -> int:
        """The library's current stream on the device of an array."""
        del like
        return 0

    def current(self, like: Any) -> AbstractContextManager[Any]:
        """Makes the device of an array the current one."""
        del like
        return nullcontext()


@cache
def _of_torch(dtype: Any) -> DT:
    return as_dtype(str(dtype).removeprefix("torch."))


@cache
def _to_torch(dtype: DT) -> Any:
    return getattr(sys.modules["torch"], dtype.name)


class _Torch(Kind):
    def dtype(self, array: Any) -> DT:
        return _of_torch(array.dtype)

    def device(self, array: Any) -> str:
        device = array.device
        return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"

    def usable(self, array: Any, dense: bool) -> Any:
        native.check_tensor(array)
        if array.is_conj():
            array = array.resolve_conj()
        return array.contiguous() if dense else array

    def operand(self, array: Any, dtype: DT) -> Any:
        device, item = array.device, dtype.itemsize
        where = (CPU, 0) if device.type == "cpu" else (CUDA, device.index or 0)
        strides = [s * item for s in array.stride()]
        return (array.data_ptr(), *where, *dlpack_type(dtype), list(array.shape), strides)

    def empty(self, shape: tuple[int, ...], dtype: DT, like: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=_to_torch(dtype), device=like.device)

    def stream(self, like: Any) -> int:
        if like.device.type == "cpu":
            return 0
        return int(sys.modules["torch"].cuda.current_stream(like.device).cuda_stream)

    def current(self, like: Any) -> AbstractContextManager[Any]:
        if like.device.type == "cpu":
            return nullcontext()
        device: AbstractContextManager[Any] = sys.modules["torch"].cuda.device(like.device)
        return device


class _Cupy(Kind):
    def device(self, array: Any) -> str:
        return f"cuda:{array.device.id}"

    def usable(self, array: Any, dense: bool) -> Any:
        copy = dense and not array.flags.c_contiguous
        return sys.modules["cupy"].ascontiguousarray(array) if copy else array

    def operand(self, array: Any, dtype: DT) -> Any:
        where = CUDA, array.device.id
        return (array.data.ptr, *where, *dlpack_type(dtype), list(array.shape), list(array.strides))

    def empty(self, shape: tuple[int, ...], dtype: DT, like: Any) -> Any:
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype)

    def stream(self, like: Any) -> int:
        with like.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    def current(self, like: Any) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = like.device
        return device


NUMPY, TORCH, CUPY = Kind(), _Torch(), _Cupy()


# ---- which library ----


def _is(value: Any, module: str, name: str) -> bool:
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def _kind(op: CustomOp, name: str, value: Any) -> tuple[Kind | str, Any]:
    """How to deal with an argument, and the array that it is; a str names another library."""
    if is_a(value, np.ndarray, np.generic):
        if not (type(value) in (np.ndarray, np.memmap) or is_a(value, np.generic)):
            raise failure(
                ArgumentError,
                f"{op.name}(): argument {name!r}: expected numpy.ndarray, got the subclass "
                f"{type(value).__name__}",
                fix="pass a plain array, for example np.asarray(a)",
            )
        return NUMPY, np.asarray(value)
    if _is(value, "torch", "Tensor"):
        if value.layout is not sys.modules["torch"].strided or value.device.type == "meta":
            interop.refuse_memory(value, "it has no strides")
        return TORCH, value
    if _is(value, "cupy", "ndarray"):
        return CUPY, value
    if interop.offers_memory(value):
        _, library = interop.door(value, False)
        return library or "numpy", native.foreign_array(value)
    raise failure(
        ArgumentError,
        f"{op.name}(): argument {name!r}: expected an array, got {value!r:.60}",
        fix="pass np.asarray(x)",
    )


class Inputs(NamedTuple):
    """The tensors of one call, of one library and on one device; None where none is given."""

    kind: Kind
    library: str  # whose arrays results become, where that is not the kind's own; or ""
    device: str
    arrays: list[Any]
    dtypes: list[DT | None]

    def exported(self, result: Any) -> Any:
        """A result as the caller's kind of array."""
        if self.library:
            return interop.export(self.library, result)
        scalar = self.kind is NUMPY and result.ndim == 0
        return result[()] if scalar else result


def read(op: CustomOp, names: Sequence[str], tensors: Sequence[Any]) -> Inputs:
    """The tensors of a call.

    Raises:
        ArgumentError, UnsupportedDType, DeviceMismatch: names the argument.
    """
    kind: Kind | str | None = None
    where, device, owner = NUMPY, "", ""
    arrays: list[Any] = []
    dtypes: list[DT | None] = []
    for name, value in zip(names, tensors, strict=True):
        if value is None:
            arrays.append(None)
            dtypes.append(None)
            continue
        found, array = _kind(op, name, value)
        if kind not in (None, found):
            raise failure(
                ArgumentError,
                f"{op.name}(): argument {name!r}: expected an array of the same library as "
                f"{owner!r}, got a {type(value).__name__}",
            )
        where = found if isinstance(found, Kind) else NUMPY
        own = where.device(array)
        if device not in ("", own):
            raise failure(
                DeviceMismatch,
                f"{op.name}(): argument {name!r}: expected an array on {device}, as {owner!r} is, "
                f"got one on {own}",
                fix="move the arrays to one device",
            )
        kind, device, owner = found, own, owner or name
        dtypes.append(_dtype(op, name, where, array))
        arrays.append(array)
    if kind is None:
        raise failure(ArgumentError, f"{op.name}(): expected a tensor, got none")
    library = kind if isinstance(kind, str) else ""
    return Inputs(where, "" if library == "numpy" else library, device, arrays, dtypes)


def _dtype(op: CustomOp, name: str, kind: Kind, array: Any) -> DT:
    try:
        dtype = kind.dtype(array)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind in "mM" or find_row(dtype) is None:
        raise failure(
            UnsupportedDType,
            f"{op.name}(): argument {name!r}: dtype {array.dtype} cannot be passed to native code",
            fix="convert first, for example with x.view(np.int64) for times",
        )
    return dtype


# ---- a call ----


def run(op: CustomOp, found: Definition, inputs: Inputs, scalars: Mapping[str, Any]) -> list[Any]:
    """The results, as arrays of the kind of the inputs.

    Raises:
        CustomOpError: the op reported an error.
    """
    kind, device = inputs.kind, inputs.device
    dense = device != "cpu" and not found.any_layout
    arrays = [None if a is None else kind.usable(a, dense) for a in inputs.arrays]
    tensors: list[Result | None] = [
        None if a is None or t is None else (t, tuple(a.shape))
        for a, t in zip(arrays, inputs.dtypes, strict=True)
    ]
    like = next(a for a in arrays if a is not None)
    given = tuple(a is not None for a in arrays)
    spec = found.spec("cpu" if device == "cpu" else device.partition(":")[0], given, scalars)
    numbers = found.numbers(scalars)
    operands = [kind.operand(a, t) for a, t in zip(arrays, inputs.dtypes, strict=True) if t]
    try:
        results = results_of(op, found, tensors, device, scalars, spec, operands)
        outs = [kind.empty(shape, dtype, like) for dtype, shape in results]
        if all(0 in shape for _, shape in results):
            return [inputs.exported(o) for o in outs]
        operands += [kind.operand(o, dtype) for o, (dtype, _) in zip(outs, results, strict=True)]
        copies = _launch(inputs, like, spec, operands, numbers)
    except CustomOpError as error:
        raise failure(CustomOpError, f"{op.name}: {error}") from None
    copies += sum(a is not b for a, b in zip(arrays, inputs.arrays, strict=True))
    if copies:
        debug.log(2, "%s: %d operands copied, since it takes C order", op.name, copies)
    return [inputs.exported(o) for o in outs]


def _launch(inputs: Inputs, like: Any, spec: Any, operands: list[Any], numbers: list[Any]) -> int:
    """Run the code; how many operands it copied. On the CPU its workspace is the native side's."""
    if inputs.device == "cpu":
        copies: int = spec.run(operands, numbers)
        return copies
    kind, byte = inputs.kind, np.dtype(np.uint8)
    with kind.current(like):
        if not spec.wants_workspace:
            return int(spec.run(operands, numbers, 0, kind.stream(like)))
        room = kind.empty((spec.workspace(operands, numbers) or 1,), byte, like)
        workspace: int = kind.operand(room, byte)[0]
        return int(spec.run(operands, numbers, workspace, kind.stream(like)))
