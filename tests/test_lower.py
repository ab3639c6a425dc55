"""Fusion and lowering: which kernels a graph becomes, and where each value lives."""

from __future__ import annotations

import numpy as np
from tests.graphs import F4, F8, I8, apply, chain, const, fold, inputs, softmax, standardise

from opkiln.ops import primitives as p
from opkiln.runtime import kernel as k
from opkiln.runtime.graph import Graph, Node
from opkiln.runtime.indexmap import plain
from opkiln.runtime.infer import make
from opkiln.runtime.lower import lower


def kernels(graph: Graph, **options: int) -> list[k.Kernel]:
    return [launch.kernel for launch in lower(graph, **options).launches]


def kinds(kernel: k.Kernel) -> list[str]:
    return [section.kind for section in kernel.sections]


def rows(kernel: k.Kernel) -> list[str]:
    return [s.row for s in kernel.statements() if isinstance(s, k.Apply)]


def test_elementwise_chain_is_one_kernel() -> None:
    (kernel,) = kernels(chain())
    assert kinds(kernel) == ["loop"]
    assert rows(kernel) == ["multiply", "add", "tanh", "multiply", "subtract"]
    assert [o.write for o in kernel.operands] == [False, False, False, True]


def test_opt_level_0_is_one_kernel_per_op() -> None:
    assert [rows(kernel) for kernel in kernels(chain(), opt_level=0)] == [
        ["multiply"], ["add"], ["tanh"], ["multiply"], ["subtract"],
    ]  # fmt: skip


def test_row_softmax_is_one_kernel_with_three_loops() -> None:
    (kernel,) = kernels(softmax())
    assert kernel.reduced == (1,)
    assert kinds(kernel) == ["loop", "loop", "loop"]
    assert rows(kernel).count("exp") == 1, "exp is kept in scratch, not computed twice"


def test_reduction_of_a_leading_axis_leaves_the_full_size_store_to_another_kernel() -> None:
    first, second = kernels(standardise())
    assert first.reduced == (0,)
    assert second.reduced == ()
    assert rows(second) == ["subtract", "divide"], "mean and deviation come from memory"
    (x,) = inputs((F4, 2))
    t = apply("exp", x)
    assert [kernel.reduced for kernel in kernels(Graph((x,), (t, fold("sum", t, 0))))] == [(), (0,)]


def test_several_outputs_of_one_shape_share_a_kernel() -> None:
    (x,) = inputs((F4, 2))
    t = apply("exp", x)
    (kernel,) = kernels(Graph((x,), (t, apply("less", t, x))))
    assert sum(o.write for o in kernel.operands) == 2
    assert rows(kernel) == ["exp", "less"]


def test_F054_outputs_of_different_shapes_are_different_kernels() -> None:
    a, b = inputs((F4, 3), (F4, 2))
    two, three = const(2, F4), const(3, F4)
    outputs = apply("multiply", a, two), apply("multiply", b, three)
    assert [kernel.rank for kernel in kernels(Graph((a, b), outputs))] == [3, 2]


def test_dear_work_on_a_small_operand_is_not_repeated_along_a_large_one() -> None:
    x, w = inputs((F4, 2), (F4, 1))
    graph = Graph((x, w), (apply("multiply", x, apply("exp", w)),))
    first, second = kernels(graph)
    assert (rows(first), first.rank) == (["exp"], 1)
    assert rows(second) == ["multiply"]


def test_cheap_work_on_a_small_operand_is_fused() -> None:
    x, w = inputs((F4, 2), (F4, 1))
    (kernel,) = kernels(Graph((x, w), (apply("multiply", x, apply("add", w, w)),)))
    assert rows(kernel) == ["add", "multiply"]


def test_views_are_index_maps() -> None:
    x, y = inputs((F4, 2), (F4, 2))
    s = make(p.Transpose((1, 0)), apply("add", x, y))
    (kernel,) = kernels(Graph((x, y), (apply("multiply", s, x),)))
    assert rows(kernel) == ["add", "multiply"]
    maps = {(o.buffer, o.axes) for o in kernel.operands if not o.write}
    assert maps == {(0, plain(1, 0)), (1, plain(1, 0)), (0, plain(0, 1))}


def test_misaligned_use_of_a_reduction_goes_through_memory() -> None:
    (x,) = inputs((F4, 2))
    s = fold("sum", x, 1)  # shape (n,), then broadcast along the LAST axis of (n, m)
    first, second = kernels(Graph((x,), (apply("subtract", x, s),)))
    assert (first.reduced, second.reduced) == ((1,), ())
    z = apply("add", x, make(p.Transpose((1, 0)), x))  # of one extent along both axes
    first, second = kernels(Graph((x,), (apply("subtract", z, fold("sum", z, 1)),)))
    assert (first.reduced, second.reduced) == ((1,), ())


def test_two_reductions_over_different_axes_are_two_kernels() -> None:
    (x,) = inputs((F4, 2))
    graph = Graph((x,), (fold("sum", x, 0), fold("sum", x, 1)))
    assert [kernel.reduced for kernel in kernels(graph)] == [(0,), (1,)]


def test_epilogue_of_a_reduction_runs_once_per_row() -> None:
    (x,) = inputs((F4, 2))
    (kernel,) = kernels(Graph((x,), (apply("sqrt", fold("sum", apply("square", x), 1)),)))
    assert kinds(kernel) == ["loop", "row"]
    assert [s.row for s in kernel.sections[1].body if isinstance(s, k.Apply)] == ["sqrt"]


def test_an_input_returned_is_copied_by_a_kernel() -> None:
    (x,) = inputs((F4, 1))
    lowered = lower(Graph((x,), (x,)))
    (launch,) = lowered.launches
    assert [type(s) for s in launch.kernel.statements()] == [k.Load, k.Store]
    assert lowered.outputs == (("buffer", 1),)


def test_max_over_nothing_is_guarded_and_sum_is_not() -> None:
    (x,) = inputs((F4, 2))

    def guards(node: Node) -> list[str]:
        return [n.op.fn for n in lower(Graph((x,), (node,))).checks if isinstance(n.op, p.HostOp)]

    assert "nonempty" in guards(fold("max", x, 1))
    assert "nonempty" not in guards(fold("sum", x, 1))


def test_integer_power_may_raise_and_division_may_not() -> None:
    a, b = inputs((I8, 1), (I8, 1))
    assert kernels(Graph((a, b), (apply("power", a, b),)))[0].may_raise
    assert not kernels(Graph((a, b), (apply("floor_divide", a, b),)))[0].may_raise


def test_F111_F113_deep_chains_lower_without_recursion() -> None:
    (x,) = inputs((F8, 1))
    node = x
    for _ in range(3000):
        node = apply("multiply", apply("add", node, node), x)  # 2**3000 paths
    (kernel,) = kernels(Graph((x,), (node,)))
    assert len(rows(kernel)) == 6000
    assert len({s.value for s in kernel.statements() if isinstance(s, k.Apply)}) == 6000


def test_scratch_is_as_long_as_the_columns_only() -> None:
    lowered = lower(softmax())
    temps = [b for b in lowered.buffers if b.kind == "temp"]
    assert [len(b.extents) for b in temps] == [1]


def test_levels_of_work_do_not_depend_on_names() -> None:
    assert str(lower(softmax())) == str(lower(softmax()))
    assert np.dtype("f4") in {o.dtype for kernel in kernels(softmax()) for o in kernel.operands}
