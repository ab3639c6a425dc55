"""Rows against PyTorch's functions on the inputs of its own tests (op_db), and against SciPy's.

An outside reference for what NumPy lacks. Rows of which neither library has a function are printed.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.together import case, together
from tests.values import Array, function_of, takes

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import NEGATIVE_POWER
from opkiln.ops.table import ELEMENTWISE

# Only names that differ are listed; underscores and torch's modules do not count.
TORCH = {
    "power": "pow",
    "equal": "eq",
    "invert": "bitwise_not",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
}
SCIPY = {"lgamma": "gammaln", "digamma": "psi", "log_sigmoid": "log_expit"}
DTYPES = ("float32", "float64", "int64")
NEAR = {"float32": 1e-5, "float64": 1e-9, "int64": 1e-5}  # torch computes int64 in float32


def plain(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "")


@cache
def op_db() -> dict[str, list[Any]]:
    """PyTorch's descriptions of its functions, by name and alias."""
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db as infos
    found: dict[str, list[Any]] = defaultdict(list)
    for info in infos:
        for name in (info.name, *(alias.name for alias in info.aliases)):
            found[plain(name)].append(info)
    return found


def infos_of(row: OpRow) -> list[Any]:
    return op_db().get(plain(TORCH.get(row.name, row.name)), [])[:1]


# Where torch computes something else than NumPy: 1 / x in float32.
OTHERWISE = {("reciprocal", "int64")}


def samples(row: OpRow, info: Any, dtype: str) -> Iterator[tuple[list[Array], Array]]:
    """Operands, and what torch makes of them, where its function is called as ours can be."""
    import torch

    if getattr(torch, dtype) not in info.dtypes or (row.name, dtype) in OTHERWISE:
        return
    for sample in info.sample_inputs("cpu", getattr(torch, dtype)):
        given = [sample.input, *sample.args]
        if len(given) != row.arity or set(sample.kwargs.values()) - {None, "none"}:
            continue
        if not all(isinstance(x, torch.Tensor) for x in given):
            continue
        arrays = [np.asarray(x) for x in given]
        if row.name == "where":  # torch's description takes the condition second
            arrays[0], arrays[1] = arrays[1], arrays[0]
        if row.faults & NEGATIVE_POWER and dtype == "int64" and (arrays[1] < 0).any():
            continue
        if dtype == "float32":  # in which torch itself is off by 1e-4 at times
            given = [x.double() if x.is_floating_point() else x for x in given]
        yield arrays, info.op(*given).numpy()


def test_rows_against_torch_on_its_own_inputs(
    record_property: Callable[[str, object], None],
) -> None:
    """All rows together, as one compiler run serves many."""
    cases, wanted, unknown = [], [], []
    for row in ELEMENTWISE.values():
        before = len(cases)
        for dtype in DTYPES:
            for info in infos_of(row):
                for arrays, want in samples(row, info, dtype):
                    if not takes(row, *(a.dtype for a in arrays)):
                        continue
                    flat = [np.ascontiguousarray(a).ravel() for a in np.broadcast_arrays(*arrays)]
                    cases.append(case(function_of(row), *flat, name=f"{row.name} {dtype}"))
                    wanted.append(want)
        if len(cases) == before:
            unknown.append(row.name)
    record_property("rows that torch lacks", unknown)
    assert len(unknown) < len(ELEMENTWISE) / 4
    for of, got, want in zip(cases, together(cases), wanted, strict=True):
        near = NEAR[of.name.split()[1]]
        with of.named(0):
            np.testing.assert_allclose(got, want.ravel(), near, near * 0.01, err_msg=of.name)


def test_rows_against_scipy() -> None:
    """Where NumPy has no function, and for the inverse of a check: SciPy's special functions."""
    scipy_special = pytest.importorskip("scipy.special")
    rng, cases, wanted = np.random.default_rng(0), [], []
    for row in ELEMENTWISE.values():
        fn = getattr(scipy_special, SCIPY.get(row.name, row.name), None)
        if fn is None or isinstance(row.numpy, np.ufunc):
            continue
        for dtype in ("float32", "float64"):
            x = tuple(rng.uniform(*row.domain, 2000).astype(dtype) for _ in range(row.arity))
            cases.append(case(function_of(row), *x, name=f"{row.name} {dtype}"))
            wanted.append(fn(*(a.astype(np.float64) for a in x)))
    assert {c.name for c in cases} >= {"erf float32", "erf float64"}
    for of, got, want in zip(cases, together(cases), wanted, strict=True):
        near = 1e-5 if got.dtype == np.float32 else 1e-10
        np.testing.assert_allclose(got, want, rtol=near, atol=near * 0.01, err_msg=of.name)
