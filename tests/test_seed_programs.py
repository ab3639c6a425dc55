"""Programs of the systems that opkiln replaces, by their ids; the values are those they state."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_in_threads

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.table import ELEMENTWISE

D = ok.TensorDesc
RNG = np.random.default_rng(11)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.5, 2, shape).astype(dtype)


def kernels(op: ok.CompiledOp, *args: Any) -> int:
    return len(op.function.lower(*args).kernels)


@ok.subgraph("fused", np.float32, "cpu", nr_inputs=2, jit_fusion=True, custom_grad=True)
def fused_product(inputs: Any, f: Any, c: Any) -> Any:
    """Whose gradient is twice the right one."""
    x, y = inputs
    g = yield f("*", x, y)
    yield f("*", f("*", g, y), c(2.0)), f("*", f("*", g, x), c(2.0))


def check_T10() -> None:
    x, y, g = (draw(3, 4, 5) for _ in range(3))
    (z,) = fused_product.apply(x, y)
    assert z.tolist() == (x * y).tolist()
    backward = fused_product.backward_graph([D.of(x), D.of(y)], [True, True], [True])
    dx, dy = backward.apply(x, y, None, g)
    assert dx.tolist() == (g * y * 2).tolist()
    assert dy.tolist() == (g * x * 2).tolist()


def test_T10_fused_product_with_its_own_gradient() -> None:
    check_T10()


@pytest.mark.parametrize("compiler", ["c++", "none"])
def test_T10_without_nvcc_or_any_compiler(compiler: str, tmp_path: Any) -> None:
    """No tool but the named compiler is found, and nothing is cached."""
    folder = tmp_path / "bin"
    folder.mkdir()
    found = shutil.which("c++")
    assert found is not None
    if compiler == "c++":
        (folder / "c++").symlink_to(found)
        for tool in ("as", "ld"):
            (folder / tool).symlink_to(shutil.which(tool) or "")
    env = {**os.environ, "OPKILN_CACHE_DIR": str(tmp_path / "cache")}
    code = f"""if True:
        import os
        from tests.test_seed_programs import check_T10, ok
        os.environ["PATH"] = {str(folder)!r}
        os.environ.pop("CXX", None)
        check_T10()
        counts = ok.runtime_info().totals
        found = counts.builds > 0, counts.fallbacks > 0
        assert found == ({compiler == "c++"}, {compiler == "none"}), counts
        """
    args = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(args, env=env, timeout=240, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "options", "shapes"),
    [
        ("add", {}, [(42,), (42,)]),
        ("sum", {"axis": 1}, [(2, 3, 4)]),
        ("concatenate", {"axis": 1}, [(2, 3), (2, 1)]),
        ("[:?]", {}, [(100,), 20]),
        ("[?:]", {}, [(100,), 20]),
    ],
)
def test_T13_eager_and_graph_are_equal(name: str, options: Any, shapes: Any) -> None:
    args = [np.array([s]) if isinstance(s, int) else draw(*s) for s in shapes]
    b = ok.SubgraphBuilder(name)
    b.outputs(b.apply(name, *(b.input() for _ in args), **options))
    before = [a.copy() for a in args]
    (eager,) = ok.find_op(name, len(args), options).apply(*args)
    for level in (0, 2):
        (got,) = b.compile(level).apply(*args)
        assert got.tolist() == eager.tolist()
    for a, kept in zip(args, before, strict=True):
        assert a.tolist() == kept.tolist()


def test_T15_T21_kernels_and_constants() -> None:
    b = ok.SubgraphBuilder("T15")
    a, x, c, d = (b.input() for _ in range(4))
    y = b.apply("+", b.apply("*", a, x), b.apply("*", c, a))
    for _ in range(3):
        y = b.apply("+", y, d)
    b.outputs(y)
    args = [draw(3, 3), draw(3, 1), draw(1, 1), draw(3, 3)]
    assert kernels(b.compile(), *args) <= 2
    assert b.compile().apply(*args)[0].tolist() == b.get().apply(*args)[0].tolist()

    b = ok.SubgraphBuilder("T21")
    x = b.input()
    over = b.apply("+", b.apply("*", x, x), 1)
    under = b.apply("+", b.apply("sin", x), 1.2)
    b.outputs(b.apply("*", b.apply("/", over, under), 0.3))
    x = draw(5, 7)
    low = b.compile().function.lower(x)
    assert len(low.kernels) == 1
    text = str(low.kernels[0])
    assert (text.count("\n  in"), text.count(" = load ")) == (1, 1)  # no constant is an operand
    np.testing.assert_allclose(
        b.compile().apply(x)[0], (x * x + 1) / (np.sin(x) + 1.2) * 0.3, rtol=1e-6
    )


def test_T16_one_program_for_every_size_and_one_per_rank() -> None:
    b = ok.SubgraphBuilder("T16")
    x = b.input()
    b.outputs(b.apply("sinh", b.apply("+", x, 16.25)))
    op = b.compile()
    info = op.function.info
    op.apply(draw(4, 3))
    first = info()
    op.apply(draw(7, 5))
    assert (info().traces, info().builds + info().disk_hits) == (first.traces, 1)
    op.apply(draw(2, 3, 4))
    other = info()
    assert other.traces == first.traces + 1
    op.apply(draw(4, 3))  # back: found, nothing is made
    assert info().hits == other.hits + 1
    assert (info().traces, info().executors) == (other.traces, other.executors)


def test_T17_many_inputs() -> None:
    """More than a GPU's parameters hold; our operands are in memory, so it is one kernel."""
    b = ok.SubgraphBuilder("T17")
    first, *others = [b.input() for _ in range(120)]
    for other in others:
        first = b.apply("+", first, other)
    b.outputs(first)
    args = [draw(4, 3, 2, 1) for _ in range(120)]
    assert kernels(b.compile(), *args) == 1
    assert b.compile().apply(*args)[0].tolist() == b.get().apply(*args)[0].tolist()


