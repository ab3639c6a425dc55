"""Inference on descriptions: partly known shapes, small values, what is validated, errors."""

import os
import pickle
import signal
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime import errors, inference, jit, program, traits
from opkiln.runtime.describe import SMALL_VALUE_NUMEL
from opkiln.runtime.memo import Memo
from opkiln.runtime.subgraph import find_op

ADD = p.Elementwise("add")
D = ok.TensorDesc
U = None  # unknown


def f4(*shape: Any, **fields: Any) -> ok.TensorDesc:
    return D("f4", shape, **fields)


RANKLESS = D("f4")


def shapes(op: Any, *descs: ok.TensorDesc) -> tuple[Any, ...]:
    found, _ = op.infer(descs)
    return tuple(d.shape for d in found)


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        (f4(U, 3), f4(1, 3), (U, 3)),
        (f4(U, 3), f4(4, 3), (4, 3)),
        (f4(U), f4(U), (U,)),
        (RANKLESS, f4(3), None),
        (f4(), f4(5), (5,)),
        (f4(0, 3), f4(1, 3), (0, 3)),
        (f4(U, 3), f4(0, 3), (0, 3)),
        (f4(U, 3), f4(U, 1), (U, 3)),
        (f4(U), f4(1), (U,)),
        (f4(2, 1, U), f4(U, 7), (2, U, 7)),
        (RANKLESS, RANKLESS, None),
        (f4(), f4(), ()),
    ],
)
def test_elementwise_table(left: Any, right: Any, want: Any) -> None:
    for op in (ADD, ok.CompiledOp(ADD), ok.SubgraphOp(graph_of_one(ADD))):
        for a, b in ((left, right), (right, left)):
            found, validated = op.infer([a, b])
            assert found[0].shape == want
            assert validated == (
                want is not None and None not in want and left.known and right.known
            )
            assert found[0].dtype == np.float32


def graph_of_one(op: Any) -> Any:
    b = ok.SubgraphBuilder("one")
    b.outputs(b.apply(op, b.input(), b.input()))
    return b.get().graph


def test_numbers_take_the_dtype_of_what_they_meet() -> None:
    for number, dtype in ((2, "f4"), (2.5, "f4"), (True, "f4"), (2j, "c8")):
        (found,), validated = ADD.infer([f4(U, 3), number])
        assert (found.dtype, found.shape, validated) == (np.dtype(dtype), (U, 3), False)
        assert ADD.apply(np.ones(3, "f4"), number)[0].dtype == dtype
    assert ADD.infer([RANKLESS, 2])[0][0] == RANKLESS
    assert ADD.infer([D("i8", value=[1, 2]), 1])[0][0].value.tolist() == [2, 3]
    assert ADD.infer([D("i8", (1,)), 1])[0][0].dtype == np.int64
    assert ADD.infer([D("i8", (1,)), 1.0])[0][0].dtype == np.float64


def test_contradictions_name_op_and_shapes() -> None:
    with pytest.raises(errors.ShapeError, match=r"add.*\(2,3\) \(4,3\).*test_infer_descs.py:"):
        ADD.infer([f4(2, 3), f4(4, 3)])
    with pytest.raises(errors.ShapeError, match="add"):
        ADD.infer([f4(U, 2, 3), f4(4, 3)])
    with pytest.raises(errors.ShapeError, match="out of bounds"):
        find_op("sum", 1, {"axis": 2}).infer([f4(2, 3)])
    with pytest.raises(errors.DeviceMismatch, match="cpu and cuda:0"):
        ADD.infer([f4(2), f4(2, device="cuda:0")])
    with pytest.raises(errors.TraceError, match="bitwise_and"):
        p.Elementwise("bitwise_and").infer([f4(2), f4(2)])
    with pytest.raises(errors.ArgumentError, match="TensorDesc"):
        ADD.infer([np.ones(2), f4(2)])


def test_guards_are_checked_again_by_the_run() -> None:
    op = ok.CompiledOp(ADD)
    assert shapes(op, f4(U, 3), f4(4, 3)) == ((4, 3),)
    with pytest.raises(errors.ShapeError):
        op.apply(np.ones((2, 3), "f4"), np.ones((4, 3), "f4"))
    assert op.apply(np.ones((1, 3), "f4"), np.ones((4, 3), "f4"))[0].shape == (4, 3)


