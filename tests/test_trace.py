"""Traced NumPy programs give NumPy's values: operators, functions, sizes, captures, updates."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import INT, A, check, outcome, rebuild, refused, run, same, traced

from opkiln.ops import primitives as p
from opkiln.runtime.errors import ShapeError, UnsupportedDType
from opkiln.runtime.reference import interpret
from opkiln.runtime.trace import Out, apply_row, trace


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def standardise(x: Any) -> Any:
    mean = x.sum(0) / x.shape[0]
    centred = x - mean
    return centred / np.sqrt((centred * centred).sum(0) / x.shape[0] + 1e-6)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "softmax": softmax,
    "standardise": standardise,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    "reflected": lambda x: (1 - x, 2.0 / (x + 10), 3 + x, 2 * x, True + x),
    "powers": lambda x: (x**2, x**-1, x**0.5, x**1, x**0, np.power(x, 2), np.power(x, 1.0)),
    "divisions": lambda x: (x // 2, x % 2, divmod(x, 3), np.divmod(x, -2), x % -3),
    "compare": lambda x: (x < 1, x <= 1, x > 1, x >= 1, x == 3, x != 3, x > 2),
    "logic": lambda x: (
        np.logical_and(x, x > 1),
        np.logical_not(x),
        np.logical_or(x, False),
        ~(x > 1),
    ),
    "choice": lambda x: (
        np.where(x > 1, x, 0),
        np.where(x, x, -x),
        np.clip(x, -1, 2),
        x.clip(min=0),
    ),
    "no bounds": lambda x: (np.clip(x, None, 2), np.clip(x, 0, None), x.clip(), x.clip(0, 2)),
    "array API names": lambda x: (
        [f(x / 8) for f in (np.asin, np.acos, np.atan, np.asinh, np.acosh, np.atanh)]
        + [np.atan2(x / 8, 2), np.pow(x / 8, 2)]
    ),
    "rounding": lambda x: (np.floor(x), np.ceil(x), np.trunc(x), np.round(x), x.round()),
    "tests": lambda x: (np.isnan(x), np.isinf(x), np.isfinite(x)),
    "order": lambda x: (np.maximum(x, 1), np.minimum(x, x.T.T), np.sign(x), np.abs(x), abs(x)),
    "sums": lambda x: (
        x.sum(),
        x.sum(0),
        x.sum(-1),
        np.sum(x, axis=(0, 1)),
        x.sum(1, keepdims=True),
        x.sum(axis=()),
    ),
    "typed sums": lambda x: (
        x.sum(dtype=np.float64),
        x.sum(0, np.int32),
        np.add.reduce(x),
        x.sum(dtype=bool),
    ),
    "maxima": lambda x: (
        x.max(),
        np.max(x, 0),
        np.amax(x, -1, keepdims=True),
        np.maximum.reduce(x, axis=1),
    ),
    "views": lambda x: (x.T, x[None], x[:, None], x[..., None], x[None, :, None, ...], x[()], x[:]),
    "moves": lambda x: (
        np.transpose(x),
        x.transpose(1, 0),
        x.transpose((0, 1)),
        np.swapaxes(x, 0, 1),
    ),
    "axes": lambda x: (np.moveaxis(x, 0, -1), np.expand_dims(x, (0, 2)), x.swapaxes(0, -1), x.mT),
    "squeeze": lambda x: (
        np.squeeze(x[:, None], 1),
        x.sum(0, keepdims=True).squeeze(0),
        x[None, :, None].squeeze(0),
    ),
    "broadcast": lambda x: (
        np.broadcast_to(x, (4, 2, 3)),
        np.broadcast_arrays(x, x[:, None]),
        x + x[:, None],
    ),
    "symbolic": lambda x: np.broadcast_to(x[None], (x.shape[1], *x.shape)),
    "sizes": lambda x: (
        x.shape,
        x.size,
        x.ndim,
        np.shape(x),
        np.size(x, 1),
        np.ndim(x),
        x.nbytes,
        x.itemsize,
    ),
    "size arithmetic": lambda x: (
        x.shape[0] + 1,
        x.size // 2,
        x.shape[1] / 2,
        -x.shape[0],
        7 % x.shape[1],
    ),
    "casts": lambda x: (
        x.astype(np.int16),
        np.astype(x, np.float64),
        x.astype(bool),
        x.astype("f4"),
    ),
    "likes": lambda x: (
        np.zeros_like(x),
        np.ones_like(x, dtype=int),
        np.full_like(x, 7),
        np.full_like(x, x.sum()),
    ),
    "filled": lambda x: (np.full_like(x, 1.75), np.zeros_like(x, shape=(2, 2))),
    "parts": lambda x: (x.real, x.conj(), np.copy(x), x.copy(), np.real(x), x.imag),
    "outer": lambda x: x.sum(0)[:, None] * x.sum(0)[None, :],
    "nested": lambda x: {"a": [x + 1, (x, None)], "b": ("text", 2.5, x.shape[0])},
    "trivial": lambda x: (x.reshape(x.shape), x.sum(0).ravel(), x.sum(0).flatten()),
    "zero rank": lambda x: (x.sum().sum(axis=0), x.max().max(axis=-1), x.sum()[None], x.sum().T),
    "array function": lambda x: np.where(np.array([True, False, True]), x, np.float32(2)),
    "list": lambda x: x + [1, 2, 3],  # noqa: RUF005
}


def in_place(x: Any) -> Any:
    t = x + 1
    alias, view = t, t.T
    t += x
    t *= 2
    return t, alias, view, view[None]


def function_out(x: Any) -> Any:
    t = x * 2
    u = np.add(t, 1, out=t)
    np.maximum(t, 3, out=t)
    np.clip(t, 0, 5, out=t)
    return t, u


PROGRAMS |= {"in place": in_place, "function out": function_out}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "x", [A, INT, A.T.copy().T, np.asfortranarray(INT)], ids=["f4", "i8", "f4 F", "i8 F"]
)
def test_programs(name: str, x: np.ndarray[Any, Any]) -> None:
    expected = outcome(PROGRAMS[name], x)
    if name == "powers" and x.dtype.kind == "i":
        with refused(ValueError, "negative integer powers"):
            run(lambda x: x**-1, x)
        return
    if isinstance(expected, type):
        with pytest.raises(expected):
            run(PROGRAMS[name], x)
        return
    found = run(PROGRAMS[name], x)
    if name == "gelu":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        same(found, expected)


def test_results_are_fresh_and_keep_memory_order() -> None:
    x = np.asfortranarray(A)
    found = run(lambda x: (x, x.T, x + 1, x[None]), x)
    for result in found:
        assert not np.shares_memory(result, x) and result.flags.writeable
    assert (
        found[0].flags.f_contiguous and found[1].flags.c_contiguous and found[2].flags.f_contiguous
    )


def test_booleans() -> None:
    """F032, F033."""
    b = np.array([True, True, False])
    check(lambda b: (b + b, b * b, b.sum(), ~b, (b + b).astype(np.int32), b.max(), b**2, b ^ b), b)
    check(
        lambda a, b: (np.logical_and(a, b), np.logical_or(a, b), np.logical_xor(a, b)),
        np.int32([2, 0, 4]),
        np.int32([1, 1, 4]),
    )
    for fn in (lambda b: b - b, lambda b: -b, lambda b: +b):
        with pytest.raises(TypeError, match=r"test_trace\.py:"):
            run(fn, b)


def test_integers() -> None:
    """F001, F004, F005, F006, F008, F009, F013, F014, F034."""
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        check(
            lambda a, b: (a // b, a % b, a // 3, a % -3),
            np.array([-7, 7, -7, 7], dtype),
            np.array([3, -3, -3, 3], dtype),
        )
    check(lambda n: ((n + 9) // 10, -(-n // 10)), np.int32([24, 0, -1, -(2**31), 2**31 - 1]))
    check(lambda x: ((x + x).astype(np.int16), -x, -x < 4), np.uint8([128, 6]))
    check(lambda x: (x - 2) >> 1, np.uint32([0]))
    check(lambda x: (x**-1.0, x**3, x**5), np.int16([2, 4]))
    check(lambda x: (x.sum(), (x * x).sum(), (x.astype(np.int64) ** 2).sum()), np.uint8([200] * 3))
    check(lambda x, y: x > y, np.uint64([2**63]), np.int64([-1]))
    with pytest.raises(ValueError, match="negative"):
        run(lambda x, y: x**y, np.int64([0, 2]), np.int64([-1, 2]))


def test_truth_values_and_no_axes() -> None:
    """Reductions of bool, over nothing and over no axis at all."""
    column = np.array([[True], [False]])
    for x in (column, np.int8([[3], [0]]), np.float32([[-0.0], [2]])):
        for keep in (False, True):
            check(lambda x, k=keep: np.max(x, axis=(), keepdims=k), x)
            check(lambda x, k=keep: np.sum(x, axis=(), keepdims=k), x)
            check(lambda x, k=keep: np.sum(x, axis=(), dtype="?", keepdims=k), x)
        graph = traced(lambda x: (x.max(axis=()), x.sum(axis=())), x).graph
        assert not [n for n in graph.nodes if isinstance(n.op, p.Reduce)]
    check(lambda x: np.sum(x, axis=0, dtype="?"), np.zeros((0, 2), np.uint64))
    check(lambda x: np.sum(x, axis=0, dtype="?"), np.array([[0, 2], [0, 256]]))
    for shape in ((0, 0), (0, 2)):
        with pytest.raises(ValueError, match="no identity"):
            run(lambda x: x.max(axis=0), np.zeros(shape))
        with pytest.raises(ValueError, match="no identity"):
            run(lambda x: x.max(axis=0), np.zeros(shape, bool))
    check(lambda x: (x.max(axis=1), x.max(axis=())), np.zeros((0, 2)))


def test_shapes_of_length_zero_and_one() -> None:
    """F052, F054, F055, F056: one trace serves them all."""
    one = traced(lambda x, y: x + y, np.ones((2, 2)), np.ones((2, 2)))
    for a, b in [
        ((0, 3), (1, 3)),
        ((3, 0), (3, 1)),
        ((1, 0), (0, 1)),
        ((4, 1), (1, 4)),
        ((2, 2), (2, 2)),
    ]:
        (found,) = interpret(one.graph, [np.ones(a), np.ones(b)])
        assert found.shape == np.broadcast_shapes(a, b)
    with pytest.raises(ShapeError, match=r"with shapes \(3,3\) \(3,4\)") as caught:
        interpret(one.graph, [np.ones((3, 3)), np.ones((3, 4))])
    assert "test_trace" in str(caught.value)
    check(lambda x: (x.sum(), x.sum(0), x.sum(1), x.max(1)), np.zeros((0, 3), np.float32))
    with pytest.raises(ValueError, match="no identity"):
        run(lambda x: x.max(), np.zeros((0, 3)))
    check(lambda a, b: (2 * a, 3 * b), np.ones((2, 2, 2)), np.ones((2, 2)))


# ---- arguments, results, captures ----


def test_trees_of_arguments() -> None:
    def f(a: Any, /, b: Any, *rest: Any, key: Any, **more: Any) -> Any:
        assert isinstance(b, dict) and isinstance(rest[0], list)
        return a + b["x"] + rest[0][0] + rest[1], key * more["z"], more["flag"]

    leaves = [np.ones(2), np.ones(2), np.ones(2), 2.0, 3, np.ones(2), True]
    found = trace(
        f,
        ["a", "b", "rest", "key", "more"],
        bytes([0, 1, 2, 3, 4]),
        (0, {"x": 1}, ([2], 3), 4, {"z": 5, "flag": 6}),
        leaves,
        "aaafias",
        name="f",
    )
    out = interpret(found.graph, [np.ones(2)] * 4, [2.0, 3])
    same(rebuild(found.out_tree, out), (np.full(2, 5.0), np.full(2, 3.0), True))


def test_equal_results_are_one_output() -> None:
    found = traced(lambda x: (x + 1, [x + 1], x, x), A)
    assert found.out_tree == (Out(0), [Out(0)], Out(1), Out(1))
    assert len(found.graph.outputs) == 2


def test_captures_are_inputs_by_identity() -> None:
    held = np.array([1.0, 2, 3], np.float32)
    found = traced(lambda x: (x + held, np.add(held, x), held), A)
    assert len(found.captures) == 1 and found.captures[0] is held
    assert len(found.graph.inputs) == 2
    held[:] = 5
    out = interpret(found.graph, [A, held])
    np.testing.assert_array_equal(out[0], A + 5)
    big = held.astype(">f4")
    with refused(UnsupportedDType, "byte-swapped"):
        run(lambda x: x + big, A)
    masked = np.ma.masked_array([1.0, 2, 3])
    with refused(TypeError, "MaskedArray"):
        run(lambda x: np.where(x > 0, x, masked), A)
    with refused(UnsupportedDType, "object"):
        run(lambda x: x + np.array([1, None, 3]), A)


# ---- sizes ----


def test_sizes_stay_symbolic() -> None:
    found = traced(standardise, A)
    assert found.pins == ()
    for shape in [(1, 1), (5, 2), (7, 7)]:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        same(interpret(found.graph, [x])[0], standardise(x))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x * int(x.shape[0]),
        lambda x: sum((x for _ in range(x.shape[0])), 0),
        lambda x: x if x.shape[0] == 2 else -x,
        lambda x: x if x.shape[0] > 1 else -x,
        lambda x: x if x.shape[0] else -x,
        lambda x: x * len(x),
        lambda x: x + np.arange(x.shape[0])[:, None],
        lambda x: x + {2: 1.0}[x.shape[0]],
        lambda x: x * [5, 6, 7][x.shape[0]],
        lambda x: x * float(x.shape[0]),
    ],
)
def test_asking_for_a_size_pins_it(use: Callable[[Any], Any]) -> None:
    x = A.astype(np.float64)
    assert traced(use, x).pins == ((0, 0, 2),)
    check(use, x)


def test_pins_of_intermediates_name_their_sources() -> None:
    y = np.ones((1, 3), np.float32)
    found = traced(lambda x, y: (x + y)[None] * int((x + y).shape[0]), A, y)
    assert set(found.pins) == {(0, 0, 2), (1, 0, 1)}
    assert all("test_trace" in place for place in found.pin_places)
    assert traced(lambda x: x * int(x.size), A).pins == ((0, 0, 2), (0, 1, 3))
    held = np.ones(3, np.float32)
    assert traced(lambda x: x + int((x.sum(0) + held).shape[0]), A).pins == ((0, 1, 3), (1, 0, 3))
    assert (
        traced(lambda x: x.sum(0, keepdims=True) * x.sum(0, keepdims=True).shape[0], A).pins == ()
    )
    assert traced(lambda x: (x.shape[0] == None, x.shape[0] != None), A).out_tree == (False, True)  # noqa: E711


def test_functions_without_a_ufunc() -> None:
    check(lambda x: apply_row("erf", x), A)
    check(lambda x: apply_row("erf", x), np.array([1, 2]))
    same(apply_row("erf", A), run(lambda x: apply_row("erf", x), A))

    class Erf:  # as scipy.special.erf: a ufunc that is found by its name
        __name__ = "erf"
        nout = 1

    found = run(lambda x: x.__array_ufunc__(Erf(), "__call__", x), A)
    same(found, apply_row("erf", A))


def test_traces_nest() -> None:
    def inner(x: Any) -> Any:
        return x * 2

    def outer(x: Any) -> Any:
        return inner(x) + run(inner, np.ones(3, np.float32))

    check(outer, A)


@pytest.mark.parametrize("n", [20_000])
def test_deep_chains(n: int) -> None:
    """F111, F113."""

    def chain(x: Any) -> Any:
        for _ in range(n // 2):
            x = x * 0.5 + 1
        return x

    found = traced(chain, A)
    assert len(found.graph.nodes) > n
    check(chain, A)


def test_wide_graphs() -> None:
    def wide(x: Any) -> Any:
        parts = [x + float(i) for i in range(4096)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    check(wide, A)


def test_where_names_lines() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        return np.exp(y)

    found = traced(f, A)
    first = f.__code__.co_firstlineno
    assert found.graph.where[found.graph.outputs[0]] == f"{__file__}:{first + 2}"
    assert found.graph.where[found.graph.outputs[0].src[0]] == f"{__file__}:{first + 1}"


def test_places_cover_what_is_needed_only() -> None:
    def f(x: Any, y: Any) -> Any:
        unused = np.exp(x)
        del unused
        return np.broadcast_to(x, (x.shape[0] + 1 - 1, *x.shape[1:])) * y

    found = traced(f, A, A)
    needed = set(found.graph.nodes) | {d for n in found.graph.nodes for d in n.shape}
    assert found.graph.where
    assert all(n in needed or n.is_host for n in found.graph.where)


def test_bits_of_sizes_are_pinned() -> None:
    check(lambda x: x * ((x.shape[0] & 1) + (1 << x.shape[1]) + (x.size ^ 2) + ~x.shape[0]), A)


def test_a_trace_imports_nothing_of_ours() -> None:
    """An import that runs while another thread forks leaves its lock held in the child."""
    code = (
        "import sys, numpy as np, opkiln.runtime.trace as t; before = set(sys.modules)\n"
        "f = lambda x, k: (np.where(x > 0, x.T[None], k).sum(-1).T * x.shape[0], "
        "x.real.clip(0, k))\n"
        "t.trace(f, ['x', 'k'], bytes(2), (0, 1), [np.ones((2, 2)), 3], 'ai', name='f')\n"
        "print([m for m in set(sys.modules) - before if m.startswith('opkiln')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_threads_trace_at_once() -> None:
    results: list[Any] = []

    def work(k: int) -> None:
        def f(x: Any) -> Any:
            t = x + k
            for _ in range(200):
                t += x
            return t * x.shape[0]

        results.append((k, run(f, A)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for k, found in results:
        expected = A + np.float32(k)
        for _ in range(200):
            expected += A
        np.testing.assert_array_equal(found, expected * 2)
