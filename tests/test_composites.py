"""NumPy functions written over rows, and the keywords of ufuncs, against NumPy itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import INT, A, check, refused, run
from tests.values import DTYPES, SPECIALS, same_bits

import opkiln as ok
from opkiln.runtime.errors import CallError, ChoiceError, NotYet, TraceError
from opkiln.runtime.trace.composites import COMPOSITES

X = np.array([[0.0, -0.0, 1.25, -2.5, np.nan], [np.inf, -np.inf, 1e30, 3.5, -0.5]], np.float32)
Y = np.array([0.0, 1.0, 1.25000001, np.inf, np.nan])
PICK = np.array([[0, 2, 1, 0, 1], [1, 1, 0, 2, 2]])


def calls_of_floats(x: Any, y: Any) -> Any:
    """Every composite of floats, in every form that it has."""
    return (
        np.nan_to_num(x),
        np.nan_to_num(x, nan=7, posinf=8.5, neginf=-1),
        np.nan_to_num(x, True, x.astype(np.float64) * 0 + 2),
        np.fix(x),
        (np.isposinf(x), np.isneginf(x), np.isposinf(y)),
        (np.real(x), np.imag(x), x.imag, np.isreal(x), np.iscomplex(y)),
        (np.angle(x), np.angle(y, deg=True)),
        np.isclose(x, y),
        np.isclose(y, x, rtol=0.5, atol=np.float64(1), equal_nan=True),
        (np.isclose(1.25, x), np.isclose(x, 1.25), np.isclose(x, 1), np.isclose(2, y)),
        (np.allclose(x, y), np.allclose(x, x, equal_nan=True), np.allclose(y, y, 1, 1)),
        np.select([x > 0, np.isnan(x), y < 0], [x, y, 3], 9),
        np.select([x > 1], [x]),
        np.select([x > 1, True], [x, np.float32(2)], default=y),
        [np.round(v, d) for v in (x, y) for d in (0, 1, 3, 11, -1, -3, 400, -400)],
        (x.round(2), np.around(y, decimals=1), np.round(x, 1, out=np.zeros_like(x))),
        (np.clip(x, 0, 1), np.clip(x, None, y), np.clip(x, max=1), x.clip(0.5), x.clip(min=y)),
        (np.clip(x, 0, 1, dtype=np.float64), np.clip(x, None, 2, dtype=np.float64)),
        (np.clip(x, None, None), np.where(x > y, x, y), np.copysign(x, y)),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_composites_of_floats(dtype: Any) -> None:
    x, y = X.astype(dtype), Y.astype(dtype)
    compare(calls_of_floats, x, y)
    assert {c.numpy.__name__ for c in COMPOSITES} - set(calls_of_floats.__code__.co_names) == {
        "choose"
    }


def calls_of_integers(x: Any) -> Any:
    """What is different of integers and bools."""
    return (
        [np.round(x // 4, d) for d in (0, 2, -1, -2, -3, -30)],  # no result is out of range
        (np.fix(x), np.nan_to_num(x), np.isposinf(x), np.isneginf(x), np.imag(x), np.isreal(x)),
        (np.isclose(x, 7), np.isclose(7, x), np.allclose(x, x)),
        np.select([x > 3, x < 1], [x, x * 2], 300),
        (np.clip(x, 2, 5), np.clip(x, None, 90), x.clip(max=x), np.clip(x, None, None)),
    )


def compare(fn: Callable[..., Any], *args: Any) -> None:
    """Compiled, to the bit."""
    with np.errstate(all="ignore"):
        want = flat(fn(*args))
        got = flat(ok.compile(fn)(*args))
    assert len(got) == len(want)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        same_bits(one, other, f"{fn.__name__}, result {i}")


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in flat(part)]
    return [tree]


WIDE = [d for d in DTYPES if d.kind in "iu" and d.itemsize > 2]


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: d.name)
def test_composites_of_integers(dtype: np.dtype[Any]) -> None:
    compare(calls_of_integers, SPECIALS[dtype.kind](dtype))


def test_round_of_narrow_integers() -> None:
    for dtype in (np.int8, np.uint16):
        x = np.array([0, 4, 5, 15, 25, 127, 100], dtype)
        check(lambda x: [np.round(x, d) for d in (0, 1, -1, -2, -3)], x)
    with refused(TraceError, "round of bool"):
        run(lambda x: np.round(x > 0, 1), A)


def test_choose() -> None:
    def pick(i: Any, a: Any, b: Any) -> Any:
        return (
            np.choose(i, [a, b, 5]),
            np.choose(i - 1, (a, 1.5), mode="clip"),
            i.choose([a, b], mode="wrap"),
            np.choose(i > 0, [b, a]),
            np.choose(i * 7 - 9, [b, a, i, i], mode="wrap"),
            np.choose(i * 0, [b]),
        )

    compare(pick, PICK, np.arange(5.0, dtype=np.float32), np.arange(10, 15))
    compare(pick, PICK, np.float32(3), np.arange(5, dtype=np.int8))


@pytest.mark.parametrize("bad", [3, -1, 2**62])
def test_choose_refuses_what_names_no_choice(bad: int) -> None:
    """As NumPy: ValueError, and what out= holds stays as it was."""

    def pick(i: Any, a: Any) -> Any:
        return np.choose(i, [a, a, a])

    compiled = ok.compile(pick)
    a, index = np.arange(10.0).reshape(2, 5), PICK.copy()
    out = np.full((2, 5), 7.0)
    compiled(index, a, out=out)
    assert (out == a).all()
    index[1, 3] = bad
    out[...] = 7
    with pytest.raises(ValueError, match="invalid entry in choice array"):
        pick(index, a)
    with pytest.raises(ChoiceError, match=r"invalid entry in choice array \(.*composites.py:\d+\)"):
        compiled(index, a, out=out)
    assert (out == 7).all()
    with pytest.raises(ChoiceError, match=r"invalid entry in choice array \(.*composites.py:\d+\)"):
        run(pick, index, a)
    with pytest.raises(ChoiceError, match=r"invalid entry in choice array \(.*composites.py:\d+\)"):
        ok.compile(lambda a: np.choose(bad, [a, a, a]))(a)


def test_what_composites_refuse() -> None:
    for fn, error in (
        (lambda x: np.select([x > 0], [x, x]), "same length"),
        (lambda x: np.choose(x > 0, []), "at least one"),
        (lambda x: np.choose(x > 0, [x, x], mode="other"), "got 'other'"),
        (lambda x: np.clip(x, 0, 1, min=2), "forbidden"),
    ):
        with pytest.raises(ValueError):
            fn(A)
        with pytest.raises(CallError, match=rf"{error}(?s:.*)test_composites.py"):
            run(fn, A)
    for fn, error in (
        (lambda x: np.select([x], [x]), "should be boolean ndarray"),
        (lambda x: np.choose(x, [x, x]), "according to the rule 'safe'"),
        (lambda x: np.select([x > 0], [3], np.uint32(1)), "according to the rule 'same_kind'"),
    ):
        with pytest.raises(TypeError, match=error):
            fn(A)
        with pytest.raises(TraceError, match=rf"{error}(?s:.*)test_composites.py"):
            run(fn, A)
    with refused(NotYet, "pass a list of arrays"):
        run(lambda x: (x > 0).choose(x), A)


# ---- keywords of ufuncs ----


def test_dtype_signature_and_casting() -> None:
    i = np.arange(6).reshape(2, 3)

    def asked(x: Any, i: Any) -> Any:
        return (
            np.add(i, i, dtype=np.int8),
            np.add(x, 1, dtype=np.float64),
            np.add(i, x, dtype="f4", casting="unsafe"),
            np.add(x, x, signature="dd->d"),
            np.add(x, i, signature=(np.float64, None, None)),
            np.multiply(x, x, sig="dd->d", casting="same_kind", order="K", subok=True),
            np.sqrt(i, dtype=np.float32),
            np.less(i, x, signature="dd->?"),
            np.logical_and(i, x, dtype=bool),
            np.true_divide(i, 3, dtype=np.float32),
            np.divmod(i, 4, dtype=np.int32),
            np.modf(x, dtype=np.float64),
            np.subtract(i, x, dtype=np.int16, casting="unsafe"),
            np.conjugate(x, dtype=np.float64),
            np.maximum(x, x, casting="no", subok=False),
        )

    check(asked, A, i)


def test_out_and_where_of_the_traced_function() -> None:
    def written(x: Any, i: Any, m: Any) -> Any:
        t, u, n = x * 0 + 5, x + 1, i + 0
        alias = t
        first = np.add(x, 1, out=t) is alias
        np.multiply(x, 2, out=u, where=m)
        np.floor_divide(7, i, out=n, where=i != 0)
        whole, part = np.empty_like(x), np.empty_like(x)
        np.modf(x, out=(part, whole))
        half = x + 0
        _, rest = np.modf(x, half, None)
        q, r = i + 1, i + 2
        np.divmod(q, r, out=(r, q))
        back = x.astype(np.float32)
        np.add(x, 0.1, out=back, casting="same_kind")
        cut = i + 0
        np.multiply(x, 3, out=cut, casting="unsafe", where=m)
        return first, alias, t, u, n, part, whole, half, rest, q, r, back, cut

    mask = np.array([[True, False, True], [False, False, True]])
    i = np.array([[7, -7, 3], [0, 2, -128]])
    for x in (A, A.astype(np.float64)):
        check(written, x, i, mask)
    with np.errstate(all="raise"), ok.errstate(integer_divide="raise"):
        ok.compile(written)(A, i, mask)  # nothing is divided where the mask is False


def test_refused_keywords() -> None:
    i = INT.astype(np.int64)
    for fn, words in (
        (lambda x, i: np.add(i, i, dtype=np.int8, casting="safe"), "casting rule 'safe'"),
        (lambda x, i: np.add(i, x, casting="no"), "casting rule 'no'"),
        (lambda x, i: np.add(x, x, dtype=np.int32), "casting rule 'same_kind'"),
        (lambda x, i: np.frexp(x, dtype=np.float32), "No loop matching"),
        (lambda x, i: np.add(x, x, out=+i), "casting rule 'same_kind'"),
        (lambda x, i: np.add(x, x, out=x + x, where=i), "according to the rule 'safe'"),
        (lambda x, i: np.add(i, i, out=i.astype(np.int32), casting="safe"), "casting rule 'safe'"),
        (lambda x, i: np.add(x, x, out=5), "out= is a int|must be of ArrayType|arrays"),
    ):
        with pytest.raises(TypeError):
            fn(A, i)
        with pytest.raises(TraceError, match=rf"(?:{words})(?s:.*)test_composites.py"):
            run(fn, A, i)
    for fn, words in (
        (lambda x: np.add(x, x, casting="some"), "casting must be one of"),
        (lambda x: np.add(x, x, signature="d->d"), 'write for example "dd->d"'),
    ):
        with pytest.raises((ValueError, TypeError)):
            fn(A)
        with pytest.raises(CallError, match=rf"{words}"):
            run(fn, A)
    with refused(NotYet, "order='F'"):
        run(lambda x: np.add(x, x, order="F"), A)
