"""Scalar arguments while tracing: what is refused names the argument and what to write."""

# ruff: noqa: PLW0108  a lambda gives the traced function a line

import math
import numbers
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.tracing import A, check, refused, run, traced

import opkiln as ok
from opkiln.runtime.errors import NotYet, OpkilnError, TraceError
from opkiln.runtime.trace import Out, trace


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x, k: x * (1 if k > 2 else 2), "np.where"),
        (lambda x, k: x if k else -x, "np.where"),
        (lambda x, k: x * min(k, 2), "np.minimum"),
        (lambda x, k: x * round(k), "np.rint(p1)"),
        (lambda x, k: x * round(k, 2), "np.round(p1, 2)"),
        (lambda x, k: x * int(k), "np.trunc(p1)"),
        (lambda x, k: x * float(k), "float already"),
        (lambda x, k: x * math.sqrt(k), "np.sqrt"),
        (lambda x, k: x * math.floor(k), "np.floor(p1)"),
        (lambda x, k: x * math.ceil(k), "np.ceil(p1)"),
        (lambda x, k: x * math.trunc(k), "np.trunc(p1)"),
        (lambda x, k: x * {3.5: 2}[k], "dict"),
        (lambda x, k: (x, f"{k:.2f}"), "formatting"),
        (lambda x, k: x * np.asarray(k), "leave np.asarray out"),
        (lambda x, k: x * int(np.sqrt(k)), "keep it an array"),
        (lambda x, k: x * k.hex(), ".hex"),
    ],
)
def test_a_value_that_is_not_fixed(use: Callable[..., Any], words: str) -> None:
    with refused_anywhere(TraceError, words, "p1", 'ok.compile(static="p1")'):
        run(use, A, 3.5)


def refused_anywhere(cls: type[BaseException], *words: str) -> Any:
    """The error is ours and has file, and every word; the line is that of the parameter list."""
    pattern = "".join(f"(?=(?s:.*){re.escape(w)})" for w in ("test_trace_scalars.py:", *words))
    return pytest.raises(cls, match=pattern)


def test_the_text_of_a_size_is_its_number() -> None:
    found = traced(lambda x: (f"{x.shape[0]} by {x.shape[1]!s:>3} and {x.shape[1]:04d}", x), A)
    assert found.out_tree[0] == "2 by   3 and 0003"
    assert found.pins == ((0, 0, 2), (0, 1, 3))
    assert traced(lambda x: (repr(x.shape[0]), x), A).pins == ()


def test_one_advice_is_enough() -> None:
    for fn in (lambda x, k: x.sum(axis=k), lambda x, k: np.round(x, k)):
        with pytest.raises(TraceError) as caught:
            run(fn, A, 1)
        assert str(caught.value).count("how to fix") == 1
        assert 'static="p1"' in str(caught.value)
    for fn in (lambda x, k: x + np.full((2, 3), k), lambda x, k: x + np.asarray(k)):
        with refused_anywhere(TraceError, "np.full", "np.arange", "np.full_like(x, p1)"):
            run(fn, A, 3)


def test_inversion_is_for_integers() -> None:
    with refused(TypeError, "p1 is a float", "~"):
        run(lambda x, k: (x, ~k), A, 2.5)
    check(lambda x, k: x * ~k, A, 3)


def test_each_scalar_argument_is_named() -> None:
    def f(x: Any, *rest: Any, options: Any) -> Any:
        return x if rest[0] > options["k"] else -x

    with pytest.raises(TraceError) as caught:
        trace(
            f, ["x", "rest", "options"], (1, 2, 3), (0, (1,), {"k": 2}), [A, 1, 2], "aii", name="f"
        )
    text = str(caught.value)
    assert "rest[0]" in text and "options['k']" in text
    assert 'static=("rest", "options")' in text or 'static=("options", "rest")' in text
    with refused(TraceError, "static"):
        run(lambda x, h: x * range(h)[0], A, 2)


def test_choices_by_arrays_keep_their_own_advice() -> None:
    with pytest.raises(TraceError) as caught:
        run(lambda x, k: x if x.sum() > k else -x, A, 3)
    assert "static" not in str(caught.value) and "np.where" in str(caught.value)


