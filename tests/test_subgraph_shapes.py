"""Subgraphs whose shapes are values: inferred, eager, compiled, computed; O8, T14, K19."""

from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.ops.calls import FUNCTIONS
from opkiln.runtime import errors
from opkiln.runtime.segments import plan_of
from opkiln.runtime.subgraph import find_op

D = ok.TensorDesc
U = None
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def shapes(op: Any, *descs: Any) -> Any:
    found, _ = op.infer(descs)
    return [d.shape for d in found]


def reshape_by(make: Any) -> ok.SubgraphOp:
    """exp(x) in the shape that `make` computes from x and the second input."""
    b = ok.SubgraphBuilder("by")
    x, s = b.input(), b.input()
    b.outputs(b.apply("reshape", b.apply("exp", x), make(b, x, s)))
    return b.get()


def test_O8_target_known_on_the_host() -> None:
    op = reshape_by(lambda b, x, s: s)
    want = np.exp(X).reshape(6, 4)
    for target in ((6, 4), [6, -1], np.array([-1, 4], np.int32)):
        for made in (op, ok.CompiledOp(op)):
            np.testing.assert_allclose(made.apply(X, target)[0], want, rtol=1e-6)
        desc = D("i8", value=target)
        assert shapes(op, D.of(X), desc) == [(6, 4)]
    assert plan_of(op, 2, ()) is None  # no sync
    assert shapes(op, D.of(X), D("i8", (2,))) == [(U, U)]
    assert shapes(op, D.of(X), D("i8", (U,))) == [None]
    assert shapes(op, D("f4"), D("i8", value=[2, 12])) == [(2, 12)]
    assert shapes(op, D("f4", (U, 3)), D("i8", value=[2, 12])) == [(2, 12)]
    for made in (op, ok.CompiledOp(op)):
        with pytest.raises(errors.ShapeError):
            made.apply(X, (5, 5))
    with pytest.raises(errors.ShapeError, match="reshape"):
        op.infer([D.of(X), D("i8", value=[5, 5])])
    with pytest.raises(errors.ArgumentError, match="vector of integers"):
        op.apply(X, np.ones((2, 2)))
    # Other sizes of the same kind are no new trace.
    compiled = ok.CompiledOp(op)
    before = compiled.function.info().traces
    compiled.apply(X, (3, 8))
    compiled.apply(X, (12, 2))
    assert compiled.function.info().traces == before


def test_O8_target_made_of_shapes() -> None:
    def of_other(b: Any, x: Any, s: Any) -> Any:
        return b.apply("get_shape", s)

    op = reshape_by(of_other)
    like = np.empty((4, 6))
    for made in (op, ok.CompiledOp(op)):
        np.testing.assert_allclose(made.apply(X, like)[0], np.exp(X).reshape(4, 6), rtol=1e-6)
        with pytest.raises(errors.ShapeError):
            made.apply(X, np.empty((5, 5)))
    assert plan_of(op, 2, ()) is None
    assert shapes(op, D.of(X), D("f8", (4, 6))) == [(4, 6)]
    assert shapes(op, D.of(X), D("f8", (4, U))) == [(4, U)]


def test_O8_target_that_a_program_computes() -> None:
    """One sync: the values are looked at between two compiled pieces."""

    def computed(b: Any, x: Any, s: Any) -> Any:
        return b.apply("cast", b.apply("sum", s, axis=0), dtype="int64")

    op = reshape_by(computed)
    parts = np.array([[2.0, 4.0], [2.0, 2.0]], np.float32)  # (4, 6)
    want = np.exp(X).reshape(4, 6)
    for made in (op, ok.CompiledOp(op)):
        np.testing.assert_allclose(made.apply(X, parts)[0], want, rtol=1e-6)
    plan = plan_of(op, 2, ())
    assert plan is not None
    assert (plan.syncs, len(plan.steps)) == (1, 2)
    assert shapes(op, D.of(X), D.of(parts, value=True)) == [(4, 6)]


