"""ok.grad, ok.value_and_grad and ok.vjp: against true derivatives, finite differences and peers.

The rules of rows are tested by finite differences in tests/test_conformance.py; here, that they are
the same when traced, and what the transformation adds: shapes, trees, order, errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.values import Array, function_of, real_operands

import opkiln as ok
from opkiln import errors
from opkiln.ops.defs import OpRow
from opkiln.ops.table import ELEMENTWISE

Function = Callable[..., Any]
DIFFERENTIABLE = [row for row in ELEMENTWISE.values() if row.gradient is not None]
REAL = [row for row in DIFFERENTIABLE if "f" in row.accepts]


def derived(fn: Function, *args: Any, argnums: Any = 0) -> Any:
    """The gradient by the interpreter: nothing is compiled."""
    with ok.config.scope(disable=True):
        return ok.grad(fn, argnums)(*args)


def differences(fn: Function, args: tuple[Array, ...], at: int, step: float = 1e-6) -> Array:
    """The gradient of a real function by central differences."""
    found = np.zeros_like(args[at])
    for index in np.ndindex(found.shape):
        moved = [a.copy() for a in args]
        moved[at][index] += step
        ahead = fn(*moved)
        moved[at][index] -= 2 * step
        found[index] = (ahead - fn(*moved)) / (2 * step)
    return found


def check(fn: Function, *args: Array, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    """All gradients of a real function against central differences."""
    found = derived(fn, *args, argnums=tuple(range(len(args))))
    for i, own in enumerate(found):
        assert own.shape == args[i].shape
        np.testing.assert_allclose(own, differences(fn, args, i), rtol=rtol, atol=atol)


def arrays(*shapes: tuple[int, ...], low: float = 0.5, high: float = 2.0) -> list[Array]:
    rng = np.random.default_rng(11)
    return [rng.uniform(low, high, shape) for shape in shapes]


# ---- rows ----


@pytest.mark.parametrize("row", REAL, ids=lambda row: row.name)
def test_traced_rules_are_the_rules(row: OpRow) -> None:
    args = real_operands(row, 20)
    floats = tuple(i for i, a in enumerate(args) if a.dtype == np.float64)
    g = np.random.default_rng(3).uniform(-2, 2, 20)
    apply: Function = function_of(row)
    rule: Any = row.gradient
    with np.errstate(all="ignore"):
        want = rule(g, apply(*args), *args)
    active = [i for i in floats if want[i] is not None]
    found = derived(
        lambda *a: (apply(*a) * g).sum(),
        *args,
        argnums=tuple(active),
    )
    for i, own in zip(active, found, strict=True):
        np.testing.assert_allclose(own, want[i], rtol=1e-12, atol=1e-300, err_msg=row.name)


EDGES: dict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]] = {
    # operands and the gradient by each: of PyTorch, and of JAX where it has one
    "power": [
        ((0, 0), (0, 0)), ((0, 2), (0, 0)), ((0, 0.5), (np.inf, 0)), ((-2, 3), (12, np.nan)),
        ((-2, 0), (0, np.nan)), ((2, 0), (0, np.log(2))), ((0, 1), (1, 0)),
    ],
    "hypot": [((0, 0), (0, 0)), ((3, 0), (1, 0))],
    "arctan2": [((0, 0), (0, 0)), ((0, -1), (-1, 0)), ((1e-200, 0), (0, -1e200))],
    "logaddexp": [((-np.inf, -np.inf), (0.5, 0.5)), ((-np.inf, 1), (0, 1)), ((np.inf, 1), (1, 0))],
    "copysign": [((0, 1), (0, 0)), ((-2, 3), (-1, 0)), ((2, -3), (-1, 0))],
    "absolute": [((0,), (0,))],
    "fabs": [((0,), (0,))],
    "sqrt": [((0,), (np.inf,))],
    "sinc": [((0,), (0,))],
    "relu": [((0,), (0,))],
    "maximum": [((1, 1), (1, 0))],
    "minimum": [((1, 1), (1, 0))],
    "fmax": [((1, 1), (1, 0)), ((np.nan, 1), (0, 1)), ((1, np.nan), (1, 0))],
    "clip": [((1, 1, 2), (1, 0, 0)), ((3, 4, 2), (0, 0, 1))],
    "remainder": [((5.5, 2), (1, -2))],
    "fmod": [((-5.5, 2), (1, 2))],
    "heaviside": [((0, 0.5), (0, 1))],
    "softplus": [((800,), (1,)), ((-800,), (0,))],
    "logit": [((0.5,), (4,))],
    "frexp_mantissa": [((5,), (0.125,))],
}  # fmt: skip


def test_edges_of_rules() -> None:
    """Where a rule has a choice, or its formula would divide nothing by nothing."""
    for name, cases in EDGES.items():
        rule: Any = ELEMENTWISE[name].gradient
        for operands, want in cases:
            args = [np.float64(v) for v in operands]
            with np.errstate(all="ignore"):
                y = np.float64(function_of(ELEMENTWISE[name])(*args))
                got = [0.0 if d is None else float(d) for d in rule(np.float64(1), y, *args)]
            np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=f"{name}{operands}")


# ---- reductions ----


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: (x.sum(axis=1) ** 2).sum(),
    "sum of all": lambda x: x.sum() ** 2,
    "kept": lambda x: (x / x.sum(axis=0, keepdims=True) * x).sum(),
    "prod": lambda x: (x.prod(axis=(0, 2)) ** 2).sum(),
    "max": lambda x: (x.max(axis=1) ** 2).sum(),
    "min": lambda x: x.min() ** 2,
    "mean": lambda x: (x.mean(axis=0) ** 2).sum(),
    "var": lambda x: x.var(axis=1, ddof=1).sum(),
    "std": lambda x: np.std(x, axis=2).sum(),
    "ptp": lambda x: np.ptp(x, axis=0).sum(),
    "seeded": lambda x: (x.max(axis=1, initial=1.2) ** 2).sum(),
    "masked": lambda x: (x.sum(axis=1, where=x > 1) ** 2).sum(),
    "softmax": lambda x: (np.exp(x - x.max(axis=-1, keepdims=True)) ** 2).mean(),
}


def test_reductions_by_finite_differences() -> None:
    (x,) = arrays((3, 4, 2))
    for name, fn in REDUCTIONS.items():
        got = derived(fn, x)
        np.testing.assert_allclose(
            got, differences(fn, (x,), 0), rtol=1e-5, atol=1e-7, err_msg=name
        )


def test_gradient_of_a_product_with_zeros() -> None:
    for values, want in (
        ([2.0, 0, 3], [0.0, 6, 0]),
        ([0.0, 0, 3], [0.0, 0, 0]),
        ([1.0, 2, 3], [6.0, 3, 2]),
    ):
        assert derived(lambda x: x.prod(), np.array(values)).tolist() == want


def test_second_derivative_of_a_product_with_zeros() -> None:
    """Of two zeros each has the other in its gradient, which is 0 and whose derivative is not."""
    weights = np.array([1.0, 2, 4])

    def slope(x: Any) -> Any:
        return (ok.grad(lambda y: y.prod())(x) * weights).sum()

    second = ok.grad(slope)
    for a, b, c in ([2.0, 0, 3], [0, 0, 3], [-5, 0, 0], [0, 0, 0], [1, 2, 3]):
        hessian = np.array([[0, c, b], [c, 0, a], [b, a, 0]])
        np.testing.assert_allclose(second(np.array([a, b, c], float)), hessian @ weights)


def test_gradient_of_a_maximum_that_is_nan() -> None:
    """NaN for all that it was taken of, as JAX and PyTorch's amax have it; other rows as ever."""
    x = np.array([[1.0, np.nan, 3], [1, 3, 3], [np.nan] * 3])
    for name in ("max", "min"):
        got = derived(lambda x, name=name: getattr(x, name)(axis=1).sum(), x)
        want = [0, 0.5, 0.5] if name == "max" else [1, 0, 0]
        np.testing.assert_array_equal(got, [[np.nan] * 3, want, [np.nan] * 3])
    nothing = derived(lambda x: x.max(axis=1, initial=np.inf).sum(), np.array([[1.0, 3]]))
    assert nothing.tolist() == [[0, 0]]


