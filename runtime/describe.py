"""TensorDesc: what is known of an array: dtype, device, shape or parts of it, layout, value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from opkiln.ops.dtypes import SUPPORTED, as_dtype, find_row
from opkiln.ops.record import record
from opkiln.runtime.device import Device
from opkiln.runtime.errors import (
    ArgumentError,
    DeviceMismatch,
    HostRangeError,
    ShapeError,
    UnsupportedDType,
)

SMALL_VALUE_NUMEL = 16  # values of more elements are dropped

Shape = tuple[int | None, ...] | None
Array = np.ndarray[Any, np.dtype[Any]]


@record
class TensorDesc:
    """Dtype, device, shape, layout and value of an array that may not exist yet.

    A shape of None is an unknown rank, a size of None an unknown size, () no axes at all. `layout`
    has a letter per axis: c contiguous, z repeated, g anything else; "" says nothing. `value` is a
    small array known on the host, also one of no elements; None says that none is known.
    """

    dtype: np.dtype[Any]
    device: str
    shape: Shape
    layout: str
    value: Array | None

    def __init__(
        self,
        dtype: Any,
        shape: Iterable[int | None] | None = None,
        device: str = "cpu",
        layout: str = "",
        value: Any = None,
    ) -> None:
        """Check the description.

        Raises:
            HostRangeError: a value that the dtype cannot hold.
            UnsupportedDType: a dtype that opkiln does not compute in.
            ShapeError: a negative size, or a shape or layout that contradicts the value or shape.
            ArgumentError: no such device.
        """
        self.__dict__.update(
            dtype=_dtype(dtype), device=device_of(device), shape=_shape(shape), layout=layout,
            value=None,
        )  # fmt: skip
        if value is not None:
            self._set_value(value)
        if layout and (set(layout) - set("czg") or len(layout) != len(self.shape or layout)):
            raise ShapeError(
                f"TensorDesc: expected a layout of one letter c, z or g per axis, got {layout!r}"
            )

    def _set_value(self, value: Any) -> None:
        try:
            held = np.array(value, self.dtype)  # a copy, so that it stays
        except (OverflowError, TypeError, ValueError) as error:
            cls = HostRangeError if isinstance(error, OverflowError) else ArgumentError
            raise cls(f"TensorDesc: the value {value!r:.60}: {error}") from None
        if self.shape is None:
            self.__dict__["shape"] = held.shape
        elif len(self.shape) != held.ndim or any(
            n not in (None, m) for n, m in zip(self.shape, held.shape, strict=True)
        ):
            raise ShapeError(
                f"TensorDesc: the shape {self.shape} contradicts a value of {held.shape}"
            )
        self.__dict__["shape"] = held.shape
        if held.size <= SMALL_VALUE_NUMEL:
            held.flags.writeable = False
            self.__dict__["value"] = held

    @classmethod
    def of(cls, array: Any, *, value: bool = False) -> TensorDesc:
        """The description of an array; with `value`, its value too if it is small."""
        array = np.asarray(array)
        letters: list[str] = []
        step = array.dtype.itemsize
        for n, stride in zip(array.shape[::-1], array.strides[::-1], strict=True):
            letters.append("c" if stride == step or n == 1 else "z" if stride == 0 else "g")
            step = n * stride
        layout = "".join(reversed(letters))
        return cls(array.dtype, array.shape, layout=layout, value=array if value else None)

    @property
    def rank(self) -> int | None:
        """The number of axes, if known."""
        return None if self.shape is None else len(self.shape)

    @property
    def known(self) -> bool:
        """Whether every size is known."""
        return self.shape is not None and None not in self.shape

    def but(self, **fields: Any) -> TensorDesc:
        """The same with other fields."""
        own: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        return TensorDesc(**{**own, **fields})

    def _identity(self) -> tuple[Any, ...]:
        value = None if self.value is None else self.value.tobytes()
        return (self.dtype, self.device, self.shape, self.layout, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorDesc) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        sizes = (
            "..."
            if self.shape is None
            else "x".join("?" if n is None else str(n) for n in self.shape)
        )
        value = "" if self.value is None else f" = {self.value.tolist()}"
        return f"TensorDesc({self.dtype.name}[{sizes}] {self.device}{value})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields."""
        return TensorDesc, (self.dtype, self.shape, self.device, self.layout, self.value)


def device_of(text: str) -> str:
    """A device in its canonical spelling: "cpu", "cuda:0".

    Raises:
        ArgumentError: no such device.
    """
    return str(Device(text))


def common_device(name: str, devices: Iterable[str]) -> str:
    """The one device of all inputs.

    Raises:
        DeviceMismatch: there are two.
    """
    found = list(dict.fromkeys(devices))
    if len(found) > 1:
        raise DeviceMismatch(
            f"{name}: expected inputs on one device, got {' and '.join(found)}",
            fix="move them to one device",
        )
    return found[0] if found else "cpu"


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = as_dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise UnsupportedDType(f"TensorDesc: {error}", fix="write its name, such as 'f4'") from None
    if dtype is None or find_row(found) is None:
        raise UnsupportedDType(
            f"TensorDesc: dtype {dtype!r} is not supported yet",
            fix=f"use one of {', '.join(r.name for r in SUPPORTED)}",
        )
    return found


def _shape(shape: Any) -> Shape:
    if shape is None:
        return None
    if not np.iterable(shape) or isinstance(shape, (str, bytes, set, frozenset, dict)):
        raise ShapeError(
            f"TensorDesc: expected a shape, got {shape!r}",
            fix="write a tuple of sizes, with None where one is unknown; None if even the rank is",
        )
    return tuple(map(_size, shape))


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _size(size: Any) -> int | None:
    if hasattr(size, "__opkiln_tracer__"):  # a symbol, in the inference of a custom op
        return size  # type: ignore[no-any-return]
    if size is not None and (not _is_int(size) or size < 0):
        raise ShapeError(f"TensorDesc: expected sizes that are None or at least 0, got {size!r}")
    return None if size is None else int(size)
