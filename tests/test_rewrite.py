"""Rewriting changes no bit: each rule on values at the ends of the ranges, then random programs."""

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.ops.dtypes import SUPPORTED, kind_of
from opkiln.runtime import rewrite as rw
from opkiln.runtime.errors import ShapeError
from opkiln.runtime.graph import Graph, Node, const_value, host_const, make
from opkiln.runtime.infer import graph_input
from opkiln.runtime.reference import interpret
from opkiln.runtime.rewrite import TABLES, lossless, rewrite

BROADCAST = p.BroadcastTo()
DTYPES = {row.name: row.numpy for row in SUPPORTED}
INTEGERS = [n for n, d in DTYPES.items() if d.kind in "iu"]
SIGNED = [n for n in INTEGERS if n[0] == "i"]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
NUMBERS = INTEGERS + FLOATS


def special(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values at the ends of the range and around zero."""
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.kind == "c":
        part = special(np.empty(0, dtype).real.dtype)
        pairs = np.stack(np.broadcast_arrays(part[:, None], part[None, :]), axis=-1)
        return np.ascontiguousarray(pairs).view(dtype).ravel()
    if kind_of(dtype) == "f":
        info = ml_dtypes.finfo(dtype)
        tiny = float(info.smallest_subnormal)
        values = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            2.5,
            -2.5,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            info.min,
            tiny,
            -tiny,
        ]
        with np.errstate(over="ignore"):
            return np.array([*values, float(info.tiny), 16777217.0, 1e10]).astype(dtype)
    limits = np.iinfo(dtype)
    values = [limits.min, limits.min + 1, 0, 1, 2, 7, limits.max - 1, limits.max]
    return np.array(values + ([-1, -2] if dtype.kind == "i" else []), dtype)


def bits(value: Any) -> bytes:
    """Bytes of an array; every NaN is one NaN."""
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return b"c" + bits(array.real) + bits(array.imag)
    if kind_of(array.dtype) == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.dtype.name.encode() + str(array.shape).encode() + array.tobytes()


def equal(graph: Graph, new: Graph, arrays: list[Any]) -> None:
    for old, fresh in zip(interpret(graph, arrays), interpret(new, arrays), strict=True):
        assert bits(old) == bits(fresh)


def ew(row: str, *src: Node) -> Node:
    return make(p.Elementwise(row), *src)


def const(value: Any, dtype: str) -> Node:
    return make(p.Constant(DTYPES[dtype].type(value)))


def of(like: Node, row: str, a: Any, b: Any) -> Node:
    return ew(row, const(a, like.dtype.name), const(b, like.dtype.name))


def two() -> Node:
    return make(p.HostOp("add"), host_const(1), host_const(1))


def reshape(x: Node, *shape: Node) -> Node:
    return make(p.Reshape(), x, *shape)


def stacked(x: Node, *, axis: int) -> Node:
    """x, and x backwards, along a new axis of rank 3, the first or the second."""
    n, one, zero = x.shape[0], host_const(1), host_const(0)
    back = make(p.Slice((0,), (-1,)), x, make(p.HostOp("sub"), n, one), n)
    rest = tuple(i for i in range(3) if i != axis)
    shape = tuple(host_const(2) if i == axis else n if i == rest[1] else one for i in range(3))
    parts = [make(p.ExpandDims(tuple(sorted((axis, rest[0])))), v) for v in (x, back)]
    starts = [tuple(host_const(k) if i == axis else zero for i in range(3)) for k in (0, 1)]
    op = p.UpdateSlices(x.dtype, ((1,) * 3,) * 2, True)
    return make(op, *shape, parts[0], *starts[0], parts[1], *starts[1])


def fold(row: str, x: Node, *axes: int, keepdims: bool = False) -> Node:
    return make(p.Reduce(row, axes, keepdims, x.dtype), x)


def cast(node: Node, dtype: str) -> Node:
    return make(p.Cast(DTYPES[dtype]), node)


# Rule -> (dtypes it is tried on, a graph on one rank-1 input that it must change).
EXAMPLES: dict[str, list[tuple[list[str], Callable[[Node], Node]]]] = {
    "cast_same": [(list(DTYPES), lambda x: cast(x, x.dtype.name))],
    "cast_chain": [
        (["int8", "uint8", "int16", "bool"], lambda x: cast(cast(x, "int64"), "uint8")),
        (["int8", "uint8", "bool"], lambda x: cast(cast(x, "float32"), x.dtype.name)),
        (["float32"], lambda x: cast(cast(x, "float64"), "float32")),
        (["uint32", "int32"], lambda x: cast(cast(x, "float64"), "float32")),
        (["int16", "bool"], lambda x: cast(cast(x, "int32"), "bool")),
    ],
    "positive": [(NUMBERS, lambda x: ew("positive", x))],
    "twice": [
        (NUMBERS, lambda x: ew("negative", ew("negative", x))),
        ([*INTEGERS, "bool"], lambda x: ew("invert", ew("invert", x))),
        (["bool"], lambda x: ew("logical_not", ew("logical_not", x))),
    ],
    "idempotent": [
        (FLOATS, lambda x: ew("floor", ew("floor", x))),
        (FLOATS, lambda x: ew("rint", ew("rint", x))),
        (NUMBERS, lambda x: ew("absolute", ew("absolute", x))),
        (NUMBERS, lambda x: ew("sign", ew("sign", x))),
    ],
    "same_operands": [
        (list(DTYPES), lambda x: ew("maximum", x, x)),
        (list(DTYPES), lambda x: ew("minimum", x, x)),
        ([*INTEGERS, "bool"], lambda x: ew("bitwise_or", x, x)),
    ],
    "broadcast_operand": [
        (NUMBERS, lambda x: ew("multiply", x, make(BROADCAST, const(3, x.dtype.name), *x.shape))),
        (NUMBERS, lambda x: ew("add", make(p.ExpandDims((0,)), const(3, x.dtype.name)), x)),
    ],
    "neutral": [
        (NUMBERS, lambda x: ew("multiply", x, const(1, x.dtype.name))),
        (NUMBERS, lambda x: ew("multiply", const(1, x.dtype.name), x)),
        (INTEGERS, lambda x: ew("add", x, const(0, x.dtype.name))),
        (FLOATS, lambda x: ew("add", x, const(-0.0, x.dtype.name))),
        (NUMBERS, lambda x: ew("subtract", x, const(0, x.dtype.name))),
        (FLOATS, lambda x: ew("divide", x, const(1, x.dtype.name))),
        (INTEGERS, lambda x: ew("floor_divide", x, const(1, x.dtype.name))),
        (SIGNED, lambda x: ew("bitwise_and", x, const(-1, x.dtype.name))),
        (["uint8"], lambda x: ew("bitwise_and", const(255, "uint8"), x)),
        ([*INTEGERS, "bool"], lambda x: ew("bitwise_or", x, const(0, x.dtype.name))),
        ([*INTEGERS, "bool"], lambda x: ew("bitwise_xor", x, const(0, x.dtype.name))),
        (["bool"], lambda x: ew("logical_and", const(True, "bool"), x)),
        (["bool"], lambda x: ew("logical_or", x, const(False, "bool"))),
        (INTEGERS, lambda x: ew("left_shift", x, const(0, x.dtype.name))),
        (INTEGERS, lambda x: ew("right_shift", x, const(0, x.dtype.name))),
    ],
    "not_equal": [
        (list(DTYPES), lambda x: ew("logical_not", ew("equal", x, make(p.Transpose((0,)), x)))),
        (NUMBERS, lambda x: ew("invert", ew("not_equal", x, const(1, x.dtype.name)))),
    ],
    "where_same": [(list(DTYPES), lambda x: ew("where", cast(x, "bool"), x, x))],
    "where_constant": [
        (list(DTYPES), lambda x: ew("where", const(True, "bool"), x, const(1, x.dtype.name))),
        (list(DTYPES), lambda x: ew("where", const(False, "bool"), const(1, x.dtype.name), x)),
    ],
    "transpose": [
        (["float32"], lambda x: make(p.Transpose((0,)), x)),
        (
            ["int8"],
            lambda x: make(
                p.Transpose((2, 1, 0)), make(p.Transpose((1, 0, 2)), make(p.ExpandDims((0, 2)), x))
            ),
        ),
    ],
    "expand_dims": [
        (["float32"], lambda x: make(p.ExpandDims((0, 2)), make(p.ExpandDims((1,)), x))),
        (["float32"], lambda x: make(p.ExpandDims((1,)), make(p.ExpandDims((0,)), x))),
    ],
    "broadcast": [(["float32"], lambda x: make(p.BroadcastTo(), x, *x.shape))],
    "squeeze": [
        (["int8"], lambda x: make(p.Squeeze(()), x)),
        (["int8"], lambda x: make(p.Squeeze((0,)), make(p.ExpandDims((0,)), x))),
    ],
    "slice": [(["int8"], lambda x: make(p.Slice((0,), (1,)), x, host_const(0), x.shape[0]))],
    "reshape": [
        (["int8"], lambda x: reshape(x, x.shape[0])),
        (["int8"], lambda x: reshape(reshape(x, host_const(1), *x.shape), *x.shape, host_const(1))),
        (
            ["int8"],
            lambda x: reshape(make(BROADCAST, const(3, "int8"), two(), *x.shape), *x.shape, two()),
        ),
        (["int8"], lambda x: reshape(make(p.ExpandDims((1,)), x), host_const(1), x.shape[0])),
        (["int8"], lambda x: reshape(x, host_const(1), x.shape[0], host_const(1))),
        (["int8"], lambda x: reshape(make(p.ExpandDims((0,)), x), x.shape[0])),
    ],
    "fold_host": [
        (["int64"], lambda x: make(p.BroadcastTo(), x, two(), *x.shape)),
    ],
    "fold_from_host": [
        (NUMBERS, lambda x: ew("add", x, make(p.FromHost(x.dtype, "check"), host_const(3)))),
        (["uint8"], lambda x: ew("add", x, make(p.FromHost(x.dtype, "wrap"), host_const(300)))),
    ],
    "fold_elementwise": [
        (INTEGERS, lambda x: ew("add", x, of(x, "multiply", 3, 100))),
        (FLOATS, lambda x: ew("multiply", x, of(x, "divide", 1, 3))),
        (INTEGERS, lambda x: ew("add", x, of(x, "floor_divide", 7, 2))),
    ],
    "short_reduction": [
        (INTEGERS, lambda x: fold("sum", stacked(x, axis=0), 0)),
        (INTEGERS, lambda x: fold("prod", stacked(x, axis=1), 1)),
        (INTEGERS, lambda x: fold("bitwise_xor", stacked(x, axis=1), 0, 1)),
        (list(DTYPES), lambda x: fold("min", cast(stacked(x, axis=1), "int32"), 1, keepdims=True)),
        (["bool"], lambda x: fold("any", stacked(x, axis=0), 0)),
        (["bool"], lambda x: fold("all", stacked(x, axis=1), 1)),
    ],
    "fold_cast": [(NUMBERS, lambda x: ew("add", x, cast(const(1.75, "float64"), x.dtype.name)))],
}


UNROLLED = [(name, at) for name, at, _ in TABLES["unroll"]]  # which alone make graphs larger


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {name for rules in TABLES.values() for name, *_ in rules}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_rule_changes_no_bit(rule: str) -> None:
    """The rule fires alone, on every special value, and not when it is switched off."""
    for names, build in EXAMPLES[rule]:
        for name in names:
            x = graph_input(0, DTYPES[name], 1)
            graph = Graph((x,), (build(x),))
            others = frozenset(n for rules in TABLES.values() for n, *_ in rules) - {rule}
            fired: dict[str, int] = {}
            new = rewrite(graph, disabled=others, fired=fired)
            assert fired.get(rule), (rule, name)
            assert len(new.nodes) <= len(graph.nodes) or rule in dict(UNROLLED)
            assert new.outputs[0].dtype == graph.outputs[0].dtype
            assert new.outputs[0].shape == graph.outputs[0].shape
            equal(graph, new, [special(DTYPES[name])])
            equal(graph, new, [np.empty(0, DTYPES[name])])
            off: dict[str, int] = {}
            rewrite(graph, disabled=frozenset({rule}), fired=off)
            assert rule not in off
            assert rewrite(graph, opt_level=0) is graph


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_must_not_be_rewritten(dtype: str) -> None:
    """F021, F024: each of these changes bits for some special value."""
    x = graph_input(0, DTYPES[dtype], 1)
    zero, one = const(0.0, dtype), const(1.0, dtype)
    kept = [
        ew("add", x, zero),
        ew("add", zero, x),
        ew("subtract", zero, x),
        ew("subtract", x, const(-0.0, dtype)),
        ew("multiply", x, zero),
        ew("divide", one, ew("divide", one, x)),
        ew("subtract", x, x),
        ew("logical_not", ew("less", x, one)),
        ew("sqrt", ew("square", x)),
        cast(cast(x, "int32"), dtype),
        ew("where", ew("equal", x, x), x, zero),
    ]
    for node in kept:
        graph = Graph((x,), (node,))
        assert rewrite(graph).outputs[0] is node
    big = graph_input(0, DTYPES["int64"], 1)
    lossy = cast(cast(big, "float64"), "int64")
    assert rewrite(Graph((big,), (lossy,))).outputs[0] is lossy


@pytest.mark.parametrize("dtype", FLOATS)
def test_unrolled_reductions_keep_the_bits_of_loops(dtype: str) -> None:
    """Zeros of either sign and NaN of any bits, in all orders, of which NumPy may give any."""
    values = np.array([0.0, -0.0, 1, -np.inf, np.nan], DTYPES[dtype])
    other = (values.view(f"u{values.itemsize}") | 3)[4:].view(values.dtype)  # another NaN
    sets = np.stack(np.meshgrid(*[np.concatenate((values, other, -other))] * 3)).reshape(3, -1)

    @ok.compile
    def loops(x, like):  # of a length that no trace knows
        x = x.reshape(like.shape[0], -1)
        return x.max(axis=0), x.min(axis=0)

    @ok.compile
    def unrolled(x):
        x = x.reshape(3, -1)
        return x.max(axis=0), x.min(axis=0)

    flat = sets.ravel()
    for want, got in zip(loops(flat, np.ones(3)), unrolled(flat), strict=True):
        assert want.tobytes() == got.tobytes()
    kernels = [str(unrolled.lower(flat)), str(loops.lower(flat, np.ones(3)))]
    assert ["fold" in text for text in kernels] == [False, True], kernels


def test_unrolled_sums_are_added_in_the_order_of_loops() -> None:
    def folds(x, m, n):
        x = x.reshape(3, m, 5, n, 4)
        return x.sum(axis=(1, 3)), x.prod(axis=(1, 3)), x.mean(axis=1)

    loops = ok.compile(lambda x, like: folds(x, *like.shape))  # lengths that no trace knows
    rng = np.random.default_rng(0)
    for dtype, m, n in (("f4", 13, 1), ("f8", 3, 5), ("f8", 16, 1), ("f4", 2, 4)):
        x = (rng.normal(size=60 * m * n) * 9).astype(dtype)
        x = np.where(rng.random(x.size) < 0.4, x.dtype.type(-0.0), x)
        unrolled = ok.compile(lambda x: folds(x, m, n))  # noqa: B023
        for want, got in zip(loops(x, np.empty((m, n))), unrolled(x), strict=True):
            assert want.tobytes() == got.tobytes(), (dtype, m, n)
        assert "fold" not in str(unrolled.lower(x))


def test_what_is_not_unrolled() -> None:
    """Long and last axes have a loop; computed values would be printed once a place."""
    x = graph_input(0, DTYPES["float32"], 3)

    def shaped(*shape: int, of: Node = x) -> Node:
        return make(p.Reshape(), of, *map(host_const, shape), x.shape[2])

    computed = ew("exp", shaped(5, 1))
    half = graph_input(0, DTYPES["float16"], 3)
    kept = [
        fold("sum", shaped(2, 3, of=half), 0),  # which adds in float32
        fold("max", shaped(17, 1), 0),
        fold("max", computed, 0),
        fold("max", x, 0),
        fold("max", make(p.Reshape(), x, x.shape[0], x.shape[1], host_const(3)), 2),
        fold("argmax", shaped(2, 3), 0),
    ]
    for node in kept:
        assert rewrite(Graph((x,), (node,))).outputs[0] is node
    for node in (fold("max", shaped(16, 1), 0), fold("max", ew("exp", shaped(4, 1)), 0)):
        assert rewrite(Graph((x,), (node,))).outputs[0] is not node


def test_faults_and_unsettled_values_are_not_folded() -> None:
    one, zero, nan = const(1, "int32"), const(0, "int32"), const(np.nan, "float32")
    for node in (
        ew("floor_divide", one, zero),
        ew("remainder", one, zero),
        ew("floor_divide", const(-(2**31), "int32"), const(-1, "int32")),
        ew("exp", const(1.0, "float32")),
        ew("maximum", const(0.0, "float32"), const(-0.0, "float32")),
        ew("subtract", const(np.inf, "float32"), const(np.inf, "float32")),
        cast(nan, "int32"),
        cast(const(3e9, "float32"), "int32"),
        cast(const(np.inf, "float32"), "uint8"),
        make(p.FromHost(DTYPES["uint8"], "check"), host_const(300)),
        make(
            p.FromHost(DTYPES["int64"], "check"),
            make(p.HostOp("floordiv"), host_const(1), host_const(0)),
        ),
    ):
        assert rewrite(Graph((), (node,))).outputs[0] is node


def test_shape_guards_survive() -> None:
    """A rule whose replacement has another symbolic shape is refused."""
    x, y = graph_input(0, DTYPES["float32"], 1), graph_input(1, DTYPES["float32"], 1)
    both = ew("where", const(True, "bool"), x, y)
    assert rewrite(Graph((x, y), (both,))).outputs[0] is both
    wide = ew("multiply", x, make(p.BroadcastTo(), const(1, "float32"), *y.shape))
    assert rewrite(Graph((x, y), (wide,))).outputs[0] is wide


def test_rewriting_reaches_inner_nodes_and_keeps_places() -> None:
    x = graph_input(0, DTYPES["int32"], 1)
    inner = ew("positive", ew("add", x, const(0, "int32")))
    out = ew("negative", ew("negative", ew("square", inner)))
    graph = Graph((x,), (out, inner), {out: "user.py:3", inner: "user.py:1"})
    fired: dict[str, int] = {}
    new = rewrite(graph, fired=fired)
    assert new.outputs == (ew("square", x), x)
    assert fired == {"positive": 1, "neutral": 1, "twice": 1}
    assert new.where[new.outputs[0]] == "user.py:3"


def test_tables_can_be_switched_off() -> None:
    x = graph_input(0, DTYPES["int32"], 1)
    out = ew("add", x, ew("add", const(0, "int32"), const(0, "int32")))
    assert rewrite(Graph((x,), (out,))).outputs[0] is x
    assert rewrite(Graph((x,), (out,)), disabled=frozenset({"fold", "neutral"})).outputs[0] is out
    with pytest.raises(ValueError, match="no rule or table"):
        rewrite(Graph((x,), (out,)), disabled=frozenset({"nothing"}))


def test_deep_graphs() -> None:
    x = graph_input(0, DTYPES["int32"], 1)
    node = x
    for _ in range(10_000):
        node = ew("positive", ew("add", node, const(1, "int32")))
    new = rewrite(Graph((x,), (node,)))
    assert len(new.nodes) == 10_002
    deep = x
    for _ in range(5_000):
        deep = ew("negative", deep)
    assert rewrite(Graph((x,), (deep,))).outputs[0] is x


def test_lossless_is_exact() -> None:
    for source in DTYPES.values():
        for target in DTYPES.values():
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
                values = special(source)
                there = values.astype(target)
                back = there.astype(source)
            if lossless(source, target):
                assert bits(back) == bits(values)
    assert not lossless(DTYPES["int64"], DTYPES["float64"])
    assert not lossless(DTYPES["float32"], DTYPES["bool"])


# ---- random programs ----

UNARY = ["negative", "positive", "absolute", "square", "sign", "floor", "invert", "logical_not"]
ARITHMETIC = ["add", "subtract", "multiply", "divide", "floor_divide", "remainder"]
LOGIC = ["bitwise_and", "bitwise_xor", "logical_or", "equal", "not_equal", "less"]
BINARY = [*ARITHMETIC, *LOGIC, "maximum", "minimum"]


def accepts(row: str, dtype: np.dtype[Any]) -> bool:
    found = rw.ELEMENTWISE[row]
    if kind_of(dtype) not in found.accepts:
        return False
    if row.startswith("logical"):
        return kind_of(dtype) == "b"
    return not (row == "divide" and kind_of(dtype) != "f")


@st.composite
def graphs(draw: Any) -> Graph:
    names = draw(
        st.lists(
            st.sampled_from(["bool", "int8", "uint8", "int32", "uint64", *FLOATS]),
            min_size=1,
            max_size=2,
        )
    )
    inputs = tuple(graph_input(i, DTYPES[n], 1) for i, n in enumerate(names))
    nodes: list[Node] = list(inputs)
    for _ in range(draw(st.integers(1, 12))):
        x = draw(st.sampled_from(nodes))
        kind = draw(st.sampled_from(["unary", "binary", "cast", "constant", "where"]))
        if kind == "unary":
            row = draw(st.sampled_from([r for r in UNARY if accepts(r, x.dtype)] or ["absolute"]))
            nodes.append(ew(row, x))
        elif kind == "cast":
            allowed = [*FLOATS, "bool"] if kind_of(x.dtype) == "f" else list(DTYPES)
            nodes.append(cast(x, draw(st.sampled_from(allowed))))
        else:
            same = [n for n in nodes if n.dtype == x.dtype]
            value = draw(st.sampled_from([0, 1, -1, 2]))
            if x.dtype.kind == "u":
                value = abs(value)
            other = (
                const(value, x.dtype.name) if kind == "constant" else draw(st.sampled_from(same))
            )
            if kind == "where":
                nodes.append(ew("where", cast(draw(st.sampled_from(nodes)), "bool"), x, other))
                continue
            row = draw(st.sampled_from([r for r in BINARY if accepts(r, x.dtype)]))
            nodes.append(ew(row, x, other) if draw(st.booleans()) else ew(row, other, x))
    outputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3))
    return Graph(inputs, tuple(outputs))


@hypothesis.settings(max_examples=150, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(graphs(), st.integers(0, 2**32 - 1))
def test_random_programs_keep_their_bits(graph: Graph, seed: int) -> None:
    new = rewrite(graph)
    rng = np.random.default_rng(seed)
    arrays = [rng.choice(special(n.dtype), 23) for n in graph.inputs]
    equal(graph, new, arrays)
    assert rewrite(new).digest == new.digest  # nothing is left to do
    assert all(const_value(d) is None for o in new.outputs for d in o.shape if o.rank)


def test_a_reshape_moves_to_the_operands_of_what_it_alone_reads() -> None:
    x, y = (graph_input(i, DTYPES["float32"], 2) for i in range(2))
    total = ew("add", x, ew("negative", y))
    flat = reshape(total, make(p.HostOp("mul"), *total.shape))
    arrays = [np.arange(6, dtype="f4").reshape(2, 3), np.ones((1, 3), "f4")]
    for outputs, moved in (((flat,), True), ((flat, total), False)):
        graph = Graph((x, y), outputs)
        new = rewrite(graph)
        equal(graph, new, arrays)
        assert isinstance(new.outputs[0].op, p.Elementwise) == moved
        for options in ({"opt_level": 1}, {"disabled": frozenset({"reshape_operands"})}):
            assert rewrite(graph, **options).outputs == outputs
    few = ew("add", x, graph_input(1, DTYPES["float32"], 1))  # reshaped, it would be written out
    graph = Graph((x, graph_input(1, DTYPES["float32"], 1)), (reshape(few, *few.shape[::-1]),))
    assert rewrite(graph).outputs == graph.outputs


def test_a_reshape_that_fails_is_not_forgotten() -> None:
    x = graph_input(0, DTYPES["int8"], 1)
    new = rewrite(Graph((x,), (reshape(reshape(x, two(), two()), *x.shape),)))
    with pytest.raises(ShapeError, match=r"size 6 into shape \(2,2\)"):
        interpret(new, [np.zeros(6, "i1")])
