"""Ops by name: a name and options in, the function of arrays or of traced values out.

A function here is NumPy code, so one text serves eager calls, traces, inference and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from opkiln.ops.defs import Key, OpDef
from opkiln.ops.record import record

where: Callable[..., Any] = np.where


MANY = 1 << 30


@record
class Named:
    """A function of arrays: how many it takes, its options, and the inputs that it takes as sizes.

    Those are needed on the host: they are passed as a tuple of sizes, or as one size.
    """

    function: Callable[..., Any]
    least: int
    most: int
    options: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    of_sizes: bool = False  # given vectors of sizes, it gives one


def _of(count: int, function: Callable[..., Any], *options: str) -> Named:
    return Named(function, count, count, options)


def _sized(function: Callable[[Any, Any], Any]) -> Named:
    """A function of an array and of sizes."""
    return Named(function, 2, 2, (), (1,))


def _two(function: Callable[[Any, Any], Any]) -> Named:
    return _of(2, function)


def _three(function: Callable[[Any, Any, Any], Any]) -> Named:
    return _of(3, function)


def _four(function: Callable[[Any, Any, Any, Any], Any]) -> Named:
    return _of(4, function)


def _is_vector(value: Any) -> bool:
    return isinstance(value, tuple)


def _size(sizes: Any) -> Any:
    """The only size of a vector of one, or a size."""
    return sizes[0] if _is_vector(sizes) else sizes


def _after(x: Any, start: Any) -> Any:
    return x[_size(start) :]


def _before(x: Any, stop: Any) -> Any:
    return x[: _size(stop)]


def _shape(x: Any) -> Any:
    return x.shape


def _element(sizes: Any, index: int) -> Any:
    return sizes[index] if _is_vector(sizes) else sizes


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def _stack(*arrays: Any, axis: int = 0) -> Any:
    return np.stack(arrays, axis=axis)


def _flat(parts: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    return tuple(size for part in parts for size in part)


def _concatenate(*parts: Any, axis: int = 0) -> Any:
    if all(isinstance(part, tuple) for part in parts):
        return _flat(parts)  # of sizes
    return np.concatenate(parts, axis=axis)


_REDUCED = ("axis", "keepdims")
FUNCTIONS: dict[str, Named] = {
    "fma3": _three(lambda a, b, c: a * b + c),
    "fma4": _four(lambda a, b, c, d: a * b + c * d),
    "cond_leq_mov": _three(lambda a, b, c: where(a <= b, c, 0)),
    "cond_lt_mov": _three(lambda a, b, c: where(a < b, c, 0)),
    "switch_gt0": _two(lambda a, b: where(a > 0, b, 0)),
    "abs_grad": _two(lambda a, g: where(a > 0, g, -g)),
    "matmul": _two(lambda a, b: a @ b),
    "[?:]": Named(_after, 2, 2, (), (1,), of_sizes=True),
    "[:?]": Named(_before, 2, 2, (), (1,), of_sizes=True),
    "reshape": _sized(lambda x, shape: x.reshape(shape)),
    "broadcast_to": _sized(np.broadcast_to),
    "element": Named(_element, 1, 1, ("index",), (0,), of_sizes=True),
    "get_shape": _of(1, _shape),
    "transpose": _of(1, np.transpose, "axes"),
    "expand_dims": _of(1, np.expand_dims, "axis"),
    "squeeze": _of(1, np.squeeze, "axis"),
    "concatenate": Named(_concatenate, 1, MANY, ("axis",), of_sizes=True),
    "stack": Named(_stack, 1, MANY, ("axis",)),
    "cast": _of(1, _cast, "dtype"),
    "sum": _of(1, np.sum, *_REDUCED),
    "prod": _of(1, np.prod, *_REDUCED),
    "mean": _of(1, np.mean, *_REDUCED),
    "var": _of(1, np.var, *_REDUCED),
    "std": _of(1, np.std, *_REDUCED),
    "reduce_max": _of(1, np.max, *_REDUCED),
    "reduce_min": _of(1, np.min, *_REDUCED),
    "zeros_like": _of(1, np.zeros_like),
    "ones_like": _of(1, np.ones_like),
}


@record
class Call(OpDef):
    """A function of the table above with options, such as `Call("sum", (("axis", 0),))`."""

    function: str
    options: tuple[tuple[str, Key], ...]

    def __init__(self, function: str, options: Iterable[tuple[str, Key]] = ()) -> None:
        """Keep the options in one order."""
        self.__dict__.update(function=function, options=tuple(sorted(options)))

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function

    @property
    def named(self) -> Named:
        """The function's line of the table."""
        return FUNCTIONS[self.function]
