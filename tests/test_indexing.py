"""Indexing and item assignment: NumPy's values, shapes, aliases and errors, for every size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing import check, outcome, rebuild, refused, refuses, run, same, traced

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime.errors import (
    BoundsError,
    HostRangeError,
    ReadOnlyError,
    ShapeError,
    TraceError,
)
from opkiln.runtime.graph import const_value
from opkiln.runtime.reference import interpret
from opkiln.runtime.rewrite import rewrite

A = np.arange(20.0).reshape(4, 5)
V = np.arange(7, dtype=np.int16)

# ---- keys ----

bounds = st.none() | st.integers(-5, 5)
steps = st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])
one_item = st.one_of(
    st.integers(-4, 3),
    st.builds(slice, bounds, bounds, steps),
    st.just(slice(None)),
    st.none(),
    st.just(Ellipsis),
    st.integers(-4, 3).map(np.int8),
)
keys = st.lists(one_item, max_size=6).map(tuple) | one_item
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@settings(max_examples=400)
@given(shapes, shapes, keys)
def test_any_key_over_any_shape(shape: tuple[int, ...], other: tuple[int, ...], key: Any) -> None:
    """Traced for one shape, then run for another of the same rank."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)

    def take(a: Any) -> Any:
        return a[key]

    expected = outcome(take, x)
    if isinstance(expected, type):
        with pytest.raises(expected):
            run(take, x)
        return
    check(take, x)
    other = (*other, *shape)[: len(shape)]
    y = np.arange(np.prod(other, dtype=int)).reshape(other)
    found = outcome(lambda a: interpret(traced(take, x).graph, [a])[0], y)
    wanted = outcome(take, y)
    assert found is wanted if isinstance(wanted, type) else same(found, wanted) is None


@settings(max_examples=300)
@given(shapes, keys, st.booleans())
def test_any_key_is_assigned_to(shape: tuple[int, ...], key: Any, scalar: bool) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if not shape:
        return  # a scalar in NumPy

    def assign(a: Any) -> Any:
        y = a + 1
        y[key] = -1 if scalar else -a[key] * 10
        y[key] += 100
        return y

    expected = outcome(assign, x)
    if isinstance(expected, type):
        with pytest.raises(expected):
            run(assign, x)
    else:
        same(run(assign, x), expected)