def test_F037_ties_share_the_gradient_of_a_maximum() -> None:
    """Evenly, as JAX and PyTorch's amax; finite also where all is -inf or an initial value wins."""
    top = derived(lambda x: x.max(axis=1).sum(), np.array([[1.0, 3, 3], [-np.inf] * 3]))
    assert top.tolist() == [[0, 0.5, 0.5], [1 / 3] * 3]
    seeded = derived(lambda x: x.max(axis=1, initial=5.0).sum(), np.array([[1.0, 3, 3]]))
    assert seeded.tolist() == [[0, 0, 0]]


def test_T7_maximum_of_a_value_and_itself() -> None:
    x = arrays((5,))[0]
    assert derived(lambda x: np.maximum(x, x).sum(), x).tolist() == [1] * 5
    assert ok.grad(lambda x: np.maximum(x, x).sum())(x).tolist() == [1] * 5


# ---- broadcasting ----


def test_broadcast_operands_by_finite_differences() -> None:
    def fn(x: Any, y: Any) -> Any:
        return (np.tanh(x * y) - y * x * x).sum()

    for shapes in (
        ((4,), (3, 4)), ((1, 4), (3, 4)), ((3, 1), (3, 4)), ((), (3, 4)), ((1,), (3, 4)),
        ((1, 1), (3, 4)), ((3, 1), (1, 4)), ((2, 1, 4), (3, 1)), ((1,), ()), ((0, 3), (1, 3)),
    ):  # fmt: skip
        check(fn, *arrays(*shapes))
        check(fn, *arrays(*shapes[::-1]))


