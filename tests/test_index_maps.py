"""Views below the front end: how many kernels they become, and calls that share memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda_host import Host
from tests.graphs import F8, I8, apply, const, fold, inputs
from tests.test_view_programs import traced

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime.errors import BoundsError, ShapeError
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import graph_input, numel
from opkiln.runtime.kernel import Load, Lowered, Store
from opkiln.runtime.lower import lower
from opkiln.runtime.reference import interpret
from opkiln.runtime.rewrite import rewrite

ZERO, ONE, TWO = host_const(0), host_const(1), host_const(2)


def lowered(*outputs: Node, inputs: tuple[Node, ...]) -> Lowered:
    return lower(rewrite(Graph(inputs, outputs)))


def host(fn: str, *src: Node) -> Node:
    return make(p.HostOp(fn), *src)


def shorter(n: Node) -> Node:
    """n - 1, or 0 of nothing."""
    return host("max", host("sub", n, ONE), ZERO)


def rows(x: Node, start: Node, count: Node, step: int = 1) -> Node:
    return make(p.Slice((0,), (step,)), x, start, count)


def row(x: Node, index: Node) -> Node:
    at = host("index", index, x.shape[0])
    return make(p.Squeeze((0,)), rows(x, at, ONE))


def reshape(x: Node, *shape: Node) -> Node:
    return make(p.Reshape(), x, *shape)


def update(extents: tuple[Node, ...], *pieces: tuple[Node, Node, int], disjoint: bool) -> Node:
    """Pieces written along the first axis, all of the others."""
    rank = len(extents)
    steps = tuple((step, *(1,) * (rank - 1)) for _, _, step in pieces)
    op = p.UpdateSlices(pieces[0][0].dtype, steps, disjoint)
    src = [part for x, start, _ in pieces for part in (x, start, *(ZERO,) * (rank - 1))]
    return make(op, *extents, *src)


def differences(x: Node) -> Node:
    n = shorter(x.shape[0])
    return apply("subtract", rows(x, ONE, n), rows(x, ZERO, n))


def joined(x: Node, y: Node) -> Node:
    total = host("add", x.shape[0], y.shape[0])
    return update((total, *x.shape[1:]), (x, ZERO, 1), (y, x.shape[0], 1), disjoint=True)


def flat(x: Node) -> Node:
    return reshape(x, numel(x.shape))


# name -> (ranks of float64 inputs, the graph, kernels, reads, how many copies may be needed)
COUNTS: dict[str, tuple[tuple[int, ...], Callable[..., Node], int, int, int]] = {
    "differences": (
        (1,), lambda x: apply("multiply", differences(x), const(2, F8)), 1, 2, 0,
    ),
    "second differences": ((1,), lambda x: differences(differences(x)), 1, 3, 0),
    "every second sum": (
        (1, 1), lambda x, y: rows(apply("add", x, y), ZERO, host("floordiv", x.shape[0], TWO), 2),
        1, 2, 0,
    ),
    "a row of a product": (
        (2, 2), lambda x, y: fold("sum", row(apply("multiply", x, y), ONE), 0), 1, 2, 0,
    ),
    "trace": ((2,), lambda x: fold("sum", make(p.Diagonal(0, 1), x), 0), 1, 1, 0),
    "concatenate": ((2, 2), joined, 2, 2, 0),
    "stack": (
        (1,), lambda x: update(
            (TWO, *x.shape),
            (make(p.ExpandDims((0,)), apply("exp", x)), ZERO, 1),
            (make(p.ExpandDims((0,)), x), ONE, 1),
            disjoint=True,
        ), 1, 1, 0,
    ),
    "item assignment": (
        (1, 1), lambda x, y: update(x.shape, (x, ZERO, 1), (y, ONE, 2), disjoint=False), 2, 2, 0,
    ),
    "an update is read from memory": (
        (1, 1), lambda x, y: apply("negative", joined(x, y)), 3, 3, 0,
    ),
    "reshape of an input": ((2,), lambda x: apply("negative", flat(x)), 1, 1, 1),
    "reshape of a slice": ((2,), lambda x: apply("negative", flat(row(x, ONE))), 1, 1, 0),
    "reshape of a sum": ((3,), lambda x: apply("negative", flat(fold("sum", x, 0))), 2, 2, 0),
    "flat sum and more": (
        (2, 2), lambda x, y: apply("multiply", flat(apply("add", x, y)), const(2, F8)), 1, 2, 2,
    ),
    "flat and back": (
        (2,), lambda x: reshape(apply("exp", flat(apply("negative", x))), *x.shape), 1, 1, 0,
    ),
    "a new axis": ((1,), lambda x: apply("exp", reshape(x, ONE, *x.shape, ONE)), 1, 1, 0),
    "matrices of a stack": ((3, 2), lambda x, w: make(p.MatMul(), row(x, ONE), w), 1, 2, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_views_cost_no_kernel(name: str) -> None:
    ranks, build, kernels, reads, copies = COUNTS[name]
    leaves = inputs(*((F8, rank) for rank in ranks))
    found = lowered(build(*leaves), inputs=leaves)
    needed = [launch for launch in found.launches if launch.view < 0]
    assert len(needed) == kernels
    assert sum(not o.write for launch in needed for o in launch.kernel.operands) == reads
    assert len(found.launches) - kernels == copies


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_slice_of_a_broadcast_value_may_stay_in_place(step: int) -> None:
    """One element of x serves all, or each its own: the call decides, and none needs a build."""
    x, y = inputs((F8, 1), (F8, 1))
    z = apply("add", rows(x, ONE, shorter(x.shape[0])), y)
    half = host("floordiv", z.shape[0], TWO)
    f = ok.compile(traced((rows(z, ONE, half, step) if step else z,)))
    for n, m in ((6, 5), (2, 5), (6, 1), (2, 1), (1, 1)):
        a, b = np.arange(float(n)), np.arange(float(m)) * 100
        (got,) = f(a, b)
        whole = a[1:] + b
        part = whole[1 : 1 + step * (len(whole) // 2) : step] if step else whole
        np.testing.assert_array_equal(got[: len(part)], part)
    assert f.info().builds + f.info().disk_hits <= 1


def backwards(x: Node, step: int) -> Node:
    """x[::-step]."""
    count = host("floordiv", host("add", x.shape[0], host_const(step - 1)), host_const(step))
    return rows(x, host("sub", x.shape[0], ONE), count, -step)


COMPOSED: dict[str, tuple[Callable[[Node], Node], Callable[[Any], Any]]] = {
    "slice of slice": (
        lambda x: rows(backwards(x, 2), ONE, host_const(2), 1), lambda a: a[::-2][1:3],
    ),
    "backwards twice": (lambda x: backwards(backwards(x, 1), 3), lambda a: a[::-1][::-3]),
    "diagonal of a slice": (
        lambda x: make(p.Diagonal(1, 0), rows(x, ONE, x.shape[1])), lambda a: a[1:7].diagonal(),
    ),
    "stored backwards": (
        lambda x: update(x.shape, (x, host("sub", x.shape[0], ONE), -1), disjoint=True),
        lambda a: a[::-1],
    ),
    "reshape of what was computed": (
        lambda x: flat(fold("max", make(p.ExpandDims((0,)), x), 0)), lambda a: a.reshape(-1),
    ),
    "reshape of a slice of what was computed": (
        lambda x: flat(backwards(apply("negative", x), 2)), lambda a: -a[::-2].reshape(-1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_maps_compose(name: str) -> None:
    build, expected = COMPOSED[name]
    (x,) = inputs((F8, 2))
    f = ok.compile(traced((build(x),)))
    a = np.arange(42.0).reshape(7, 6)
    for given in (a, np.asfortranarray(a), a[::-1]):
        np.testing.assert_array_equal(f(given)[0], expected(given))


def test_a_result_is_reshaped_where_it_lies() -> None:
    x, y = inputs((F8, 2), (F8, 2))
    z = apply("add", x, y)
    found = lowered(z, flat(z), inputs=(x, y))
    assert [launch.view >= 0 for launch in found.launches] == [False, True, False]
    f = ok.compile(traced((z, flat(z))))
    for a in (np.ones((3, 4)), np.asfortranarray(np.arange(12.0).reshape(3, 4))):
        got, again = f(a, a)
        np.testing.assert_array_equal(got, a + a)
        np.testing.assert_array_equal(again, (a + a).reshape(-1))


def test_a_stencil_is_computed_step_by_step() -> None:
    """Each step is stored: in one kernel the work would grow with the square of the steps."""

    def step(u: Node) -> Node:
        n = host("sub", u.shape[0], TWO)
        left, here, right = (rows(u, host_const(i), n) for i in range(3))
        curve = apply("add", apply("subtract", left, apply("add", here, here)), right)
        return apply("add", here, apply("multiply", curve, const(0.1, F8)))

    (x,) = inputs((F8, 1))
    u = x
    for _ in range(40):
        u = step(u)
    found = lowered(u, inputs=(x,))
    assert len(found.launches) == 40
    assert all(len(launch.kernel.operands) == 4 for launch in found.launches)


def test_a_place_of_a_dear_value_is_computed_alone() -> None:
    (x,) = inputs((F8, 2))
    e = apply("exp", x)
    (launch,) = lowered(apply("add", row(e, ZERO), row(e, ONE)), inputs=(x,)).launches
    assert launch.extents == x.shape[1:]


def test_pieces_that_overlap_are_stored_in_order() -> None:
    x, y = inputs((I8, 1), (I8, 1))
    same = make(p.BroadcastTo(), y, *x.shape)
    for disjoint, kernels in ((False, 2), (True, 1)):
        node = update(x.shape, (x, ZERO, 1), (same, ZERO, 1), disjoint=disjoint)
        assert len(lowered(node, inputs=(x, y)).launches) == kernels


def test_an_index_comes_with_each_call() -> None:
    x, i = graph_input(0, F8, 2), make(p.HostArg(0, "i"))
    doubled = apply("add", row(x, i), row(x, host("sub", i, ONE)))

    @ok.compile
    def f(a: Any, k: Any) -> Any:
        return traced((doubled, flat(row(x, i))))(a)

    a = np.arange(24.0).reshape(4, 6)
    for layout in (a, np.asfortranarray(a), a[::-1]):
        for k in (0, 3, -1, 1):
            got, again = f(layout, k)
            np.testing.assert_array_equal(got, layout[k] + layout[k - 1])
            np.testing.assert_array_equal(again, layout[k])
    with pytest.raises(BoundsError, match="index 4 is out of bounds for an axis of size 4"):
        f(a, 4)
    assert f.info().misses == 3  # one a layout: an index is no part of the key


def test_a_reshape_that_does_not_fit_names_both() -> None:
    (x,) = inputs((F8, 2))
    f = ok.compile(traced((apply("negative", reshape(x, host_const(4), TWO)),)))
    np.testing.assert_array_equal(f(np.ones((2, 4)))[0], -np.ones((4, 2)))
    with pytest.raises(ShapeError, match=r"cannot reshape array of size 9 into shape \(4,2\)"):
        f(np.ones((3, 3)))


def test_a_reshape_is_copied_where_the_strides_need_it() -> None:
    (x,) = inputs((F8, 2))
    f = ok.compile(traced((apply("negative", flat(x)),)))
    a = np.arange(12.0).reshape(3, 4)
    viewed = (a, a[:1].T, a[:, 0:1], a[::-1, ::-1])
    copied = (a[:, ::-1], np.asfortranarray(a), a[::2], a[:, :2])
    for given, copies in [*((x, 0) for x in viewed), *((x, 1) for x in copied)]:
        before = f.info().copies
        np.testing.assert_array_equal(f(given)[0], -given.reshape(-1))
        assert f.info().copies - before == copies, given.strides


def test_the_copy_is_not_built_before_a_call_needs_it() -> None:
    (x,) = inputs((F8, 2))
    f = ok.compile(traced((apply("tanh", flat(x)),)))
    _, requests = f._missing(np.ones((3, 4)))
    assert [index for index, _ in requests] == [1]
    _, requests = f._missing(np.ones((3, 4)).T)
    assert [index for index, _ in requests] == [0, 1]


ALIASED: dict[str, Callable[[Node], Node]] = {
    "reversed": lambda x: rows(x, host("sub", x.shape[0], ONE), x.shape[0], -1),
    "shifted": lambda x: update(
        x.shape, (x, ZERO, 1), (rows(x, ZERO, shorter(x.shape[0])), ONE, 1), disjoint=False
    ),
    "transposed": lambda x: apply("add", make(p.Transpose((1, 0)), x), x),
    "diagonal": lambda x: apply(
        "add", x, make(p.ExpandDims((1,)), make(p.Diagonal(0, 1), x))
    ),
    "first row": lambda x: apply("subtract", x, row(x, ONE)),
    "turned flat": lambda x: reshape(
        apply("negative", rows(flat(x), host("sub", numel(x.shape), ONE), numel(x.shape), -1)),
        *x.shape,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIASED)
def test_out_may_be_the_operand(name: str) -> None:
    (x,) = inputs((F8, 2))
    node = ALIASED[name](x)
    f = ok.compile(traced((node,)))
    rng = np.random.default_rng(0)
    memory = rng.integers(-9, 9, (6, 6)).astype(float)
    (want,) = f(memory[:4, :4].copy())
    for at in ((0, 0), (1, 0), (0, 1), (2, 2)):
        held = memory.copy()
        target = held[at[0] : at[0] + 4, at[1] : at[1] + 4]
        f(held[:4, :4], out=(target,))
        np.testing.assert_array_equal(target, want)


def test_a_device_reads_and_writes_where_the_maps_say(tmp_path: Path) -> None:
    """By the CUDA text, run on this machine, on layouts with and without views of them."""
    (x,), i = inputs((F8, 2)), make(p.HostArg(0, "i"))
    outputs = (
        differences(x),
        row(x, i),
        apply("negative", flat(x)),
        joined(x, rows(x, host("sub", x.shape[0], ONE), x.shape[0], -1)),
        fold("sum", make(p.Diagonal(0, 1), x), 0),
        reshape(fold("sum", x, 0), TWO, host("floordiv", x.shape[1], TWO)),
    )
    graph = Graph((x,), outputs)
    device = Host(lower(rewrite(graph)), tmp_path)
    a = np.arange(36.0).reshape(6, 6)
    for given in (a, np.asfortranarray(a), a[::-1], np.repeat(a, 2, 1)[:, ::2]):
        got, _ = device([given], [-2])
        for value, want in zip(got, interpret(graph, [given], [-2]), strict=True):
            np.testing.assert_array_equal(value, want)


def test_the_text_of_a_kernel_says_what_is_read() -> None:
    (x,) = inputs((F8, 2))
    n = shorter(x.shape[0])
    (launch,) = lowered(apply("add", rows(x, ONE, n), row(x, TWO)), inputs=(x,)).launches
    text = str(launch.kernel)
    assert "axes [1+1*0, 1]" in text
    assert "axes [@index(2, arg0.shape[0]), 1]" in text
    assert [type(s) for s in launch.kernel.statements()].count(Load) == 2
    assert [type(s) for s in launch.kernel.statements()].count(Store) == 1
