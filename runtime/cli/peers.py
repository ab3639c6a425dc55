"""A formula as text in, the same computation in each installed library out, ready to be timed.

One thread each, float32. A library gets its own arrays once, as its users would hold them; what it
returns must agree with NumPy's float64 result before anything is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import opkiln as ok
from opkiln.runtime.cli.timing import Way

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Formula:
    """Assignments and, last, the result, over x, y, z and the names below."""

    text: tuple[str, ...]
    operands: int

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the operands."""
        return ("x", "y", "z")[: self.operands]

    def function(self, names: Mapping[str, Any]) -> Callable[..., Any]:
        """The formula as a Python function over one library's names."""
        body = [*self.text[:-1], f"return {self.text[-1]}"]
        lines = [f"def formula({', '.join(self.parameters)}):", *(f"    {line}" for line in body)]
        scope = dict(names)
        exec("\n".join(lines), scope)
        made: Callable[..., Any] = scope["formula"]
        return made


def _rowmax(x: Any) -> Any:
    return x.max(axis=1, keepdims=True)


def _rowsum(x: Any) -> Any:
    return x.sum(axis=1, keepdims=True)


NUMPY: Mapping[str, Any] = {
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "sum": np.sum,
    "rowmax": _rowmax,
    "rowsum": _rowsum,
}


def with_numexpr(formula: Formula, arrays: Sequence[Array]) -> Way | None:
    """None for what is not one expression of operations that numexpr has."""
    numexpr: Any = import_module("numexpr")

    (*before, text) = formula.text
    if before or "row" in text:
        return None
    numexpr.set_num_threads(1)
    # Not re_evaluate(): that runs whichever expression the thread has evaluated last.
    compiled = numexpr.NumExpr(text, [(name, float) for name in formula.parameters])
    return _way("numexpr", compiled, arrays)


def with_numba(formula: Formula, arrays: Sequence[Array]) -> Way | None:
    """Its names are NumPy's, but for the reductions with keepdims, which it lacks."""
    numba: Any = import_module("numba")

    def rowmax(x: Any) -> Any:
        out = np.empty((x.shape[0], 1), x.dtype)
        for i in range(x.shape[0]):
            out[i, 0] = x[i].max()
        return out

    def rowsum(x: Any) -> Any:
        out = np.empty((x.shape[0], 1), x.dtype)
        for i in range(x.shape[0]):
            out[i, 0] = x[i].sum()
        return out

    names = {**NUMPY, "rowmax": numba.njit(rowmax), "rowsum": numba.njit(rowsum)}
    return _way("numba", numba.njit(formula.function(names)), arrays)


def with_jax(formula: Formula, arrays: Sequence[Array]) -> Way | None:
    """Compiled by jax.jit; its CPU device may use more than one thread if jax runs already."""
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", one)  # read when jax starts
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")

    names = {
        **{name: getattr(jnp, name) for name in ("tanh", "exp", "sqrt", "sum")},
        "rowmax": _rowmax,
        "rowsum": _rowsum,
    }
    compiled = jax.jit(formula.function(names))
    held = [jnp.asarray(array) for array in arrays]
    return Way("jax", "f(*a).block_until_ready()", {"f": compiled, "a": held})


def with_torch(formula: Formula, arrays: Sequence[Array]) -> Way | None:
    """Eager, as most of its users run it."""
    torch: Any = import_module("torch")

    torch.set_num_threads(1)

    def rowmax(x: Any) -> Any:
        return x.amax(1, keepdim=True)

    def rowsum(x: Any) -> Any:
        return x.sum(1, keepdim=True)

    names = {
        **{name: getattr(torch, name) for name in ("tanh", "exp", "sqrt", "sum")},
        "rowmax": rowmax,
        "rowsum": rowsum,
    }
    held = [torch.from_numpy(array) for array in arrays]
    return Way("torch", "f(*a)", {"f": formula.function(names), "a": held})


PEERS: Mapping[str, Callable[[Formula, Sequence[Array]], Way | None]] = {
    "numexpr": with_numexpr,
    "numba": with_numba,
    "jax": with_jax,
    "torch": with_torch,
}


def installed() -> tuple[str, ...]:
    """The libraries to compare with that are there."""
    return tuple(name for name in PEERS if find_spec(name) is not None)


def _way(name: str, function: Callable[..., Any], arrays: Sequence[Array]) -> Way:
    given = dict(zip("xyz", arrays, strict=False))
    return Way(name, f"f({', '.join(given)})", {**given, "f": function})


def numpy_way(formula: Formula, arrays: Sequence[Array]) -> Way:
    """Plain NumPy."""
    return _way("NumPy", formula.function(NUMPY), arrays)


def opkiln_ways(formula: Formula, arrays: Sequence[Array]) -> list[Way]:
    """Cached, cached with out=, and with nothing in memory."""
    function = formula.function(NUMPY)
    compiled = ok.compile(function)
    cached = _way("opkiln", compiled, arrays)
    out = np.empty_like(compiled(*arrays))
    require_kernels(compiled)
    into = cached.statement.replace(")", ", out=out)")
    return [
        cached,
        Way("opkiln out=", into, {**cached.names, "out": out}),
        _way("opkiln uncached", uncached(function), arrays),
    ]


def require_kernels(compiled: ok.Compiled[..., Any]) -> None:
    """Refuse to time NumPy under our name.

    Raises:
        ToolchainNotFound: the calls so far did not run a kernel.
    """
    if compiled.info().fallbacks:
        raise ok.errors.ToolchainNotFound(
            "functions run uncompiled here, so there is nothing to time",
            fix="`opkiln doctor` says why (no compiler, or OPKILN_DISABLE is set)",
        )


def uncached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls that find nothing in memory: each traces, lowers, prints and loads again.

    The library on disk is there after the first of them, so no compiler runs.
    """

    def call(*arrays: Any) -> Any:
        ok.clear_cache()
        return ok.compile(function)(*arrays)

    return call


def error(way: Way, exact: Array) -> float:
    """The largest error of one run, relative to the largest exact value."""
    scope = dict(way.names)
    got = np.asarray(eval(way.statement, scope), np.float64)
    if got.shape != exact.shape:
        return float("inf")
    return float(np.abs(got - exact).max() / np.abs(exact).max())
