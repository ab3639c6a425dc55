"""What cannot be traced fails at once, with the user's line and what to write instead."""

# ruff: noqa: PLW0108  a lambda gives the traced function a line

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import INT, A, check, refused, run, same, traced

import opkiln as ok
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import AxisError, NotYet, ShapeError, TraceError, UnsupportedDType
from opkiln.runtime.reference import interpret
from opkiln.runtime.trace import check_traceable
from opkiln.runtime.trace.advice import WRITE_INSTEAD
from opkiln.runtime.trace.functions import FUNCTIONS


def test_values_are_not_known() -> None:
    with refused(TraceError, "np.where"):
        run(lambda x: x if x.sum() > 0 else -x, A)
    with refused(TraceError, "outside"):
        run(lambda x: x * float(x.sum()), A)
    with refused(TraceError):
        run(lambda x: x * int(x.sum()), A)
    for convert in (np.asarray, np.array, np.ascontiguousarray):
        with refused(TraceError, "drop np.asarray", "already"):
            run(lambda x, convert=convert: convert(x), A)
    with refused(TraceError, "outside"):
        run(lambda x: f"{x:.2f}", A)
    with refused(TraceError):
        run(lambda x: np.linalg.inv(x), A)
    with refused(TraceError, "iteration"):
        run(lambda x: list(x), A)
    with refused(TraceError, "three arguments"):
        run(lambda x: np.nonzero(x), A)
    with refused(TraceError, "np.where(condition, a, b)"):
        run(lambda x: np.where(x > 0), A)
    with refused(TraceError, "static"):
        run(lambda x, h: x if h else -x, A, 2)
    with refused(TraceError, "static"):
        run(lambda x, h: x * range(h)[0], A, 2)
    with refused(TraceError):
        run(lambda x: x in [1], A)
    with refused(TraceError):
        run(lambda x: x.item(), A)


def test_a_list_that_was_meant_as_an_array() -> None:
    for fn in (lambda x: x * 2 + 1, lambda x: x.sum()):
        with pytest.raises((TypeError, AttributeError)) as caught:
            ok.compile(fn)([1.0, 2.0])
        assert "pass np.asarray(" in caught.value.__notes__[0]
    with pytest.raises(TypeError) as caught_too:
        ok.compile(lambda x: sum(1))(A)  # type: ignore[call-overload]
    assert not hasattr(caught_too.value, "__notes__")


def test_in_place() -> None:
    """F044, F045: arguments and views refuse; intermediates keep NumPy's aliasing."""

    def argument(x: Any) -> Any:
        x += 1
        return x

    with pytest.raises(TraceError, match=r"test_trace_refusals.py:\d+.*\n.*x = x \+ y"):
        run(argument, A)
    for body in (
        lambda x: argument(x.T),
        lambda x: argument(x.astype(x.dtype, copy=False)),
        lambda x: np.add(x, 1, out=x),
        lambda x: np.add(x, 1, out=np.empty((2, 3), np.float32)),
    ):
        with pytest.raises(TraceError, match="test_trace_refusals"):
            run(body, A)
    held = np.ones(3, np.float32)

    def capture(x: Any) -> Any:
        nonlocal held
        held += x
        return held

    with pytest.raises(TraceError, match="captured"):
        run(capture, A)
    assert (held == 1).all()
    check(lambda x: argument((x + 1).T), A)
    check(lambda x: argument((x + 1)[None]), A)
    check(lambda x: argument(x.copy()), A)
    check(lambda x: argument(+x), A)
    check(lambda x: argument(x.astype(np.float32)), A)
    check(lambda x: argument(x.sum()), A)

    def scalar(x: Any) -> Any:  # NumPy's scalars are immutable: an alias keeps its value
        s = x.sum()
        old = s
        s += 1
        return s, old

    check(scalar, A)


