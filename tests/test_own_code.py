"""GenericPyOp whose hooks are wrong, take numbers, or are needed by a gradient; options of ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads

import opkiln as ok
from opkiln import errors

D = ok.TensorDesc
X = np.array([0.5, 1.5, 2.5])
VEC = D.of(X)


class Hooks:
    """Hooks that a test gives."""

    def __init__(self, apply: Any = None, infer: Any = None, grad: Any = None) -> None:
        self.hooks = apply, infer, grad

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hooks) and self.hooks == other.hooks

    def __hash__(self) -> int:
        return hash(self.hooks)

    def apply(self, *arrays: Any) -> Any:
        return self.hooks[0](*arrays)

    def infer(self, *descs: Any) -> Any:
        return self.hooks[1](*descs) if self.hooks[1] else (descs[:1], descs[0].known)

    def grad(self, *args: Any) -> Any:
        return self.hooks[2](*args)


def amid(op: ok.GenericPyOp) -> ok.SubgraphOp:
    """The op between two others."""
    b = ok.SubgraphBuilder("amid")
    b.outputs(b.apply("negative", b.apply(op, b.apply("exp", b.input()))))
    return b.get()


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ((X, X), "amid: Hooks gives 2 results, expected 1"),
        ((), "amid: Hooks gives 0 results, expected 1"),
        (("q",), r"Hooks\.apply: expected arrays, got a str as result 0"),
        ((None,), r"Hooks\.apply: expected arrays, got a NoneType as result 0"),
        (X, r"Hooks\.apply: expected a tuple of arrays, got ndarray"),
    ],
)
def test_results_that_are_wrong(results: Any, text: str) -> None:
    op = amid(ok.GenericPyOp(Hooks(lambda x: results)))
    for made in (op, ok.CompiledOp(op), ok.CompiledOp(ok.JITFusionOp(op))):
        with pytest.raises(errors.ArgumentError, match=rf"{text}(.|\n)*test_own_code.py:\d"):
            made.apply(X)


@pytest.mark.parametrize(
    "given", [None, VEC, ((3,), True), ((VEC,),), ((VEC,), np.ones(2)), ((VEC, VEC), True)]
)
def test_inference_that_is_wrong(given: Any) -> None:
    op = amid(ok.GenericPyOp(Hooks(lambda x: (x,), lambda x: given)))
    for ask in (
        lambda: op.infer([VEC]),
        lambda: op.backward_graph([VEC], (True,), (True,)),
    ):
        with pytest.raises(errors.ArgumentError, match=r"Hooks(.|\n)*test_own_code.py:\d"):
            ask()


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (np.ones(7), r"shape \(3,\) for input 0, got float64 of shape \(7,\)"),
        (np.ones((1, 3)), r"got float64 of shape \(1, 3\)"),
        ("a", "got str"),
        (X + 1j, "got complex128"),
    ],
)
def test_gradients_that_are_wrong(gradient: Any, text: str) -> None:
    op = ok.GenericPyOp(Hooks(lambda x: (x * 2,), None, lambda *_: (gradient,)))
    for made in (op, amid(op), ok.CompiledOp(amid(op))):
        g = made.backward_graph([VEC], (True,), (True,))
        with pytest.raises(errors.GradientError, match=rf"Hooks\.grad.*{text}"):
            g.apply(X, *made.apply(X), X)


def test_gradients_take_dtype_and_shape_of_their_input() -> None:
    x = X.astype(np.float32)
    op = ok.GenericPyOp(Hooks(lambda x: (x * 2,), None, lambda *_: (2,)))
    (dx,) = op.backward_graph([D.of(x)], (True,), (True,)).apply(x, x, x)
    assert (dx.dtype, dx.tolist()) == (np.float32, [2, 2, 2])


def test_C1_objects_that_cannot_be_hashed_or_keyed() -> None:
    @dataclass(frozen=True)
    class Listed:
        items: Any

        def apply(self, x: Any) -> Any:
            return (x,)

    @dataclass(frozen=True)
    class Keyed(Listed):
        def key(self) -> Any:
            return self.items

    with pytest.raises(errors.ArgumentError, match=r"Listed: unhashable type: 'list'"):
        ok.GenericPyOp(Listed([1]))
    for key in (3, None, "ab", (object(),)):
        with pytest.raises(errors.ArgumentError, match=r"Keyed\.key: expected a tuple"):
            ok.GenericPyOp(Keyed(key))
    assert ok.GenericPyOp(Keyed((1, "a"))) == ok.GenericPyOp(Keyed((1, "a")))


def test_own_code_alone_is_compiled_as_it_is() -> None:
    op = ok.GenericPyOp(Hooks(lambda x: (x * 2,), None, lambda i, r, d: (d[0] * 2,)))
    for made in (
        ok.CompiledOp(op),
        ok.CompiledOp(ok.CompiledOp(op)),
        ok.CompiledOp(ok.JITFusionOp(op)),
    ):
        assert made.apply(X)[0].tolist() == (X * 2).tolist()
        (dx,) = made.backward_graph([VEC], (True,), (True,)).apply(X, X, X)
        assert dx.tolist() == (X * 2).tolist()


# ---- numbers ----


def scaled(x: Any, k: Any) -> Any:
    assert type(k) is float  # as it was given
    return (x * k,)


def test_own_code_takes_numbers_and_has_a_gradient() -> None:
    own = ok.GenericPyOp(Hooks(scaled, None, lambda i, r, d: (i[1] * d[0], None)))
    b = ok.SubgraphBuilder("scaled")
    b.outputs(b.apply("*", b.apply(own, b.input(), 2.5), 3.0))
    op = b.get()
    for made in (op, ok.CompiledOp(op)):
        assert made.apply(X)[0].tolist() == (X * 2.5 * 3).tolist()
        (dx,) = made.backward_graph([VEC], (True,), (True,)).apply(X, X, X)
        assert dx.tolist() == (X * 3 * 2.5).tolist()


def test_numbers_are_inputs_of_ops_with_several_results() -> None:
    b = ok.SubgraphBuilder("two")
    x, y = b.input(), b.input()
    b.outputs(b.apply("+", x, y), b.apply("*", x, y))
    op = b.get()
    desc = D("f4", (3,))
    assert op.infer([desc, 2.0]) == ((desc, desc), True)
    with pytest.raises(errors.ArgumentError, match=r"two.backward_graph: expected TensorDescs"):
        op.backward_graph([desc, 2.0], (True, False), (True, True))


# ---- gradients ----


def test_a_backward_graph_does_not_run_what_only_the_forward_needs() -> None:
    ran: list[str] = []

    def own(name: str) -> ok.GenericPyOp:
        def forward(x: Any) -> Any:
            ran.append(name)
            return (x * x,)

        def back(inputs: Any, results: Any, dys: Any) -> Any:
            ran.append(f"{name} back")
            return (2 * inputs[0] * dys[0],)

        return ok.GenericPyOp(Hooks(forward, None, back))

    b = ok.SubgraphBuilder("effects")
    x = b.input()
    first = b.apply(own("first"), x)
    b.apply(own("log"), x)
    b.outputs(first, b.apply(own("second"), b.apply("exp", first)))
    op = b.get()
    results = op.apply(X)
    assert ran == ["first", "log", "second"]
    for made in (op, ok.CompiledOp(op)):
        for has, want, wanted in (
            ((True, False), ["first back"], 2 * X),
            ((False, True), ["second back", "first back"], 4 * X * np.exp(2 * X * X)),
        ):
            ran.clear()
            dys = [np.ones(3) if h else None for h in has]
            (dx,) = made.backward_graph([VEC], (True,), has).apply(X, *results, *dys)
            assert ran == [*["first"] * ("first" in ran), *want]
            np.testing.assert_allclose(dx, wanted, rtol=1e-12)


def test_K20_a_mask_counts_beside_a_gradient_of_its_own() -> None:
    @ok.subgraph("mul", np.float64, "cpu", nr_inputs=2, custom_grad=True)
    def mul(inputs: Any, f: Any, c: Any) -> Any:
        x, y = inputs
        g = yield f("*", x, y)
        yield f("*", g, y), f("*", g, x)

    masked = ok.SubgraphOp(mul.graph, "held", (False,), gradient=mul.gradient)
    assert ok.grad(lambda x: (masked.apply(x, x)[0] + 3 * x).sum())(X).tolist() == [3, 3, 3]
    with pytest.raises(errors.GradientError, match="only through held, which has no gradient"):
        ok.grad(lambda x: masked.apply(x, x)[0].sum())(X)


# ---- options ----


def test_options_have_one_spelling() -> None:
    one, other = (ok.find_op("sum", 1, {"axis": n}) for n in (np.int64(1), 1))
    assert one == other
    spellings: list[Any] = ["f8", np.float64, np.dtype("f8"), float]
    assert len({ok.find_op("cast", 1, {"dtype": t}).digest for t in spellings}) == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sum", {"axis": np.array(0)}),
        ("sum", {"axis": {0}}),
        ("cast", {"dtype": "nonsense"}),
        ("cast", {"dtype": None}),
        ("element", {"index": "q"}),
        ("element", {}),
        ("transpose", {"axes": object()}),
    ],
)
def test_options_that_are_wrong(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"{name}(.|\n)*test_own_code.py:\d"):
        ok.find_op(name, 1, options).apply(np.arange(3))


def test_an_index_out_of_bounds() -> None:
    op = ok.find_op("element", 1, {"index": 9})
    for ask in (lambda: op.apply(np.arange(3)), lambda: op.infer([D("i8", value=[1, 2, 3])])):
        with pytest.raises(errors.BoundsError, match=r"element.*out of range"):
            ask()


def test_messages_name_op_and_line_once() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        ok.find_op("reshape", 2).infer([D("f4", (5,)), D("i8", value=[3, -1])])
    assert str(caught.value).count("reshape: ") == 1
    assert str(caught.value).count("test_own_code.py") == 1


@pytest.mark.parametrize("given", [[2.5, 3], "ab", [-2, 3], [[2, 3]]])
def test_sizes_that_are_none(given: Any) -> None:
    op = ok.ShapeInfer(ok.find_op("matmul", 2))
    with pytest.raises(errors.OpkilnError, match=r"ShapeInfer\[matmul\]"):
        op.apply(given, [3, 4])
    assert ok.ShapeInfer(ok.find_op("negative", 1)).apply([])[0].shape == (0,)


# ---- re-entry ----


def test_a_hook_may_apply_the_op_that_it_is_part_of() -> None:
    depth: list[int] = []
    held: dict[str, Callable[..., Any]] = {}

    def again(x: Any) -> Any:
        depth.append(len(depth))
        return (-held["op"](x)[0] if len(depth) < 4 else -x,)

    op = ok.CompiledOp(amid(ok.GenericPyOp(Hooks(again))))
    held["op"] = op.apply
    x = X / 10
    (got,) = op.apply(x)
    assert len(depth) == 4
    value = x
    for _ in range(4):
        value = np.exp(value)
    np.testing.assert_allclose(got, value, rtol=1e-12)


def test_hooks_in_threads_while_caches_are_cleared() -> None:
    op = ok.CompiledOp(amid(ok.GenericPyOp(Hooks(lambda x: (x + 1,)))))
    want = (-(np.exp(X) + 1)).tolist()

    def work(i: int) -> None:
        for _ in range(20):
            if i == 0:
                ok.clear_cache()
            assert op.apply(X)[0].tolist() == want

    run_in_threads(work, 6)


# ---- what every mode agrees on ----


def adder() -> ok.SubgraphOp:
    b = ok.SubgraphBuilder("adder")
    b.outputs(b.apply("+", b.input(), b.input()))
    return b.get()


def test_byte_swapped_arrays_in_every_mode() -> None:
    swapped = X.astype(">f8")
    op = adder()
    for made in (op, ok.CompiledOp(op), ok.JITFusionOp(op), ok.find_op("+", 2)):
        (got,) = made.apply(swapped, X)
        assert (got.dtype.isnative, got.tolist()) == (True, (X + X).tolist())


def test_strict_fusion_takes_numbers_in_every_mode() -> None:
    """As its inference does: a number has no shape and dtype of its own."""
    op = ok.JITFusionOp(adder())
    x = X.astype(np.float32)
    assert op.infer([D.of(x), 2.0])[0] == (D("f4", (3,)),)
    for made in (op, ok.CompiledOp(op)):
        (got,) = made.apply(x, 2.0)
        assert (got.dtype, got.tolist()) == (np.float32, (x + 2).tolist())


def test_a_list_is_no_array_to_compiled_ops() -> None:
    with pytest.raises(errors.ArgumentError, match="adder: expected an array as input 0, got a l"):
        ok.CompiledOp(adder()).apply([1.0], [2.0])


def test_sizes_that_int32_does_not_hold() -> None:
    op = ok.ShapeInfer(ok.find_op("negative", 1))
    for made in (op, ok.CompiledOp(op)):
        assert made.apply([7, 2**31 - 1])[0].tolist() == [7, 2**31 - 1]
        with pytest.raises(errors.HostRangeError, match="int32"):
            made.apply([2**40])


def test_masks_of_another_number_of_results() -> None:
    for op in (adder(), ok.CompiledOp(adder()), ok.find_op("+", 2)):
        with pytest.raises(errors.ArgumentError, match="mask of 1 results"):
            op.backward_graph([VEC, VEC], (True, True), (True, True))
    with pytest.raises(errors.ArgumentError, match="Identity: expected a mask of 1 results"):
        ok.Identity().backward_graph([VEC], (True,), (True, False))
    with pytest.raises(errors.ArgumentError, match="Identity: expected 1 input"):
        ok.Identity().backward_graph([VEC, VEC], (True, True), (True,))
    assert not ok.Identity().backward_graph([D("i8", (3,))], (True,), (True,))
    found = adder().backward_graph([VEC, VEC], (True, True), (True,))
    with pytest.raises(ValueError, match="adderGrad: expected an array as input 3, got None"):
        found.apply(X, X, X, None)


def test_another_number_of_inputs_of_a_row() -> None:
    op = ok.find_op("+", 2)
    for ask in (
        lambda: op.apply(X), lambda: ok.CompiledOp(op).apply(X, X, X), lambda: op.infer([VEC]),
    ):  # fmt: skip
        with pytest.raises(errors.ArgumentError, match=r"add: expected 2 inputs, got [13]"):
            ask()


@pytest.mark.parametrize(("dtype", "value"), [("i4", 2**40), ("f4", "a"), ("f4", [[1], [2, 3]])])
def test_values_that_a_dtype_does_not_hold(dtype: str, value: Any) -> None:
    with pytest.raises(errors.OpkilnError, match="TensorDesc: the value"):
        D(dtype, value=value)


def test_ops_first_used_while_disabled_are_compiled_later() -> None:
    b = ok.SubgraphBuilder("later")
    b.outputs(b.apply("+", b.apply("cosh", b.input()), 8.75))
    op = b.compile()
    with ok.config.scope(disable=True):
        want = op.apply(X)[0]
    np.testing.assert_allclose(op.apply(X)[0], want, rtol=1e-14)
    assert op.function.info().traces == 1


def test_extents_that_become_equal_are_one() -> None:
    """A backward graph in which both operands of a product are one value, without rewrites."""

    @ok.subgraph("mul", np.float64, "cpu", nr_inputs=2, custom_grad=True)
    def mul(inputs: Any, f: Any, c: Any) -> Any:
        x, y = inputs
        g = yield f("*", x, y)
        yield f("*", g, y), f("*", g, x)

    b = ok.SubgraphBuilder("square")
    x, y = b.input(), b.input()
    b.apply(ok.GenericPyOp(Hooks(lambda x: (x,))), x)  # so that it is composed op by op
    least = b.apply("minimum", b.apply(mul, x, x), y)
    b.outputs(b.apply(mul, least, least))
    op = b.get()
    x, y = X[:, None], np.array([2.0])
    least = np.minimum(x * x, y)
    for level in (0, 1, 2):
        g = ok.CompiledOp(op, level).backward_graph([D.of(x), D.of(y)], (True, True), (True,))
        dx, dy = g.apply(x, y, least * least, np.ones_like(x))
        np.testing.assert_allclose(dx, 2 * least * (x * x <= y) * 2 * x, rtol=1e-14)
        np.testing.assert_allclose(dy, [(2 * least * (x * x > y)).sum()], rtol=1e-14)


def test_numbers_alone_give_what_numpy_gives() -> None:
    """Also a bool, and the result of numbers as an input of the next op."""
    b = ok.SubgraphBuilder("numbers")
    x, y, z = (b.input() for _ in range(3))
    b.outputs(b.apply("+", b.apply("+", b.apply("*", y, z), z), x))
    op = b.get()
    for y, z in ((1.5, 2), (True, 2.0), (True, False), (2, 3), (1j, 2)):
        want = np.add(np.add(np.multiply(y, z), z), X)
        for made in (op, ok.CompiledOp(op), ok.JITFusionOp(op, strict=False)):
            (got,) = made.apply(X, y, z)
            assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())
