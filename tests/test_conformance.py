"""Every row of the op table, on every dtype it takes, against NumPy and against true values.

The table says what is tested: a new row and a new dtype (`SUPPORTED`) come in by themselves. A row
that rounds needs its function in tests/truth.py, a new kind of dtype its values in tests/values.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests import truth
from tests.tracing import outcome, run
from tests.values import (
    DTYPES,
    SPECIALS,
    Array,
    bits,
    dtypes_of,
    finfo,
    function_of,
    is_rounded,
    kind_of,
    leaves_zero_sign,
    operands,
    parts,
    real_operands,
    same_bits,
)

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.dtypes import dtype_row
from opkiln.ops.table import ELEMENTWISE, resolved
from opkiln.runtime.errors import UnsupportedDType

LENGTHS = (0, 1, 7, 16, 33, 131)
PICKS = 100  # ordinary elements compared with true values, beside all special ones

SIGNS = ("copysign", "signbit")  # rows that give the sign of a NaN, too

Calls = dict[str, tuple[Array, ...]]


def reference(row: OpRow, args: tuple[Array, ...]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function_of(row)(*args))


def every_row(calls: Calls) -> dict[str, Any]:
    """All rows in one traced function: their kernels make one translation unit."""
    return {name: function_of(ELEMENTWISE[name.split()[0]])(*a) for name, a in calls.items()}


def compare(row: OpRow, got: Array, args: tuple[Array, ...], what: str) -> None:
    """Exact rows to the bit; of rows that round what kind of number each result is."""
    want = reference(row, args)
    if any(kind_of(a.dtype) == "c" for a in args) and is_rounded(row, want.dtype, args):
        near_numpy(got, want, args, what)
    elif is_rounded(row, want.dtype):
        same_kind(got, want, what, cancels=row.unit != "result")
    else:
        same_bits(got, want, what, zero_sign=not leaves_zero_sign(row, want.dtype))


def negative_nans(array: Array) -> Array:
    """The same values with every NaN negative."""
    if array.dtype.kind not in "fc":
        return array
    found = array.copy()
    flat = found.view(found.real.dtype)
    flat[np.isnan(flat)] = np.copysign(np.nan, -1)
    return found


def same_kind(got: Array, want: Array, what: str, *, cancels: bool = False) -> None:
    """NaN where NumPy has it; infinities and zeros too, but for the last before they begin.

    Results that cancel may be small where NumPy's are zero.
    """
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    info = finfo(want.dtype)
    got, want = parts(got), parts(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
    with np.errstate(invalid="ignore"):
        edge = np.minimum(abs(got), abs(want)) >= info.max * (1 - 8 * float(info.eps))
        small = float(info.eps) if cancels else 8 * info.smallest_subnormal
        edge |= np.maximum(abs(got), abs(want)) <= small
        for special in (np.isinf, lambda x: x == 0):
            odd = (special(got) != special(want)) & ~edge
            assert not odd.any(), f"{what}: {got[odd][:5]} for {want[odd][:5]}"
        odd = (np.signbit(got) != np.signbit(want)) & ~np.isnan(want) & ~edge
        odd |= (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
    assert not odd.any(), f"{what}: {got[odd][:5]} for {want[odd][:5]}"


def near_numpy(got: Array, want: Array, args: tuple[Array, ...], what: str) -> None:
    """Complex rows that round, on moderate operands: tests/test_complex.py has the others."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    with np.errstate(all="ignore"):
        sizes = np.stack(np.broadcast_arrays(*(abs(np.multiply(a, 1.0)) for a in args)))
    fine = ((sizes < 2.0**20) & ((sizes > 2.0**-20) | (sizes == 0))).all(axis=0) & np.isfinite(want)
    with np.errstate(invalid="ignore", over="ignore"):
        odd = fine & ~(abs(got - want) <= 256 * finfo(want.dtype).eps * np.maximum(abs(want), 1))
    assert not odd.any(), f"{what}: {got[odd][:5]} for {want[odd][:5]}"


