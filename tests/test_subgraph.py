"""Subgraphs: data, edits, the builder, the decorator, named ops; eager against compiled."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.ops.calls import FUNCTIONS
from opkiln.ops.subgraph import Expr, Subgraph
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime import errors
from opkiln.runtime.subgraph import add_outputs, find_op, remove_unused, replace_vars

ADD, MUL, NEG = (p.Elementwise(n) for n in ("add", "multiply", "negative"))
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
HERE = r"test_subgraph\.py:\d+"


def axpy() -> ok.SubgraphBuilder:
    b = ok.SubgraphBuilder("axpy")
    x = b.input()
    y = b.apply("add", x, x)
    k = b.apply_const(2.0, np.float32, "cpu")
    b.outputs(b.apply("*", y, k))
    return b


def test_builder() -> None:
    b = axpy()
    op = b.get()
    assert op.name == "axpy"
    assert b.get() is op
    assert op.apply(X)[0].tolist() == (4 * X).tolist()
    for made in (b.compile(), b.compile(opt_level=0), b.jit_fuse()):
        (y,) = made.apply(X)
        assert (y.tolist(), y.dtype) == ((4 * X).tolist(), np.float32)
    assert str(op.graph).splitlines() == [
        "inputs %1", "%3 = float32 2.0", "%2 = add %1 %1", "%4 = multiply %2 %3", "return %4",
    ]  # fmt: skip


def test_builder_is_frozen_by_get() -> None:
    b = axpy()
    b.get()
    for change in (b.input, lambda: b.apply_const(1), b.outputs, b.outputs_has_grad):
        with pytest.raises(errors.GraphError, match=rf"axpy is frozen.*{HERE}"):
            change()
    other = b.copy()
    x = other.input()
    other.outputs(*other.outputs_so_far, x)
    assert len(other.get().graph.outputs) == 2
    assert len(b.get().graph.outputs) == 1


def test_builder_refuses_what_is_wrong() -> None:
    b, other = ok.SubgraphBuilder("b"), ok.SubgraphBuilder("other")
    x = b.input()
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: b.apply("ad", x, x), errors.UnknownOp, r"'ad'(.|\n)*add"),
        (lambda: b.apply("add", x), errors.ArgumentError, "expected 2 inputs, got 1"),
        (lambda: b.apply("-", x, x, x), errors.ArgumentError, "expected 1 to 2 inputs, got 3"),
        (lambda: b.apply("concatenate"), errors.ArgumentError, "at least 1 inputs, got 0"),
        (lambda: b.apply("add", x, x, axis=0), errors.ArgumentError, "no option 'axis'"),
        (lambda: b.apply("sum", x, axes=0), errors.ArgumentError, r"no option 'axes'(.|\n)*axis"),
        (lambda: b.apply(3, x), errors.ArgumentError, "an op or its name"),
        (lambda: b.apply("add", x, other.input()), errors.GraphError, "variable 1 of other"),
        (lambda: b.apply("add", x, "y"), errors.ArgumentError, "takes variables"),
        (lambda: b.apply_const(1.0, "f4", "cuda:0"), errors.NotYet, "cuda:0"),
        (lambda: b.apply_const(object(), "O"), errors.UnsupportedDType, "object"),
        (b.get, errors.GraphError, "no outputs"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=rf"{text}") as caught:
            call()
        assert "test_subgraph.py:" in str(caught.value) or kind is errors.NotYet


def test_unused_exprs_go() -> None:
    b = ok.SubgraphBuilder("b")
    x, unused = b.input(), b.input()
    b.apply("exp", b.apply_const(1.0))
    b.apply("multiply", x, unused)
    b.outputs(b.apply("negative", x))
    graph = b.get().graph
    assert [e.op.name for e in graph.exprs] == ["negative"]
    assert not graph.constants
    assert graph.input_mask == (True, False)


# ---- data ----


def chain(*ops: Any, outputs: tuple[int, ...] = ()) -> Subgraph:
    exprs = tuple(Expr(op, (i,), (i + 1,)) for i, op in enumerate(ops, 1))
    return Subgraph((1,), (), exprs, outputs or (len(ops) + 1,))


def test_masks_encode_and_decode() -> None:
    graph = Subgraph((1, 2, 3), (), (Expr(ADD, (1, 3), (4,)),), (0, 4, 0, 1))
    assert graph.input_mask == (True, False, True)
    assert graph.output_mask == (False, True, False, True)
    encoded = ok.SubgraphOp(graph).forward_graph([])
    assert encoded.encode("abc") == ("a", "c")
    assert encoded.decode("xy") == (None, "x", None, "y")
    results = encoded.apply(X, None, X)
    assert results[0] is results[2] is None
    assert results[1].tolist() == (X + X).tolist()
    for match, call in (
        ("expected 3 inputs, got 2\\n.* a value for each place", lambda: encoded.encode("ab")),
        ("expected 2 results, got 1\\n.* a result for each True", lambda: encoded.decode("x")),
        ("as input 2, got None\\n.*True, False, True", lambda: encoded.apply(X, None, None)),
    ):
        with pytest.raises(errors.GraphError, match=match) as caught:
            call()
        assert isinstance(caught.value, ValueError)


def test_outputs_without_a_value() -> None:
    op = ok.SubgraphOp(Subgraph((1,), (), (Expr(NEG, (1,), (2,)),), (0, 2)))
    for made in (op, ok.CompiledOp(op)):
        nothing, y = made.apply(X)
        assert nothing is None
        assert y.tolist() == (-X).tolist()
        found, validated = made.infer([ok.TensorDesc("f4", (3,))])
        assert (found[0], found[1].shape, validated) == (None, (3,), True)


def test_is_single() -> None:
    assert chain(NEG).is_single
    assert not chain(NEG, NEG).is_single
    assert not chain(NEG, outputs=(1,)).is_single
    assert not Subgraph((1, 2), (), (Expr(ADD, (2, 1), (3,)),), (3,)).is_single
    assert Subgraph((1, 2), (), (Expr(ADD, (1, 2), (3,)),), (3,)).is_single


def test_digest_is_of_the_structure() -> None:
    renumbered = Subgraph((7,), (), (Expr(NEG, (7,), (2,)), Expr(NEG, (2,), (9,))), (9,))
    assert renumbered == chain(NEG, NEG)
    swapped = [Expr(NEG, (1,), (2,)), Expr(ADD, (1, 1), (3,))]
    one, two = (Subgraph((1,), (), tuple(e), (2, 3)) for e in (swapped, swapped[::-1]))
    assert one == two
    assert one != Subgraph((1,), (), tuple(swapped), (3, 2))
    assert chain(NEG) != chain(NEG, NEG)
    assert chain(NEG, outputs=(2,)) != chain(NEG, outputs=(2, 2))


def test_K29_constants_that_print_alike_differ() -> None:
    def with_constant(value: Any, dtype: Any) -> bytes:
        b = ok.SubgraphBuilder("b")
        b.outputs(b.apply("add", b.input(), b.apply_const(value, dtype)))
        return b.get().digest

    values = [
        (1.0, "f8"), (1.0 + 1e-7, "f8"), (np.nextafter(1, 2), "f8"), (1.0, "f4"), (1.0, None),
        (1, None), (True, None), (0.0, "f4"), (-0.0, "f4"), (np.inf, "f4"), (np.nan, "f4"),
        (-np.nan, "f4"), ([1.0, 2.0], "f4"), ([[1.0, 2.0]], "f4"), ([1.0, 2.0000002], "f4"),
        (np.arange(1000), "i8"), (np.arange(1000)[::-1], "i8"), (np.empty(0), "f4"),
        (np.empty((0, 2)), "f4"),
    ]  # fmt: skip
    assert len({with_constant(*v) for v in values}) == len(values)


def test_K29_outputs_are_added_in_order_and_replacements_end() -> None:
    graph = chain(NEG, NEG, NEG)
    more = add_outputs(add_outputs(graph, (2,)), (1, 3))
    assert more.outputs == (4, 2, 1, 3)
    with pytest.raises(errors.GraphError, match="output 9"):
        add_outputs(graph, (9,))
    assert replace_vars(graph, {4: 3, 3: 2}).outputs == (2,)
    assert replace_vars(graph, {3: 1}).exprs[2].inputs == (1,)
    for cycle in ({4: 4}, {}):
        assert replace_vars(graph, cycle) == graph
    with pytest.raises(errors.GraphError, match=rf"cyclic replacement: 2 -> 3 -> 2.*{HERE}"):
        replace_vars(graph, {2: 3, 3: 2})
    with pytest.raises(errors.GraphError, match="before it is made"):
        replace_vars(graph, {2: 4})


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (Subgraph((1, 1), (), (), (1,)), "variable 1 of the inputs is not new"),
        (Subgraph((1,), (), (Expr(NEG, (2,), (3,)),), (3,)), "negative takes variable 2"),
        (Subgraph((1,), (), (Expr(NEG, (1,), (1,)),), (1,)), "variable 1 of negative is not new"),
        (Subgraph((1,), (), (), (5,)), "output 5"),
        (Subgraph((0,), (), (), ()), "variable 0"),
    ],
)
def test_graphs_that_contradict_themselves(graph: Subgraph, text: str) -> None:
    with pytest.raises(errors.GraphError, match=text):
        ok.SubgraphOp(graph)


def test_wrong_number_of_results() -> None:
    b = ok.SubgraphBuilder("two")
    b.outputs(*b.apply("negative", b.input(), outputs=2))
    with pytest.raises(errors.ArgumentError, match="negative gives 1 results, expected 2"):
        b.get().apply(X)


def test_remove_unused_keeps_what_outputs_need() -> None:
    assert remove_unused(chain(NEG, NEG, outputs=(2,))) == chain(NEG)
    assert not remove_unused(chain(NEG, outputs=(1,))).exprs


# ---- names ----


def test_K27_every_name_is_found() -> None:
    for name, row in ELEMENTWISE.items():
        assert find_op(name, row.arity) == p.Elementwise(name)
    for name, named in FUNCTIONS.items():
        assert find_op(name, named.least).name == name
    symbols = {
        ("-", 1): "negative", ("-", 2): "subtract", ("+", 2): "add", ("*", 2): "multiply",
        ("/", 2): "divide", ("//", 2): "floor_divide", ("**", 2): "power", ("max", 2): "maximum",
        ("min", 2): "minimum", ("additive", 2): "add", ("abs", 1): "absolute",
    }  # fmt: skip
    for (name, arity), row in symbols.items():
        assert find_op(name, arity) == p.Elementwise(row)
    assert find_op("identity", 1) == ok.Identity()


NAMED: dict[str, tuple[int, Any]] = {
    "fma3": (3, lambda a, b, c: a * b + c),
    "fma4": (4, lambda a, b, c, d: a * b + c * d),
    "cond_leq_mov": (3, lambda a, b, c: np.where(a <= b, c, 0)),
    "cond_lt_mov": (3, lambda a, b, c: np.where(a < b, c, 0)),
    "switch_gt0": (2, lambda a, b: np.where(a > 0, b, 0)),
    "abs_grad": (2, lambda a, g: np.where(a > 0, g, -g)),
    "sum": (1, np.sum), "mean": (1, np.mean), "var": (1, np.var), "reduce_max": (1, np.max),
    "transpose": (1, np.transpose), "relu": (1, lambda a: np.maximum(a, 0)), "**": (2, np.power),
    "zeros_like": (1, np.zeros_like), "ones_like": (1, np.ones_like),
}  # fmt: skip


def test_named_ops_eager_and_compiled() -> None:
    """One compiled subgraph of all of them; the last value is inf, which a product would spoil."""
    b = ok.SubgraphBuilder("names")
    arrays = [X, X[::-1].copy(), X * 0.5 + 1, np.full_like(X, np.inf)]
    inputs = [b.input() for _ in arrays]
    b.outputs(*(b.apply(name, *inputs[:n]) for name, (n, _) in NAMED.items()))
    with np.errstate(all="ignore"):
        want = [f(*arrays[:n]) for n, f in NAMED.values()]
    for made in (b.get(), b.compile()):
        got = made.apply(*arrays)
        for name, g, w in zip(NAMED, got, want, strict=True):
            assert g.dtype == w.dtype, name
            np.testing.assert_allclose(g, w, rtol=2e-6, atol=1e-6, err_msg=name)


# ---- the decorator ----


def test_decorator() -> None:
    @ok.subgraph("logsigmoid", np.float32, "cpu", 1, opt_level=2)
    def logsigmoid(inputs: Any, f: Any, c: Any) -> Any:
        (x,) = inputs
        neg = f("-", f("abs", x))
        return (f("-", f("+", f("relu", f("-", x)), f("log1p", f("exp", neg)))),), (True,)

    assert isinstance(logsigmoid, ok.CompiledOp)
    x = np.linspace(-3, 3, 100, dtype=np.float32)
    want = -np.maximum(-x, 0) - np.log1p(np.exp(-np.abs(x)))
    np.testing.assert_allclose(logsigmoid.apply(x)[0], want, rtol=1e-6)

    options: dict[str, Any] = {"jit_fusion": True}
    fused = ok.subgraph("mul", "f4", "cpu", 2, **options)(lambda i, f, c: ((f("*", *i),), (True,)))
    assert isinstance(fused.op, ok.JITFusionOp)
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    assert fused.apply(a, a)[0].tolist() == (a * a).tolist()
    plain = ok.subgraph("c", "f4", "cpu", 1)(lambda i, f, c: (f("+", i[0], c(1)), (False,)))
    assert isinstance(plain, ok.SubgraphOp)
    assert plain.grad_mask == (False,)
    assert plain.apply(np.float32(2))[0] == 3
    assert plain.graph.constants[0][1].dtype == np.float32


def test_interpret_is_the_same_function_on_arrays() -> None:
    def body(inputs: Any, f: Any, c: Any) -> Any:
        x, y = inputs
        return (f("fma3", x, y, c(0.5)), f("max", x, y)), (True, False)

    eager = ok.subgraph("body", "f4", "cpu", 2, interpret=True)(body)
    op = ok.subgraph("body", "f4", "cpu", 2)(body)
    for got, want in zip(eager(X, X + 1), op.apply(X, X + 1), strict=True):
        assert got.tolist() == want.tolist()
    with pytest.raises(errors.ArgumentError, match="expected 2 inputs, got 1"):
        eager(X)


def custom_mul(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
    x, y = inputs
    dy = yield f("*", x, y)
    yield f("*", dy, y), f("*", dy, x)


def test_K35_interpreted_custom_gradient() -> None:
    eager = ok.subgraph("mul", "f4", "cpu", 2, custom_grad=True, interpret=True)(custom_mul)
    (z,), backward = eager(X, X + 1)
    assert z.tolist() == (X * (X + 1)).tolist()
    dx, dy = backward(X)
    assert dx.tolist() == (X * (X + 1)).tolist()
    assert dy.tolist() == (X * X).tolist()
    (z,), backward = eager(X, X)
    assert [g.dtype for g in backward(None)] == [np.float32] * 2  # zeros like the output

    op = ok.subgraph("mul", "f4", "cpu", 2, custom_grad=True)(custom_mul)
    assert op.apply(X, X)[0].tolist() == (X * X).tolist()
    assert op.gradient is not None
    got = ok.SubgraphOp(op.gradient).apply(X, X + 1, X, X)  # x, y, output, its gradient
    assert got[0].tolist() == (X * (X + 1)).tolist()
    assert op != ok.SubgraphOp(op.graph)


def test_custom_gradient_uses_the_output() -> None:
    """What the output already holds is not computed again."""

    def exp(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
        y = f("exp", inputs[0])
        dy = yield y
        yield f("*", dy, y)

    op = ok.subgraph("exp", "f4", "cpu", 1, custom_grad=True)(exp)
    assert [e.op.name for e in op.gradient.exprs] == ["multiply"]
    assert op.gradient.input_mask == (False, True, True)


def _yields_once(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
    yield f("exp", inputs[0])


def _yields_thrice(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
    dy = yield f("exp", inputs[0])
    yield dy
    yield dy


def _too_many_gradients(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
    dy = yield f("exp", inputs[0])
    yield dy, dy


def _draws(inputs: Any, f: Any, c: Any) -> Any:
    return (f("*", inputs[0], float(np.random.rand())),), (True,)  # noqa: NPY002


LEAK: list[Any] = []


def _leaks(inputs: Any, f: Any, c: Any) -> Any:
    LEAK.append((f, inputs[0]))
    return (f("exp", inputs[0]),), (True,)


@pytest.mark.parametrize(
    ("function", "custom", "kind", "text"),
    [
        (lambda inputs, f: None, False, errors.ArgumentError, "function of"),
        (lambda i, f, c: f("exp", i[0]), False, errors.ArgumentError, "outputs_has_grad"),
        (lambda i, f, c: ((i[0], 3), (True, True)), False, errors.ArgumentError, "outputs from"),
        (lambda i, f, c: ((i[0],), (True, True)), False, errors.ArgumentError, "grad_mask of 1"),
        (lambda i, f, c: f("expp", i[0]), False, errors.UnknownOp, "exp"),
        (custom_mul, False, errors.ArgumentError, "custom_grad=False"),
        (lambda i, f, c: None, True, errors.ArgumentError, "custom_grad=True"),
        (_yields_once, True, errors.ArgumentError, "two yields"),
        (_yields_thrice, True, errors.ArgumentError, "more than two"),
        (_too_many_gradients, True, errors.ArgumentError, "1 gradients"),
        (_draws, False, errors.TraceError, "random state"),
    ],
)
def test_functions_that_are_no_subgraph(function: Any, custom: bool, kind: Any, text: str) -> None:
    np.random.seed(0)  # noqa: NPY002
    with pytest.raises(kind, match=rf"{text}(.|\n)*{HERE}"):
        ok.subgraph("f", "f4", "cpu", 1, custom_grad=custom)(function)


def test_a_leaked_builder_is_frozen() -> None:
    ok.subgraph("f", "f4", "cpu", 1)(_leaks)
    f, x = LEAK.pop()
    with pytest.raises(errors.GraphError, match="frozen"):
        f("exp", x)


def test_options_that_contradict() -> None:
    with pytest.raises(errors.ArgumentError, match="got both"):
        ok.subgraph("f", "f4", "cpu", 1, opt_level=1, jit_fusion=True)
    with pytest.raises(errors.NotYet):
        ok.subgraph("f", "f4", "cuda:0", 1)
    assert list(inspect.signature(ok.subgraph).parameters)[:7] == [
        "name", "dtype", "device", "nr_inputs", "opt_level", "jit_fusion", "custom_grad",
    ]  # fmt: skip


EXACT = ("add", "subtract", "multiply", "maximum", "minimum", "fmax", "less", "where", "negative")


@pytest.mark.parametrize("seed", range(3))
def test_O12_random_subgraphs_have_the_same_bits_at_every_level(seed: int) -> None:
    """Broadcasts, empty axes, strides, NaN, infinities: interpreted against compiled."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (1, 4), (3, 1), (), (4,)]
    b = ok.SubgraphBuilder(f"random{seed}")
    values = [b.input() for _ in shapes]
    for _ in range(25):
        name = EXACT[rng.integers(len(EXACT))]
        args = rng.choice(len(values), ELEMENTWISE[name].arity)
        made = b.apply(name, *(values[i] for i in args))
        values.append(b.apply("cast", made, dtype="f4") if name == "less" else made)
    b.outputs(*values)
    op = b.get()

    def draw(shape: tuple[int, ...]) -> Any:
        held = rng.standard_normal((*shape, 2)).astype(np.float32)[..., 0]  # with strides
        if held.size:
            held.flat[rng.integers(held.size)] = rng.choice([np.nan, np.inf, -0.0, 1e-40])
        return held

    levels = [ok.CompiledOp(op, level) for level in (2, 0)]
    for zero in (False, True):
        arrays = [draw((0, *s[1:]) if zero and s[:1] == (3,) else s) for s in shapes]
        with np.errstate(all="ignore"):
            want = op.apply(*arrays)
        for made in levels:
            for g, w in zip(made.apply(*arrays), want, strict=True):
                assert np.asarray(g).dtype == np.asarray(w).dtype
                np.testing.assert_array_equal(g, w)
        descs = [ok.TensorDesc.of(a) for a in arrays]
        found, validated = op.infer(descs)
        assert validated
        assert [d.shape for d in found] == [np.shape(w) for w in want]
        assert [d.dtype for d in found] == [np.asarray(w).dtype for w in want]


def test_zero_sizes_and_no_inputs() -> None:
    b = ok.SubgraphBuilder("none")
    b.outputs(b.apply("add", b.apply_const([1.0, 2.0], "f4"), b.apply_const(1.0, "f4")))
    for made in (b.get(), b.compile(), b.jit_fuse()):
        assert made.apply()[0].tolist() == [2.0, 3.0]
    assert axpy().compile().apply(np.empty((0, 3), np.float32))[0].shape == (0, 3)
    assert axpy().get().apply(np.empty((0, 3), np.float32))[0].shape == (0, 3)
    empty = ok.SubgraphOp(Subgraph((), (), (), ()))
    assert empty.apply() == ok.CompiledOp(empty).apply() == ()
    assert empty.infer([]) == ((), True)
