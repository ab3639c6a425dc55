"""Random programs of up to 30 rows, compiled, against the same program in NumPy, to the bit.

There is no tolerance: where NumPy leaves a result open (rows that round; the sign of a zero that
maximum picks), the reference takes that of the row compiled alone, on the operands it has at this
place. So it is tested that a row gives the same bits within any program as it does alone; that
those are right is for tests/test_conformance.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from tests.together import case, together
from tests.values import (
    DTYPES,
    SPECIALS,
    Array,
    function_of,
    is_rounded,
    kind_of,
    leaves_zero_sign,
    ordinary,
    same_bits,
    takes,
)

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import INVALID_CHOICE, NEGATIVE_POWER
from opkiln.ops.table import ELEMENTWISE, resolved

N = 19
SHAPES = ((N, N), (1, N), (N, 1), (1, 1), (N,), ())
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1] if x.ndim else x,
    "spread": lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
}
EXACT = [row.name for row in ELEMENTWISE.values() if row.exactness == "exact"]
ROUNDED = [row.name for row in ELEMENTWISE.values() if row.exactness != "exact"]
PER_PART = 18  # rows that every program of a part has
PARTS = [EXACT[i : i + PER_PART] for i in range(0, len(EXACT), PER_PART)]
EXAMPLES = 22  # of each part; each exact row at least LEAST times
LEAST = 20
MOST = 30
SIGN_OF_NAN = {"copysign": 1, "signbit": 0}  # no one says what sign a NaN has that is computed


class Step(NamedTuple):
    """One row (or one of EXTRA) on earlier values."""

    row: str
    dtype: np.dtype[Any]  # operands are cast to it, unless `mixed`
    operands: tuple[int, ...]
    turned: tuple[bool, ...]  # operands that are transposed first
    mixed: bool
    scalar: int | None  # in place of the last operand


class Program(NamedTuple):
    """What is drawn: inputs as (dtype, shape, layout, seed), steps, and values returned as well."""

    inputs: tuple[tuple[np.dtype[Any], tuple[int, ...], str, int], ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]


def updated(a: Any, b: Any) -> Any:
    """A view that follows its array through updates in place."""
    total = np.add(a, b)
    view = total.T
    total += a
    total *= total.shape[-1] if total.ndim else 1
    return view


# What is no row: sizes, constants in the shape of others, updates in place, folds of integers.
EXTRA: dict[str, Callable[[Any, Any], Any]] = {
    "sizes": lambda a, b: a + (a.size * 2 + b.ndim) % 5,
    "likes": lambda a, b: np.full_like(a, 1) + np.zeros_like(b),
    "updated": updated,
    "sum": lambda a, b: a.sum(axis=-1, keepdims=True) if a.ndim else a + b,
    "max": lambda a, b: np.where(b > 0, a.max(axis=0, keepdims=True) if a.ndim else a, a),
}
INTEGERS = [d for d in DTYPES if kind_of(d) in "iu"]


TAKES = dict.fromkeys(EXTRA, INTEGERS)
TAKES |= {r.name: [d for d in DTYPES if takes(r, *(d,) * r.arity)] for r in ELEMENTWISE.values()}


@st.composite
def programs(draw: st.DrawFn, rows: list[str]) -> Program:
    inputs = draw(
        st.lists(
            st.tuples(
                st.sampled_from(DTYPES),
                st.sampled_from(SHAPES),
                st.sampled_from(list(LAYOUTS)),
                st.integers(0, 99),
            ),
            min_size=2,
            max_size=4,
        )
    )
    others = st.sampled_from([*ROUNDED, *EXTRA, *EXACT])
    more = draw(st.lists(others, max_size=MOST - len(rows)))
    steps: list[Step] = []
    for row in draw(st.permutations([*rows, *more])):
        arity = ELEMENTWISE[row].arity if row in ELEMENTWISE else 2
        place = st.integers(0, len(inputs) + len(steps) - 1)
        steps.append(
            Step(
                row,
                draw(st.sampled_from(TAKES[row])),
                tuple(draw(place) for _ in range(arity)),
                tuple(draw(st.booleans()) for _ in range(arity)),
                draw(st.booleans()),
                draw(st.sampled_from([None, None, 1, 3])),
            )
        )
    places = st.integers(len(inputs), len(inputs) + len(steps) - 1)
    return Program(tuple(inputs), tuple(steps), tuple(draw(st.lists(places, max_size=3))))


def array_of(dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, seed: int) -> Array:
    """Special and ordinary values, shuffled."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=int))
    pool = [SPECIALS[kind_of(dtype)](dtype), ordinary(ELEMENTWISE["add"], dtype, 2 * N, rng)]
    return LAYOUTS[layout](rng.choice(np.concatenate(pool), count).reshape(shape))