def bounded(x: Any, y: Any) -> Any:
    n, m = x.shape[0], y.shape[0]
    return (
        x[n // 2 :], x[: n // 2], x[n // 2 : n - 1], x[m:], x[:m], x[-m:], x[m - 2 :],
        x[: m - 3], x[n - m :: 2], x[m - 3 :: -1], x[: n - m : -2], x[m : n - 4], x[n:],
        x[: n - 1], x[n - 1 :: -1], x[: -n // 2], x[2 * n :],
    )  # fmt: skip


def sliced(x: Any, y: Any) -> Any:
    keys = (None, -9, -3, -1, 0, 1, 2, 8)
    whole = [x[start:stop:step] for start in keys for stop in keys for step in (1, -2)]
    joined = np.concatenate(whole)  # so that there are not too many results
    return joined, x[1:] - x[:-1], x[2:] + x[:-2] - 2 * x[1:-1], y[::-1, 1:, None, ..., ::2]


@pytest.mark.parametrize("n", range(7))
def test_symbolic_bounds(n: int) -> None:
    graph = traced(bounded, np.arange(4), np.arange(2)).graph
    for m in range(6):
        x, y = np.arange(n), np.arange(m)
        for found, expected in zip(interpret(graph, [x, y]), bounded(x, y), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_compiled_slices_give_the_same_for_every_size() -> None:
    compiled = [ok.compile(fn) for fn in (bounded, sliced)]
    for n in (4, 0, 1, 2, 3, 5, 6, 40):
        x, y = np.arange(n), np.arange(n % 3)
        same(compiled[0](x, y), bounded(x, y))
        y = np.arange(float(n * 12)).reshape(n, 3, 4)
        same(compiled[1](x, y), sliced(x, y))
    assert [f.info().traces for f in compiled] == [1, 1]


def test_symbolic_index() -> None:
    check(lambda x: (x[x.shape[0] - 1], x[-x.shape[0]], x[:, x.shape[1] // 2]), A)
    with refused(BoundsError, "index 4 is out of bounds"):
        run(lambda x: x[x.shape[0]], A)


def test_equal_extents_are_one_node() -> None:
    """So that shifted slices fuse without a check at run time."""

    def stencils(x: Any) -> Any:
        n = x.shape[0]
        return (
            (x[1:], x[:-1], x[: n - 1], x[::-1][1:], x[-2::-1], np.diff(x)),
            (x[2:], x[:-2], x[1:-1], x[1:][1:], x[1:][:-1], x[:-1][:-1], np.diff(x, 2)),
            (x[1:4], x[2:][:3][:3][:99]),
            (x, x[:], x[::-1], x[:n], np.roll(x, 2), np.pad(x, 1)[1:-1], np.pad(x, 2)[2:-2]),
            (x[::2], x[::-2]),
            (np.append(x[1:], x[::2]), np.append(x[::2], x[1:])),
            (x[:2], x[:2][:3], x[:3][:2], x[-2:], x[2::-1][:2]),
        )

    found = traced(stencils, V)
    shapes = [node.shape for node in found.graph.outputs]
    sets = [found.out_tree[i] for i in range(len(found.out_tree))]
    names = [{shapes[out.index][0].digest for out in outs} for outs in sets]
    assert [len(s) for s in names] == [1, 1, 2, 1, 1, 1, 1]  # x[1:4] may be shorter than x[2:5]
    for n in range(8):
        same(rebuild(found.out_tree, interpret(found.graph, [V[:n]])), stencils(V[:n]))
    graph = traced(lambda x: x[2:] - 2 * x[1:-1] + x[:-2], V).graph
    text = str(graph)
    assert "bcast" not in text and "same" not in text


def test_a_slice_read_after_it_was_written_is_what_was_written() -> None:
    def update(x: Any) -> Any:
        y = x * 2
        y[1:] += 1
        y[0] += 5
        return y

    graph = traced(update, A).graph
    updates = [n for n in graph.nodes if isinstance(n.op, p.UpdateSlices)]
    slices = [n for n in graph.nodes if isinstance(n.op, p.Slice)]
    assert len(updates) == len(slices) == 2
    check(update, A)


def test_updates_that_nothing_reads_between_are_one_pass() -> None:
    def bordered(x: Any) -> Any:
        y = x * 2
        y[0], y[-1], y[:, 0] = 1, 2, 3
        y[1:3, 2:] = x[1:3, 2:]
        return y

    def read(x: Any) -> Any:
        y = x * 2
        y[0] = 1
        total = y.sum()
        y[1] = 2
        y[2] = y[0] + y[1]
        return y, total

    counts: list[list[int]] = []
    for fn in (bordered, read):
        found = traced(fn, A)
        before, after = found.graph, rewrite(found.graph)
        for graph in (before, after):
            updates = [n.op for n in graph.nodes if isinstance(n.op, p.UpdateSlices)]
            counts.append([len(op.steps) for op in updates])
        x = A[:3] - 7
        for array in (A, x):
            same(rebuild(found.out_tree, interpret(after, [array])), fn(array))
    assert counts == [[2, 2, 2, 2], [5], [2, 2, 2], [2, 2, 2]]
    off = rewrite(traced(bordered, A).graph, disabled=frozenset({"merge_updates"}))
    assert len([n for n in off.nodes if isinstance(n.op, p.UpdateSlices)]) == 4

    def chain(x: Any) -> Any:
        y = x + 1
        for i in range(200):
            y[i % 4] = i
        return y

    graph = rewrite(traced(chain, A).graph)
    updates = [n.op for n in graph.nodes if isinstance(n.op, p.UpdateSlices)]
    assert sum(len(op.steps) - 1 for op in updates) == 200 and len(updates) == 4
    same(interpret(graph, [A])[0], chain(A))


def test_extents_of_literal_slices_are_folded() -> None:
    node = traced(lambda x: x.reshape(4, 5)[1:, ::2], A.ravel()).graph.outputs[0]
    assert [const_value(n) for n in node.shape] == [3, 3]
    check(lambda x: [x.reshape(4, 5)[i, j] for i in (-4, -1, 3) for j in (-2, 0)], A.ravel())


# ---- assignment and aliases ----


def aliases(x: Any) -> Any:
    y = x + 1
    w = y[1:]
    turned, items = w.T, y[None, :, 2]
    w[0] = 3
    turned[1] *= 2
    y[..., 0] += x[:, 0]
    items[0, 1:3] = 7
    before = y[0, 0]
    y[0, 0] = 50
    return y, w, turned, items, before


def kinds(x: Any) -> Any:
    y = x.astype(np.int8)
    y[::2] = 3.9
    y[1] = x[0]
    y[:, -1] = [1, 2, 3, 4]
    y[2:3, :2] = np.array([[[8.5]]])
    y[3] = True
    return y


def whole(x: Any) -> Any:
    y = x * 2
    z, w = y, y[...]
    y[...] = x[0]
    y[:, :] += 1
    z[()] -= 2
    return y, z, w


def masks(x: Any) -> Any:
    y = x - 5
    y[y < 0] = 0
    y[x.sum(1) > 60] = -1
    y[np.array([True, False, False, True])] = 99
    w = y[:, 1:]
    w[w > 50] = 5
    return y, w


def shapes_of(x: Any) -> Any:
    y = x + 0
    y.T[0, 1:] = 9
    np.swapaxes(y, 0, 1)[2] = x[:, 0]
    y[:, None][1] = 5
    y[2:3].squeeze(0)[1] = -3
    np.flip(y)[0] = 1
    np.split(y, 2)[1][0] += 100
    np.rot90(y)[0, 0] = 77
    np.atleast_3d(y)[0] = 6
    np.moveaxis(y, 0, 1)[4, 0] = -8
    z = np.stack((y, -y, y * 2))
    np.moveaxis(z, 0, -1)[1, 2] = [7, 8, 9]
    z.transpose(1, 2, 0)[0, :2] += 1
    np.add(x[:, 0], 1, out=y[:, 1])
    np.copyto(y[0], x[1])
    np.copyto(y[:, 3], -1, where=x[:, 0] > 5)
    return y, z


def stepped(x: Any) -> Any:
    y = x.copy()
    y[::-2, 1::3] = x[:2, :2]
    y[::-1] += y
    y[1:] = y[:-1]
    y[1:3] = 5
    y[1:4] *= 3
    y[1:4:2] -= 1
    y[:, 0] /= 2
    v = y[1:3]
    v += 1
    v -= y[0]
    return y, v


def through_reshape(x: Any) -> Any:
    y = (x + 1).reshape(-1)
    y[3] = 100
    z = np.concatenate((x, x)).reshape(2, 4, 5)
    z[1, 2] = 0
    flat = y.reshape(5, 4)  # of a whole array of one axis: a view
    flat[0] = 7
    return y, z, flat


def zero_rank(x: Any) -> Any:
    y = x + 1
    item, scalar = y[1, 2, ...], y[1, 2]
    item += 5
    scalar += 1
    return y, item, scalar


ASSIGNING = [aliases, kinds, whole, masks, shapes_of, stepped, through_reshape, zero_rank]


@pytest.mark.parametrize("fn", ASSIGNING, ids=lambda f: f.__name__)
def test_assignment_is_seen_by_every_alias(fn: Callable[..., Any]) -> None:
    check(fn, A)


def test_compiled_assignments_give_the_same() -> None:
    def every(x: Any) -> Any:
        return [fn(x) for fn in ASSIGNING]

    compiled = ok.compile(every)
    for x in (A, A[::-1], np.asfortranarray(A), np.tile(A, 2)[:, ::2]):
        same(compiled(x), every(x))
    assert compiled.info().traces == 1


def test_an_update_of_a_reshape_leaves_its_source_unsure() -> None:
    def later(x: Any, which: int) -> Any:
        y = x + 1
        w = y.reshape(-1) if which < 2 else y[1].ravel()
        (w if which else y)[0] = 3
        return w if which == 0 else y

    for which in range(3):
        with refused(TraceError, "memory layout", "x.copy().reshape"):
            run(lambda x: later(x, which), A)  # noqa: B023


def test_arguments_and_read_only_views_are_not_assigned_to() -> None:
    def assign(y: Any) -> Any:
        y[0] = 1
        return y

    for view in (lambda x: x, lambda x: x[1:], lambda x: x.T, lambda x: x.reshape(-1)):
        with pytest.raises(TraceError, match=r"an argument.*test_indexing(?s:.*)x = x.copy\(\)"):
            run(lambda x: assign(view(x)), A)  # noqa: B023
    for view in (np.diagonal, lambda y: np.broadcast_to(y, (2, 4, 5)), np.diag):
        with pytest.raises(ReadOnlyError, match=r"read-only.*test_indexing"):
            run(lambda x: assign(view(x + 1)), A)  # noqa: B023
    with pytest.raises(TypeError):
        assign(A.sum())
    with pytest.raises(TraceError, match=r"item assignment.*test_indexing"):
        run(lambda x: assign(x.sum()), A)


# ---- refusals ----


def _set(key: Any, value: Any, dtype: Any = np.float64) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        y = x.astype(dtype)
        y[key] = value
        return y

    return fn


REFUSED: list[tuple[type[Exception], str, Callable[[Any], Any]]] = [
    (IndexError, "too many indices for array: array is 2-dimensional, but 3 were indexed",
     lambda x: x[:, 0, 1]),
    (IndexError, "single ellipsis", lambda x: x[..., ...]),
    (IndexError, "only integers, slices", lambda x: x[1.0]),
    (IndexError, "only integers, slices", lambda x: x["a"]),
    (IndexError, "only integers, slices", lambda x: x[x.shape[0] / 2]),
    (IndexError, "only integers, slices", lambda x: x[x]),
    (IndexError, "index 9 is out of bounds", lambda x: x[9]),
    (IndexError, "index -5 is out of bounds", lambda x: x[-5]),
    (IndexError, "index 7 is out of bounds for axis 1 with size 5",
     lambda x: x.reshape(4, 5)[0, 7]),
    (ValueError, "slice step cannot be zero", lambda x: x[::0]),
    (TypeError, "slice bound", lambda x: x[1.5:]),
    (NotImplementedError, "np.where(mask, x, 0)", lambda x: x[x > 0]),
    (NotImplementedError, "np.where(mask, x, 0)", lambda x: x[True]),
    (NotImplementedError, "np.where(mask, x, 0)", lambda x: x[[True, False, True, True]]),
    (NotImplementedError, "np.stack", lambda x: x[[0, 1]]),
    (NotImplementedError, "np.stack", lambda x: x[np.array([0, 1]), 0]),
    (NotImplementedError, "integer that only a run knows", lambda x: x[x.argmax(0).max()]),
    (ValueError, "could not broadcast input array from shape (2,) into shape (5,)",
     lambda x: _set(0, np.stack((1, x.sum())))(x.reshape(4, 5))),
    (ValueError, "4", _set(0, np.ones(4))),
    (ValueError, "from shape (2,?,?) into shape (?,?)", lambda x: _set(..., np.stack((x, x)))(x)),
    (OverflowError, "Python integer 300 out of bounds for uint8", _set(0, 300, np.uint8)),
    (OverflowError, "out of bounds for int64", _set(0, 1e30, np.int64)),
    (OverflowError, "float", _set(0, np.inf, np.int64)),
    (ValueError, "float", _set(0, float("nan"), np.int8)),
    (TypeError, "complex", _set(0, 1j)),
    (ValueError, "boolean index did not match", lambda x: _set((x > 0)[:2].reshape(2, 5), 1)(
        x.reshape(4, 5))),
    (IndexError, "too many indices", lambda x: _set((x > 0)[None], 1)(x)),
    (NotImplementedError, "np.where(mask, value, x)", lambda x: _set(x > 0, x)(x)),
    (TypeError, "iteration", lambda x: [*x]),
    (TypeError, "0-d", lambda x: list(x.sum())),
    (TypeError, "np.any(x == value)", lambda x: 1.0 in x),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_refusals_name_the_line(i: int) -> None:
    refuses(*REFUSED[i], A)


def test_scalar_arguments_choose_no_items() -> None:
    def stop(x: Any, k: int) -> Any:
        return x[: x.shape[0] - k]

    for fn in (lambda x, k: x[k], lambda x, k: x[k:], stop, lambda x, k: x[::k]):
        with pytest.raises(TraceError, match=r"scalar argument p1.*test_index(?s:.*)static=.p1"):
            run(fn, A, 2)


def test_sizes_that_do_not_fit_are_found_when_the_program_runs() -> None:
    graph = traced(_set(0, np.arange(5.0)), A).graph
    held = [np.arange(5.0)]
    with pytest.raises(ShapeError, match="test_indexing"):
        interpret(graph, [np.ones((2, 3)), *held])
    graph = traced(lambda x: x[3], V).graph
    assert interpret(graph, [V]) == [3]
    with pytest.raises(BoundsError, match=r"index 3 is out of bounds(?s:.*)test_indexing"):
        interpret(graph, [V[:3]])
    graph = traced(lambda x, m: _set(m, 0)(x), A, A > 3).graph
    with pytest.raises(ShapeError, match="test_indexing"):
        interpret(graph, [A, A[:1] > 3])


def test_items_along_a_known_axis_are_unpacked() -> None:
    def unpack(x: Any) -> Any:
        first, (second, third) = x.reshape(2, 10)[0].reshape(2, 5), np.stack((x, -x))
        return list(first), second, third

    check(unpack, A)


def test_F042_no_write_through_a_broadcast() -> None:
    def write(x: Any) -> Any:
        out = np.broadcast_to(x + 1, (3,))
        out[-1] = 5
        return out

    for fn in (write, lambda x: np.add(x, 1, out=np.broadcast_to(x + 1, (3,)))):
        with pytest.raises(ValueError, match="read-only"):
            fn(np.ones(1))
        with pytest.raises(ReadOnlyError, match="read-only"):
            run(fn, np.ones(1))


def test_F043_F044_overlapping_windows_of_intermediates() -> None:
    def shifted(x: Any) -> Any:
        a, b, c = +x, +x, +x
        np.add(a[1:], a[:-1], out=a[1:])
        np.add(b[::-1], b, out=b)
        v, w = c[:4], c[2:6]
        v *= 2
        return a, b, v + w

    for n in (6, 103):
        check(shifted, np.arange(float(n)))
    check(shifted, np.ones(8))


def test_F045_one_rule_for_what_gives_the_array_back() -> None:
    def update(x: Any) -> Any:
        y = x + 1
        same_shape, same_dtype = y.reshape(y.shape), y.astype(y.dtype, copy=False)
        same_shape += same_shape
        same_dtype += 1
        return y, same_shape, same_dtype

    check(update, A)


def test_F060_slices_of_one_buffer_stay_apart() -> None:
    t = np.arange(4.0)
    assert run(lambda t: t[1:4].max() - t[1:3].min(), t) == 2
    assert check(lambda t: np.pad(-t - 1, 1)[1:-1].max(), t) == -1


def test_F113_wide_stacks_and_long_chains() -> None:
    parts = np.arange(6131.0)

    def wide(x: Any) -> Any:
        return np.stack([x * k for k in range(6131)])

    found = run(wide, np.float64(2)[None])
    np.testing.assert_array_equal(found[:, 0], 2 * parts)

    def long(x: Any) -> Any:
        y = x + 1
        for _ in range(3000):
            y = y[:]
            y[1:] += 1
        return y

    check(long, V.astype(float))


def test_huge_bounds() -> None:
    big = 2**63 - 1
    check(lambda x: (x[:big], x[big:], x[-big:], x[: 10**30], x[-(10**30) :: -1], x[-big - 1 :]), V)
    with pytest.raises((BoundsError, HostRangeError)):
        run(lambda x: x[10**30], V)


@pytest.mark.parametrize("step", [2**62, 2**63 - 1, 2**64, -(2**63), -(2**70)])
def test_steps_of_any_size(step: int) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(ok.compile(lambda a: a[:, ::step] + 1)(x), x[:, ::step] + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[2**70],
        lambda x: np.pad(x, 2**62) * 1.0,
        lambda x: x.reshape(2**40, 2**40),
        lambda x: np.roll(x, 2**70),
        lambda x: np.diagonal(x, 2**70),
    ],
)
def test_sizes_beyond_int64_are_refused_by_name(function: Any) -> None:
    with pytest.raises((OverflowError, IndexError, ValueError)) as caught:
        ok.compile(function)(np.ones((2, 3)))
    assert isinstance(caught.value, ok.errors.OpkilnError)
