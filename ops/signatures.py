"""Dtype rules of rows: operand dtypes in, NumPy's own answer out.

A weak scalar stands for its dtype as the Python type int, float or complex.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from opkiln.ops.defs import OpRow, Signature
from opkiln.ops.dtypes import kind_of, part_of

BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)


class Part:
    """One of the results of a ufunc that gives several: the reference of a row."""

    def __init__(self, ufunc: np.ufunc, index: int) -> None:
        self.ufunc = ufunc
        self.index = index
        self.__name__ = ufunc.__name__

    def __call__(self, *args: Any) -> Any:
        """That result alone."""
        return self.ufunc(*args)[self.index]


@lru_cache(maxsize=4096)
def _resolve(function: np.ufunc | Part, operands: tuple[Any, ...]) -> Signature:
    ufunc, index = (function.ufunc, function.index) if isinstance(function, Part) else (function, 0)
    resolved = ufunc.resolve_dtypes((*operands, *(None,) * ufunc.nout))
    return resolved[: ufunc.nin], resolved[ufunc.nin + index]


def by_ufunc(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """NumPy's resolver decides, once per signature; its TypeError passes through."""
    return _resolve(row.numpy, operands)


def by_result(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """As `by_ufunc`, computing in the result's dtype: true_divide of int8 is all float64."""
    result = _resolve(row.numpy, operands)[1]
    return (result,) * len(operands), result


def logical(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """Operands by truth value."""
    _resolve(row.numpy, operands)
    return (BOOL,) * len(operands), BOOL


def select(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """np.where: a bool, then two operands of their common dtype."""
    del row
    weak = {int: 0, float: 0.0, complex: 0j}
    common = np.result_type(*(weak.get(d, d) for d in operands[1:]))
    return (BOOL, common, common), common


def kept(dtype: Any) -> np.dtype[Any]:
    """The dtype of a function that NumPy lacks: half and single stay, the rest becomes float64.

    Raises:
        TypeError: the dtype is no real number.
    """
    if dtype in (float, int):
        return np.dtype(np.float64)
    kind = kind_of(dtype)
    if kind not in "biuf":
        raise TypeError(f"a function of real numbers does not take {dtype.name}")
    return np.dtype(dtype if kind == "f" and dtype.itemsize < 8 else np.float64).newbyteorder("=")


def inexact(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """Operands and result of functions that NumPy itself lacks."""
    del row
    out = kept(operands[0])
    return (out,), out


def like_positive(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """The operand's dtype stays; like the unary plus, refused for bool.

    Raises:
        TypeError: the dtype is no real number.
    """
    found = _resolve(np.positive, operands)
    if found[1].kind == "c":
        raise TypeError(f"{row.name} does not take {found[1].name}: complex numbers have no order")
    return found


def part(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """The real or imaginary part of a complex value."""
    if getattr(operands[0], "kind", "") != "c":
        raise TypeError(f"{row.name}: expected a complex operand, got {operands[0]}")
    return operands, part_of(operands[0])


def from_parts(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """A complex value of two real ones."""
    weak = {int: 0, float: 0.0, complex: 0j}
    real = np.result_type(*(weak.get(d, d) for d in operands), 0.0)
    if real.kind != "f":
        raise TypeError(f"{row.name}: expected real operands, got {real.name}")
    return (real, real), np.result_type(real, 1j)


def index(row: OpRow, operands: tuple[Any, ...]) -> Signature:
    """int64, of integers that fit it.

    Raises:
        TypeError: as NumPy words it.
    """
    del row
    for given in map(np.dtype, operands):
        if not np.can_cast(given, INT64, "safe"):
            raise TypeError(
                f"Cannot cast array data from {given!r} to {INT64!r} according to the rule 'safe'"
            )
    return (INT64,) * len(operands), INT64