def test_in_place_casts_as_numpy() -> None:
    def add(t: Any, y: Any) -> Any:
        t = +t
        t += y
        return t

    def divide(t: Any) -> Any:
        t = +t
        t /= 2
        return t

    f8, f4 = np.ones((2, 3)), np.ones((2, 3), np.float32)
    assert check(add, f4, f8).dtype == np.float32
    for t, y in ((INT, f4), (INT.astype(np.uint8), INT)):
        with pytest.raises(TypeError, match="same_kind"):
            run(add, t, y)
    with pytest.raises(TypeError, match="same_kind"):
        run(divide, INT)
    check(divide, f4)
    with pytest.raises(ValueError, match="does not fit"):
        run(add, np.ones(3), np.ones((2, 3)))
    found = traced(add, np.ones(3), np.ones(3))
    with pytest.raises(ShapeError):
        interpret(found.graph, [np.ones(1), np.ones(3)])
    same(interpret(found.graph, [np.ones(3), np.ones(1)])[0], np.full(3, 2.0))


def test_long_chains_of_views_follow_updates() -> None:
    def f(x: Any) -> Any:
        t = x + 1
        view = t
        for _ in range(3000):
            view = view.T
        t += 1
        return view

    check(f, A)


def test_a_class_is_no_array() -> None:
    """Not even one whose instances offer memory, so that it has the attributes for that."""
    for kind in (np.float32, np.ndarray, memoryview, int):
        with pytest.raises(TypeError):
            A * kind
        with refused(TraceError, "cannot compute with a type", kind.__name__):
            run(lambda x: x * kind, A)  # noqa: B023


def test_unknown_functions_name_what_to_write() -> None:
    with refused(NotYet, "(x * w).sum(axis) / w.sum(axis)"):
        run(lambda x: np.average(x), A)
    with refused(TraceError, "x.sum()", "'dim'", "axis= for dim=", "keepdims= for keepdim="):
        run(lambda x: x.sum(dim=0, keepdim=True), A)
    with refused(TraceError, "np.broadcast_to()", "'subok'"):
        run(lambda x: np.broadcast_to(x, (2, 3), subok=False), A)
    with refused(TraceError, "torch.tanh", "np.tanh"):
        run(lambda x: pytest.importorskip("torch").tanh(x), A)
    with refused(TraceError, "np.all(a == b)"):
        run(lambda x: np.array_equal(x, x), A)
    with refused(TraceError, "np.percentile", "outside the compiled function"):
        run(lambda x: np.percentile(x, 50), A)
    with refused(TraceError, "the functions that can"):  # no np.sign, np.tanh, ...
        run(lambda x: np.interp(x, x, x), A)
    with refused(TraceError, "write np.exp(x)"):
        run(lambda x: x.exp(), A)
    with refused(TraceError, "did you mean astype?"):
        run(lambda x: x.astyp(float), A)
    with refused(TraceError, "np.expand_dims(x, axis)"):
        run(lambda x: x.unsqueeze(0), A)
    with refused(TraceError, "to join several, write np.stack((a, b))"):
        run(lambda x: np.array([x.sum(), x.max()]), A)
    with refused(NotYet, "np.linalg.inv", "outside the compiled function"):
        run(lambda x: np.linalg.inv(x), A)
    with refused(NotYet, "np.trapezoid", "the functions that can"):  # no transpose
        run(lambda x: np.trapezoid(x), A)
    with refused(NotYet, "np.full_like"):
        run(lambda x, k: np.full((2, 3), k, np.int32) + x, A, 1.5)
    with refused(TraceError, "x.sum(axis) over whole axes"):
        run(lambda x: np.add.reduceat(x, [0]), A)
    with refused(TraceError, "where= without out=", "np.where(mask, new, old)"):
        run(lambda x: np.add(x, 1, where=x > 0), A)
    with refused(TraceError, "strides"):
        run(lambda x: x.strides, A)
    with refused(NotYet, "write x[i] for each literal index"):
        run(lambda x: np.take(x, [0]), A)
    known = {*ELEMENTWISE, *(f.__name__ for f in FUNCTIONS)}
    assert not known.intersection(WRITE_INSTEAD)  # advice that is out of date
    assert run(lambda x: hasattr(x, "fill"), A) is False
    assert run(lambda x: x.__array_namespace__() is np, A) is True