def test_F035_one_trace_serves_every_size_and_one_more_an_axis_of_length_1() -> None:
    """Of run-time broadcasting the gradient has the operand's shape."""
    f = ok.grad(lambda x, y: (x * y).sum())
    y = np.arange(15.0).reshape(3, 5)
    for shape in ((3, 5), (1, 5), (3, 1), (1, 1)):
        got = f(np.ones(shape), y)
        assert got.shape == shape
        axes = tuple(i for i in (0, 1) if shape[i] == 1)
        np.testing.assert_array_equal(got, y.sum(axis=axes, keepdims=True))
    for n in (2, 3, 7, 8):
        assert f(np.ones((n, n)), np.ones((n, n))).shape == (n, n)
        assert f(np.ones((1, n)), np.ones((n, n))).tolist() == [[n] * n]
    assert f.info().traces == 4
    assert f(np.ones((1, 4)), np.ones((0, 4))).tolist() == [[0.0] * 4]
    assert "x.shape[0] pinned" in str(f.explain()) and "not 1" in str(f.explain())


def test_gradients_have_the_dtype_of_their_argument() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([1.0, 2.0], dtype)
        for fn in (
            lambda x: (x * np.float64(2)).sum(),
            lambda x: (x.astype(np.float32) * 2).sum(),
            lambda x: np.exp(x).mean(),
            lambda x: x.var(),
        ):
            assert derived(fn, x).dtype == dtype
    assert derived(lambda k: k * 3, 2.0).dtype == np.float64


# ---- order, composition ----


def test_T6_second_order() -> None:
    x = np.array([0.3, 1.2, -2.0])
    np.testing.assert_allclose(derived(lambda x: np.cos(x).sum(), x), -np.sin(x), rtol=1e-14)
    first = ok.grad(lambda x: ((x * x) * (x * x)).sum())
    np.testing.assert_allclose(first(x), 4 * x**3, rtol=1e-14)
    second = ok.grad(lambda x: ok.grad(lambda x: np.cos(x).sum())(x).sum())
    np.testing.assert_allclose(second(x), -np.cos(x), rtol=1e-14)
    third = ok.grad(ok.grad(ok.grad(lambda x: x**4)))
    assert third(2.0) == 48.0


