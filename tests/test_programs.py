"""Random NumPy programs, compiled: exact ops have NumPy's bits, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.together import case, together

import opkiln as ok

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "floor", "rint", "trunc",
    "absolute", "negative", "square", "sqrt", "sign", "less", "where",
)  # fmt: skip
INTEGER = (
    "add", "subtract", "multiply", "floor_divide", "remainder", "bitwise_and", "bitwise_xor",
    "left_shift", "maximum", "minimum", "absolute", "negative", "less", "where", "sum", "max",
)  # fmt: skip
ARITY = {
    "floor": 1,
    "rint": 1,
    "trunc": 1,
    "absolute": 1,
    "negative": 1,
    "square": 1,
    "sqrt": 1,
    "sign": 1,
}


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[str, tuple[int, ...]]], list[int], str]:
    """A random program: its steps, the positions of the results to return, and its dtype.

    A step is an op and the positions of its operands among three inputs and earlier results.
    """
    dtype = draw(st.sampled_from(["f4", "f8", "i4", "i8", "u1", "i2", "u8"]))
    names = FLOAT if dtype[0] == "f" else INTEGER
    steps: list[tuple[str, tuple[int, ...]]] = []
    for i in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(names))
        arity = 1 if op in ("sum", "max") else ARITY.get(op, 2)
        steps.append((op, tuple(draw(st.integers(0, 2 + i)) for _ in range(arity))))
    results = draw(st.lists(st.integers(3, 2 + len(steps)), min_size=1, max_size=3))
    return steps, results, dtype


def run(
    steps: list[tuple[str, tuple[int, ...]]], results: list[int], args: list[Any]
) -> tuple[Any, ...]:
    """The program, in plain NumPy: what is traced and what is the reference."""
    values = list(args)
    dtype = args[0].dtype
    for op, at in steps:
        operands = [values[i].astype(dtype) for i in at]
        if op == "where":
            value = np.where(operands[0] < operands[1], operands[0], operands[1])
        elif op in ("sum", "max"):
            value = getattr(operands[0], op)(axis=-1, keepdims=True).astype(dtype)
        else:
            value = getattr(np, op)(*operands)
        values.append(value if op == "less" else value.astype(dtype))
    return tuple(values[i] for i in results)


def arrays(
    shapes: list[tuple[int, ...]], dtype: str, rng: np.random.Generator, order: int
) -> list[Array]:
    """Inputs with layouts that differ: C, Fortran, every second element, backwards."""
    made = []
    for k, shape in enumerate(shapes):
        wide = (*shape[:-1], 2 * shape[-1])
        base = rng.integers(-9 if dtype[0] != "u" else 0, 9, wide).astype(dtype)
        if dtype[0] == "f":
            base = (base + rng.standard_normal(wide)).astype(dtype)
        half = base[..., ::2]
        variants = [np.ascontiguousarray(half), np.asfortranarray(half), half, half[..., ::-1]]
        made.append(variants[(order >> (2 * k)) & 3])
    return made


SHAPES = [
    [(17,), (17,), (17,)], [(5, 33), (5, 33), (33,)], [(4, 6), (4, 1), (1, 6)],
    [(3, 2, 9), (2, 9), (9,)], [(1, 1), (1, 1), (1, 1)], [(64, 3), (64, 3), (64, 3)],
    [(2, 0), (2, 0), (1,)],
]  # fmt: skip


Drawn = tuple[tuple[list[tuple[str, tuple[int, ...]]], list[int], str], int, int, int]


def function_of(drawn: Drawn) -> tuple[Callable[..., Any], list[Array]]:
    """A random program as a function, and its arguments."""
    (steps, results, dtype), shape, order, seed = drawn
    args = arrays(SHAPES[shape], dtype, np.random.default_rng(seed), order)
    if 0 in args[0].shape:  # an empty max is an error, tested apart
        steps = [("sum" if op == "max" else op, at) for op, at in steps]
    return lambda *xs: run(steps, results, list(xs)), args


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(
        st.tuples(
            programs(),
            st.integers(0, len(SHAPES) - 1),
            st.integers(0, 63),
            st.integers(0, 2**31),
        ),
        min_size=12,
        max_size=12,
    )
)
def test_exact_programs_have_numpys_bits(many: list[Drawn]) -> None:
    made = [function_of(drawn) for drawn in many]
    with np.errstate(all="ignore"):
        wants = [fn(*args) for fn, args in made]
    compiled = [case(ok.compile(fn), *args) for fn, args in made]
    plain = [case(ok.compile(fn, opt_level=0), *args) for fn, args in made]
    results = together([*compiled, *plain])
    for drawn, got, bare, want in zip(
        many, results[: len(many)], results[len(many) :], wants, strict=True
    ):
        for g, p, w in zip(got, bare, want, strict=True):
            assert (g.dtype, g.shape) == (w.dtype, w.shape), drawn
            np.testing.assert_array_equal(g, w, err_msg=str(drawn))
            assert np.ascontiguousarray(g).tobytes() == np.ascontiguousarray(p).tobytes(), drawn


def test_out_entries_go_to_the_results_of_their_place() -> None:
    """Also where a later result is computed first, or is an argument itself."""
    x = np.arange(4.0)
    f = ok.compile(lambda x: ((x + 1) * 2, x + 1, x))
    out = tuple(np.empty(4) for _ in range(3))
    for _ in range(2):
        for entries in (out, (None, out[1], None), (out[0], None, out[2])):
            results = f(x, out=entries)
            for want, entry, result in zip(((x + 1) * 2, x + 1, x), entries, results, strict=True):
                np.testing.assert_array_equal(result, want)
                assert entry is None or entry is result
