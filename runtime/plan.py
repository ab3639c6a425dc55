"""Plan: a lowered program in, the native core's `Plan` out, with its registers' graph nodes."""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

from opkiln.native import Plan, dtype_code
from opkiln.ops import primitives as p
from opkiln.ops.rules import RULES
from opkiln.runtime import blas
from opkiln.runtime.graph import Node, Pin, topological
from opkiln.runtime.indexmap import AxisMap
from opkiln.runtime.kernel import Lowered

# Host functions that exist for ints ("_i") and floats ("_f"); the operands decide.
_ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "pow", "neg", "abs", "max", "min"})


class _Registers:
    """Host nodes as registers of the plan's host program, each computed once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.of: dict[Node, int] = {}
        self.node: dict[int, Node] = {}

    def __call__(self, root: Node) -> int:
        for node in topological([root], stop=frozenset(self.of)):
            if node not in self.of and node.is_host:
                self.of[node] = self.compute(node)
        return self.of[root]

    def all(self, roots: tuple[Node, ...]) -> list[int]:
        """Registers of several nodes."""
        return [self(root) for root in roots]

    def map(self, axes: AxisMap) -> list[tuple[int, int, int]]:
        """An index map as (iteration axis, register of the step, register of the start), or -1."""
        return [(m.axis, self.known(m.step), self.known(m.start)) for m in axes]

    def known(self, root: Node | None) -> int:
        return -1 if root is None else self(root)

    def new(self, node: Node, op: str, *regs: int, ival: int = 0, fval: float = 0.0) -> int:
        a, b = (*regs, -1, -1)[:2]
        reg = self.plan.host(op, a, b, ival, fval)
        self.node[reg] = node
        return reg

    def as_float(self, node: Node) -> int:
        reg = self.of[node]
        if node.dtype is float:
            return reg
        unsigned = isinstance(node.op, p.HostArg) and node.op.kind == "u"
        return self.new(node, "u2f" if unsigned else "i2f", reg)

    def compute(self, node: Node) -> int:
        op = node.op
        match op:
            case p.HostArg(index, kind):
                return self.new(node, f"arg_{kind}", index)
            case p.Dim(axis):
                source = node.src[0].op
                assert isinstance(source, p.Input)
                return self.new(node, "extent", source.index, ival=axis)
            case p.HostConst(int(value)):
                return self.new(node, "const_i", ival=value)
            case p.HostConst(value):
                return self.new(node, "const_f", fval=value)
            case p.HostOp(fn):
                return self.arithmetic(node, fn)
            case _:
                raise AssertionError(f"plan: no register for {node!r}")

    def arithmetic(self, node: Node, fn: str) -> int:
        if fn == "float":
            return self.as_float(node.src[0])
        if node.dtype is float:
            args = [self.as_float(s) for s in node.src]
            return self.new(node, "div_f" if fn == "truediv" else f"{fn}_f", *args)
        args = [self.of[s] for s in node.src]
        name = f"{fn}_i" if fn in _ARITHMETIC else fn
        return (
            fold(lambda a, b: self.new(node, name, a, b), args)
            if len(args) > 1
            else self.new(node, name, *args)
        )


def make_plan(
    lowered: Lowered, *, args: int, pins: tuple[Pin, ...]
) -> tuple[Plan, dict[int, Node]]:
    """The native plan of a lowered program.

    The first `args` inputs are arguments, the rest captures. `pins` are of arguments alone.

    Returns:
        The finished plan and, per host register, the node it computes (for error messages).
    """
    if any(launch.kernel.product for launch in lowered.launches):
        blas.ready()
    plan = Plan()
    registers = _Registers(plan)
    # Inputs first: extents refer to them by buffer index, which equals the input's index.
    inputs = [b for b in lowered.buffers if b.kind == "arg"]
    for index, buffer in enumerate(inputs):
        kind = "arg" if index < args else "capture"
        plan.buffer(kind, dtype_code(buffer.dtype), [], len(buffer.extents))
    for buffer in lowered.buffers[len(inputs) :]:
        code, extents = dtype_code(buffer.dtype), registers.all(buffer.extents)
        if buffer.view is None:
            plan.buffer(buffer.kind, code, extents, len(extents), buffer.dense)
        else:
            view = buffer.view
            axes, space = registers.map(view.axes), registers.all(view.space)
            plan.view(code, extents, view.buffer, axes, space, view.copy)
    for node in lowered.checks:
        registers(node)
    for node, dtype, mode in lowered.scalars:
        plan.scalar(registers(node), dtype_code(dtype), mode)
    for launch in lowered.launches:
        kernel = launch.kernel
        plan.kernel(
            registers.all(launch.extents),
            sum(1 << axis for axis in kernel.reduced),
            [(o.buffer, registers.map(o.axes), o.write) for o in kernel.operands],
            list(launch.scalars),
            kernel.cost,
            kernel.may_raise,
            kernel.product,
            launch.view,
            *_custom(kernel.call),
        )
    for kind, value in lowered.outputs:
        _output(plan, registers, kind, value)
    for index, axis, size in pins:
        if isinstance(size, tuple):
            plan.pin_equal(index, axis, *size)
        else:
            plan.pin(index, axis, size)
    plan.finish()
    return plan, registers.node


def _custom(call: Node | None) -> tuple[Any, ...]:
    """Of a custom op: its functions, and the rank of each operand."""
    if call is None:
        return ()
    assert isinstance(call.op, p.CustomCall)
    tensors, _, *results = call.op.split(call.src)
    ranks = [*(t.rank for t in tensors), *map(len, results)]
    return RULES.find("functions", call.op.op)(call.op.op, call.op.given), ranks


def _output(plan: Plan, registers: _Registers, kind: str, value: Any) -> None:
    if kind == "host":
        plan.output_host(registers(value))
    else:
        plan.output_buffer(value)