def test_second_order_of_every_row_by_differences_of_the_first() -> None:
    """The rules are made of rows, whose rules are thereby checked again."""
    for row in REAL:
        args = real_operands(row, 6)
        apply = function_of(row)
        rule: Any = row.gradient
        for i, arg in enumerate(args):
            if arg.dtype != np.float64 or row.name in PIECEWISE:
                continue

            def first(*a: Any, i: int = i, rule: Any = rule, apply: Any = apply) -> Any:
                return rule(np.float64(1), apply(*a), *a)[i]

            with np.errstate(all="ignore"):
                if first(*args) is None:
                    continue
                step = np.maximum(abs(arg), 1e-3) * 1e-6
                ahead, back = ([*args[:i], arg + h, *args[i + 1 :]] for h in (step, -step))
                want = (first(*ahead) - first(*back)) / (2 * step)
            inner = ok.grad(summed(apply), i)
            got = derived(summed(inner), *args, argnums=i)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=row.name)


def summed(fn: Function) -> Function:
    return lambda *args: fn(*args).sum()


# Whose second derivative is not smooth in the domain, or is no row.
PIECEWISE = {"digamma", "hard_swish"}


def test_perturbations_of_two_levels_are_not_confused() -> None:
    """d/dx of x * (d/dy of x * y) is 2 x, not 3 x or x."""
    assert ok.grad(lambda x: x * ok.grad(lambda y: x * y)(x))(3.0) == 6.0
    twice = ok.compile(lambda x: ok.grad(lambda a, b: a * b * b, (0, 1))(x, x))
    assert twice(np.float64(3.0)) == (9.0, 18.0)


def test_compiled_functions_and_gradients_inline_into_each_other() -> None:
    @ok.compile(static="power")
    def raised(x: Any, power: int) -> Any:
        return (x**power).sum()

    x = np.array([1.0, 2.0, 3.0])
    gradient = ok.grad(raised)  # keeps what is static
    assert gradient(x, 3).tolist() == [3.0, 12.0, 27.0]
    step = ok.compile(lambda x: x - 0.5 * ok.grad(raised)(x, 2))
    assert step(x).tolist() == [0.0, 0.0, 0.0]
    assert "grad" in repr(gradient) and gradient.info().traces == 1


def test_value_and_grad_of_trees() -> None:
    def loss(parameters: Any, x: Any, *, scale: float = 1.0) -> Any:
        hidden = np.tanh(x * parameters["w"] + parameters["b"][0])
        return (hidden * scale).sum()

    parameters = {"w": np.array([1.0, 2.0]), "b": [np.array(0.5)]}
    x = np.array([[0.1, 0.2], [0.3, 0.4]])
    value, found = ok.value_and_grad(loss)(parameters, x, scale=2.0)
    slope = 2 * (1 - np.tanh(x * parameters["w"] + 0.5) ** 2)
    np.testing.assert_allclose(value, loss(parameters, x, scale=2.0), rtol=1e-14)
    np.testing.assert_allclose(found["w"], (slope * x).sum(0), rtol=1e-14)
    np.testing.assert_allclose(found["b"][0], slope.sum(), rtol=1e-14)
    assert isinstance(found["b"], list)


def test_argnums() -> None:
    f = lambda x, y, z: x * y + z  # noqa: E731
    assert ok.grad(f, 1)(2.0, 3.0, 4.0) == 2.0
    assert ok.grad(f, (2, 0))(2.0, 3.0, 4.0) == (1.0, 3.0)
    assert ok.grad(f, -1)(2.0, 3.0, 4.0) == 1.0
    assert ok.grad(f, (0,))(2.0, 3.0, 4.0) == (3.0,)


def test_an_argument_without_part_has_gradient_zero() -> None:
    got = ok.grad(lambda x, y: (x * 2).sum(), (0, 1))(np.ones(2), np.ones((2, 3)))
    assert got[1].tolist() == [[0] * 3] * 2


def test_auxiliary_results() -> None:
    f = lambda x: ((x**2).sum(), {"twice": 2 * x})  # noqa: E731
    gradient, aux = ok.grad(f, has_aux=True)(np.array([1.0, 2.0]))
    assert gradient.tolist() == [2.0, 4.0] and aux["twice"].tolist() == [2.0, 4.0]
    (value, aux), gradient = ok.value_and_grad(f, has_aux=True)(np.array([1.0, 2.0]))
    assert value == 5.0 and aux["twice"].tolist() == [2.0, 4.0]