def test_contradiction_inside_counts() -> None:
    """The output alone has no axis; the sum inside fits nothing."""
    b = ok.SubgraphBuilder("total")
    b.outputs(b.apply("sum", b.apply("add", b.input(), b.input())))
    op = b.get()
    with pytest.raises(errors.ShapeError):
        op.infer([f4(2, 3), f4(4, 3)])
    assert op.infer([f4(U, 3), f4(4, 3)]) == ((f4(),), False)  # the operand itself is open
    assert op.infer([f4(1, 3), f4(4, 3)]) == ((f4(),), True)
    assert op.infer([RANKLESS, f4(4, 3)]) == ((f4(),), False)


@pytest.mark.parametrize(
    ("name", "options", "desc", "want"),
    [
        ("sum", {"axis": 0, "keepdims": True}, f4(U, 3), (1, 3)),
        ("sum", {"axis": 1, "keepdims": True}, f4(U, 3), (U, 1)),
        ("sum", {"axis": 1}, f4(U, 3), (U,)),
        ("sum", {}, f4(U, 3), ()),
        ("mean", {"axis": -1}, f4(2, U), (2,)),
        ("transpose", {}, f4(U, 3), (3, U)),
        ("transpose", {"axes": (1, 0, 2)}, RANKLESS, (U, U, U)),
        ("transpose", {}, RANKLESS, None),
        ("expand_dims", {"axis": 0}, f4(U, 3), (1, U, 3)),
        ("exp", {}, RANKLESS, None),
        ("reduce_max", {"axis": 0}, f4(0, U), "reduction"),
    ],
)
def test_other_rules(name: str, options: Any, desc: Any, want: Any) -> None:
    op = find_op(name, 1, options)
    if isinstance(want, str):
        with pytest.raises(errors.ShapeError, match=want):
            op.infer([desc])
    else:
        assert shapes(op, desc) == (want,)


def test_K28_validated_is_of_all_outputs() -> None:
    b = ok.SubgraphBuilder("two")
    x, y = b.input(), b.input()
    b.outputs(b.apply("exp", x), b.apply("exp", y))
    op = b.get()
    for x, y, want in ((f4(U), f4(2), False), (f4(2), f4(U), False), (f4(2), f4(3), True)):
        assert op.infer([x, y])[1] is want


def test_K28_cached_by_all_that_counts() -> None:
    """Equal hashes are not enough, and descriptions differ by value, device and layout."""

    @dataclass(frozen=True)
    class Collides:
        n: int

        def __hash__(self) -> int:
            return 7

        def apply(self, x: Any) -> Any:
            return (x,)

        def infer(self, d: ok.TensorDesc) -> Any:
            return (d.but(shape=(self.n,)),), True

    one, two = (ok.GenericPyOp(Collides(n)) for n in (1, 2))
    assert (shapes(one, f4(3)), shapes(two, f4(3))) == (((1,),), ((2,),))
    reshape = find_op("get_shape", 1)
    assert reshape.infer([f4(2, 3)])[0][0].value.tolist() == [2, 3]
    assert reshape.infer([f4(3, 2)])[0][0].value.tolist() == [3, 2]
    descs = {
        D("f4", (2,)), D("f4", (2,), "cuda:0"), D("f4", (2,), layout="g"), D("f4", value=[1, 2]),
        D("f4", value=[1, 3]), D("f8", (2,)), D("f4", (U,)), D("f4"), D("f4", ()),
        D("f4", value=[0.0, -0.0]), D("f4", value=[0.0, 0.0]),
    }  # fmt: skip
    assert len(descs) == 11


# ---- values ----


def test_shape_has_a_value_when_known() -> None:
    op = find_op("get_shape", 1)
    (desc,), validated = op.infer([f4(2, 3)])
    assert (desc.dtype, desc.shape, desc.value.tolist(), validated) == (
        np.int64,
        (2,),
        [2, 3],
        True,
    )
    (desc,), validated = op.infer([f4(2, U)])
    assert (desc.shape, desc.value, validated) == ((2,), None, False)
    (desc,), _ = op.infer([f4()])
    assert (desc.shape, desc.value.tolist()) == ((0,), [])
    (desc,), _ = op.infer([RANKLESS])
    assert desc.shape == (U,)


def test_K18_an_empty_array_is_a_value() -> None:
    empty = D("i8", value=np.empty(0, np.int64))
    assert empty.value is not None
    (found,), _ = p.Elementwise("negative").infer([empty])
    assert found.value is not None
    assert found.value.shape == (0,)
    assert p.Elementwise("negative").infer([D("i8", (0,))])[0][0].value is None


