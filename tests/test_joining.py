"""Reshapes, joins, splits and what is written over them: NumPy's values, shapes and dtypes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import check, outcome, rebuild, refuses, run, same, traced

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime.errors import ShapeError, TraceError
from opkiln.runtime.graph import NOT_ONE
from opkiln.runtime.infer import guards, numel
from opkiln.runtime.reference import evaluate_host, interpret

A = np.arange(24.0).reshape(4, 6)
B = np.arange(12, dtype=np.int16).reshape(2, 6)
C = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
V = np.array([3, -1, 4, 1, 5], np.int8)
W = np.array([2.5, -0.5, 7.25])

# Functions of A, B, C, V, W; each gives a tuple of results.
TABLE: dict[str, Callable[..., Any]] = {
    "reshape": lambda a, b, c, v, w: (
        a.reshape(24),
        a.reshape(-1),
        a.reshape(6, 4),
        a.reshape((2, -1, 3)),
        a.reshape(1, 4, 6, 1),
        np.reshape(c, (-1, 3)),
        np.reshape(c, 30),
        a.reshape(a.shape[1], a.shape[0]),
        a.reshape(a.shape[0], 2, -1),
        a.reshape(a.size),
        c.reshape(c.shape[0], -1),
        c.reshape(-1, c.shape[1] * c.shape[2]),
        v.reshape(5, 1, 1),
        w.sum().reshape(1, 1),
        w.reshape(3),
    ),
    "order": lambda a, b, c, v, w: (
        a.reshape((3, 8), order="F"),
        np.reshape(c, (3, 10), "F"),
        c.reshape(-1, order="F"),
        a.ravel("F"),
        c.flatten("F"),
        np.ravel(c),
        v.ravel(),
        a.flatten(),
        a.reshape(4, 6, copy=True),
        w.sum().reshape((), order="F"),
    ),
    "squeeze": lambda a, b, c, v, w: (
        np.squeeze(a[:, :1], 1),
        a[:1].squeeze(axis=0),
        np.squeeze(a[None, :, :1], (0, -1)),
        np.squeeze(c),
        a.squeeze(),
        a[:1, :1].squeeze(),
        c[:, :1].squeeze(),
    ),
    "at least": lambda a, b, c, v, w: (
        np.atleast_1d(w.sum()),
        np.atleast_2d(w),
        np.atleast_2d(w.sum(), v),
        np.atleast_3d(w),
        np.atleast_3d(a),
        np.atleast_3d(w.sum()),
        np.atleast_3d(c),
    ),
    "orders": lambda a, b, c, v, w: (
        np.flip(c),
        np.flip(c, 1),
        np.flip(c, (0, -1)),
        np.fliplr(a),
        np.flipud(v),
        np.flip(w.sum()),
        [np.rot90(a, k) for k in range(-1, 5)],
        np.rot90(c, 1, (2, 0)),
        np.rollaxis(c, 2),
        np.rollaxis(c, 0, 3),
        np.rollaxis(c, 1, -1),
        np.moveaxis(c, 0, -1),
        np.swapaxes(c, 0, 2),
    ),
    "roll": lambda a, b, c, v, w: (
        [np.roll(v, k) for k in (-7, -5, -1, 0, 1, 3, 12)],
        np.roll(a, 5),
        np.roll(a, 2, axis=1),
        np.roll(a, (1, -2), axis=(0, 1)),
        np.roll(a, 1, axis=(0, 1)),
        np.roll(c, (1, 2), 2),
    ),
    "diagonals": lambda a, b, c, v, w: (
        [np.diagonal(a, k) for k in (-5, -2, 0, 1, 5, 7)],
        c.diagonal(),
        c.diagonal(1, 2, 0),
        np.diagonal(c, -1, 1, 2),
        np.trace(a),
        a.trace(1),
        np.trace(c, axis1=1, axis2=2),
        np.trace(b),
        b.trace(dtype=np.float32),
        np.diag(a),
        np.diag(a, -1),
        np.diag(w),
        np.diag(v, 2),
        np.diag(v, -1),
        np.linalg.diagonal(c, offset=1),
        np.linalg.trace(c, dtype=np.float64),
        np.linalg.matrix_transpose(c),
    ),
    "triangles": lambda a, b, c, v, w: (
        np.tril(a),
        np.triu(a),
        np.tril(c, -1),
        np.triu(b, 2),
        np.tril(v),
    ),
    "repetitions": lambda a, b, c, v, w: (
        np.repeat(a, 2),
        a.repeat(3, axis=1),
        np.repeat(c, 2, -2),
        np.repeat(v, 0),
        np.repeat(w.sum(), 2),
        np.repeat(w.sum(), 2, axis=0),
        np.tile(v, 2),
        np.tile(a, (2, 1)),
        np.tile(a, (2, 1, 3)),
        np.tile(c, 2),
        np.tile(v, (2, 2)),
        np.tile(v, 1),
        np.tile(w, w.shape[0]),
    ),
    "concatenate": lambda a, b, c, v, w: (
        np.concatenate((a, b)),
        np.concatenate([a.T, b.T], axis=-1),
        np.concat([v, w, [1, 2]]),
        np.concatenate((a, b, c), axis=None),
        np.concatenate((v,)),
        np.concatenate((v, v, v[:0])),
        np.concatenate((v, w), dtype=np.float32),
        np.concatenate((w, v), dtype=np.int8, casting="unsafe"),
        np.append(v, 7),
        np.append(w, a),
        np.append(a, b, axis=0),
    ),
    "stack": lambda a, b, c, v, w: (
        np.stack((v, v + 1)),
        np.stack([a, a.astype(np.int64)], axis=-1),
        np.stack((w.sum(), w.max(), v.sum())),
        np.stack((w.sum(), 3)),
        np.hstack((v, w)),
        np.hstack([a, a[:, :2]]),
        np.vstack((w, w)),
        np.vstack((a, b)),
        np.dstack((v, v)),
        np.dstack((a, a)),
        np.column_stack((v, v)),
        np.column_stack((a, a[:, 0])),
        np.hstack((w.sum(), w)),
        np.block([[a, a], [b, b]]),
        np.block([v, 1]),
    ),
    "split": lambda a, b, c, v, w: (
        np.split(a, 2),
        np.split(a, 3, axis=1),
        np.split(a, [1, 3]),
        np.split(v, [2, 1, 9]),
        np.array_split(v, 3),
        np.array_split(v, 7),
        np.array_split(a, 4, 1),
        np.hsplit(a, 2),
        np.hsplit(v, [2]),
        np.vsplit(a, 2),
        np.dsplit(c, 3),
        np.unstack(a.reshape(2, -1)),
        np.unstack(a.reshape(2, -1, 3), axis=2),
    ),
    "unpack": lambda a, b, c, v, w: [p + q for p, q in [a.reshape(2, -1)]],
    "pad": lambda a, b, c, v, w: (
        np.pad(v, 2),
        np.pad(a, ((1, 2), (0, 3))),
        np.pad(a, (1, 2), constant_values=7),
        np.pad(a, 1, constant_values=((1, 2), (3, 4))),
        np.pad(v, (0, 1), constant_values=(5, 6.75)),
        np.pad(c, 1, mode="edge"),
        np.pad(v, (3, 0), "edge"),
        np.pad(v, 4, "reflect"),
        np.pad(v, (5, 2), mode="symmetric"),
        np.pad(v, (2, 5), mode="wrap"),
        np.pad(a, ((0, 0), (1, 1)), "reflect"),
        np.pad(a, 0),
        np.pad(a, {-1: (1, 2)}),
        np.pad(a, ((1,), (2,))),
        np.pad(a, [3]),
    ),
    "differences": lambda a, b, c, v, w: (
        np.diff(v),
        np.diff(a, axis=0),
        np.diff(a, 2),
        np.diff(v, 9),
        np.diff(v, 0),
        np.diff(v > 2),
        np.diff(v, prepend=0),
        np.diff(a, append=a[:, :1], prepend=1),
        np.ediff1d(a),
        np.ediff1d(w, to_end=1.5, to_begin=np.array([1.0, 2.0])),
    ),
    "products": lambda a, b, c, v, w: (
        np.outer(v, w),
        np.outer(a, v),
        np.multiply.outer(v, w),
        np.add.outer(a, v),
        np.subtract.outer(w.sum(), v),
        np.kron(a, b),
        np.kron(v, a),
        np.kron(w.sum(), v),
        np.cross(w, w + v[:3]),
        np.cross(c, w),
        np.cross(c, np.ones(3), axisc=0),
        np.linalg.cross(c, w),
        np.linalg.outer(v, w),
        np.meshgrid(v, w),
        np.meshgrid(v, w, w, indexing="ij"),
        np.meshgrid(v, w, sparse=True),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_values_dtypes_and_shapes_are_numpys(name: str) -> None:
    check(TABLE[name], A, B, C, V, W)


# Functions of two matrices of as many columns.
SIZED: list[Callable[..., Any]] = [
    lambda x, y: (np.concatenate((x, y, x)), np.append(x, y), np.stack((x, x * 2), 1)),
    lambda x, y: (x.reshape(x.shape[0], -1), x.reshape(-1, x.shape[1]), x.ravel(), y.T.ravel()),
    lambda x, y: (np.roll(x, 3, 0), np.roll(y, -2), np.rot90(y), np.diff(y, axis=0)),
    lambda x, y: (np.diagonal(x, 1), np.trace(y), np.diag(x[0]), np.diag(y[0], -1)),
    lambda x, y: (np.pad(x, (1, 2)), np.pad(y, ((1, 0), (0, 2)), constant_values=3)),
    lambda x, y: (np.repeat(x, 2, 1), np.tile(y, (2, 3)), np.kron(x, y), np.outer(x, y)),
    lambda x, y: (np.array_split(x, 3), np.array_split(y, 2, 1), np.hstack((y, y))),
    lambda x, y: (x.reshape(x.shape[1], x.shape[0]), x[:, None].squeeze(1), np.meshgrid(x, y)),
    lambda x, y: np.concatenate((x[:1], y[:, ::-1], x[1:]))[::2],
]  # fmt: skip
SIZES = ((3, 2, 4), (0, 1, 3), (1, 0, 1), (5, 7, 2), (4, 4, 1), (1, 1, 7), (6, 2, 9))


def matrices(n: int, m: int, k: int) -> tuple[Any, Any]:
    return np.arange(float(n * k)).reshape(n, k), -np.arange(float(m * k)).reshape(m, k)


@pytest.mark.parametrize("i", range(len(SIZED)))
def test_one_trace_for_every_size(i: int) -> None:
    fn = SIZED[i]
    found = traced(fn, *matrices(3, 2, 4))
    assert found.pins == ()
    for sizes in SIZES:
        given = matrices(*sizes)
        expected = outcome(fn, *given)
        if expected is not ValueError and expected is not IndexError:  # of no rows
            same(rebuild(found.out_tree, interpret(found.graph, given)), expected)


def test_compiled_functions_give_the_same() -> None:
    """One program of the whole table, and one of all sizes."""

    def whole(*args: Any) -> Any:
        return {name: fn(*args) for name, fn in TABLE.items()}

    same(ok.compile(whole)(A, B, C, V, W), whole(A, B, C, V, W))

    @ok.compile
    def sized(x: Any, y: Any) -> Any:
        return [fn(x, y) for fn in SIZED]

    for sizes in SIZES:
        if 0 not in sizes:
            given = matrices(*sizes)
            same(sized(*given), [fn(*given) for fn in SIZED])
    assert sized.info().traces == 1


def test_no_rows_have_the_columns_that_sizes_give_them() -> None:
    """Where NumPy cannot tell, since it sees the number 0 alone."""
    assert run(lambda x: x.reshape(x.shape[0], -1), A[:0]).shape == (0, 6)
    graph = traced(lambda x, y: x.reshape(y.shape[0], -1), A, V[:4]).graph
    assert interpret(graph, [A, V[:3]])[0].shape == (3, 8)
    with pytest.raises(ShapeError, match="size 24 into shape"):
        interpret(graph, [A, V[:0]])


def test_what_decides_the_rank_pins_what_it_needs_of_the_sizes() -> None:
    assert traced(lambda x: x.squeeze(), A[:1]).pins == ((0, 0, 1), (0, 1, NOT_ONE))
    assert traced(lambda x: x.squeeze(0), A[:1]).pins == ()
    assert traced(np.tril, A).pins == ((0, 0, 4), (0, 1, 6))


def test_a_split_takes_part_in_one_pass() -> None:
    """Its sections share their extents, so they meet without a check."""

    def halves(x: Any) -> Any:
        a, b = np.split(x, 2)
        return a * b

    assert "bcast" not in str(traced(halves, A).graph)
    check(halves, A)


def test_joins_write_each_element_once() -> None:
    for fn in (
        lambda x: np.pad(x, ((1, 2), (3, 4)), constant_values=((1, 2), (3, 4))),
        lambda x: np.roll(x, 1, 0),
        lambda x: np.concatenate((x, x, x)),
    ):
        (node,) = traced(fn, A).graph.outputs
        assert isinstance(node.op, p.UpdateSlices) and node.op.disjoint
        sizes = evaluate_host(
            [numel(value.shape) for value, _, _ in node.op.parts(node.src)], [A.shape]
        )
        assert sum(sizes) == fn(A).size


def test_F113_flat_sizes_cancel() -> None:
    def fn(x: Any) -> Any:
        n, m, k = x.shape
        flat = x.reshape(n * m, k).reshape(-1).reshape(n, m * k).reshape(n, m, -1)
        return flat + x

    graph = traced(fn, C).graph
    assert "bcast" not in str(graph) and "floordiv" not in str(graph)
    assert not [g for node in graph.nodes for g in guards(node)]
    check(fn, C)


# ---- refusals ----

REFUSED: list[tuple[type[Exception], str, Callable[[Any], Any]]] = [
    (ValueError, "cannot reshape array of size 24 into shape (5,5)",
     lambda x: x.reshape(4, 6).reshape(5, 5)),
    (ValueError, "cannot reshape array of size 24 into shape (5,newaxis)",
     lambda x: x.reshape(4, 6).reshape(5, -1)),
    (ValueError, "size 24 into shape (5,5)", lambda x: x.reshape(5, 5)),
    (ValueError, "only specify one unknown dimension", lambda x: x.reshape(-1, -1)),
    (ValueError, "one dimension is 0", lambda x: x[:0].reshape(0, -1)),
    (TypeError, "shape", lambda x: x.reshape(2.0, 12)),
    (TypeError, "use // instead of /", lambda x: x.reshape(x.size / 6, 6)),
    (ValueError, "order must be one of", lambda x: x.reshape(x.shape, order="Q")),
    (NotImplementedError, 'order="C" or order="F"', lambda x: x.ravel("K")),
    (NotImplementedError, "copy=", lambda x: x.reshape(x.shape, copy=False)),
    (ValueError, "not equal to one", lambda x: x.reshape(4, 6).squeeze(0)),
    (ValueError, "expected", lambda x: x.squeeze(0)),
    (IndexError, "axis 2 is out of bounds", lambda x: np.flip(x, 2)),
    (IndexError, "axis 3 is out of bounds", lambda x: np.stack((x, x), 3)),
    (IndexError, "axis 5 is out of bounds", lambda x: np.roll(x, 1, 5)),
    (IndexError, "'start' arg requires -2 <= start < 3", lambda x: np.rollaxis(x, 0, 9)),
    (ValueError, "Input must be >= 2-d.", lambda x: np.fliplr(x[0])),
    (ValueError, "len(axes) must be 2", lambda x: np.rot90(x, 1, (0,))),
    (ValueError, "duplicate", lambda x: np.rot90(x, 1, (0, 0))),
    (ValueError, "at least two dimensions", lambda x: x[0].diagonal()),
    (ValueError, "cannot be the same", lambda x: x.diagonal(0, 1, 1)),
    (ValueError, "Input must be 1- or 2-d.", lambda x: np.diag(x[None])),
    (ValueError, "repeats may not contain negative values", lambda x: np.repeat(x, -1)),
    (NotImplementedError, "for each item", lambda x: np.repeat(x, [1, 2])),
    (ValueError, "zero-dimensional arrays", lambda x: np.concatenate((x, 1))),
    (ValueError, "same number of dimensions, but the array at index 0 has 2 dimension(s) and the "
     "array at index 1 has 1 dimension(s)", lambda x: np.concatenate((x, x[0]))),
    (ValueError, "along dimension 1, the array at index 0 has size 6 and the array at index 1 has "
     "size 2", lambda x: np.concatenate((x.reshape(4, 6), x.reshape(-1, 2)))),
    (ValueError, "expected 6, got 2", lambda x: np.concatenate((x, x[:, :2]))),
    (ValueError, "same shape", lambda x: np.stack((x, x[0]))),
    (TypeError, "safe", lambda x: np.concatenate((x, x), dtype=np.int8, casting="safe")),
    (TypeError, "out=", lambda x: np.concatenate((x, x), out=x)),
    (ValueError, "List depths are mismatched", lambda x: np.block([[x], x])),
    (ValueError, "equal division", lambda x: np.split(x.reshape(4, 6), 3)),
    (ValueError, "expected 4, got 3", lambda x: np.split(x, 3)[0]),
    (ValueError, "number sections must be larger than 0", lambda x: np.array_split(x, 0)),
    (ValueError, "vsplit only works on arrays of 2", lambda x: np.vsplit(x[0], 2)),
    (TypeError, "iteration", lambda x: np.unstack(x + 0)),
    (ValueError, "at least 1-d", lambda x: np.unstack(x.sum())),
    (ValueError, "negative values", lambda x: np.pad(x, -1)),
    (ValueError, "a pair for each of 2 axes", lambda x: np.pad(x, ((1, 2, 3),))),
    (NotImplementedError, "reflect, symmetric, wrap", lambda x: np.pad(x, 1, "mean")),
    (NotImplementedError, "reflect_type", lambda x: np.pad(x, 1, "reflect", reflect_type="odd")),
    (ValueError, "too short to be extended so far: expected 7",
     lambda x: np.pad(x.reshape(4, 6), 6, "reflect")),
    (ValueError, "expected 7, got 6", lambda x: np.pad(x, ((0, 0), (6, 0)), "reflect")),
    (ValueError, "axis 0 of length 0 is too short", lambda x: np.pad(x[:0], 1, "edge")),
    (ValueError, "order must be non-negative but got -1", lambda x: np.diff(x, -1)),
    (ValueError, "at least one dimension", lambda x: np.diff(x.sum())),
    (TypeError, "`to_end`", lambda x: np.ediff1d(x.astype(np.int8), to_end=1.5)),
    (ValueError, "but they are 6-dimensional", lambda x: np.cross(x.reshape(4, 6), x)),
    (ValueError, "expected 3, got 6", lambda x: np.cross(x, x)),
    (ValueError, "x1.ndim=2 and x2.ndim=1", lambda x: np.linalg.outer(x, x[0])),
    (ValueError, "'xy' and 'ij'", lambda x: np.meshgrid(x, x, indexing="yx")),
    (NotImplementedError, "x[i] for each literal index", lambda x: np.take(x, [0])),
    (NotImplementedError, "np.concatenate((x[:i], values, x[i:])", lambda x: np.insert(x, 0, 1)),
    (NotImplementedError, "np.concatenate((x[:i], x[i + 1:])", lambda x: np.delete(x, 0)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_refusals_name_the_line(i: int) -> None:
    refuses(*REFUSED[i], A)


def test_numbers_of_arguments_fix_no_shape() -> None:
    for fn in (
        lambda x, k: (x, np.roll(x, k)),
        lambda x, k: (x, np.pad(x, k)),
        lambda x, k: (x, np.split(x, k)),
        lambda x, k: (x, np.rot90(x, k)),
        lambda x, k: (x, np.diff(x, k)),
    ):
        with pytest.raises(TraceError, match=r"scalar argument p1.*test_joining(?s:.*)static=.p1"):
            run(fn, A, 2)
