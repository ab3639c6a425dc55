"""The interpreter gives NumPy's values, fresh results, and typed errors that name the line."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import SUPPORTED, kind_of
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import (
    HostDivisionError,
    HostRangeError,
    IntegerPowerError,
    NotYet,
    ShapeError,
)
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import graph_input
from opkiln.runtime.reference import evaluate_host, from_host, interpret

F4, I8, U8, I64, F8 = (np.dtype(t) for t in ("f4", "i1", "u1", "i8", "f8"))


def ew(row: str, *src: Node) -> Node:
    return make(p.Elementwise(row), *src)


def run(node: Node, *arrays: Any, weak: Any = ()) -> Any:
    return interpret(Graph(inputs_of(*arrays), (node,)), arrays, weak)[0]


def inputs_of(*arrays: Any) -> tuple[Node, ...]:
    return tuple(graph_input(i, np.asarray(a).dtype, np.ndim(a)) for i, a in enumerate(arrays))


@pytest.mark.parametrize("row", ELEMENTWISE.values(), ids=lambda row: row.name)
def test_rows_are_numpy(row: Any) -> None:
    for dtype in (s.numpy for s in SUPPORTED):
        if row.name in ("where", "erf"):
            types = (np.dtype(bool), dtype, dtype) if row.arity == 3 else (np.dtype(np.float64),)
        else:
            try:
                types, _ = row.signature(row, (dtype,) * row.arity)
            except TypeError:
                continue
        if kind_of(types[-1]) not in row.accepts:
            continue
        arrays = [
            np.array([1, 0, 1, 3] if i == 0 else [2, 1, 2, 4], t) for i, t in enumerate(types)
        ]
        with np.errstate(all="ignore"):
            expected = row.numpy(*arrays)
        found = run(ew(row.name, *inputs_of(*arrays)), *arrays)
        assert found.dtype == expected.dtype
        if expected.dtype.kind == "V":  # NumPy takes no two NaN of bfloat16 for equal
            found, expected = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("row", REDUCTIONS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_are_numpy(row: Any, axes: tuple[int, ...], keepdims: bool) -> None:
    """The ufunc itself on the dtypes it accumulates in; an index counts along all the axes."""
    for kind in row.accepts:
        x = (np.arange(24) * 7 % 23).astype({"b": "?", "i": "i4", "u": "u1", "f": "f4"}[kind])
        x = x.reshape(2, 3, 4)
        found = run(make(p.Reduce(row.name, axes, keepdims, x.dtype), *inputs_of(x)), x)
        if row.finds:
            kept = [i for i in range(3) if i not in axes]
            flat = x.transpose(*kept, *axes).reshape(*(x.shape[i] for i in kept), -1)
            want = row.numpy(flat, axis=-1)
            want = np.expand_dims(want, axes) if keepdims else want
        else:
            want = row.numpy.reduce(x, axis=axes, dtype=x.dtype, keepdims=keepdims)
        np.testing.assert_array_equal(found, want)
        assert found.dtype == want.dtype


def test_views_and_leaves() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (i,) = inputs_of(x)
    np.testing.assert_array_equal(run(make(p.Transpose((1, 0)), i), x), x.T)
    np.testing.assert_array_equal(run(make(p.ExpandDims((0, 2)), i), x), x[None, :, None])
    two = host_const(2)
    np.testing.assert_array_equal(run(make(p.BroadcastTo(), i, two, *i.shape), x), [x, x])
    assert run(make(p.Constant(np.int8(3)))) == 3
    assert run(i.shape[1], x) == 3
    cast = run(make(p.Cast(U8), i), x)
    assert cast.dtype == np.uint8


def test_results_share_no_memory() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (i,) = inputs_of(x)
    flat = make(p.Transpose((1, 0)), i)
    wide = make(p.BroadcastTo(), i, host_const(2), *i.shape)
    outs = interpret(Graph((i,), (i, flat, wide, i)), [x])
    for out in outs:
        assert not np.shares_memory(out, x) and out.flags.writeable
    assert outs[0] is outs[3]
    held = np.float32(3)
    scalar = run(graph_input(0, F4, 0), held)
    assert type(scalar) is np.float32
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    assert run(graph_input(0, F4, 1), read_only).flags.writeable


def test_arguments_are_checked() -> None:
    x = graph_input(0, F4, 1)
    with pytest.raises(TypeError, match="expected 1 arrays, got 0"):
        interpret(Graph((x,), (x,)), [])
    with pytest.raises(TypeError, match="float32 array of rank 1"):
        interpret(Graph((x,), (x,)), [np.ones(3)])


def test_shape_guards_name_extents_and_line() -> None:
    a, b = np.ones(3, np.float32), np.ones(4, np.float32)
    i, j = inputs_of(a, b)
    both = ew("add", i, j)
    with pytest.raises(ShapeError, match=r"with shapes \(3,\) \(4,\) \(user.py:7\)"):
        interpret(Graph((i, j), (both,), {both: "user.py:7"}), [a, b])
    with pytest.raises(ShapeError, match="expected 3, got 4"):
        interpret(Graph((i, j), (make(p.BroadcastTo(), j, *i.shape),)), [a, b])
    with pytest.raises(ShapeError, match=r"extents (3 and 4|4 and 3)"):
        evaluate_host(both.shape, [(3,), (4,)])
    assert evaluate_host(both.shape, [(3,), (1,)]) == [3]
    assert evaluate_host(both.shape, [(0,), (1,)]) == [0]


def test_empty_reductions() -> None:
    x = np.zeros((0, 3), np.float32)
    (i,) = inputs_of(x)
    assert run(make(p.Reduce("sum", (0,), False, F4), i), x).tolist() == [0, 0, 0]
    assert run(make(p.Reduce("max", (1,), False, F4), i), x).shape == (0,)
    with pytest.raises(ShapeError, match="no identity"):
        run(make(p.Reduce("max", (0,), False, F4), i), x)


def host(fn: str, *values: Any) -> Any:
    nodes = [make(p.HostArg(i, "f" if isinstance(v, float) else "i")) for i, v in enumerate(values)]
    return evaluate_host([make(p.HostOp(fn), *nodes)], (), values)[0]


@pytest.mark.parametrize(
    ("fn", "values", "expected"),
    [
        ("add", (2, 3), 5),
        ("sub", (2, 3), -1),
        ("mul", (2.5, 2), 5.0),
        ("floordiv", (-7, 2), -4),
        ("mod", (-7, 2), 1),
        ("truediv", (7, 2), 3.5),
        ("pow", (2, 10), 1024),
        ("pow", (2.0, -1.0), 0.5),
        ("neg", (3,), -3),
        ("abs", (-3,), 3),
        ("max", (2, 3), 3),
        ("min", (2, 3), 2),
        ("float", (3,), 3.0),
        ("bcast", (1, 5), 5),
        ("same", (5, 5), 5),
        ("nonempty", (3, 1), 3),
        ("floordiv", (-7.5, 2.0), -4.0),
        ("pow", (-1, 1000), 1),
        ("pow", (0, 1000), 0),
        ("pow", (1, 2**40), 1),
    ],
)
def test_host_arithmetic(fn: str, values: Any, expected: Any) -> None:
    found = host(fn, *values)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("fn", "values", "error"),
    [
        ("add", (2**63 - 1, 1), HostRangeError),
        ("sub", (-(2**63), 1), HostRangeError),
        ("mul", (2**40, 2**40), HostRangeError),
        ("neg", (-(2**63),), HostRangeError),
        ("abs", (-(2**63),), HostRangeError),
        ("pow", (10, 30), HostRangeError),
        ("pow", (3, 10**9), HostRangeError),
        ("pow", (1e300, 2.0), HostRangeError),
        ("floordiv", (1, 0), HostDivisionError),
        ("mod", (1.0, 0.0), HostDivisionError),
        ("truediv", (1, 0), HostDivisionError),
        ("pow", (0.0, -1.0), HostDivisionError),
        ("pow", (2, -1), IntegerPowerError),
        ("pow", (-2.0, 0.5), NotYet),
        ("bcast", (2, 3), ShapeError),
        ("same", (2, 3), ShapeError),
        ("nonempty", (0, 1), ShapeError),
    ],
)
def test_host_errors(fn: str, values: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        host(fn, *values)


@pytest.mark.parametrize(
    ("value", "dtype", "mode", "expected"),
    [
        (300, "uint8", "saturate", 255),
        (-5, "uint8", "saturate", 0),
        (300, "uint8", "wrap", 44),
        (-1, "uint64", "wrap", 2**64 - 1),
        (2**63, "int64", "wrap", -(2**63)),
        (200, "int8", "wrap", -56),
        (7, "float32", "check", 7),
        (1e40, "float32", "check", np.inf),
        (-0.0, "float32", "check", -0.0),
        (2**53 + 1, "float64", "check", 2.0**53),
        (3, "bool", "check", True),
        (16777217 * 2**29 + 1, "float32", "check", np.float32(float(16777217 * 2**29 + 1))),
    ],
)
def test_from_host(value: Any, dtype: str, mode: str, expected: Any) -> None:
    found = from_host(value, np.dtype(dtype), mode)
    assert (
        found.dtype == dtype
        and found == expected
        and np.signbit(float(found)) == np.signbit(float(expected))
    )


def test_from_host_refuses() -> None:
    for value, dtype in ((300, "uint8"), (-1, "uint64"), (2**63, "int64"), (10**400, "float64")):
        with pytest.raises(HostRangeError):
            from_host(value, np.dtype(dtype), "check")


def test_negative_integer_powers() -> None:
    a, b = np.array([2, 3]), np.array([1, -1])
    with pytest.raises(IntegerPowerError, match="negative integer powers"):
        run(ew("power", *inputs_of(a, b)), a, b)


def test_no_warning_and_numpy_settings_untouched() -> None:
    before = np.geterr()
    a, b = np.array([1, 5], np.int32), np.array([0, 2], np.int32)
    with np.errstate(all="raise"):
        assert run(ew("floor_divide", *inputs_of(a, b)), a, b).tolist() == [0, 2]
        assert np.isnan(run(ew("log", *inputs_of(np.float64(-1))), np.float64(-1)))
    assert np.geterr() == before


def test_deep_graphs_free_what_is_used_up() -> None:
    x = np.ones(200_000, np.float32)
    (node,) = inputs_of(x)
    for _ in range(5_000):  # 4 GB if every intermediate were kept
        node = ew("negative", node)
    tracemalloc.start()  # NumPy reports its memory there
    try:
        assert run(node, x)[0] == 1
        assert tracemalloc.get_traced_memory()[1] < 20 * x.nbytes
    finally:
        tracemalloc.stop()