@pytest.mark.parametrize("use", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bits(use: str) -> None:
    bits = getattr(operator, use)
    for fn in (lambda x, k: x * bits(k, 1), lambda x, k: x * bits(1, k)):
        with refused_anywhere(NotImplementedError, "p1", 'static="p1"'):
            run(fn, A, 3)
    with refused_anywhere(NotYet, 'static="p1"'):
        run(lambda x, k: x * bits(x.shape[0], k), A, 3)
    check(lambda x, k: x * ~k, A, 3)


COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
OTHERS = [
    2, 3.0, 2.5, True, 1j, Fraction(2), Decimal(2), np.int8(2), np.float32(2), np.bool_(True),
    None, "2", b"2", [2], (2,), {2: 2}, {2}, object(), range(2),
]  # fmt: skip


@pytest.mark.parametrize("compare", COMPARE, ids=lambda fn: fn.__name__)
def test_sizes_compare_as_pythons_numbers(compare: Callable[[Any, Any], Any]) -> None:
    """Whatever the other operand is, on either side; pinned only where the answer needs it."""
    for other in OTHERS:
        for fn in (lambda x, o=other: compare(x.shape[0], o),
                   lambda x, o=other: compare(o, x.shape[0])):  # fmt: skip
            try:
                expected = fn(A)
            except TypeError:
                with pytest.raises(TypeError):
                    traced(lambda x, fn=fn: (fn(x), x), A)
                continue
            found = traced(lambda x, fn=fn: (fn(x), x), A)
            if isinstance(found.out_tree[0], Out):  # a NumPy scalar on the left makes an array
                check(lambda x, fn=fn: (fn(x), x), A)
                continue
            assert found.out_tree[0] == expected and type(found.out_tree[0]) is type(expected)
            number = isinstance(other, (int, float, complex, Fraction, Decimal, np.generic))
            assert found.pins == (((0, 0, 2),) if number else ())
    with refused(TraceError, "int and str"):
        run(lambda x: (x.shape[0] < "3", x), A)
    check(lambda x: x if x.shape[0] > 0.5 else -x, A)
    check(lambda x: x * (x.size == 6.0), A)
    check(lambda x: np.clip(x.size, x, 7), A)


def test_scalar_arguments_compare_as_numbers() -> None:
    for compare in COMPARE:
        for other in (2, 2.5, np.float32(3)):
            check(lambda x, k, o=other, c=compare: x * c(k, o), A, 3)
            check(lambda x, k, o=other, c=compare: x * c(o, k), A, 3)
    assert traced(lambda x, k: (k == None, k != "a", k == [3], x), A, 3).out_tree[:3] == (  # noqa: E711
        False, True, False,
    )  # fmt: skip
    check(lambda x, k: x * (k == 1j), A, 3)


def test_sequences_repeat_and_are_no_arrays() -> None:
    for fn in (
        lambda x: (x.size * [1, 2], [0] * x.shape[0], (3,) * x.shape[1], "a" * x.shape[0], x),
        lambda x: (x.shape[0] * "a", b"a" * x.shape[0], x),
    ):
        check(fn, A)
    assert traced(lambda x: ([0] * x.shape[0], x), A).pins == ((0, 0, 2),)
    with refused_anywhere(TraceError, "repetition", 'static="p1"'):
        run(lambda x, k: ([0] * k, x), A, 3)
    for fn in (
        lambda x: x.shape[0] + [1, 2, 3],
        lambda x: [1, 2, 3] - x.shape[0],
        lambda x: x.shape[0] & [1],
        lambda x: x.shape[0] / 2 * [1],
    ):
        with pytest.raises(TypeError):
            fn(A)
        with pytest.raises(TraceError, match="unsupported operand types"):
            run(fn, A)
    with pytest.raises(TypeError):
        run(lambda x: (x.shape[0] & 1.5, x), A)


def test_isinstance_takes_the_branch_of_the_plain_function() -> None:
    def kinds(x: Any, k: Any) -> Any:
        kinds = (int, float, (int, float), bool, np.ndarray, np.generic, str, numbers.Number, list)
        found = [isinstance(v, t) for v in (x, k, x.shape[0], x + 1, k + 1) for t in kinds]
        return found, np.isscalar(k), x * k if isinstance(k, (int, float)) else x + 1

    for k in (3, 2.5):
        check(kinds, A, k)
    check(lambda x, k, j: x * k**j * 2**x.ndim + x.size**-1, A, 3, 2)
    check(lambda x: x.reshape(x.shape), A)
    assert traced(lambda x: (x.size * x.size, x.reshape(x.shape)), A).pins == ()


def test_a_complex_result_is_not_yet() -> None:
    with refused_anywhere(NotYet, "complex"):
        run(lambda x, k: x * k**0.5, A, -3.25)


def test_attributes_are_those_of_pythons_numbers() -> None:
    check(lambda x, k: x * k.real + k.imag + k.conjugate(), A, 3.0)
    check(lambda x, k: x * k.real + k.imag + k.denominator, A, 3)
    check(lambda x: x * x.shape[0].numerator, A)
    check(lambda x: x * x.shape[0].real + x.shape[1].bit_length(), A)
    for name in ("size", "shape", "ndim", "dtype", "clip", "T"):
        with refused(AttributeError, "p1", "Python float", repr(name), "np.float64"):
            run(lambda x, k, name=name: x * getattr(k, name), A, 3.0)
        assert run(lambda x, k, name=name: hasattr(k, name), A, 3.0) is False
    with refused(AttributeError, "a value made from p1", "Python int"):
        run(lambda x, k: x * (k + 1).size, A, 3)
    with refused(AttributeError, "a size", "Python int"):
        run(lambda x: x * x.shape[0].size, A)
    with pytest.raises(AttributeError) as caught:
        run(lambda x, k: k.__len__, A, 3)
    assert "Tracer" not in str(caught.value)


def from_tree(fn: Callable[..., Any], value: Any, kinds: str, tree: Any) -> None:
    leaves = [A, *np.ravel(value).tolist()]
    trace(fn, ["x", "y"], bytes(2), (0, tree), leaves, kinds, name="f")


def test_a_list_of_numbers_is_no_array() -> None:
    cases = (
        (lambda x, y: x + y, [1, 2, 3], "aiii", [1, 2, 3], "np.asarray(y)"),
        (lambda x, y: x + y, [1.0, 2.0, 3.0], "afff", (1, 2, 3), "np.asarray(y)"),
        (lambda x, y: np.add(x, y), [[1, 2, 3]], "aiii", [[1, 2, 3]], "np.asarray(y)"),
        (lambda x, y: x + y["k"], [1, 2, 3], "aiii", {"k": [1, 2, 3]}, "np.asarray(y['k'])"),
        (lambda x, y: x + np.array(y), [1, 2, 3], "aiii", [1, 2, 3], "np.asarray(y)"),
        (lambda x, y: x + np.sum(y), [1, 2, 3], "aiii", [1, 2, 3], "np.asarray(y)"),
    )
    for fn, value, kinds, tree, words in cases:
        with pytest.raises(OpkilnError) as caught:
            from_tree(fn, value, kinds, tree)
        assert isinstance(caught.value, TypeError)
        assert f"pass {words}" in str(caught.value), str(caught.value)
        assert "test_trace_scalars.py:" in str(caught.value)
    with refused(TraceError, "a list", "p1", "outside", 'static="p1"'):
        run(lambda x, k: np.add(x, [k, 1, 2]), A, 3)
    check(lambda x: np.add(x, [x.shape[0], 1, 2]), A)


def test_a_float_in_the_source_is_no_bfloat16() -> None:
    """ml_dtypes with NumPy 2 has bfloat16 of an int, float32 of a float."""
    x = np.array([1.5, 2.25], pytest.importorskip("ml_dtypes").bfloat16)

    def written(x: Any) -> Any:
        return x * 2.5, 2.5 * x, x * 3, x / 3.0, x**3, np.maximum(x, 0.5), (x * x) * 0.5

    for got, want in zip(ok.compile(written)(x), written(x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert written(x)[0].dtype == np.float32
