"""Hits, misses, binding, results and out= of the native call path."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.native_fake import (
    F32,
    F64,
    Array,
    Factory,
    Fake,
    Record,
    compiled,
    elementwise,
    f32,
    library,
    make_sum,
    simple,
    whole,
)

from opkiln.native import Plan, Slot
from opkiln.runtime import errors

__all__ = ["compiled", "library"]
HERE = Path(__file__).parent


# ---- hits and misses ----


def test_hit_runs_no_hook(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, y, z = f32(16), f32(16) + 1, f32(16) + 2
    for _ in range(5):
        np.testing.assert_array_equal(f(x, y, z), x * y + z)
    assert [entry[0] for entry in fake.log] == ["trace", "build"]
    assert fake.log[0][1] == (0, 1, 2)
    assert fake.log[0][3] == "aaa"
    assert fake.log[1][1] == [(0, "CCCC")]
    counters = f._counters()
    assert (counters["calls"], counters["hits"], counters["misses"]) == (5, 4, 1)
    assert counters["executors"] == 1
    assert counters["in_flight"] == counters["copies"] == 0


def test_new_shape_needs_no_hook(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    for n in (0, 1, 2, 3, 1000, *range(50, 60)):
        x = f32(n)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert fake.count("trace") == 1
    assert fake.count("build") == 1
    assert f._counters()["misses"] == 15


def test_new_class_builds_once(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(6, 8)
    for view in (x, x[:, ::2], x[::2], x.T, x[::-1, ::-1], x[:1], np.broadcast_to(x[0], (6, 8))):
        np.testing.assert_array_equal(f(view, view, view), view * view + view)
        reference = view * view + view
        assert f(view, view, view).strides == reference.strides
    assert fake.count("trace") == 1
    assert fake.count("build") == 1  # one class for all


def test_broadcast_and_ranks(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, row, col = f32(3, 4), f32(4), f32(3, 1)
    np.testing.assert_array_equal(f(x, row, col), x * row + col)
    np.testing.assert_array_equal(f(row, np.float32(3), x), row * np.float32(3) + x)
    np.testing.assert_array_equal(f(row, np.array(2, "f4"), x), row * np.float32(2) + x)
    result = f(np.float32(2), np.float32(3), np.float32(4))
    assert type(result) is np.float32
    assert result == 10
    with pytest.raises(ValueError, match="broadcast"):
        f(f32(3), f32(4), f32(4))
    np.testing.assert_array_equal(f(f32(4), f32(4), f32(4)), f32(4) * f32(4) + f32(4))
    assert fake.count("trace") == 4


def test_build_that_registers_nothing_is_an_internal_error(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    fake.build = lambda record, requests: fake.log.append(("build",))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no variant CCCC"):
        f(f32(3), f32(3), f32(3))
    assert fake.count("build") < 5


def test_trace_is_asked_again_after_an_error(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    x = f32(3)
    fake.on_trace = interrupt
    with pytest.raises(KeyboardInterrupt):
        f(x, x, x)
    fake.on_trace, fake.on_build = None, interrupt
    with pytest.raises(KeyboardInterrupt):
        f(x, x, x)
    fake.on_build = None
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert f._counters()["executors"] == 1


def test_hooks_may_call_the_function_and_clear_it(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x, y = f32(3), f32(2, 2)

    def nested() -> None:
        fake.on_trace = fake.on_build = None
        np.testing.assert_array_equal(f(y, y, y), y * y + y)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
        f._clear()

    fake.on_trace = nested
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    fake.on_build = nested
    np.testing.assert_array_equal(f(x, x[::-1], x), x * x[::-1] + x)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)


def test_collection_inside_a_call_may_call_again(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(4)
    f(x, x, x)
    seen = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(f(x, x, x)[0])

    old = gc.get_threshold()
    try:
        gc.set_threshold(1)
        for _ in range(200):
            Cycle()
            np.testing.assert_array_equal(f(x, x, x), x * x + x)
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert len(seen) == 200


def test_clear_forgets(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f(x, x, x)
    f._clear()
    f(x, x, x)
    assert fake.count("trace") == 2
    f(f32(5), f32(5), f32(5))
    assert f._counters()["executors"] == 2


# ---- binding ----


def test_keywords_and_defaults(compiled: Factory) -> None:
    x = f32(3)
    f, fake = compiled(simple("mad_f32"), defaults={"z": x})
    expected = x * 2 * x + x
    for result in (f(2 * x, x), f(2 * x, y=x), f(y=x, x=2 * x), f(2 * x, x, z=x)):
        np.testing.assert_array_equal(result, expected)
    assert fake.count("trace") == 1
    assert f._counters()["misses"] == 1


@pytest.mark.parametrize(
    ("source", "kinds", "defaults"),
    [
        ("x, y", [1, 1], {}),
        ("x, y=1", [1, 1], {"y": 1}),
        ("x", [1], {}),
        ("a, b, c", [1, 1, 1], {}),
        ("x, /, y", [0, 1], {}),
        ("x, *, k", [1, 3], {}),
        ("x, *, k, m", [1, 3, 3], {}),
        ("x, *rest, k", [1, 2, 3], {}),
        ("x, **more", [1, 4], {}),
    ],
)
def test_arity_errors_read_as_in_python(
    compiled: Factory, source: str, kinds: list[int], defaults: dict[str, Any]
) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({source}): pass", space)
    names = source.replace("/,", "").replace("*,", "").replace("*", "").replace("=1", "")
    f, _ = compiled(simple("add_f32"), names.replace(",", " "), kinds, defaults)
    one = np.float32(1)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((one,), {"q": one}),
        ((one, one, one, one), {}),
        ((one,), {"x": one}),
        ((), {"x": one}),
        ((one, one, one), {"k": one}),
        ((one, one), {"k": one, "m": one, "n": one}),
    ]
    for args, kwargs in calls:
        try:
            space["f"](*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError) as caught:
                f(*args, **kwargs)
            assert str(caught.value) == str(error)
            assert isinstance(caught.value, errors.ArgumentError)


def test_nested_containers(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "p q")
    x = f32(3)
    expected = x * (x + 1) + (x + 2)
    for _ in range(3):
        result = f((x, [x + 1]), {"b": x + 2, "s": ("axis", None)})
        np.testing.assert_array_equal(result, expected)
    assert fake.count("trace") == 1
    assert fake.log[0][1] == ((0, [1]), {"b": 2, "s": (3, 4)})
    assert fake.log[0][2][3:] == ["axis", None]
    assert fake.log[0][3] == "aaass"
    f({"b": x}, (x, x))
    f({"c": x}, (x, x))
    f([x], (x, x))
    assert fake.count("trace") == 4


def test_variadic(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x rest more", [1, 2, 4])
    x = f32(3)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert fake.log[0][1] == (0, (1, 2), {})
    np.testing.assert_array_equal(f(x, x, k=x), x * x + x)
    assert fake.log[2][1] == (0, (1,), {"k": 2})
    np.testing.assert_array_equal(f(x, b=x, a=x), x * x + x)
    assert fake.log[4][1] == (0, (), {"b": 1, "a": 2})


def test_parameter_named_out(compiled: Factory) -> None:
    f, _ = compiled(simple("add_f32"), "x out")
    x = f32(3)
    result = f(x, out=x)
    assert result is not x
    np.testing.assert_array_equal(result, x + x)


def test_deep_nesting_is_an_error(compiled: Factory) -> None:
    f, _ = compiled(simple("add_f32"), "x")
    nest: Any = f32(3)
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(RecursionError):
        f(nest)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        f(loop)
    while isinstance(nest, list):
        nest = nest.pop()


# ---- out= ----


def test_out_is_written_and_returned(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(4, 3)
    expected = x * x + x
    for out in (np.zeros((4, 3), "f4"), np.zeros((3, 4), "f4").T, np.zeros((8, 6), "f4")[::2, ::2],
                np.zeros((4, 3), "f4")[::-1, ::-1]):  # fmt: skip
        for _ in range(2):
            out[...] = 0
            assert f(x, x, x, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert f(x, x, x, out=(out,)) is out
    assert f(x, x, x, out=None) is not out
    assert f._counters()["copies"] == 0
    assert fake.count("trace") == 1


def test_out_that_needs_a_copy(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(5)
    expected = x * x + x
    raw = np.zeros(21, np.uint8)
    outs = [np.zeros(5, "f8"), np.zeros(5, ">f4"), np.zeros(5, "f2"), raw[1:].view("f4"),
            np.zeros(5, "c16")]  # fmt: skip
    for i, out in enumerate(outs):
        assert f(x, x, x, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert f._counters()["copies"] == i + 1


def test_out_refused(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    x = f32(5)
    frozen = np.zeros(5, "f4")
    frozen.flags.writeable = False
    strided = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (5,), (0,))
    sliding = np.lib.stride_tricks.as_strided(np.zeros(6, "f4"), (2, 5), (4, 4))
    refused: list[tuple[Any, type[Exception]]] = [
        (frozen, ValueError),
        (np.zeros(4, "f4"), ValueError),
        (np.zeros((1, 5), "f4"), ValueError),
        (np.zeros((2, 5), "f4"), ValueError),
        (np.zeros(5, "i4"), TypeError),
        (np.zeros(5, bool), TypeError),
        (np.ma.zeros(5, "f4"), TypeError),
        ([0.0] * 5, TypeError),
        (strided, ValueError),
        (sliding, ValueError),
        ((np.zeros(5, "f4"),) * 2, ValueError),
        ((), ValueError),
        (7, TypeError),
    ]
    for out, kind in refused:
        with pytest.raises(kind, match="out"):
            f(x, x, x, out=out)
    assert not frozen.any()
    assert not strided.any()


def test_out_overlap(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"))
    base = f32(10)
    copies = 0
    for x, out, copied in (
        (base, base, False),
        (base[:9], base[1:], True),
        (base[1:], base[:9], True),
        (base, base[::-1], True),
        (base[:5], base[5:], False),
        (base[::2], base[1::2], True),
        (base[::2], base[::2], False),
    ):
        base[...] = f32(10)
        y = x.copy()
        expected = y * y + y
        assert f(x, y, y, out=out) is out
        np.testing.assert_array_equal(out, expected)
        copies += copied
        if copied is False:
            assert f._counters()["copies"] == copies
        copies = f._counters()["copies"]
    square = f32(4, 4)
    expected = square * square + square.T
    f(square, square, square.T, out=square)
    np.testing.assert_array_equal(square, expected)


def test_out_of_several_results(compiled: Factory) -> None:
    f, _ = compiled(simple("twice_f32", n_outs=2), "x")
    x = f32(4)
    a, b = np.zeros(4, "f4"), np.zeros(4, "f8")
    first, second = f(x, out=(a, None))
    assert first is a
    np.testing.assert_array_equal(a, x + x)
    np.testing.assert_array_equal(second, x * x)
    result = f(x, out=(a, b))
    assert result[0] is a
    assert result[1] is b
    np.testing.assert_array_equal(b, x * x)
    with pytest.raises(TypeError, match="tuple"):
        f(x, out=a)
    with pytest.raises(ValueError, match="out"):
        f(x, out=(a,))
    shared = np.zeros(4, "f4")
    f(x, out=(shared, shared))
    np.testing.assert_array_equal(shared, x * x)
    scalar = f(np.float32(3), out=(None, np.zeros((), "f4")))
    assert type(scalar[0]) is np.float32
    assert type(scalar[1]) is np.ndarray
    assert scalar[1] == 9


@pytest.mark.parametrize("fallback", [False, True])
def test_out_of_wrong_length(compiled: Factory, fallback: bool) -> None:
    f, _ = compiled(simple("mad_f32"), fallback=fallback)
    x = f32(3)
    for warm in (False, True):
        for out in ((), (None, None), (x, x), (None,) * 40):
            with pytest.raises(ValueError, match="must have exactly one entry per array") as caught:
                f(x, x, x, out=out)
            assert isinstance(caught.value, errors.ShapeError), warm
        np.testing.assert_array_equal(f(x, x, x, out=(None,)), x * x + x)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
    g, _ = compiled(simple("twice_f32", n_outs=2), "x")
    g(x)
    for out in ((), (x,), (x, x, x)):
        with pytest.raises(errors.ShapeError, match=f"expected 2, got {len(out)}"):
            g(x, out=out)


def test_data_error_leaves_out_alone(compiled: Factory) -> None:
    f, _ = compiled(simple("pow_i64", may_raise=True), "x n")
    x, out = np.array([2, 3]), np.zeros(2, "i8")
    for _ in range(2):
        with pytest.raises(ValueError, match="fault 2"):
            f(x, np.array([2, -1]), out=out)
        assert not out.any()
    assert f(x, np.array([2, 3]), out=out) is out
    assert out.tolist() == [4, 27]
    g, _ = compiled(simple("div_i64"), "x y")
    assert g(x, np.array([0, 1])).tolist() == [0, 3]
    assert g(x, np.array([0, 1]), out=out) is out
    assert g._counters()["integer_faults"] == 2


# ---- results ----


def test_result_tree_and_host_outputs(compiled: Factory) -> None:
    f, _ = compiled(make_sum, "x")
    x = np.arange(12.0).reshape(3, 4)
    for _ in range(2):
        result = f(x)
        assert list(result) == ["sum", "n"]
        assert type(result["sum"]) is np.float64
        assert result["sum"] == 66
        assert result["n"] == [12, "const"]
        assert type(result["n"][0]) is int
    out = np.zeros(())
    assert f(x, out=out)["sum"] is out
    assert out == 66
    assert f(np.zeros((0, 3)))["sum"] == 0


def test_same_output_twice_is_one_object(compiled: Factory) -> None:
    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        record = simple("twice_f32", n_outs=2)(fake, tree, leaves, kinds)
        record.out_tree = [Slot(1), (Slot(1), Slot(0)), token]
        return record

    token = object()
    f, _ = compiled(make, "x")
    x = f32(3)
    for _ in range(2):
        result = f(x)
        assert result[0] is result[1][0]
        assert result[2] is token
        np.testing.assert_array_equal(result[1][1], x + x)


def test_captures(compiled: Factory) -> None:
    for awkward in (False, True):
        captured = f32(4).astype(">f4") if awkward else f32(4)

        def make(
            fake: Fake, tree: Any, leaves: list[Any], kinds: str, captured: Array = captured
        ) -> Record:
            plan = Plan()
            elementwise(plan, [1, 1], [F32, F32], [F32], captures=[1])
            return Record(plan, Slot(0), (captured,), ("add_f32",))

        f, fake = compiled(make, "x")
        x = f32(4)
        np.testing.assert_array_equal(f(x), x + captured)
        captured += 1
        np.testing.assert_array_equal(f(x), x + captured)
        expected = x + captured
        out = x if awkward else captured
        f(x, out=out)
        np.testing.assert_array_equal(out, expected)
        x = f32(4)
        captured.shape = (2, 2)
        with pytest.raises(ValueError, match=r"clear\(\)"):
            f(x)
        with pytest.raises(errors.ShapeError, match=r"clear\(\)"):
            f(x[::2])  # not met yet: no executor checks it
        captured.shape = (4,)
        np.testing.assert_array_equal(f(x), x + captured)
        assert fake.count("trace") == 1


def test_pins_choose_the_record(compiled: Factory) -> None:
    def make(fake: Fake, tree: Any, leaves: list[Any], kinds: str) -> Record:
        plan = Plan()
        buffer = plan.buffer("arg", F64, rank=1)
        extents = [plan.host("extent", buffer)]
        out = plan.buffer("out", F64, extents)
        slot = plan.scalar(plan.host("const_f", fval=float(len(leaves[0]))), F64, "check")
        zero = plan.scalar(plan.host("const_f", fval=0.0), F64, "check")
        plan.kernel(extents, 0, [(buffer, whole(0), False), (out, whole(0), True)], [slot, zero])
        plan.output_buffer(out)
        plan.pin(buffer, 0, len(leaves[0]))
        plan.finish()
        return Record(plan, Slot(0), (), ("affine_f64",))

    f, fake = compiled(make, "x")
    for n in (2, 3, 2, 3):
        np.testing.assert_array_equal(f(np.ones(n)), np.full(n, n))
    assert fake.count("trace") == 2
    assert f._counters()["signatures"] == 2


def test_fallback_interprets(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), fallback=True)
    x, out = f32(3), np.zeros(3, "f4")
    for _ in range(3):
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
    assert f(x, x, x, out=out) is out
    np.testing.assert_array_equal(out, x * x + x)
    with pytest.raises(ValueError, match="out"):
        f(x, x, x, out=np.zeros(4, "f4"))
    assert type(f(x[0], x[0], x[0])) is np.float32
    assert fake.count("build") == 2
    assert f._counters()["fallbacks"] >= 5
