"""Calls of reductions while tracing: NumPy's values, dtypes and refusals, by the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from tests.tracing import A, check, run, same

import opkiln as ok
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import errors

Array = np.ndarray[Any, np.dtype[Any]]


@contextmanager
def refuses(cls: type[errors.OpkilnError], *words: str) -> Iterator[None]:
    """The block raises our error with this file, a fix and every word."""
    with pytest.raises(cls) as caught:
        yield
    for word in ("test_trace_reductions.py:", *words):
        assert word in str(caught.value)


MASK = np.array([[True, False, True], [False, False, True]])
KINDS: dict[str, Array] = {
    "bool": MASK,
    "int8": np.array([[7, -7, 3], [0, 100, -128]], np.int8),
    "uint8": np.array([[7, 200, 3], [0, 255, 128]], np.uint8),
    "int64": np.array([[2**62, -7, 3], [0, 100, -(2**62)]]),
    "float32": A,
    "float64": np.array([[1.5, np.nan, -0.0], [np.inf, 0.25, -0.0]]),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "means": lambda x: (x.mean(), x.mean(0), np.mean(x, -1, keepdims=True), x.mean((0, 1))),
    "typed means": lambda x: (
        np.mean(x, dtype=np.float32),
        x.mean(1, np.float64),
        np.mean(x, axis=(), dtype=np.float64),
    ),
    "variances": lambda x: (x.var(), x.var(0), np.var(x, 1, ddof=1), x.var(0, keepdims=True)),
    "deviations": lambda x: (x.std(), np.std(x, 0, correction=1), x.std(1, np.float64, ddof=0.5)),
    "given mean": lambda x: (
        np.var(x, 1, mean=np.mean(x, 1, keepdims=True)),
        np.std(x, mean=None),
        np.var(x, 1, ddof=[1]),
        np.var(x, 1, ddof=np.array([0.5])),
    ),
    "no freedom": lambda x: (x.var(0, ddof=2), x.var(0, ddof=3), x.std(ddof=6)),
    "counts": lambda x: (
        np.count_nonzero(x),
        np.count_nonzero(x, axis=0),
        np.count_nonzero(x, (0, 1), keepdims=True),
    ),
    "tests": lambda x: (x.any(), x.all(0), np.any(x, 1, keepdims=True), np.all(x, ()), x.any(())),
    "order": lambda x: (np.amin(x), x.min(0), np.amax(x, 1), np.max(x, (1, 0), keepdims=True)),
    "places": lambda x: (x.argmax(), x.argmin(0), np.argmax(x, -1, keepdims=True)),
    "products": lambda x: (x.prod(), np.prod(x, 0), x.prod((0, 1), keepdims=True), x.prod(())),
    "ufuncs": lambda x: (
        np.add.reduce(x),
        np.multiply.reduce(x, 1),
        np.maximum.reduce(x, axis=None),
        np.minimum.reduce(x, (0, 1), keepdims=True),
        np.logical_and.reduce(x),
        np.logical_or.reduce(x, 1),
        np.logical_xor.reduce(x, None),
    ),
    "typed ufuncs": lambda x: (
        np.add.reduce(x, dtype=np.float32),
        np.maximum.reduce(x, 1, np.float32),
        np.multiply.reduce(x, dtype=bool),
        np.minimum.reduce(x, dtype=bool),
    ),
    "masked": lambda x: (
        x.sum(where=MASK),
        x.prod(1, where=MASK),
        np.any(x, 0, where=MASK[1]),
        np.all(x, where=MASK[:, :1]),
        x.sum(0, where=False, keepdims=True),
        x.sum(where=x > 1),
    ),
    "masked order": lambda x: (
        x.max(0, initial=1, where=MASK),
        np.min(x, initial=5, where=MASK),
        x.min((), initial=2, where=MASK),
        np.max(x, 1, initial=0, where=[True, False, False]),
    ),
    "masked means": lambda x: (
        x.mean(where=MASK),
        x.mean(0, where=MASK),  # of nothing in one column
        np.var(x, 1, where=MASK),
        np.std(x, 1, where=MASK[0], ddof=1),
    ),
    "initial": lambda x: (
        x.sum(initial=5),
        x.prod(0, initial=2),
        x.max(initial=100),
        x.min(1, initial=np.int8(1)),
        np.add.reduce(x, 1, initial=np.float64(2.75)),
        np.logical_or.reduce(x, initial=True),
        x.sum((), initial=3),
        x.max(initial=None),
        x.sum(0, initial=x.max()),
    ),
    "nothing": lambda x: (
        x.sum(axis=0), x.prod(axis=0), x.any(axis=0), x.all(axis=0), x.mean(axis=0),
        x.var(axis=0), x.max(axis=0, initial=3), x.min(0, initial=1), x.max(1), x.argmin(1),
        np.count_nonzero(x, 0),
    ),
    "without nan": lambda x: (np.nansum(x), np.nanprod(x, 0), np.nanmean(x, 1), np.nansum(x, ())),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_numpys(name: str, kind: str) -> None:
    x = KINDS[kind]
    check(CALLS[name], x[:0] if name == "nothing" else x)


def test_integers_only() -> None:
    for kind in ("bool", "int8", "uint8", "int64"):
        x = KINDS[kind]
        check(lambda x: (np.bitwise_and.reduce(x), np.bitwise_xor.reduce(x, None)), x)
        check(lambda x: np.bitwise_or.reduce(x, 1, keepdims=True), x)
        check(np.bitwise_and.reduce, x[:0])
        check(lambda x: (x.mean(dtype=np.int32), x.var(0, np.int16), x.std(dtype=int)), x)
    for kind in ("int8", "uint8", "float32"):
        check(lambda x: (np.ptp(x), np.ptp(x, 0), np.ptp(x, -1, keepdims=True)), KINDS[kind])
    with pytest.raises(TypeError, match="subtract"):
        run(np.ptp, MASK)


def test_rank_zero() -> None:
    """F053."""
    x = np.array(2.5)
    check(lambda x: (x.sum(axis=0), x.prod(axis=-1), x.max(0), x.any(-1), x.argmax(0)), x)
    check(lambda x: (x.mean(), x.var(), x.std(), x.argmin(), np.count_nonzero(x), np.ptp(x)), x)
    check(lambda x: (x.sum(keepdims=True), x.argmax(keepdims=True), x.sum(initial=1)), x)
    check(lambda k, x: (np.sum(k), np.mean(k), np.max([1, 2] + x * 0)), 3, x)
    check(lambda x: (np.nanmean(x, 0), np.nanmean(x)), x)
    check(lambda x: np.nanmean(x, dtype=np.int64), np.array(3))
    with pytest.raises(np.exceptions.AxisError, match="test_trace_reductions"):
        run(lambda x: np.nanmean(x, 0), np.array(3))  # which NumPy takes for floats alone
    for fn in (lambda x: x.mean(axis=0), lambda x: x.sum(1), lambda x: x.argmax(1)):
        with pytest.raises(np.exceptions.AxisError):
            fn(x)
        with pytest.raises(np.exceptions.AxisError, match="test_trace_reductions"):
            run(fn, x)


def test_run_time_scalars() -> None:
    """Initial values, degrees of freedom and masks that arguments give."""
    check(lambda x, k: (x.sum(initial=k), x.max(0, initial=k), x.var(1, ddof=k)), A, 2)
    check(lambda x, k: (x.var(ddof=k), x.min(initial=k), x.sum(0, initial=k)), A, 1.5)
    check(lambda x, k: (x.sum(where=k), x.sum(0, where=x > k)), A, 1)
    check(lambda x, m: (x.sum(0, where=m), x.mean(1, where=m), x.max(initial=0, where=m)), A, MASK)
    check(lambda x, m: x.sum(where=m), A, MASK[1])

    def cut(x: Any, k: Any) -> Any:
        return np.full_like(x, k), x.sum(initial=k), x.max(0, initial=k / 2)

    for k in (1.75, -2.5):  # float numbers that become integers
        check(cut, KINDS["int64"], k)
        same(ok.compile(cut)(KINDS["int64"], k), cut(KINDS["int64"], k))
    with pytest.raises(OverflowError, match="300"):
        run(lambda x, k: x.max(initial=k), KINDS["uint8"], 300)


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
@hypothesis.settings(max_examples=150)
@hypothesis.given(st.data())
def test_any_axes(data: st.DataObject) -> None:
    """Random shapes, axes and masks: values, dtypes, shapes and kinds of errors are NumPy's."""
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=0, max_size=4)))
    axis = data.draw(
        st.none() | st.integers(-5, 4) | st.lists(st.integers(-4, 3), max_size=3).map(tuple)
    )
    name = data.draw(st.sampled_from([r.name for r in REDUCTIONS.values()] + ["mean", "var"]))
    keep = data.draw(st.booleans())
    fn = getattr(np, name, None) or REDUCTIONS[name].numpy.reduce
    dtype = data.draw(st.sampled_from(["int8", "bool", "uint64"]))
    x = np.random.default_rng(len(shape)).integers(0, 3, shape).astype(dtype)
    keywords: dict[str, Any] = {}
    if name in ("sum", "prod", "any", "all", "mean") and data.draw(st.booleans()):
        keywords["where"] = np.random.default_rng(1).random(shape[1:]) < 0.5
    try:
        with np.errstate(all="ignore"):
            want = fn(x, axis=axis, keepdims=keep, **keywords)
    except (ValueError, TypeError, IndexError) as error:
        with pytest.raises(type(error)):
            run(lambda x: fn(x, axis=axis, keepdims=keep, **keywords), x)
        return
    got = run(lambda x: fn(x, axis=axis, keepdims=keep, **keywords), x)
    assert np.asarray(got).dtype == want.dtype and np.shape(got) == want.shape
    np.testing.assert_array_equal(got, want)