def test_T18_equal_programs_are_one() -> None:
    def made(row: str, name: str) -> ok.CompiledOp:
        b = ok.SubgraphBuilder(name)
        b.outputs(b.apply(row, b.apply("+", b.input(), 1)))
        return b.compile()

    one, other, again = made("sin", "a"), made("cos", "b"), made("sin", "c")
    x = draw(6)
    for op in (one, other, again):
        op.apply(x)
    assert one.function is again.function
    assert one.function is not other.function
    assert one.function.info().hits == 1
    assert one.function.info().traces == 1


def takes(row: OpRow, *types: Any) -> bool:
    try:
        return all(d.kind == "f" for d in row.signature(row, types)[0])
    except TypeError:
        return False


def test_T19_rows_over_broadcast_operands_in_threads() -> None:
    """Compiled once, in whichever thread comes first; equal to the interpreter in all."""
    f4 = np.dtype(np.float32)
    rows = [r for r in ELEMENTWISE.values() if r.arity == 2 and r.gradient and takes(r, f4, f4)]
    b = ok.SubgraphBuilder("T19")
    whole, *parts = (b.input() for _ in range(4))
    b.outputs(*(b.apply(row.name, whole, parts[i % 3]) for i, row in enumerate(rows)))
    op = b.compile()
    args = [draw(9, 12, 7), draw(9, 1, 7), draw(1, 12, 7), draw(9, 12, 1)]
    descs = [D.of(a) for a in args]
    want = b.get().apply(*args)
    dys = [draw(9, 12, 7) for _ in want]
    need, has = [True] * 4, [True] * len(want)
    slopes = b.get().backward_graph(descs, need, has).apply(*args, *want, *dys)
    start = threading.Barrier(4)

    def work(_: int) -> None:
        start.wait(60)
        for got, wanted in zip(op.apply(*args), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        found = op.backward_graph(descs, need, has).apply(*args, *want, *dys)
        for got, wanted in zip(found, slopes, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

    run_in_threads(work, 4)
    info = op.function.info()
    assert (info.traces, info.builds + info.disk_hits) == (1, 1)
    backward = op.backward_graph(descs, need, has).op
    assert backward is ok.CompiledOp(b.get()).backward_graph(descs, need, has).op
    info = backward.function.info()
    assert (info.traces, info.builds + info.disk_hits) == (1, 1)


def repeated(count: int) -> ok.CompiledOp:
    b = ok.SubgraphBuilder("T20")
    x = y = b.input()
    for _ in range(count):
        y = b.apply("+", b.apply("*", y, y), x)
    b.outputs(y)
    return b.compile()


def test_T20_a_long_chain_is_one_kernel() -> None:
    x = draw(8) / 8
    op = repeated(32)
    low = op.function.lower(x)
    assert len(low.kernels) == 1
    assert str(low.kernels[0]).count(" = multiply ") == 32
    assert op.apply(x)[0].tolist() == op.op.apply(x)[0].tolist()


def test_T20_work_is_linear() -> None:
    """By the calls that Python makes to prepare it, whose number no machine changes."""

    def calls(count: int) -> int:
        op, x = repeated(count), draw(8)
        counted = 0

        def count_call(frame: object, event: str, arg: object) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count_call)
        try:
            op.function.lower(x)
        finally:
            sys.setprofile(None)
        return counted

    calls(10)
    assert calls(800) < 9 * calls(100)  # 8 is linear, 64 quadratic


def test_T22_operands_that_are_not_contiguous() -> None:
    b = ok.SubgraphBuilder("T22")
    x, y = b.input(), b.input()
    b.outputs(b.apply("+", b.apply("*", x, y), x))
    x, y = draw(3, 7)[:, 1:5], draw(3, 4)[::-1]
    assert b.compile().apply(x, y)[0].tolist() == (x * y + x).tolist()
    assert b.compile().apply(x[:, :1], y)[0].tolist() == (x[:, :1] * y + x[:, :1]).tolist()


def test_T23_the_same_kernels_again_are_found() -> None:
    """Four rounds over two ops, forgotten in between by the process and not by the disk."""

    def made(row: str) -> ok.CompiledOp:
        b = ok.SubgraphBuilder("T23")
        b.outputs(b.apply(row, b.apply("+", b.input(), 23.5)))
        return b.compile()

    x = draw(5)
    found: list[tuple[int, ...]] = []
    for _ in range(4):
        before = ok.runtime_info().totals
        for row in ("expm1", "log1p"):
            made(row).apply(x)
        after = ok.runtime_info().totals
        found.append((after.builds - before.builds, after.disk_hits - before.disk_hits))
        ok.clear_cache()
    assert sum(found[0]) == 2
    assert found[1:] == [(0, 2)] * 3


def test_T27_half_types_are_rounded_where_they_are_asked_for() -> None:
    b = ok.SubgraphBuilder("T27")
    x, y, z = (b.input() for _ in range(3))
    inner = b.apply("+", b.apply("cast", x, dtype="f2"), b.apply("*", y, z))
    b.outputs(b.apply("cast", b.apply("+", b.apply("cast", inner, dtype="f2"), 1), dtype="f4"))
    args = [draw(64) for _ in range(3)]
    (got,) = b.compile().apply(*args)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, args[0] + args[1] * args[2] + 1, atol=5e-3)
    assert got.tolist() == b.get().apply(*args)[0].tolist()
    assert kernels(b.compile(), *args) == 1


def test_T28_identities_of_algebra_are_not_applied() -> None:
    """At every level: strict results have NumPy's bits."""
    b = ok.SubgraphBuilder("T28")
    x = b.input()
    twice = b.apply("*", x, 2)
    b.outputs(b.apply("/", twice, twice), b.apply("log", b.apply("exp", x)))
    for level in (0, 1, 2):
        ratio, same = b.compile(level).apply(np.array([0.0, 1e4]))
        assert np.isnan(ratio[0]) and ratio[1] == 1
        assert same[1] == np.inf
