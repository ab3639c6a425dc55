"""What CUDA kernels are compared on with CPU kernels: the op table, and programs that fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tests.test_conformance import Calls, dtypes_of, every_row
from tests.values import DTYPES, SPECIALS, kind_of, operands

import opkiln as ok
from opkiln.ops.table import ELEMENTWISE, resolved
from opkiln.runtime.emit_cuda import Job
from opkiln.runtime.kernel import Lowered

Shapes = Sequence[tuple[int, int]]
SHAPES = ((5, 1), (1, 7), (3, 31), (4, 32), (7, 33), (2, 1100), (37, 513))


class Program(NamedTuple):
    """A function that returns a dict of arrays, calls of it, and the scalars that end each call."""

    fn: Any
    calls: list[tuple[Any, ...]]
    weak: tuple[float, ...] = ()


def jobs(lowered: Lowered) -> list[Job]:
    """The kernels of a lowered program."""
    return [Job(f"ok_k{i}", launch.kernel) for i, launch in enumerate(lowered.launches)]


def table(dtype: np.dtype[Any], n: int, *, cast: bool = False) -> tuple[Program, list[str]]:
    """The rows that take the dtype, on special and `n` ordinary values; and their names.

    Without `cast` those alone that compute in it, or in bool: others have the body of another
    dtype, after a cast that `casts` has.
    """
    taken = {row: d for row in ELEMENTWISE.values() if (d := dtypes_of(row, dtype))}
    if not cast:
        own = {dtype, np.dtype(np.bool_)}
        taken = {
            row: d for row, d in taken.items() if own.issuperset((resolved(row, *d) or ((),))[0])
        }
    calls: Calls = {row.name: operands(row, d, n=n) for row, d in taken.items()}
    return Program(every_row, [(calls,)]), list(calls)


def leaves(call: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    """The arrays of a call, in the order of the program's buffers."""
    (first, *rest) = call
    if isinstance(first, dict):
        return [array for arrays in first.values() for array in arrays]
    return [first, *rest]


def lowered(program: Program) -> list[tuple[Any, Lowered, list[tuple[Any, ...]]]]:
    """The program compiled for the CPU, and kernels with the calls that they serve.

    Calls in which other sizes are equal have other kernels.
    """
    compiled = ok.compile(program.fn)
    found: dict[str, tuple[Any, Lowered, list[tuple[Any, ...]]]] = {}
    for call in program.calls:
        made = compiled.lower(*call, *program.weak).lowered
        found.setdefault(str(made), (compiled, made, []))[2].append(call)
    return list(found.values())


def _folds(x, y, i, b):
    out = {}
    for axis in (0, 1, None):
        for name in ("sum", "prod", "max", "min", "argmax", "argmin"):
            for array, a in {"x": x, "y": y, "i": i}.items():
                out[f"{name} of {array} over {axis}"] = getattr(np, name)(a, axis=axis)
        for name in ("any", "all", "sum"):
            out[f"{name} of b over {axis}"] = getattr(np, name)(b, axis=axis)
        out[f"any of x > y over {axis}"] = np.any(x > y, axis=axis)
    return out


def folds(shapes: Shapes = SHAPES) -> Program:
    """Every reduction along each axis and all of them, on floats, bytes and truth values."""
    rng = np.random.default_rng(0)
    calls: list[tuple[Any, ...]] = []
    for shape in shapes:
        x, y = rng.normal(0, 10, shape).astype("f4"), rng.normal(0, 10, shape)
        calls.append((x, y, rng.integers(-128, 127, shape, dtype=np.int8), rng.random(shape) < 0.3))
    x, y, i, b = calls[-1]
    x[3, 5], x[3, 7], x[5] = np.nan, np.inf, -0.0
    y[2], y[4, 100:] = -np.inf, np.nan
    calls.append((x[:, ::-1], np.asfortranarray(y), i[::-1], np.broadcast_to(b[:1], b.shape)))
    return Program(_folds, calls)