def test_values_go_through_foldable_ops() -> None:
    a, b = D("i8", value=[2, 3]), D("i8", value=[10, 20])
    (found,), _ = ADD.infer([a, b])
    assert (found.value.tolist(), found.value.dtype) == ([12, 23], np.int64)
    assert ADD.infer([a, D("i8", (2,))])[0][0].value is None
    large = D("i8", value=np.arange(SMALL_VALUE_NUMEL + 1))
    assert (large.value, large.shape) == (None, (SMALL_VALUE_NUMEL + 1,))
    outer = find_op("fma3", 3)
    wide = [D("i8", value=np.ones(s)) for s in ((8, 1), (1, 2), ())]
    assert outer.infer(wide)[0][0].value is not None
    wide[0] = D("i8", value=np.ones((9, 1)))
    assert outer.infer(wide)[0][0].value is None


def test_a_value_contradicting_its_shape() -> None:
    with pytest.raises(errors.ShapeError, match="contradicts"):
        D("f4", (3,), value=[1, 2])
    for bad in (3, (-1,), (True,), ("a",)):
        with pytest.raises(errors.ShapeError):
            D("f4", bad)  # type: ignore[arg-type]
    with pytest.raises(errors.ShapeError, match="layout"):
        D("f4", (2, 3), layout="c")
    with pytest.raises(errors.UnsupportedDType):
        D("O", ())
    with pytest.raises(errors.ArgumentError, match="device"):
        D("f4", (), "tpu")


def test_descriptions() -> None:
    x = np.zeros((4, 6), np.float32)
    assert D.of(x) == f4(4, 6, layout="cc")
    assert D.of(x[:, ::2]).layout == "cg"
    assert D.of(np.broadcast_to(x[0], (3, 6))).layout == "zc"
    assert D.of(np.arange(3), value=True).value.tolist() == [0, 1, 2]
    desc = D("f4", (2,), "cuda", "g", [1.0, np.nan])
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert desc.device == "cuda:0"
    assert repr(f4(U, 3)) == "TensorDesc(float32[?x3] cpu)"
    assert repr(RANKLESS) == "TensorDesc(float32[...] cpu)"
    with pytest.raises(AttributeError, match="immutable"):
        desc.shape = ()  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        desc.value[0] = 3  # type: ignore[index]


# ---- ShapeInfer ----


def test_shape_infer_in_both_modes() -> None:
    op = ok.ShapeInfer(find_op("add", 2), dtypes="f4")
    for made in (op, ok.CompiledOp(op)):
        (found,), validated = made.infer([D("i4", value=[2, 1]), D("i4", value=[3])])
        assert (found.dtype, found.shape, found.value.tolist()) == (np.int32, (2,), [2, 3])
        assert validated
        (found,), validated = made.infer([D("i4", value=[2, 1]), D("i4", (1,))])
        assert (found.shape, found.value, validated) == ((2,), None, False)
        (found,), validated = made.infer([D("i4", value=[2, 1]), D("i4", (U,))])
        assert (found.shape, validated) == ((U,), False)
    (y,) = op.apply(np.array([2, 1]), [3])
    assert (y.tolist(), y.dtype) == ([2, 3], np.int32)
    with pytest.raises(errors.ShapeError, match="add"):
        op.apply([2, 4], [3, 3])
    with pytest.raises(errors.ShapeError, match="vectors of integers"):
        op.infer([D("f4", (2,)), D("i4", (2,))])


# ---- what inference must not do ----


def test_O7_inference_allocates_and_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("inference must not")

    monkeypatch.setattr(jit, "build_or_load", refuse)
    monkeypatch.setattr(program, "Program", refuse)
    monkeypatch.setattr(traits, "compiled", refuse)
    before = ok.runtime_info()
    b = ok.SubgraphBuilder("big")
    x, y = b.input(), b.input()
    b.outputs(b.apply("sum", b.apply("exp", b.apply("add", x, y)), axis=0))
    huge = 1 << 40
    for op in (b.get(), b.compile(), b.jit_fuse(strict=False)):
        assert shapes(op, f4(huge, 1), f4(1, huge)) == ((huge,),)
    assert ok.runtime_info() == before


def test_inference_is_remembered_and_bounded() -> None:
    inference._INFERRED.clear()
    op = p.Elementwise("exp")
    hits = inference._INFERRED.hits
    for _ in range(3):
        op.infer([f4(123)])
    assert inference._INFERRED.hits == hits + 2
    for n in range(1100):
        op.infer([f4(n)])
    assert len(inference._INFERRED) == 1024