def test_slices_and_joins_of_shapes() -> None:
    b = ok.SubgraphBuilder("sizes")
    x = b.input()
    shape = b.apply("get_shape", x)
    front = b.apply("[:?]", shape, 1)
    back = b.apply("[?:]", shape, 1)
    b.outputs(b.apply("reshape", x, b.apply("concatenate", back, front)), shape)
    op = b.get()
    for made in (op, ok.CompiledOp(op)):
        y, s = made.apply(X)
        assert y.tolist() == X.reshape(3, 4, 2).tolist()
        assert s.tolist() == [2, 3, 4]
    found, validated = op.infer([D.of(X)])
    assert [d.shape for d in found] == [(3, 4, 2), (3,)]
    assert found[1].value.tolist() == [2, 3, 4]
    assert validated
    assert shapes(op, D("f4", (2, U))) == [(U, 2), (2,)]


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ((10, 5), (5, 10), (10, 10)),
        ((3, 10, 5), (5, 10), (3, 10, 10)),
        ((2, 3, 7, 6), (6, 10), (2, 3, 7, 10)),
        ((U, 3), (3, 4), (U, 4)),
        ((U, U), (U, U), (U, U)),
        ((2, 3), (4, 5), None),
    ],
)
def test_T14_matmul(a: Any, b: Any, want: Any) -> None:
    op = find_op("matmul", 2)
    if want is None:
        with pytest.raises(errors.ShapeError, match="matmul"):
            op.infer([D("f4", a), D("f4", b)])
    else:
        assert shapes(op, D("f4", a), D("f4", b)) == [want]


def test_K19_shape_infer_of_matmul() -> None:
    op = ok.ShapeInfer(find_op("matmul", 2))
    (found,), validated = op.infer([D("i4", value=[2, 3]), D("i4", value=[3, 4])])
    assert (found.value.tolist(), found.dtype, validated) == ([2, 4], np.int32, True)
    assert op.apply([2, 3], [3, 4])[0].tolist() == [2, 4]
    with pytest.raises(errors.ShapeError):
        op.apply([2, 3], [4, 5])
    # In a graph: a result of that shape, and nothing is multiplied.
    b = ok.SubgraphBuilder("product_shape")
    x, y = b.input(), b.input()
    sizes = b.apply(op, b.apply("get_shape", x), b.apply("get_shape", y))
    b.outputs(b.apply("broadcast_to", b.apply("sum", x), sizes), sizes)
    whole = b.get()
    p, q = np.ones((2, 3), "f4"), np.ones((3, 4), "f4")
    for made in (whole, ok.CompiledOp(whole)):
        filled, shape = made.apply(p, q)
        assert filled.tolist() == np.full((2, 4), 6.0).tolist()
        assert (shape.tolist(), shape.dtype) == ([2, 4], np.int32)


def test_every_named_function_is_traced() -> None:
    """Each function of the table runs in a trace and gives what it gives on arrays."""
    x = X[0]
    given: dict[str, tuple[Any, ...]] = {
        "[?:]": (x, 1), "[:?]": (x, 2), "reshape": (x, (4, 3)), "element": ((3, 4),),
        "broadcast_to": (x, (2, 3, 4)), "matmul": (x, x.T.copy()), "cast": (x,),
    }  # fmt: skip
    options: dict[str, dict[str, Any]] = {
        "expand_dims": {"axis": 1}, "squeeze": {"axis": 0}, "cast": {"dtype": "float64"},
        "element": {"index": 1}, "stack": {"axis": 1}, "concatenate": {"axis": 1},
    }  # fmt: skip
    given["squeeze"] = (x[:1],)
    for name, named in FUNCTIONS.items():
        args = given.get(name, (x,) * max(named.least, 2 if named.most > 9 else 1))
        want = named.function(*args, **options.get(name, {}))
        got = find_op(name, len(args), options.get(name, {})).apply(*args)[0]
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)


def test_gradients_of_reshapes_need_sizes_alone() -> None:
    op = reshape_by(lambda b, x, s: s)
    g = op.backward_graph([D.of(X), D("i8", (2,))], (True, False), (True,))
    assert g.output_mask == (True, False)
    dy = np.ones((6, 4), np.float32)
    (y,) = op.apply(X, (6, 4))
    for made in (g, ok.EncodedGraph(ok.CompiledOp(g.op), g.input_mask, g.output_mask)):
        np.testing.assert_allclose(made.apply(X, (6, 4), y, dy)[0], np.exp(X), rtol=1e-6)


def test_compiled_backward_of_broadcasts() -> None:
    op = find_op("fma3", 3)
    a, b, c = np.ones((4, 1), "f4"), np.full((3,), 2, "f4"), np.float32(3)
    descs = [D.of(v) for v in (a, b, c)]
    g = ok.CompiledOp(op).backward_graph(descs, (True, True, True), (True,))
    assert isinstance(g.op, ok.CompiledOp)
    dy = np.arange(12, dtype=np.float32).reshape(4, 3)
    da, db, dc = g.apply(a, b, c, None, dy)
    np.testing.assert_allclose(da, 2 * dy.sum(1, keepdims=True))
    np.testing.assert_allclose(db, dy.sum(0))
    np.testing.assert_allclose(dc, dy.sum())