def _softmax(a, axis):
    e = np.exp(a - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _rows(x, y, z, k):
    return {
        "softmax": _softmax(x, 1),
        "softmax of columns": _softmax(y, 0),
        "softmax of two axes": _softmax(z, (0, 2)),
        "sum of two axes": z.sum((0, 2)) * k,
        "log-sum-exp": np.log(np.exp(z).sum(-1)),
        "deviation": y.std(0),
    }


def rows(shapes: Shapes = (*SHAPES, (70, 40))) -> Program:
    """Kernels of several loops, with scratch and with row values in later loops."""
    rng = np.random.default_rng(1)
    calls: list[tuple[Any, ...]] = []
    for shape in shapes:
        x, y = rng.normal(0, 3, shape).astype("f4"), rng.normal(0, 3, shape)
        calls.append((x, y, rng.normal(0, 1, (3, *shape)).astype("f4")))
    x, y, z = calls[-1]
    calls.append((x[::-1, ::2], y.T, z[:, :, ::-1]))
    return Program(_rows, calls, (2.5,))


def _normalised(x, w, k):
    e = np.exp(x - x.mean(1, keepdims=True))
    return {"normalised": e / np.sqrt(e.var(1, keepdims=True) + k) * w, "mean": x.mean(1)}


def normalised() -> Program:
    """The mean of one column may be stored in many: a fold over fewer columns than the stores."""
    rng = np.random.default_rng(3)
    columns = ((7, 7), (1, 9), (1, 0), (1, 600), (520, 520), (33, 1), (0, 1))
    calls = [
        (rng.normal(0, 3, (6, n)).astype("f4"), rng.normal(0, 1, m).astype("f4"))
        for n, m in columns  # of the operand and of the weights
    ]
    return Program(_normalised, calls, (2.5,))


def _elements(x, y, i, s, k, n):
    return {
        "broadcast": x * y + s,
        "chain": np.tanh(x * k + y) - y,
        "cast": (x * 100).astype(np.int16) + i,
        "where": np.where(i > n, x, y * k),
        "count": i // n,
        "scalar": s * k,
    }


def elements() -> Program:
    """Broadcasts, casts, a choice and scalars, on arrays of all layouts and on no element."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 9, (2, 6, 8)).astype("f4"), rng.normal(0, 9, (6, 8)).astype("f4")
    i, s = rng.integers(-99, 99, (6, 8), dtype=np.int16), np.array(0.5, np.float32)
    calls = [
        (x, y, i, s),
        (x[:, ::-1, ::2], y[:, :4].copy(order="F"), i[::-1, 4:], s),
        (np.broadcast_to(x[:1, :, :1], x.shape), y[:, :1], i[:1], s),
        (x[:, :0], y[:0], i[:0], s),
    ]
    return Program(_elements, calls, (0.25, 3))


def _casts(*arrays):
    return {f"{a.dtype} to {d}": a.astype(d) for a in arrays for d in DTYPES if d != a.dtype}


def casts() -> Program:
    """Every dtype to every other: special values, and floats that no integer holds."""
    wide = np.array([1e9, 3e9, 5e9, 1e19, 2e19, 1e30, 127.5, 255.5, 32768.5, 65536.5])
    calls = []
    for sign in (1, -1):
        with np.errstate(all="ignore"):
            more = (sign * wide).astype(np.float64)
            calls.append(tuple(np.append(SPECIALS[kind_of(d)](d), more.astype(d)) for d in DTYPES))
    return Program(_casts, calls)


def _products(a, b, z, i):
    return {
        "matrices": np.maximum(a @ b + 1, 0),
        "batches": z @ np.swapaxes(z, 1, 2),
        "of integers": i @ i.T,
        "of complex numbers": (a + 1j * a) @ (b - 2j * b),
    }


def products() -> Program:
    """Matrix products of whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(0)
    calls: list[tuple[Any, ...]] = []
    for m, k, n in ((3, 4, 5), (1, 1100, 2), (0, 3, 3), (3, 0, 3)):
        a, b = (rng.integers(-9, 9, s).astype("f4") for s in ((m, k), (n, k)))
        z = rng.integers(-9, 9, (2, k, m)).astype("f8").swapaxes(1, 2)
        calls.append((a, b.T, z, rng.integers(-128, 127, (m, k), dtype=np.int8)[:, ::-1]))
    return Program(_products, calls)


PROGRAMS = {
    "products": products,
    "casts": casts,
    "folds": folds,
    "rows": rows,
    "normalised": normalised,
    "elements": elements,
}
