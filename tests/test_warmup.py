"""Building ahead: TensorSpec, f.warmup() and ok.warmup()."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import TensorSpec, errors
from opkiln.runtime.config import config


@contextmanager
def nothing_is_built() -> Iterator[None]:
    with config.scope(assert_cached=True):
        yield


# ---- TensorSpec ----


def test_a_spec_is_a_value() -> None:
    spec = TensorSpec((None, 64), "float32")
    assert (spec.shape, spec.dtype, spec.order) == ((None, 64), np.dtype("f4"), "C")
    same = TensorSpec([None, np.int64(64)], np.float32)
    assert spec == same and hash(spec) == hash(same) and len({spec, same}) == 1
    others = [
        TensorSpec((None, 63), "f4"), TensorSpec((64, None), "f4"), TensorSpec((None, 64), "f8"),
        TensorSpec((None, 64), "f4", "F"), TensorSpec((None, 64), "f4", strides=(512, 8)),
        TensorSpec((), "f4"), TensorSpec(64, "f4"), TensorSpec(None, "f4"),
    ]  # fmt: skip
    assert len({spec, *others}) == 1 + len(others)
    for each in (spec, *others):
        assert pickle.loads(pickle.dumps(each)) == each == copy.deepcopy(each)
        assert eval(repr(each), {"TensorSpec": TensorSpec}) == each
    assert (TensorSpec(None, "f4").shape, TensorSpec(64, "f4").shape) == ((None,), (64,))
    assert repr(TensorSpec(3, "f4", strides=(np.int64(8),))).endswith("strides=(8,))")
    assert TensorSpec(3, ">f8") == TensorSpec(3, "f8")  # a call copies it into native order
    with pytest.raises(AttributeError, match="immutable"):
        spec.order = "F"


def test_the_spec_of_an_array() -> None:
    base = np.ones((4, 6))
    assert TensorSpec.of(base) == TensorSpec((4, 6), "f8")
    assert TensorSpec.of(base.T) == TensorSpec((6, 4), "f8", "F")
    assert TensorSpec.of(base[:, ::2]) == TensorSpec((4, 3), "f8", strides=(48, 16))
    assert TensorSpec.of(np.broadcast_to(1.0, (2,))) == TensorSpec(2, "f8", strides=(0,))
    assert TensorSpec.of(np.array(1.0)) == TensorSpec((), "f8")
    assert TensorSpec.of(np.ones((3, 0))) == TensorSpec((3, 0), "f8")
    packed = np.zeros(3, [("a", "u1"), ("b", "f8")])["b"]  # a call makes a dense copy
    assert TensorSpec.of(packed) == TensorSpec(3, "f8")
    for array in (base, base.T, base[:, ::2], base[::-1, 1:], np.broadcast_to(base, (3, 4, 6))):
        stand_in = TensorSpec.of(array).stand_in(iter(()))
        assert (stand_in.shape, stand_in.strides) == (array.shape, array.strides)
    with pytest.raises(errors.ArgumentError, match="expected an ndarray, got list"):
        TensorSpec.of([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: TensorSpec("ab", "f4"), errors.ShapeError, "expected a shape"),
        (lambda: TensorSpec((2, -1), "f4"), errors.ShapeError, "-1"),
        (lambda: TensorSpec((2, True), "f4"), errors.ShapeError, "True"),
        (lambda: TensorSpec((2, "n"), "f4"), errors.ShapeError, "'n'"),
        (lambda: TensorSpec((1,) * 17, "f4"), errors.ShapeError, "17"),
        (lambda: TensorSpec(3, "g"), errors.UnsupportedDType, "float32"),
        (lambda: TensorSpec(3, None), errors.UnsupportedDType, "None"),
        (lambda: TensorSpec(3, "nonsense"), errors.UnsupportedDType, "nonsense"),
        (lambda: TensorSpec(3, "f4", "K"), errors.ArgumentError, "'K'"),
        (lambda: TensorSpec((3, 3), "f4", strides=(4,)), errors.ShapeError, "expected 2 strides"),
        (lambda: TensorSpec(3, "f4", strides=(6,)), errors.ShapeError, "multiples of 4"),
        (lambda: TensorSpec(3, "f4", strides=(2**70,)), errors.ShapeError, "multiples of 4"),
        (lambda: TensorSpec(3, "f4", strides=(4.0,)), errors.ShapeError, "strides in bytes"),
        (lambda: TensorSpec((3, 3), "f4", strides=4), errors.ShapeError, "expected 2 strides"),
        (lambda: TensorSpec(np.array(3), "f4"), errors.ShapeError, "expected a shape"),
        (lambda: TensorSpec({2, 3}, "f4"), errors.ShapeError, "expected a shape"),  # no order
        (lambda: TensorSpec((2**61, None), "f4"), errors.ShapeError, "larger than any memory"),
        (lambda: TensorSpec((0, 2**61), "f4"), errors.ShapeError, "larger than any memory"),
        (lambda: TensorSpec(2**100, "f4"), errors.ShapeError, "larger than any memory"),
    ],
)
def test_specs_that_no_argument_can_have(make: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match="TensorSpec") as caught:
        make()
    assert words in str(caught.value)


def test_a_spec_takes_no_memory() -> None:
    f = ok.compile(lambda x: x + 0.4375)
    terabytes = TensorSpec((2**40, 2), "f8")
    assert f.warmup(terabytes).kernels == 1
    with nothing_is_built():
        np.testing.assert_array_equal(f(np.ones((3, 2))), np.full((3, 2), 1.4375))


# ---- warmup ----


def test_calls_after_a_warmup_build_nothing(tmp_path: Path) -> None:
    @ok.compile(static="axis")
    def f(x: Any, y: Any, h: Any = 2.0, *, axis: Any = 0) -> Any:
        return ((x * y + h).sum(axis=axis), np.sqrt(x) - 0.59375)

    with config.scope(cache_dir=str(tmp_path)):
        none = TensorSpec((None, None), "f4")
        found = f.warmup(none, TensorSpec(None, "f4"), float, axis=1)
        assert (found.hit, found.kernels) == ("built", 2)  # one for many short rows
        assert found.seconds > 0 and found.name.endswith("f")
        assert (f.info().calls, f.info().builds, f.info().traces) == (0, 2, 1)
        with nothing_is_built():
            for n in (2, 7, 100):
                x, y = np.ones((3, n), "f4"), np.ones(n, "f4")
                np.testing.assert_array_equal(f(x, y, 3.0, axis=1)[0], np.full(3, 4 * n))
        assert f.warmup(none, TensorSpec(None, "f4"), 5.0, axis=1).hit == "ready"
        again = ok.compile(f.__wrapped__, static="axis")  # equal graphs share the program
        assert again.warmup(none, TensorSpec(None, "f4"), float, axis=1).hit == "ready"
        assert f.info().traces == 1


def test_none_stands_for_many_short_rows_as_well() -> None:
    def softmax(x: Any, w: Any, shift: Any) -> Any:
        e = np.exp(x * w - x.max(axis=1, keepdims=True)) - 0.578125
        return e / e.sum(axis=1, keepdims=True), (x * w).sum(axis=1) + shift

    f, g = ok.compile(softmax), ok.compile(lambda x: (x - 0.578125).sum(axis=(1, 2)))
    one = TensorSpec(None, "f4")
    f.warmup(TensorSpec((None, None), "f4"), one, one)
    g.warmup(TensorSpec((None, None, None), "f4", "F"))
    with nothing_is_built():
        for n, m in itertools.product((2, 5, 40, 100), repeat=2):
            f(np.ones((n, m), "f4"), np.ones(m, "f4"), np.ones(n, "f4"))
            g(np.ones((n, 2, m), "f4", order="F"))
            g(np.ones((n, m, m), "f4", order="F"))
    known = ok.compile(lambda x: (x - 0.453125).sum(axis=1))  # no row is short
    assert known.warmup(TensorSpec((None, 64), "f4")).kernels == 1
    deep = ok.compile(lambda x: x.sum(axis=-1) - 0.453125)
    assert deep.warmup(TensorSpec((None,) * 7, "f4")).kernels == 2


def test_layouts_and_out_are_part_of_what_is_built() -> None:
    @ok.compile
    def f(x: Any) -> Any:
        return (np.sqrt(x) - 0.609375).sum(axis=1)

    @ok.compile
    def g(x: Any) -> Any:
        return np.sqrt(x) - 0.609375

    square = np.ones((6, 6), "f4")
    for x in (square, square[::2, ::2]):
        assert f.warmup(TensorSpec.of(x)).kernels == 1
        with nothing_is_built():
            f(x)
    # Elementwise, one kernel serves every layout.
    assert g.warmup(TensorSpec.of(square[::2, ::2])).kernels == 1
    out = np.empty((6, 12), "f4")[:, ::2]
    assert g.warmup(TensorSpec.of(square), out=TensorSpec.of(out)).kernels == 0
    with nothing_is_built():
        g(square, out=out)  # type: ignore[call-arg]
    with pytest.raises(errors.ShapeError, match=r"\(5,\)"):
        g.warmup(TensorSpec((6, 6), "f4"), out=TensorSpec(5, "f4"))
    rows = ok.compile(lambda x: (x * 0.625).sum(axis=1))
    assert rows.warmup(TensorSpec((None, None), "f4", "F")).kernels == 1
    with nothing_is_built():
        rows(np.ones((5, 7), "f4", order="F"))
    nested = ok.compile(lambda tree: tree["x"] * tree["more"][0] + 0.640625)
    tree = {"x": TensorSpec(None, "f8"), "more": [int]}
    assert nested.warmup(tree).kernels == 1
    with nothing_is_built():
        np.testing.assert_array_equal(nested({"x": np.ones(5), "more": [2]}), np.full(5, 2.640625))
    typed = ok.compile(lambda x, dtype: x.astype(dtype) + 0.671875, static="dtype")
    typed.warmup(TensorSpec(None, "i4"), float)  # static: the type itself, not a number
    with nothing_is_built():
        assert typed(np.ones(2, "i4"), float).dtype == np.float64


def test_several_calls_at_once(tmp_path: Path) -> None:
    class Model:
        @ok.compile
        def scale(self, x: Any) -> Any:
            return x * 0.703125

    f = ok.compile(lambda x: np.sqrt(x) - 0.734375)
    g = ok.compile(lambda x, h: x * h + 0.765625)
    model = Model()
    with config.scope(cache_dir=str(tmp_path)):
        found = ok.warmup(
            (f, TensorSpec(None, "f4")),
            (f, TensorSpec(None, "f8")),
            functools.partial(g, TensorSpec(None, "f4"), h=0.5),
            (functools.partial(g, h=0.5), TensorSpec(None, "f4")),
            (model.scale, TensorSpec(None, "f4")),
        )
        assert [w.hit for w in found] == ["built", "built", "built", "ready", "built"]
        assert (f.info().builds, g.info().builds) == (2, 1)
        with nothing_is_built():
            f(np.ones(3, "f4")), f(np.ones(3)), g(np.ones(3, "f4"), h=0.25)
            model.scale(np.ones(3, "f4"))
        # The units are those that calls ask for: another process finds each by itself.
        code = (
            "import numpy as np, opkiln as ok; f = ok.compile(lambda x: np.sqrt(x) - 0.734375);"
            "f(np.ones(3)); print(f.info().disk_hits, f.info().builds)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            env={"OPKILN_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert done.stdout.split() == ["1", "0"]
    assert ok.warmup() == ()


def test_failures_name_their_call() -> None:
    f = ok.compile(lambda x, axis: (x * 0.796875).sum(axis), static="axis")
    spec = TensorSpec((None, None), "f4")
    with pytest.raises(errors.AxisError) as caught:
        ok.warmup((f, spec, 0), (f, spec, 7), (f, spec, 1))
    assert "(TensorSpec((None, None), 'float32'), 7)" in caught.value.__notes__[0]
    with nothing_is_built():  # the others were built all the same
        for axis in (0, 1):
            f(np.ones((3, 4), "f4"), axis)
    new = ok.compile(lambda x: x * 0.828125)
    with nothing_is_built(), pytest.raises(errors.NotCached) as caught_too:
        new.warmup(spec)
    assert "while warming up" in caught_too.value.__notes__[0]
    with pytest.raises(errors.ShapeError, match="broadcast"):
        ok.compile(lambda x, y: x + y).warmup(TensorSpec(3, "f4"), TensorSpec(4, "f4"))
    table = np.ones(5)
    with pytest.raises(errors.ShapeError, match=r"shapes \(64,\) \(5,\)") as caught:
        ok.compile(lambda x: x + table).warmup(TensorSpec(None, "f8"))
    assert "write the size" in caught.value.__notes__[1]
    for wrong in (lambda x: x, (), (np.add, spec), 3):
        with pytest.raises(errors.ArgumentError, match="expected a compiled function"):
            ok.warmup(wrong)


def test_a_type_that_was_meant_as_an_array() -> None:
    with pytest.raises(TypeError) as caught:
        ok.compile(lambda x: x * 2).warmup(np.float64)
    assert "TensorSpec((), 'float64') for a NumPy scalar" in caught.value.__notes__[-1]
    ok.compile(lambda x, dtype: x.astype(dtype)).warmup(TensorSpec(3, "f4"), np.float64)


def test_a_method_must_bring_its_instance() -> None:
    class Model:
        @ok.compile
        def scale(self, x: Any) -> Any:
            return x * 0.703125

    model, x = Model(), np.ones(3, "f4")
    for door, argument in (("warmup", TensorSpec(None, "f4")), ("bind", x), ("lower", x)):
        with pytest.raises(errors.ArgumentError, match="missing 1 required") as caught:
            getattr(model.scale, door)(argument)
        assert f"Class.scale.{door}(obj, ...)" in str(caught.value)
    assert Model.scale.warmup(model, TensorSpec(None, "f4")).kernels in (0, 1)
    np.testing.assert_array_equal(Model.scale.bind(model, x)(), x * np.float32(0.703125))


def test_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    f = ok.compile(lambda x: x * 0.859375)
    calls = [(f, TensorSpec(None, d)) for d in ("f4", "f8", "i4")]
    for stream, expected in ((io.StringIO(), ""), (Terminal(), "opkiln: 3 of 3 built\n")):
        monkeypatch.setattr(sys, "stderr", stream)
        ok.warmup(*calls)
        f.clear()
        ok.clear_cache()
        assert stream.getvalue().split("\r")[-1] == expected
    monkeypatch.setattr(sys, "stderr", None)
    ok.warmup(*calls)