def check_rounding(row: OpRow, got: Array, args: tuple[Array, ...], specials: int) -> None:
    """Within the row's contract of the true value; where operands were cast first, like NumPy."""
    what = f"{row.name} {args[0].dtype.name}"
    if any(a.dtype != got.dtype for a in args):  # the body is that of another dtype
        finite = np.isfinite(parts(reference(row, args)))
        near = 64 * float(finfo(got.dtype).eps)
        want = parts(reference(row, args))[finite]
        np.testing.assert_allclose(parts(got)[finite], want, rtol=near, atol=near, err_msg=what)
        return
    few = np.random.default_rng(1).permutation(specials)[:PICKS]
    ordinary = specials + np.arange(PICKS)
    error, at = truth.worst(row, got, args, np.concatenate([few, ordinary]))
    assert error <= row.ulp, f"{what}: {error:.2f} ulp at {at}"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_on_every_dtype(dtype: np.dtype[Any]) -> None:
    taken = {row.name: d for row in ELEMENTWISE.values() if (d := dtypes_of(row, dtype))}
    assert len(taken) >= 20
    compiled = ok.compile(every_row)
    calls = {name: operands(ELEMENTWISE[name], d) for name, d in taken.items()}
    for n in LENGTHS:
        short = {name: tuple(a[:n] for a in args) for name, args in calls.items()}
        for name, value in compiled(short).items():
            compare(ELEMENTWISE[name], value, short[name], f"{name} {dtype.name} n={n}")
    got = compiled(calls)
    for name, value in got.items():
        row, args = ELEMENTWISE[name], calls[name]
        compare(row, value, args, f"{name} {dtype.name}")
        if is_rounded(row, value.dtype) and dtype.kind != "c":
            check_rounding(row, value, args, len(value) - 2000)
    assert compiled.info().builds + compiled.info().disk_hits == 1

    # The same bits whatever the stride and the cut: backwards, spread out, one element at a time.
    spread = compiled({k: tuple(np.repeat(a, 3)[::3][::-1] for a in v) for k, v in calls.items()})
    for name, value in spread.items():
        np.testing.assert_array_equal(bits(value), bits(got[name][::-1]), err_msg=name)
    for at in range(0, 120, 13):
        single = compiled({k: tuple(a[at : at + 1] for a in v) for k, v in calls.items()})
        for name, value in single.items():
            np.testing.assert_array_equal(bits(value), bits(got[name][at : at + 1]), err_msg=name)

    # A computed NaN is negative on x86, positive on others: no number depends on that.
    if dtype.kind in "fc":
        other = {k: tuple(map(negative_nans, v)) for k, v in calls.items() if k not in SIGNS}
        for name, value in compiled({**calls, **other}).items():
            same_bits(value, got[name], f"{name} of negative NaN")


@pytest.mark.parametrize("name", ["float64", "int16", "bool"])
def test_every_row_in_other_layouts(name: str) -> None:
    """One operand repeated without memory, the other in Fortran order; and numbers without axes."""
    dtype = np.dtype(name)
    compiled = ok.compile(every_row)
    calls: Calls = {}
    for row in ELEMENTWISE.values():
        if dtypes := dtypes_of(row, dtype):
            args = [a[:60].reshape(3, 4, 5) for a in operands(row, dtypes, seed=2)]
            first = np.asfortranarray(args[0])[:, ::-1]
            rest = [np.broadcast_to(a[:1, :, :1], (3, 4, 5)) for a in args[1:]]
            calls[row.name] = (first, *rest)
            calls[f"{row.name} 0-d"] = tuple(a[1, 2, 3] for a in args)
    for call, value in compiled(calls).items():
        compare(ELEMENTWISE[call.split()[0]], value, calls[call], f"{call} {name}")


def answer(fn: Callable[..., Any], *args: Any) -> Any:
    """What tracing and the interpreter give: a value or the builtin class of the error."""
    try:
        return run(fn, *args)
    except UnsupportedDType:
        return UnsupportedDType
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return next(c for c in (NotImplementedError, TypeError, OverflowError, ValueError)
                    if isinstance(error, c))  # fmt: skip


def agree(row: OpRow, fn: Callable[..., Any], args: tuple[Any, ...], what: str) -> bool:
    """Compare a call with NumPy's own; whether it was answered, rather than refused by both."""
    want, got = outcome(fn, *args), answer(fn, *args)
    if isinstance(want, type):
        assert isinstance(got, type), f"{what}: {got!r}, where NumPy raises {want.__name__}"
        assert got in (want, UnsupportedDType), f"{what}: {got.__name__} for {want.__name__}"
        return False
    if got is UnsupportedDType:  # float16, say, before opkiln has it
        assert want.dtype not in DTYPES or resolved(row, *(a.dtype for a in args)) is None, what
        return False
    assert not isinstance(got, type), f"{what}: {got.__name__}"
    if want.dtype.kind == "c" and row.exactness_of("c") != "exact":  # z ** 3 is a product
        near_numpy(got, want, tuple(map(np.asarray, args)), what)
    else:
        same_bits(got, want, what)
    return True


# ---- pairs of dtypes ----

BINARY = [row for row in ELEMENTWISE.values() if row.arity == 2 and row.name != "choice_index"]
UFUNCS = [row for row in ELEMENTWISE.values() if isinstance(row.numpy, np.ufunc)]
PAIRS = list(itertools.product(DTYPES, repeat=2))


def pair(row: OpRow, dtypes: Sequence[np.dtype[Any]]) -> tuple[Array, ...]:
    return operands(row, tuple(dtypes), seed=3, n=20)