def test_inference_by_several_threads_is_made_once() -> None:
    inference._INFERRED.clear()
    made: list[int] = []

    @dataclass(frozen=True)
    class Counted:
        def apply(self, x: Any) -> Any:
            return (x,)

        def apply_graph(self, x: Any) -> Any:
            made.append(1)
            return (x + 1,)

    op = ok.GenericPyOp(Counted())
    run_in_threads(lambda i: op.infer([f4(77)]), 8)
    assert len(made) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_does_not_wait_for_the_parents_threads() -> None:
    memo: Memo[int] = Memo(4)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        go_on.wait(60)
        return 1

    thread = threading.Thread(target=lambda: memo.get("key", slow))
    thread.start()
    started.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(memo.get("key", lambda: 2) != 2)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert memo.get("key", lambda: 3) == 1


# ---- JITFusionOp ----


def test_C32_strict_fusion_is_checked_on_every_path() -> None:
    strict, relaxed = ok.JITFusionOp(ADD), ok.JITFusionOp(ADD, strict=False)
    x, row, wide = np.ones((2, 3), "f4"), np.ones((1, 3), "f4"), np.ones((2, 3), "f8")
    for op in (strict, ok.CompiledOp(strict), ok.CompiledOp(strict, 0)):
        assert op.apply(x, x)[0].tolist() == (x + x).tolist()
        for a, b, kind, text in (
            (x, row, errors.ShapeError, "equal shapes"),
            (x, x[0], errors.ShapeError, "equal shapes"),
            (x, wide, errors.UnsupportedDType, "equal dtypes"),
        ):
            with pytest.raises(kind, match=text):
                op.apply(a, b)
            with pytest.raises(kind, match=text):
                op.infer([D.of(a), D.of(b)])
        with pytest.raises(errors.DeviceMismatch, match="equal devices"):
            op.infer([f4(2), f4(2, device="cuda:0")])
        assert shapes(op, f4(U, 3), f4(2, 3)) == ((2, 3),)
    for op in (relaxed, ok.CompiledOp(relaxed)):
        assert op.apply(x, row)[0].tolist() == (x + row).tolist()
        assert shapes(op, f4(2, 3), f4(1, 3)) == ((2, 3),)
    traced = ok.compile(lambda a, b: strict.apply(a, b)[0])
    assert traced(x, x).tolist() == (x + x).tolist()
    with pytest.raises(errors.ShapeError):
        traced(x, row)
    with pytest.raises(errors.ShapeError, match="equal shapes"):
        traced(x, x[0])


def test_K23_fusion_of_no_inputs() -> None:
    b = ok.SubgraphBuilder("none")
    b.outputs(b.apply("add", b.apply_const([1.0, 2.0], "f4"), 1))
    op = ok.JITFusionOp(b.get())
    assert op.apply()[0].tolist() == [2, 3]
    assert op.infer([]) == ((D("f4", value=[2, 3]),), True)


def test_K22_one_kernel_for_several_outputs() -> None:
    b = ok.SubgraphBuilder("several")
    x, y = b.input(), b.input()
    total = b.apply("+", x, y)
    b.outputs(total, b.apply("*", total, y), x, total)
    op = b.jit_fuse()
    a = np.arange(6, dtype=np.float32)
    got = op.apply(a, a)
    assert [g.tolist() for g in got] == [
        (a + a).tolist(),
        ((a + a) * a).tolist(),
        a.tolist(),
        (a + a).tolist(),
    ]
    assert not np.shares_memory(got[2], a)
    low = op.function.lower(a, a)
    assert len(low.kernels) <= 2  # one that computes, one that copies the argument


def test_fusion_switch() -> None:
    op = ok.JITFusionOp(ADD)
    x = np.ones(3, "f4")
    assert ok.fusion_enabled
    assert ok.fusion_enabled.set(False) is True
    try:
        assert not ok.fusion_enabled
        assert op.apply(x, x)[0].tolist() == [2, 2, 2]
        with pytest.raises(errors.ShapeError):
            op.apply(x, np.ones((1, 3), "f4"))
        seen: list[bool] = []
        run_in_threads(lambda i: seen.append(bool(ok.fusion_enabled)), 1)
        assert seen == [True]  # each thread has its own
    finally:
        assert ok.fusion_enabled.set(True) is False

    class Own(Exception):
        pass

    with pytest.raises(Own), ok.fusion_enabled.scope(False):
        assert not ok.fusion_enabled
        raise Own
    assert ok.fusion_enabled
