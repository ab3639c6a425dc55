"""Backward graphs of ops: masks, what they use, composition, sharing, errors; SEMANTICS 7."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime import backward, errors
from opkiln.runtime.encoded import EMPTY
from opkiln.runtime.subgraph import find_op

D = ok.TensorDesc
RNG = np.random.default_rng(5)
ADD, MUL = p.Elementwise("add"), p.Elementwise("multiply")
VEC = D("f4", (42,))


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.5, 2, shape).astype(dtype)


def test_T1_multiply() -> None:
    g = MUL.backward_graph([VEC, VEC], (True, True), (True,))
    assert g.input_mask == (True, True, False, True)
    assert g.output_mask == (True, True)
    x, y, dz = draw(42), draw(42), draw(42)
    dx, dy = g.apply(x, y, None, dz)
    assert dx.tolist() == (dz * y).tolist()
    assert dy.tolist() == (dz * x).tolist()
    assert len(g.op.apply(x, y, dz)) == sum(g.output_mask)
    assert g.op.name == "multiplyGrad"


def test_T2_identity() -> None:
    dy = draw(42)
    for op in (ok.Identity(), ok.FastpathCopy(), ok.CompiledOp(ok.Identity())):
        g = op.backward_graph([VEC], (True,), (True,))
        assert (g.input_mask, g.output_mask) == ((False, False, True), (True,))
        assert g.apply(None, None, dy)[0].tolist() == dy.tolist()


def test_T4_relu_uses_its_result() -> None:
    g = find_op("relu", 1).backward_graph([VEC], (True,), (True,))
    assert g.input_mask == (False, True, True)
    g = find_op("exp", 1).backward_graph([VEC], (True,), (True,))
    assert g.input_mask == (False, True, True)


def test_broadcast_is_summed() -> None:
    """T3: of an addition only the sizes of the operands are used."""
    a, b, dy = draw(42), draw(5, 42), draw(5, 42)
    g = ADD.backward_graph([D("f4", (42,)), D("f4", (5, 42))], (True, True), (True,))
    da, db = g.apply(a, b, None, dy)
    np.testing.assert_allclose(da, dy.sum(0), rtol=1e-6)
    assert db.tolist() == dy.tolist()
    # The same graph serves other sizes, also where both broadcast.
    da, db = g.apply(draw(1), draw(3, 4), None, dy[:3, :4])
    np.testing.assert_allclose(da, [dy[:3, :4].sum()], rtol=1e-6)


def test_nothing_needed_or_given_is_empty() -> None:
    descs = [VEC, VEC]
    assert MUL.backward_graph(descs, (False, False), (True,)) == EMPTY
    assert MUL.backward_graph(descs, (True, True), (False,)) == EMPTY
    assert find_op("floor", 1).backward_graph([VEC], (True,), (True,)) == EMPTY
    assert find_op("less", 2).backward_graph(descs, (True, True), (True,)) == EMPTY
    assert MUL.backward_graph([D("i4", (2,))] * 2, (True, True), (True,)) == EMPTY
    stopped = ok.SubgraphOp(three_in_two_out().graph, grad_mask=(False, False))
    assert stopped.backward_graph([D("f8", (2,))] * 3, (True,) * 3, (True, True)) == EMPTY


def three_in_two_out() -> ok.SubgraphOp:
    b = ok.SubgraphBuilder("op32")
    x, y, z = (b.input() for _ in range(3))
    product_ = b.apply("*", x, y)
    b.outputs(b.apply("fma3", product_, z, x), b.apply("*", b.apply("exp", product_), 0.5))
    return b.get()


def numeric(f: Any, args: list[Any], at: int, dys: list[Any]) -> Any:
    """Central differences of sum(dy * f)."""
    found = np.zeros_like(args[at])
    for i in np.ndindex(found.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [a.copy() for a in args]
            moved[at][i] += step
            sides.append(sum((dy * y).sum() for dy, y in zip(dys, f(*moved), strict=True)))
        found[i] = (sides[0] - sides[1]) / 2e-6
    return found


def test_O9_all_masks_of_three_inputs_and_two_outputs() -> None:
    op = three_in_two_out()
    args = [draw(2, 3, dtype=np.float64) for _ in range(3)]
    dys = [draw(2, 3, dtype=np.float64) for _ in range(2)]
    outs = op.apply(*args)
    descs = [D.of(a) for a in args]
    for has in product((False, True), repeat=2):
        sent = [d * h for d, h in zip(dys, has, strict=True)]
        want = [numeric(op.apply, args, i, sent) for i in range(3)]
        for need in product((False, True), repeat=3):
            g = op.backward_graph(descs, need, has)
            if not g:
                assert g == EMPTY
                assert not any(w.any() for w, n in zip(want, need, strict=True) if n)
                continue
            for i, found in enumerate(g.apply(*args, *outs, *dys)):
                if not need[i]:
                    assert found is None
                elif found is None:
                    assert not want[i].any()
                else:
                    np.testing.assert_allclose(found, want[i], rtol=1e-6, atol=1e-6)
            unused = [h for h, used in zip(has, g.input_mask[5:], strict=True) if used > h]
            assert not unused  # a gradient that is not given is not used


def test_K20_gradient_mask_counts() -> None:
    graph = three_in_two_out().graph
    args = [draw(4, dtype=np.float64) for _ in range(3)]
    found = []
    for mask in ((True, True), (True, False)):
        op = ok.SubgraphOp(graph, grad_mask=mask)
        g = op.backward_graph([D.of(a) for a in args], (True,) * 3, (True, True))
        found.append(g.apply(*args, *op.apply(*args), np.ones(4), np.ones(4))[0])
    assert not np.allclose(*found)
    want = args[1] * args[2] + 1
    np.testing.assert_allclose(found[1], want)

    @ok.compile
    def total(x: Any, y: Any, z: Any) -> Any:
        return sum(v.sum() for v in ok.SubgraphOp(graph, grad_mask=(True, False)).apply(x, y, z))

    np.testing.assert_allclose(ok.grad(total)(*args), want)


def test_K21_backward_is_shared() -> None:
    """Two threads, two equal ops: one backward graph, one compiled function."""
    backward._BACKWARD.clear()
    found: list[Any] = []

    def work(i: int) -> None:
        op = ok.CompiledOp(three_in_two_out())
        found.append(op.backward_graph([D("f4", (3,))] * 3, (True,) * 3, (True, True)))

    run_in_threads(work, 4)
    assert len({id(g) for g in found}) == 1
    assert backward._BACKWARD.misses >= 1
    other = ok.CompiledOp(three_in_two_out(), 1)
    again = other.backward_graph([D("f4", (7,))] * 3, (True,) * 3, (True, True))
    assert again.op.opt_level == 1
    assert again.op.op is found[0].op.op  # sizes do not count, levels share the graph


def test_K30_duplicated_and_passed_through_outputs() -> None:
    b = ok.SubgraphBuilder("twice")
    x, y = b.input(), b.input()
    z = b.apply("*", x, y)
    b.outputs(z, z, x)
    op = b.get()
    args = [draw(3, dtype=np.float64) for _ in range(2)]
    dys = [draw(3, dtype=np.float64) for _ in range(3)]
    outs = op.apply(*args)
    for need in ((True, True), (False, True)):
        g = op.backward_graph([D.of(a) for a in args], need, (True,) * 3)
        dx, dy = g.apply(*args, *outs, *dys)
        np.testing.assert_allclose(dy, args[0] * (dys[0] + dys[1]))
        if need[0]:
            np.testing.assert_allclose(dx, args[1] * (dys[0] + dys[1]) + dys[2])
        else:
            assert dx is None


def second_derivative(op: Any) -> Any:
    first = ok.grad(lambda x: op.apply(x)[0].sum())
    return ok.grad(lambda x: first(x).sum())


def test_second_order() -> None:
    """T6: x^4 by products, 4 x^3, 12 x^2; cos, -sin, -cos."""
    b = ok.SubgraphBuilder("fourth")
    x = b.input()
    square = b.apply("*", x, x)
    b.outputs(b.apply("*", square, square))
    value = np.array([0.5, 1.5, -2.0])
    for op, first, second in (
        (b.get(), 4 * value**3, 12 * value**2),
        (find_op("cos", 1), -np.sin(value), -np.cos(value)),
    ):
        desc = D.of(value)
        g = op.backward_graph([desc], (True,), (True,))
        one = np.ones(3)
        candidates = (value, *op.apply(value), one)
        np.testing.assert_allclose(g.apply(*candidates)[0], first, rtol=1e-9)
        # x may also come in by the saved result, so take the gradient of both steps together.
        np.testing.assert_allclose(second_derivative(op)(value), second, rtol=1e-9)
        inner = g.op.backward_graph(
            [desc] * sum(g.input_mask), (True,) * sum(g.input_mask), (True,)
        )
        assert inner


def test_C34_fusion_differentiates_and_compiles() -> None:
    x, y, dz = draw(42), draw(42), draw(42)
    for op in (ok.JITFusionOp(find_op("exp", 1)), ok.CompiledOp(ok.JITFusionOp(find_op("exp", 1)))):
        g = op.backward_graph([VEC], (True,), (True,))
        assert isinstance(g.op, ok.CompiledOp)
        (z,) = op.apply(x)
        np.testing.assert_allclose(g.apply(None, z, dz)[0], dz * z, rtol=1e-6)
    del y


def test_constants_in_a_backward_graph() -> None:
    b = ok.SubgraphBuilder("scaled")
    weights = np.array([1.0, 2.0, 3.0])
    b.outputs(b.apply("*", b.apply("exp", b.input()), b.apply_const(weights, "f8")))
    op = b.get()
    x, dy = draw(3, dtype=np.float64), draw(3, dtype=np.float64)
    g = op.backward_graph([D.of(x)], (True,), (True,))
    np.testing.assert_allclose(g.apply(x, *op.apply(x), dy)[0], dy * weights * np.exp(x))


def custom(inputs: Any, f: Any, c: Any) -> Iterator[Any]:
    """A product whose gradients are doubled, so that they can be told from true ones."""
    x, y = inputs
    dz, dw = yield f("*", x, y), f("+", x, y)
    yield f("*", f("*", dz, y), 2), f("+", dw, dw)


def test_custom_gradient_is_used() -> None:
    op = ok.subgraph("custom", "f4", "cpu", 2, custom_grad=True)(custom)
    x, y, dz, dw = (draw(5) for _ in range(4))
    for made in (op, ok.CompiledOp(op)):
        g = made.backward_graph([D.of(x)] * 2, (True, True), (True, True))
        dx, dy = g.apply(x, y, *op.apply(x, y), dz, dw)
        np.testing.assert_allclose(dx, 2 * dz * y, rtol=1e-6)
        np.testing.assert_allclose(dy, 2 * dw, rtol=1e-6)
    # T9: mixed with plain code in one function
    grads = ok.grad(lambda x, y: (op.apply(x, y)[0] + x * x).sum(), argnums=(0, 1))(x, y)
    np.testing.assert_allclose(grads[0], 2 * y + 2 * x, rtol=1e-6)
    assert grads[1].tolist() == [0.0] * 5  # nothing was sent to the second result


# ---- the user's own code ----


@dataclass(frozen=True)
class Cube:
    """Runs outside of any graph."""

    def apply(self, x: Any) -> tuple[Any, ...]:
        return (x**3,)

    def infer(self, x: ok.TensorDesc) -> Any:
        return (x.but(value=None),), x.known

    def grad(self, inputs: Any, results: Any, dys: Any) -> tuple[Any, ...]:
        return (3 * inputs[0] ** 2 * dys[0],)


@dataclass(frozen=True)
class NoGrad(Cube):
    grad = None  # type: ignore[assignment]


def with_own(op: ok.GenericPyOp) -> ok.SubgraphOp:
    b = ok.SubgraphBuilder("mixed")
    x, y = b.input(), b.input()
    b.outputs(b.apply("*", b.apply(op, b.apply("sin", x)), y), x)
    return b.get()


def test_own_code_composes() -> None:
    op = with_own(ok.GenericPyOp(Cube()))
    args = [draw(4, dtype=np.float64) for _ in range(2)]
    dys = [draw(4, dtype=np.float64) for _ in range(2)]
    g = op.backward_graph([D.of(a) for a in args], (True, True), (True, True))
    found = g.apply(*args, *op.apply(*args), *dys)
    for i in range(2):
        np.testing.assert_allclose(found[i], numeric(op.apply, args, i, dys), rtol=1e-7)
    masked = ok.SubgraphOp(op.graph, grad_mask=(False, True))
    g = masked.backward_graph([D.of(a) for a in args], (True, True), (True, True))
    dx, dy = g.apply(*args, *op.apply(*args), *dys)
    assert dy is None
    assert dx.tolist() == dys[1].tolist()


def test_missing_rules_are_errors() -> None:
    @dataclass(frozen=True)
    class Bare:
        def apply(self, x: Any) -> Any:
            return (x,)

    with pytest.raises(errors.GradientError, match=r"Bare.*no method grad(.|\n)*test_op_grad"):
        ok.GenericPyOp(Bare()).backward_graph([VEC], (True,), (True,))

    @dataclass(frozen=True)
    class Declared(Bare):
        differentiable = False

    assert ok.GenericPyOp(Declared()).backward_graph([VEC], (True,), (True,)) == EMPTY

    @dataclass(frozen=True)
    class Short(Cube):
        def grad(self, inputs: Any, results: Any, dys: Any) -> Any:
            return ()

    g = ok.GenericPyOp(Short()).backward_graph([VEC], (True,), (True,))
    with pytest.raises(errors.GradientError, match="expected 1 gradients"):
        g.apply(draw(42), draw(42), draw(42))
    with pytest.raises(errors.ShapeError, match="known rank"):
        MUL.backward_graph([D("f4"), VEC], (True, True), (True,))
    with pytest.raises(errors.ArgumentError, match="mask of 2 inputs, got 1"):
        MUL.backward_graph([VEC, VEC], (True,), (True,))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_comparisons_with_a_constant_hold_no_array(name: str) -> None:
    """NumPy makes an array of a number on the left of `<`: no rule may write it so."""
    x = np.array([-1.0, 0.5, 3.0])
    row = getattr(np, name)
    for fn in (lambda v: row(v, np.float64(1)).sum(), lambda v: row(np.float64(1), v).sum()):
        slope = ok.grad(fn)
        assert slope(x).tolist() in ([0, 0, 1], [1, 1, 0])
        operands = [o.write for k in slope.lower(x).kernels for o in k.operands]
        assert operands == [False, True]
