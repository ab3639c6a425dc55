"""TensorSpec: shape, dtype and memory order in; what an array would be, without its memory, out.

And what a warm-up tells of the calls that were described so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np

from opkiln.ops.dtypes import SUPPORTED, as_dtype, find_row
from opkiln.ops.record import record
from opkiln.runtime.errors import ArgumentError, ShapeError, UnsupportedDType

Array = np.ndarray[Any, np.dtype[Any]]
MOST_AXES = 16
MOST = 2**63 - 1  # bytes


@record
class Warmed:
    """What warming up one call found."""

    name: str  #: of the function
    kernels: int  #: that were missing
    hit: str  #: "built", "disk", "ready" (none missing), "interpreted" or "disabled"
    seconds: float  #: spent on compiling or loading


@record
class TensorSpec:
    """What a compiled function needs to know of an array before there is one.

    A size of None stands for every size from 2 on. `strides` (in bytes, one per
    axis) describe what neither order does, such as every second element; otherwise the array is
    dense, its last axis ("C") or its first ("F") the fastest.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    strides: tuple[int, ...] | None

    def __init__(
        self,
        shape: Iterable[int | None] | int | None,
        dtype: Any,
        order: Literal["C", "F"] = "C",
        *,
        strides: Iterable[int] | None = None,
    ) -> None:
        """Check the description; a shape may be a single size, as for np.empty.

        Raises:
            ShapeError: a size or stride that no argument can have.
            UnsupportedDType: a dtype that opkiln does not compute in.
            ArgumentError: an unknown order.
        """
        sizes = (shape,) if shape is None or _is_int(shape) else shape
        self.__dict__.update(
            shape=_shape(sizes),
            dtype=_dtype(dtype),
            order=order,
            strides=None if strides is None else _strides(strides),
        )
        if order not in ("C", "F"):
            raise ArgumentError(
                f"TensorSpec: expected order 'C' or 'F', got {order!r}",
                fix="give strides= for any other layout, or TensorSpec.of(array)",
            )
        if self.strides is not None:
            self._check_strides(self.strides)
        if math.prod(max(n, 1) for n in self.shape if n is not None) * self.dtype.itemsize > MOST:
            raise ShapeError(
                f"TensorSpec: the shape {self.shape} is larger than any memory",
                fix="write None where any size will do",
            )

    def _check_strides(self, strides: tuple[int, ...]) -> None:
        item = self.dtype.itemsize
        if len(strides) != len(self.shape):
            raise ShapeError(
                f"TensorSpec: expected {len(self.shape)} strides, got {len(strides)}",
                fix="give one stride in bytes per axis",
            )
        if any(s % item or abs(s) > MOST for s in strides):
            raise ShapeError(
                f"TensorSpec: expected 64-bit strides that are multiples of {item}, got {strides}",
                fix="a call copies such an array into a dense one: leave strides out",
            )

    @classmethod
    def of(cls, array: Array) -> TensorSpec:
        """The spec of arrays just like this one.

        Raises:
            ArgumentError: not an ndarray.
        """
        if not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"TensorSpec.of: expected an ndarray, got {type(array).__name__}",
                fix="write TensorSpec(shape, dtype)",
            )
        item = array.dtype.itemsize
        if not array.flags.aligned or any(s % item for s in array.strides):
            array = np.empty_like(array)  # what a call would make of it
        if array.flags.c_contiguous:
            return cls(array.shape, array.dtype)
        if array.flags.f_contiguous:
            return cls(array.shape, array.dtype, "F")
        return cls(array.shape, array.dtype, strides=array.strides)

    def stand_in(self, sizes: Iterator[int]) -> Array:
        """An array of this description whose elements do not exist: look at its layout only.

        The next of `sizes` takes the place of each None.
        """
        shape = tuple(next(sizes) if s is None else s for s in self.shape)
        strides = self.strides
        if strides is None:
            strides = _dense(shape, self.dtype.itemsize, self.order)
        one = np.empty(1, self.dtype)
        return np.lib.stride_tricks.as_strided(one, shape, strides)

    def __repr__(self) -> str:
        """As it was written."""
        parts = [repr(self.shape), repr(self.dtype.name)]
        if self.order != "C":
            parts.append(repr(self.order))
        if self.strides is not None:
            parts.append(f"strides={self.strides}")
        return f"TensorSpec({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields."""
        return _rebuild, (self.shape, self.dtype, self.order, self.strides)


def _rebuild(shape: Any, dtype: Any, order: Any, strides: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, order, strides=strides)


def _strides(strides: Any) -> tuple[int, ...]:
    found = tuple(strides) if np.iterable(strides) else (strides,)
    if not all(map(_is_int, found)):
        raise ShapeError(
            f"TensorSpec: expected strides in bytes, got {strides!r}",
            fix="give one stride in bytes per axis",
        )
    return tuple(map(int, found))


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _shape(sizes: Any) -> tuple[int | None, ...]:
    if isinstance(sizes, (str, bytes, set, frozenset, dict)) or not np.iterable(sizes):
        raise ShapeError(
            f"TensorSpec: expected a shape, got {sizes!r}",
            fix="write a tuple of sizes, with None where any size will do",
        )
    shape: list[int | None] = []
    for size in sizes:
        if size is not None and (not _is_int(size) or size < 0):
            raise ShapeError(
                f"TensorSpec: expected sizes that are None or at least 0, got {size!r}",
                fix="write None where any size will do",
            )
        shape.append(None if size is None else int(size))
    if len(shape) > MOST_AXES:
        raise ShapeError(
            f"TensorSpec: expected at most {MOST_AXES} axes, got {len(shape)}",
            fix="join axes, as a call would have to",
        )
    return tuple(shape)


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        # Arrays of the other byte order are copied into native ones.
        found: np.dtype[Any] = as_dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise UnsupportedDType(f"TensorSpec: {error}", fix="write its name, such as 'f4'") from None
    if dtype is None or find_row(found) is None:
        raise UnsupportedDType(
            f"TensorSpec: dtype {dtype!r} is not supported yet",
            fix=f"use one of {', '.join(r.name for r in SUPPORTED)}",
        )
    return found


def _dense(shape: tuple[int, ...], step: int, order: str) -> tuple[int, ...]:
    strides: list[int] = []
    for size in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides if order == "F" else reversed(strides))