def run(program: Program, inputs: tuple[Any, ...], apply: Callable[..., Any]) -> tuple[Any, ...]:
    """The program on arrays or on traced values; `apply` calls a row."""
    values: list[Any] = list(inputs)
    used: set[int] = set()
    for step in program.steps:
        used.update(step.operands)
        values.append(applied(step, [values[i] for i in step.operands], apply))
    ends = {i for i in range(len(inputs), len(values)) if i not in used}
    return tuple(values[i] for i in sorted(ends | set(program.returned)))


def applied(step: Step, operands: list[Any], apply: Callable[..., Any]) -> Any:
    operands = [x.T if t else x for x, t in zip(operands, step.turned, strict=True)]
    if step.row in EXTRA:
        return EXTRA[step.row](*(cast(x, step.dtype) for x in operands))
    row = ELEMENTWISE[step.row]
    if not (step.mixed and takes(row, *(x.dtype for x in operands))):
        operands = [cast(x, step.dtype) for x in operands]
    if step.row in SIGN_OF_NAN and kind_of(operands[0].dtype) == "f":
        i = SIGN_OF_NAN[step.row]
        operands[i] = np.where(np.isnan(operands[i]), operands[i].dtype.type(1), operands[i])
    if row.faults & INVALID_CHOICE:  # one of 8 to 15 choices
        operands = [np.bitwise_and(x.astype(np.int64), np.int64(7)) for x in operands]
        operands[1] = np.bitwise_or(operands[1], np.int64(8))
    elif row.faults & NEGATIVE_POWER and kind_of(operands[1].dtype) in "iu":
        operands[1] = np.bitwise_and(operands[1], operands[1].dtype.type(7))
    elif step.scalar and row.arity == 2 and can_be_weak(row, operands[0].dtype):
        operands[1] = step.scalar
    return apply(row, *operands)


def cast(x: Any, dtype: np.dtype[Any]) -> Any:
    """A cast; uint32 gets no floats out of its range, of which NumPy makes this or that."""
    if kind_of(x.dtype) in "fc" and dtype == np.uint32:
        x = np.where(np.absolute(x) < 2.0**31, x, x.dtype.type(0))
    return x.astype(dtype)


def is_open(row: OpRow, *dtypes: np.dtype[Any]) -> bool:
    """Whether NumPy leaves bits of the row's results open, for operands of these dtypes."""
    over = "c" if any(kind_of(dtype) == "c" for dtype in dtypes) else "f"
    return row.exactness_of(over) != "exact" or any(leaves_zero_sign(row, d) for d in dtypes)


def can_be_weak(row: OpRow, dtype: np.dtype[Any]) -> bool:
    """Whether a Python int may stand beside an operand of this dtype."""
    return not is_open(row, dtype) and kind_of(dtype) in "iuf" and takes(row, dtype, int)


ALONE = {row.name: ok.compile(function_of(row)) for row in ELEMENTWISE.values()}


@pytest.fixture(scope="module", autouse=True)
def alone_is_built() -> None:
    """The rows that the reference asks for, in few units."""
    calls = []
    for name, compiled in ALONE.items():
        for dtype in TAKES[name]:
            if kind_of(dtype) in "fc" and is_open(ELEMENTWISE[name], dtype):
                calls.append(case(compiled, *(np.ones(N, dtype),) * ELEMENTWISE[name].arity))
    together(calls)


def expected(row: OpRow, *operands: Any) -> Any:
    """NumPy's result, or the row's own alone where NumPy leaves bits open."""
    result = np.asarray(function_of(row)(*operands))
    dtypes = {x.dtype for x in operands if isinstance(x, (np.ndarray, np.generic))}
    if not is_open(row, *dtypes) or kind_of(result.dtype) not in "fc":
        return result
    signature = resolved(row, *(x.dtype for x in operands))
    assert signature is not None
    flat = [
        np.ascontiguousarray(x).reshape(-1).astype(dtype)
        for x, dtype in zip(np.broadcast_arrays(*operands), signature[0], strict=True)
    ]
    own = ALONE[row.name](*flat).reshape(result.shape)
    if not is_rounded(row, result.dtype, operands):
        same_bits(own, result, f"{row.name} alone", zero_sign=False)
    return own


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_random_programs(part: int, record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],  # to shrink would build hundreds of units
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs(PARTS[part]))
    def check(program: Program) -> None:
        arrays = tuple(array_of(*given) for given in program.inputs)
        with np.errstate(all="ignore"):
            want = run(program, arrays, expected)
        compiled = ok.compile(
            lambda *inputs: run(program, inputs, lambda row, *x: function_of(row)(*x))
        )
        got = compiled(*arrays)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            same_bits(a, b, f"output {i} of {program}")
        assert compiled.info().fallbacks == 0
        counts.update(step.row for step in program.steps)

    check()
    record_property("rows exercised", dict(counts))
    assert min(counts[name] for name in PARTS[part]) >= LEAST


def test_every_exact_row_is_of_a_part() -> None:
    assert sorted(name for part in PARTS for name in part) == sorted(EXACT)
    assert all(TAKES[name] for name in ELEMENTWISE)