def test_captured_arrays_are_constants_to_a_gradient() -> None:
    w = np.array([1.0, 2.0])
    f = ok.grad(lambda x: (x * w).sum())
    assert f(np.ones(2)).tolist() == [1, 2]
    w[:] = 5
    assert f(np.ones(2)).tolist() == [5, 5]


# ---- vjp ----


def test_vjp() -> None:
    x, y = arrays((3, 2), (2,))
    value, pull = ok.vjp(lambda x, y: {"p": x * y, "n": x > 1, "e": [np.exp(y)]}, x, y)
    np.testing.assert_array_equal(value["p"], x * y)
    a, b = arrays((3, 2), (2,), low=-1, high=1)
    by_x, by_y = pull({"p": a, "n": a > 0, "e": [b]})
    np.testing.assert_allclose(by_x, a * y, rtol=1e-15)
    np.testing.assert_allclose(by_y, (a * x).sum(0) + b * np.exp(y), rtol=1e-14)
    again = ok.vjp(lambda x: x * 2, x)[1](1.0)
    assert again[0].tolist() == [[2.0] * 2] * 3


def test_a_cotangent_may_be_none_at_every_place_of_the_tree() -> None:
    x = np.ones(2)
    _, pull = ok.vjp(lambda x: (x * 2, {"a": x}), x)
    for cotangent, want in (
        (None, 0), ((x, None), 2), ((None, {"a": x}), 1), ((None, {"a": None}), 0),
    ):  # fmt: skip
        assert pull(cotangent)[0].tolist() == [want, want]
    for wrong in (3.0, (x,), (x, x), [x, {"a": x}], (x, {"b": x})):
        with pytest.raises(errors.GradientError, match="expected the tree of the result"):
            pull(wrong)


def test_vjp_uses_the_result_in_place_of_computing_it_again() -> None:
    _, pull = ok.vjp(np.exp, np.ones(3))
    (graph,) = [str(pull.func.lower(*pull.args, np.ones(3)).graph)]
    assert "exp" not in graph and graph.count("multiply") == 1


def test_vjp_by_some_arguments() -> None:
    """In the order asked for, also in a trace; nothing is computed for the others."""

    def f(w: Any, x: Any, n: Any) -> Any:
        return (w["a"] @ x) * n, n

    w, x, n = {"a": np.eye(2) + 1}, np.array([[3.0], [5.0]]), np.arange(2)[:, None]
    g = np.ones((2, 1)), None
    whole = {"a": n * g[0] @ x.T}, w["a"].T @ (n * g[0])
    for numbers, want in ((0, whole[0]), (-2, whole[1]), ((1, 0), whole[::-1]), ((1,), whole[1:])):
        _, pull = ok.vjp(f, w, x, n, argnums=numbers)
        back: Any = lambda w, x, n, k=numbers: ok.vjp(f, w, x, n, argnums=k)[1](g)  # noqa: E731
        for found in (pull(g), ok.compile(back, static="k")(w, x, n, k=numbers)):
            assert str(found) == str(want), numbers
    pull = ok.vjp(f, w, x, n, argnums=1)[1]
    assert sum(k.product for k in pull.func.lower(*pull.args, g).kernels) == 1
    with pytest.raises(errors.ArgumentError, match="argnums"):
        ok.vjp(f, w, x, n, argnums=0.5)


def test_vjp_inside_a_trace() -> None:
    @ok.compile
    def f(x: Any) -> Any:
        value, pull = ok.vjp(np.sin, x)
        return value, pull(x)[0]

    x = np.array([0.5, 1.0])
    np.testing.assert_allclose(f(x)[1], x * np.cos(x), rtol=1e-14)


# ---- refusals ----


def line_of(message: str) -> str:
    return re.findall(r"\(\S*test_grad\.py:(\d+)\)", message)[-1]