@pytest.mark.parametrize("row", BINARY, ids=lambda row: row.name)
def test_every_pair_of_dtypes_is_numpys(row: OpRow) -> None:
    """By the interpreter: the dtype and value, or the class of the error, of each pair."""
    fn = function_of(row)
    what = f"{row.name} {{0.name}} {{1.name}}".format
    assert sum(agree(row, fn, pair(row, dtypes), what(*dtypes)) for dtypes in PAIRS) >= 25


@pytest.mark.parametrize("part", range(4))
def test_pairs_of_dtypes_compiled(part: int) -> None:
    """Each row on its share of the pairs, every pair in several rows: casts and mixed bodies."""
    calls: Calls = {}
    shares = max(1, len(BINARY) // 3)
    for i, row in list(enumerate(BINARY))[part::4]:
        for j, dtypes in enumerate(PAIRS):
            mixed = {d.name for d in dtypes} == {"int64", "uint64"}
            if (j % shares == i % shares or mixed) and resolved(row, *dtypes):
                calls[f"{row.name} {dtypes[0].name} {dtypes[1].name}"] = pair(row, dtypes)
    assert len(calls) >= 3 * len(PAIRS) / 8
    got = ok.compile(every_row)(calls)
    for call, value in got.items():
        compare(ELEMENTWISE[call.split()[0]], value, calls[call], call)


# ---- declarations ----


def test_every_row_that_rounds_has_a_true_value() -> None:
    assert truth.lacking() == []


def test_every_dtype_has_special_values() -> None:
    assert {dtype_row(dtype).kind for dtype in DTYPES} <= set(SPECIALS)


@pytest.mark.parametrize("row", BINARY, ids=lambda row: row.name)
def test_weak_scalars_on_either_side(row: OpRow) -> None:
    """A number of the source, and the same number as an argument of the call."""
    answered, function = 0, function_of(row)
    for dtype, number in itertools.product(DTYPES, (2, 300, -1, 0.5, True)):
        x, what = operands(row, (dtype,) * 2, n=20)[0], f"{row.name} {dtype.name} {number}"
        for fn in (lambda x: function(x, number), lambda x: function(number, x)):  # noqa: B023
            answered += agree(row, fn, (x,), what)
        if not isinstance(number, bool):
            answered += agree(row, function, (x, number), what)
            answered += agree(row, function, (number, x), what)
    assert answered >= 20


@pytest.mark.parametrize("row", UFUNCS, ids=lambda row: row.name)
def test_dtype_argument(row: OpRow) -> None:
    """`dtype=` of each operand dtype and each wanted one."""
    for dtype, wanted in PAIRS:
        args = operands(row, (dtype,) * row.arity, n=20)
        what = f"{row.name} {dtype.name} dtype={wanted.name}"
        agree(row, partial(function_of(row), dtype=wanted), args, what)


# ---- gradients ----

DIFFERENTIABLE = [row for row in ELEMENTWISE.values() if row.gradient is not None]


def test_every_row_declares_its_gradient() -> None:
    """A rule, or `differentiable=False`; never both, and neither only where no row computes it."""
    odd = [r.name for r in ELEMENTWISE.values() if (r.gradient is not None) != r.differentiable]
    assert odd == ["trigamma"], "rows need gradient=, or differentiable=False"


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_gradient_rules_by_finite_differences(row: OpRow) -> None:
    """On NumPy arrays; None stands for no dependence, so the difference has to be 0."""
    args = real_operands(row, 40)
    g = np.random.default_rng(8).uniform(0.5, 2.0, 40)
    y = reference(row, tuple(args))
    assert row.gradient is not None
    with np.errstate(all="ignore"):
        found: Any = row.gradient(g, y, *args)  # type: ignore[call-arg]
    assert len(found) == row.arity
    for i, own in enumerate(found):
        if args[i].dtype != np.float64:
            assert own is None
            continue
        want = g * slope(row, args, i)
        assert np.isfinite(want).all()
        np.testing.assert_allclose(0.0 if own is None else own, want, rtol=1e-6, atol=1e-7)


def slope(row: OpRow, args: list[Array], i: int) -> Array:
    """The derivative by one operand: of the true function, or of NumPy's on long doubles."""
    if row.name in truth.TRUTH:
        return truth.slopes(row, args, i)
    wide = [a.astype(np.longdouble) if a.dtype.kind == "f" else a for a in args]
    step = np.longdouble(1e-7)
    ahead, back = ([*wide[:i], wide[i] + h, *wide[i + 1 :]] for h in (step, -step))
    rise = function_of(row)(*ahead) - function_of(row)(*back)
    return np.asarray(rise / (2 * step)).astype(np.float64)