def test_axes() -> None:
    for fn in (
        lambda x: x.sum(2),
        lambda x: x.max(-3),
        lambda x: x.sum((0, 0)),
        lambda x: np.swapaxes(x, 0, 5),
    ):
        with pytest.raises(AxisError, match="test_trace_refusals") as caught:
            run(fn, A)
        assert isinstance(caught.value, ValueError)
    for fn in (
        lambda x: x.sum(1.0),
        lambda x: x.sum(axis=True),
        lambda x: x.max(axis=(True,)),
        lambda x: x.sum(axis=[0]),
        lambda x: x.transpose(True, False),
        lambda x: x[None].squeeze(axis=False),
        lambda x: np.broadcast_to(x.sum(0), (True, 3)),
        lambda x: x.sum(keepdims="x"),
        lambda x: x.sum(keepdims=None),
        lambda x: np.round(x, 1.0),
    ):
        with pytest.raises(TypeError):
            fn(A)
        with pytest.raises(TraceError, match="test_trace_refusals"):
            run(fn, A)
    check(lambda x: (x.swapaxes(True, 0), np.moveaxis(x, True, 0), x.sum(keepdims=1)), A)
    check(lambda x: (x.transpose([1, 0]), np.expand_dims(x, [0])), A)


def test_what_a_program_depends_on_must_be_static() -> None:
    for fn, what in (
        (lambda x, k: x.max(axis=k), "axis= of x.max needs the value of the scalar argument p1:"),
        (lambda x, k: np.mean(x, k), "axis= of np.mean needs the value of the scalar argument p1:"),
        (lambda x, k: np.expand_dims(x, k - 1), "axis= of np.expand_dims needs the value of a"),
        (lambda x, k: np.swapaxes(x, 0, k), "axis2= of np.swapaxes"),
        (lambda x, k: x.round(k), "decimals= of x.round"),
        (lambda x, k: np.add.reduce(x, k), "an axis,"),
        (lambda x, k: x.sum(axis=(0, k)), "an axis,"),
    ):
        with pytest.raises(TraceError, match="test_trace_refusals") as caught:
            run(fn, A, 1)
        assert what in str(caught.value)
        assert 'ok.compile(static="p1")' in str(caught.value)
        with pytest.raises(TraceError, match=r"known only (?s:.*)the parameter .* in ok.compile"):
            run(fn, A, np.int64(1))
    check(lambda x, k: np.clip(x.var(ddof=k), k, k + 1), A, 1)  # numbers that runs may bring
    check(lambda x: x.sum(axis=x.shape[0] - 1), A)


def test_dtypes_that_do_not_exist_yet() -> None:
    with refused(UnsupportedDType, "float128", "astype"):
        run(lambda x: x.astype(np.longdouble), A)
    with refused(UnsupportedDType, "complex256", "np.complex128"):
        run(lambda x: x + np.clongdouble(1), A)
    with refused(UnsupportedDType, "np.float64"):
        run(lambda x: x + np.longdouble(1), A)
    with refused(NotYet, "max of complex64", "x.real, x.imag or abs(x)"):
        run(lambda x: (x * 1j).max(), A)
    with refused(TraceError, "the scalar argument p1", "the array first"):
        run(lambda x, k: x * (k * 1j), A, 3)
    with refused(TraceError, "NoneType"):
        run(lambda x: x + None, A)


def test_shapes_that_never_fit() -> None:
    with refused(ShapeError, "2", "3"):
        run(
            lambda x: (
                np.broadcast_to(x.sum(keepdims=True), (2, 3)) + np.broadcast_to(x.sum(), (3, 3))
            ),
            A,
        )
    with refused(ShapeError):
        run(lambda x: np.broadcast_to(x, (3,)), A)