# ---- refusals ----


def test_axes_that_numpy_refuses() -> None:
    for fn, words in (
        (lambda x: x.mean(2), "axis 2 is out of bounds"),
        (lambda x: x.argmax(-3), "axis -3 is out of bounds"),
        (lambda x: np.prod(x, (0, -2)), "duplicate value in 'axis'"),
        (lambda x: x.var((1, 1)), "duplicate value in 'axis'"),
        (lambda x: np.minimum.reduce(x, 5), "axis 5 is out of bounds"),
    ):
        with pytest.raises((ValueError, IndexError)):
            fn(A)
        with refuses(errors.AxisError, words):
            run(fn, A)
    for fn in (
        lambda x: x.min(1.0), lambda x: x.any(True), lambda x: x.all([0]), lambda x: x.argmax((0,)),
        lambda x: np.argmin(x, "0"), lambda x: x.mean(axis="rows"), lambda x: x.std(0.5),
        lambda x: np.ptp(x, 1.5), lambda x: np.count_nonzero(x, axis=1.5),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            fn(A)
        with refuses(errors.TraceError, "how to fix: "):
            run(fn, A)


def test_masks_and_initial_values_that_numpy_refuses() -> None:
    for fn in (
        lambda x: x.max(where=MASK),
        lambda x: np.min(x, 0, where=MASK),
        lambda x: x.max(axis=(), where=MASK),
        lambda x: np.minimum.reduce(x, where=MASK),
        lambda x: (x > 0).max(where=MASK),
    ):
        with pytest.raises(ValueError, match="does not have an identity"):
            fn(A)
        with refuses(errors.ReductionError, "does not have an identity", "initial="):
            run(fn, A)
    for fn, error, words in (
        (lambda x: x.sum(where=np.array([1, 0, 1])), errors.TraceError, "where=mask != 0"),
        (lambda x: x.sum(where=MASK[None]), errors.ShapeError, "rank 3 does not fit"),
        (lambda x: x.sum(where=MASK[:, :2]), errors.ShapeError, "extent"),
        (lambda x: x.sum(1, where=np.ones((5, 3), bool)), errors.ShapeError, "extent"),
        (lambda x: x.max(initial=np.ones(3)), errors.ReductionError, "scalar"),
        (lambda x: x.max(initial="a"), errors.TraceError, "cannot compute with a str"),
    ):
        with pytest.raises((TypeError, ValueError)):
            fn(A)
        with refuses(error, words):
            run(fn, A)
    with refuses(errors.TraceError, "where=None"):  # where NumPy takes None for False
        run(lambda x: x.sum(where=None), A)
    with refuses(errors.TraceError, "initial=None"):  # with which NumPy refuses to sum nothing
        run(lambda x: x.sum(initial=None), A)
    for ddof in ("a", None):
        with refuses(errors.TraceError, "expected an array or a number"):
            run(lambda x: np.var(x.sum(0, keepdims=True), 0, ddof=ddof), A)  # noqa: B023
    with refuses(errors.HostRangeError, "300"):
        run(lambda x: x.max(initial=300), KINDS["uint8"])
    for initial, error, builtin in (
        (np.int64(300), errors.HostRangeError, OverflowError),
        (np.float64(300.5), errors.HostRangeError, OverflowError),
        (np.float32(np.inf), errors.HostRangeError, OverflowError),
        (np.float64(np.nan), errors.ReductionError, ValueError),
        (math.nan, errors.ReductionError, ValueError),
        (math.inf, errors.HostRangeError, OverflowError),
    ):
        for fn in (np.max, np.maximum.reduce, np.nansum, np.sum, np.prod):
            if fn in (np.nansum, np.sum, np.prod) and np.isfinite(initial):
                continue  # they add up in 64 bits
            with pytest.raises(builtin):
                fn(KINDS["int8"], initial=initial)
            with refuses(error, str(int(initial) if np.isfinite(initial) else initial)):
                run(lambda x: fn(x, initial=initial), KINDS["int8"])  # noqa: B023
    with pytest.raises(OverflowError):
        run(lambda x: x.sum(initial=math.inf), KINDS["uint8"])


def test_keywords_that_numpy_refuses() -> None:
    for fn, kind in (
        (lambda x: np.nanmean(x, dtype=np.int64), "float32"),
        (lambda x: np.std(x, 0, dtype=np.int32), "int8"),
        (lambda x: x.std(keepdims=True, dtype=np.int64), "float32"),
    ):
        with pytest.raises(TypeError):
            fn(KINDS[kind])
        with refuses(errors.TraceError, "leave dtype= out"):
            run(fn, KINDS[kind])
    with refuses(errors.ReductionError, "ddof and correction"):
        run(lambda x: np.var(x, ddof=1, correction=1), A)
    for fn, words in (
        (lambda x: x.var(correction=1), "unexpected keyword argument 'correction'"),
        (lambda x: x.any(initial=True), "unexpected keyword argument 'initial'"),
        (lambda x: x.mean(0, np.float32, None, True, 1), "x.mean"),
        (lambda x: x.argmax(0, None, True), "x.argmax"),
        (lambda x: x.sum(keepdim=True), "keepdims= for keepdim="),
    ):
        with pytest.raises(TypeError):
            fn(A)
        with refuses(errors.TraceError, words):
            run(fn, A)
    for fn in (
        lambda x: np.bitwise_or.reduce(x),  # noqa: PLW0108  names the line
        lambda x: np.logical_or.reduce(x, dtype=np.int64),
    ):
        with pytest.raises(TypeError):
            fn(A)
        with refuses(errors.TraceError, "not supported for"):
            run(fn, A)
    with refuses(errors.TraceError, "np.subtract.reduce", "np.minimum"):
        run(lambda x: np.subtract.reduce(x), A)  # noqa: PLW0108  names the line
    with refuses(errors.TraceError, "x.ptp", "np.ptp"):
        run(lambda x: x.ptp(), A)  # as of NumPy 2 a function alone
    with refuses(errors.UnsupportedDType, "float128"):
        run(lambda x: x.mean(dtype=np.longdouble), A)


def test_out_inside_a_trace_is_refused() -> None:
    held = np.zeros(3, np.float32)
    for fn in (
        lambda x: np.sum(x, 0, out=held),
        lambda x: x.mean(0, out=held),
        lambda x: np.add.reduce(x, out=held),
        lambda x: x.max(0, held),
        lambda x: np.argmax(x, 0, held.astype(int)),
        lambda x: np.std(x, 0, out=held),
    ):
        with refuses(errors.TraceError, "out=", "the caller may pass out="):
            run(fn, A)
    assert not held.any()


def test_trace_reductions_of_nothing_name_op_and_line() -> None:
    nothing = np.zeros((0, 3), np.float32)
    for fn, words in (
        (lambda x: x.max(0), "max: zero-size array to reduction operation maximum"),
        (lambda x: x.min(), "min: zero-size array to reduction operation minimum"),
        (lambda x: x.argmax(), "argmax: attempt to get argmax of an empty sequence"),
        (lambda x: x.argmin(0), "argmin: attempt to get argmin of an empty sequence"),
        (lambda x: (x > 0).max(0), "max: zero-size array to reduction operation maximum"),
        (lambda x: (x.sum(0), x.max(1), x.argmin(0)), "argmin: attempt"),  # not that of max(1)
    ):
        with pytest.raises(ValueError, match=words.split(": ")[1]):
            fn(nothing)
        with pytest.raises(errors.ShapeError, match=words) as caught:
            ok.compile(fn)(nothing)
        assert "test_trace_reductions.py:" in str(caught.value)
        ok.compile(fn)(np.ones((1, 3), np.float32))