REFUSED: list[tuple[Function, tuple[Any, ...], str]] = [
    (lambda x: x * 2, (np.ones(3),), "expected one float as the result, got an array of float64"),
    (lambda x: (x > 1).sum(), (np.ones(3),), "got a number of int64"),
    (lambda x: None, (np.ones(3),), "got a NoneType"),
    (lambda x: x.sum(), (np.ones(3, int),), "argument x: expected floats, got an array of int64"),
    (lambda x: x.sum(), (np.ones(3, bool),), "argument x: expected floats, got an array of bool"),
    (lambda x: x * 1.0, (3,), "argument x: expected floats, got a Python int"),
    (lambda x: x["a"][1].sum(), ({"a": [1.0, np.ones(2, "i4")]},), r"argument x\['a'\]\[1\]: exp"),
    (lambda x: np.floor(x).sum(), (np.ones(3),), "only through floor, which has no gradient"),
    (lambda x: x.argmax() * 1.0, (np.ones(3),), "only through argmax, which has no gradient"),
    (lambda x: ok.ops.trigamma(x).sum(), (np.ones(3),), "gradient of trigamma: .*no row"),
    (lambda x: abs(x * 1j).sum(), (np.ones(3),), "gradient of absolute of complex128"),
    (lambda x: (x * 1j).real.sum(), (np.ones(3),), "gradient of real of complex128"),
    (lambda x: x.sum(), (np.ones(3, complex),), "expected floats, got an array of complex128"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "args", "message"), REFUSED, ids=lambda v: v if type(v) is str else ""
)
def test_refusals(fn: Function, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(errors.GradientError, match=message) as caught:
        ok.grad(fn)(*args)
    assert isinstance(caught.value, TypeError)
    assert "how to fix" in str(caught.value) or "trigamma" in message
    assert line_of(str(caught.value))


def test_a_refusal_names_the_line_of_the_op() -> None:
    def loss(x: Any) -> Any:
        y = np.floor(x)
        return y.sum()

    with pytest.raises(errors.GradientError) as caught:
        ok.grad(loss)(np.ones(2))
    assert int(line_of(str(caught.value))) == loss.__code__.co_firstlineno + 1


def test_T26_ops_without_gradient_beside_others() -> None:
    """What flows through sin(c) alone: a and b are refused, c is not."""

    def fn(a: Any, b: Any, c: Any) -> Any:
        return (a // (abs(b) + 0.1) * np.sin(c)).sum()

    a, b, c = arrays((4,), (4,), (4,), low=-3, high=3)
    np.testing.assert_allclose(
        derived(fn, a, b, c, argnums=2), a // (abs(b) + 0.1) * np.cos(c), rtol=1e-14
    )
    for argnums in (0, 1):
        with pytest.raises(errors.GradientError, match="floor_divide"):
            derived(fn, a, b, c, argnums=argnums)


def test_argnums_are_checked() -> None:
    for argnums in ("x", 1.5, (), (0, 0), None, True):
        with pytest.raises(errors.ArgumentError, match="argnums"):
            ok.grad(np.sin, argnums)  # type: ignore[arg-type]
    with pytest.raises(errors.GradientError, match="-1 is argument y once more, of 2"):
        ok.grad(lambda x, y: (x * y).sum(), (1, -1))(np.ones(2), np.ones(2))
    with pytest.raises(errors.GradientError, match="there is no argument 3"):
        ok.grad(lambda x: x.sum(), 3)(np.ones(2))


def test_a_gradient_takes_no_out() -> None:
    with pytest.raises(errors.ArgumentError, match="unexpected keyword argument 'out'"):
        ok.grad(lambda x: x.sum())(np.ones(2), out=np.ones(2))


def test_disabled_gradients_are_interpreted() -> None:
    with ok.config.scope(disable=True):
        f = ok.grad(lambda x: ok.compile(np.exp)(x).sum())
        x = np.array([0.0, 1.0])
        np.testing.assert_allclose(f(x), np.exp(x), rtol=1e-15)
        assert f.info().builds == 0 and f.info().fallbacks == 1


# ---- products ----


def test_products_by_finite_differences() -> None:
    for shapes in (((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((1, 3, 4), (5, 4, 2)), ((4,), (4, 2)),
                   ((3, 4), (4,)), ((4,), (4,))):  # fmt: skip
        check(lambda a, b: (np.tanh(a @ b) ** 2).sum(), *arrays(*shapes))


def test_a_product_that_is_not_computed_is_still_checked() -> None:
    """Of (a @ b).sum() the gradients need no product, but the extents have to fit."""
    f = ok.grad(lambda a, b: (a @ b).sum(), (0, 1))
    a, b = f(np.ones((2, 3)), np.ones((3, 4)))
    assert a.tolist() == [[4.0] * 3] * 2 and b.tolist() == [[2.0] * 4] * 3
    for argnums in (0, 1):
        for shapes in (((2, 3), (4, 4)), ((2, 3), (1, 4)), ((2, 1), (3, 4))):
            with pytest.raises(errors.ShapeError):
                derived(lambda a, b: (a @ b).sum(), *arrays(*shapes), argnums=argnums)


def test_a_layer_compiles_to_the_gradients_of_numpy() -> None:
    def loss(w: Any, b: Any, x: Any, y: Any) -> Any:
        return ((ok.ops.relu(x @ w + b) - y) ** 2).mean()

    w, b, x, y = arrays((4, 3), (3,), (5, 4), (5, 3), low=-1, high=1)
    value, (by_w, by_b) = ok.value_and_grad(loss, (0, 1))(w, b, x, y)
    z = x @ w + b
    g = 2 * (np.maximum(z, 0) - y) / z.size * (z > 0)
    np.testing.assert_allclose(value, ((np.maximum(z, 0) - y) ** 2).mean(), rtol=1e-12)
    np.testing.assert_allclose(by_w, x.T @ g, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(by_b, g.sum(0), rtol=1e-12, atol=1e-15)
    step = ok.value_and_grad(loss, (0, 1))
    assert len(step.lower(w, b, x, y).kernels) == 4  # two of them products; nothing only copies


# ---- programs of the seed ----


def test_T8_batch_normalisation_in_single_precision() -> None:
    """Large values, two shapes of one function, every level: as the interpreter."""

    def normalised(x: Any, scale: Any, shift: Any) -> Any:
        mean = x.mean(axis=(0, 2, 3), keepdims=True)
        spread = ((x - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True)
        return (x - mean) / np.sqrt(spread + np.float32(1e-5)) * scale + shift

    def loss(x: Any, scale: Any, shift: Any, g: Any) -> Any:
        y = normalised(x, scale, shift)
        return (y * g).sum(), y

    rng = np.random.default_rng(2)
    scale, shift = (rng.random((1, 3, 1, 1), np.float32) for _ in range(2))
    functions = [ok.grad(loss, has_aux=True, opt_level=n) for n in (0, 1, 2)]  # type: ignore[misc]
    for shape in ((1, 3, 223, 223), (8, 3, 10, 20)):
        x = rng.random(shape, np.float32) * np.float32(1e3) + np.float32(1e3)
        g = rng.random(shape, np.float32)
        with ok.config.scope(disable=True):
            want, y = ok.grad(loss, has_aux=True)(x, scale, shift, g)
        for f in functions:
            got, out = f(x, scale, shift, g)
            np.testing.assert_allclose(out, y, rtol=5e-6, atol=5e-6)
            np.testing.assert_allclose(got, want, rtol=5e-6, atol=5e-6)


def test_T11_log_sigmoid_and_softplus() -> None:
    """As they are and written out, to the squared distance from 2."""
    (x,) = arrays((2, 16, 10, 16), low=-1, high=1)
    for row, plain in (
        (ok.ops.softplus, lambda x: np.log1p(np.exp(-abs(x))) + np.maximum(x, 0)),
        (ok.ops.log_sigmoid, lambda x: -(np.log1p(np.exp(-abs(x))) + np.maximum(-x, 0))),
    ):
        own, written = (ok.value_and_grad(distance(f)) for f in (row, plain))
        for _ in range(2):
            (value, gradient), (want, slope) = own(x), written(x)
            np.testing.assert_allclose(value, want, rtol=1e-6)
            np.testing.assert_allclose(gradient, slope, rtol=1e-6)


def distance(fn: Function) -> Function:
    return lambda x: ((fn(x) - 2) ** 2).sum()