def test_functions_that_cannot_be_traced() -> None:
    async def coroutine() -> None: ...
    async def agen() -> Any:
        yield 1

    def generator() -> Any:
        yield 1

    class Callee:
        def __call__(self) -> Any:
            yield 1

        def method(self) -> int:
            return 1

    for fn, word in (
        (coroutine, "async"),
        (agen, "async"),
        (generator, "generator"),
        (Callee(), "generator"),
        (3, "int"),
        (Callee, "class"),
    ):
        with pytest.raises(TraceError, match=word):
            check_traceable(fn)
    for fn in (Callee().method, np.add, len, lambda x: x):
        check_traceable(fn)


def test_odd_results() -> None:
    found = traced(lambda x: (None, 3, "s", np.float32(2), np.dtype("f4"), ...), A)
    assert found.out_tree == (None, 3, "s", np.float32(2), np.dtype("f4"), ...)
    point = types.SimpleNamespace
    assert traced(lambda x: point(), A).graph.outputs == ()
    for fn in (
        lambda x: iter([x]),
        lambda x: (r for r in [x]),
        lambda x: {1, 2},
        lambda x: np.ma.array([1]),
    ):
        with pytest.raises(TraceError, match=r"return"):
            run(fn, A)


def test_leaked_values() -> None:
    kept: list[Any] = []

    def leak(x: Any) -> Any:
        kept.append(x + 1)
        kept.append(x.shape[0])
        return x

    traced(leak, A)
    for use in (
        lambda: kept[0] + 1,
        kept[0].sum,
        lambda: int(kept[1]),
        lambda: kept[0].T,
        lambda: np.exp(kept[0]),
        lambda: kept[1] + 1,
    ):
        with pytest.raises(TraceError, match=r"trace ended \(.*test_trace_refusals.py:"):
            use()
    with pytest.raises(TraceError, match=r"another trace|trace ended"):
        run(lambda x: kept[0], A)
    with pytest.raises(TraceError):
        run(lambda x: x + kept[0], A)


def test_global_random_state() -> None:
    with pytest.raises(TraceError, match="random state"):
        run(lambda x: x + np.random.rand(3).astype(np.float32), A)  # noqa: NPY002
    run(lambda x: x + np.random.default_rng(0).normal(size=3), A)


def test_errors_of_the_function_pass_through() -> None:
    with pytest.raises(KeyError):
        run(lambda x: {}["missing"], A)


def test_an_array_of_the_function_s_own_keeps_what_was_read() -> None:
    def reused(x: Any) -> Any:
        buffer = np.zeros(3)
        first = x + buffer
        buffer[:] = 5
        return first, x + buffer

    line = f"{__file__}:{reused.__code__.co_firstlineno + 2}"
    with pytest.raises(TraceError, match=rf"in place after[^\n]*{line}(.|\n)*buffer.copy\(\)"):
        ok.compile(reused)(np.ones(3))

    def copied(x: Any) -> Any:
        buffer, steps = np.zeros(3), [1.0, 2.0, 3.0]
        buffer[:] = 4
        first = x + buffer.copy(), x + steps
        buffer[:] = 5
        steps[0] = 7.0
        again = x + steps
        steps[0] = 1.0
        return *first, x + buffer, again, x + steps

    check(copied, np.ones(3))


BUFFER = np.zeros(3)


def test_a_named_array_may_be_written_by_others_meanwhile() -> None:
    def writes(x: Any) -> Any:
        y = x + BUFFER
        BUFFER[:] = 5  # as another thread would
        return y

    np.testing.assert_array_equal(ok.compile(writes)(np.ones(3)), 6)


@pytest.mark.parametrize(
    "write",
    [
        lambda out, x: out.__setitem__(slice(1, None), x[:-1]),
        lambda out, x: out.__setitem__(0, x[0] ** 2),
        lambda out, x: out.__iadd__(x),
    ],
)
def test_writes_into_a_real_array_say_how_to_make_one(write: Callable[[Any, Any], Any]) -> None:
    """np.zeros(x.shape) is NumPy's own; also where NumPy says that a sequence was meant."""

    def function(x: Any) -> Any:
        out = np.zeros(3)
        write(out, x)
        return out

    with pytest.raises(TraceError, match=r"np\.zeros_like\(x\) instead of np\.zeros"):
        ok.compile(function)(np.ones(3))
