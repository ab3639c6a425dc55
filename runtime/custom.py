"""`ok.subgraph`: a function that names ops in, an op out; with a gradient of the user's own too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from opkiln.ops.definitions import CompiledOp, JITFusionOp, SubgraphOp
from opkiln.ops.defs import OpDef
from opkiln.ops.subgraph import Expr, Subgraph
from opkiln.runtime.describe import device_of
from opkiln.runtime.errors import ArgumentError, NotYet, TraceError
from opkiln.runtime.subgraph import SubgraphBuilder, Var, find_op, remove_unused, replace_vars
from opkiln.runtime.trace import random_state, same_random
from opkiln.runtime.trace.session import failure, is_a
from opkiln.runtime.traits import apply

Function = Callable[[tuple[Any, ...], Callable[..., Any], Callable[..., Any]], Any]


def subgraph(
    name: str,
    dtype: Any,
    device: str,
    nr_inputs: int,
    opt_level: int | None = None,
    jit_fusion: bool = False,
    custom_grad: bool = False,
    interpret: bool = False,
) -> Callable[[Function], Any]:
    """Decorator: a function of (inputs, f, c) that names ops becomes an op.

    `f("add", x, y)` applies an op, `c(2.0)` makes a constant. The function returns the outputs and,
    per output, whether gradients flow back from it. With `custom_grad` it is a generator: it yields
    the outputs, is sent the gradients of the outputs, and yields those of the inputs (None for
    none).

    Args:
        name: shown in messages.
        dtype: of constants.
        device: of constants.
        nr_inputs: how many inputs the op has.
        opt_level: makes a `CompiledOp` of this level; None an interpreted `SubgraphOp`.
        jit_fusion: makes one fused kernel, where that can be.
        custom_grad: whether the function is such a generator.
        interpret: give a function of arrays instead, which calls the function anew each time with
            NumPy's results; with `custom_grad` it returns (outputs, backward).

    Raises:
        ArgumentError: contradicting options, or what the function returns is not as described.
    """
    if jit_fusion and opt_level is not None:
        raise failure(ArgumentError, f"{name}: expected jit_fusion or opt_level, got both")
    if device_of(device) != "cpu":
        raise failure(NotYet, f"{name}: subgraphs on {device} are not supported yet")

    def decorate(function: Function) -> Any:
        build = _Build(name, function, dtype, nr_inputs, custom_grad)
        if interpret:
            return build.interpreted
        op: OpDef = build.op()
        if jit_fusion:
            return CompiledOp(JITFusionOp(op))
        return op if opt_level is None else CompiledOp(op, opt_level)

    return decorate


class _Build:
    """One decorated function."""

    def __init__(
        self, name: str, function: Function, dtype: Any, nr_inputs: int, custom_grad: bool
    ) -> None:
        self.name, self.function, self.dtype = name, function, dtype
        self.nr_inputs, self.custom_grad = nr_inputs, custom_grad
        generator = inspect.isgeneratorfunction(function)
        if generator != custom_grad:
            kind = "a generator" if generator else "no generator"
            fix = "pass custom_grad=True" if generator else "yield outputs, then gradients"
            raise failure(
                ArgumentError, f"{name}: {self.line} is {kind}, custom_grad={custom_grad}", fix=fix
            )
        try:
            inspect.signature(function).bind((), None, None)
        except TypeError as error:
            raise failure(
                ArgumentError,
                f"{name}: expected a function of (inputs, f, c) at {self.line}: {error}",
            ) from None

    @property
    def line(self) -> str:
        """Where the function is."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def start(self, inputs: tuple[Any, ...], f: Any, c: Any) -> Any:
        """Call the function; random numbers would be the same in every run.

        Raises:
            TraceError: it drew some of NumPy's global random state.
        """
        before = random_state()
        result = self.function(inputs, f, c)
        if self.custom_grad:  # a generator, which has not run yet
            return result
        self.check_random(before)
        return result

    def check_random(self, before: Any) -> None:
        """Refuse a function that drew random numbers since `before`."""
        if not same_random(before, random_state()):
            raise failure(
                TraceError,
                f"{self.name} draws from NumPy's global random state at {self.line}, so each run "
                f"would get the same numbers",
                fix="pass the array as an input",
            )

    def outputs(self, given: Any, kind: type, count: int | None = None) -> tuple[Any, ...]:
        """What the function gave, as a tuple of variables.

        Raises:
            ArgumentError: it is something else.
        """
        values = tuple(given) if type(given) in (tuple, list) else (given,)
        bad = [v for v in values if not isinstance(v, kind) and not (count and v is None)]
        if bad or (count is not None and len(values) != count):
            wanted = "outputs" if count is None else f"{count} gradients"
            raise failure(
                ArgumentError, f"{self.name}: expected {wanted} from {self.line}, got {given!r:.80}"
            )
        return values

    def step(self, generator: Generator[Any, Any, Any], value: Any, last: bool) -> Any:
        """Run the generator up to its next yield, or to its end.

        Raises:
            ArgumentError: it ends too early or yields too often.
        """
        before = random_state()
        try:
            given = generator.send(value)
        except StopIteration:
            if last:
                return None
            raise failure(
                ArgumentError,
                f"{self.name}: expected two yields (outputs, then gradients) at {self.line}",
            ) from None
        finally:
            self.check_random(before)
        if last:
            raise failure(ArgumentError, f"{self.name}: more than two yields at {self.line}")
        return given

    # *** as an op ***

    def op(self) -> SubgraphOp:
        """The op, with its gradient if it has one of its own."""
        b = SubgraphBuilder(self.name)
        inputs = tuple(b.input() for _ in range(self.nr_inputs))

        def f(op: OpDef | str, *args: Any, **options: Any) -> Any:
            return b.apply(op, *args, **options)

        def c(value: Any, dtype: Any = None, device: str = "cpu") -> Var:
            return b.apply_const(value, self.dtype if dtype is None else dtype, device)

        result = self.start(inputs, f, c)
        if self.custom_grad:
            return self._with_gradient(b, inputs, result)
        if not is_a(result, tuple) or len(result) != 2:
            raise failure(
                ArgumentError,
                f"{self.name}: expected (outputs, outputs_has_grad) from {self.line}, got "
                f"{result!r:.80}",
            )
        outputs = self.outputs(result[0], Var)
        b.outputs(*outputs)
        b.outputs_has_grad(*result[1])
        return b.get()

    def _with_gradient(
        self, b: SubgraphBuilder, inputs: tuple[Var, ...], generator: Generator[Any, Any, Any]
    ) -> SubgraphOp:
        outputs = self.outputs(self.step(generator, None, last=False), Var)
        forward = b.copy()
        forward.outputs(*(Var(forward, v.number) for v in outputs))
        given = tuple(b.input() for _ in outputs)  # stand for the outputs, computed already
        dys = tuple(b.input() for _ in outputs)
        gradients = self.outputs(
            self.step(generator, dys[0] if len(dys) == 1 else dys, last=False), Var, self.nr_inputs
        )
        self.step(generator, None, last=True)
        b.outputs(*(v for v in gradients if v is not None))
        whole = b.get().graph
        # An output that is an input stays one: that is at hand as well.
        new = {v.number: y.number for v, y in zip(outputs, given, strict=True) if v not in inputs}
        made = iter(whole.outputs)
        slots = tuple(next(made) if v is not None else 0 for v in gradients)
        graph = _reordered(Subgraph(whole.inputs, whole.constants, whole.exprs, slots), new)
        return SubgraphOp(forward.get().graph, self.name, gradient=graph)

    # *** interpreted ***

    def interpreted(self, *arrays: Any) -> Any:
        """The function on arrays: each op at once, as NumPy does it.

        Returns:
            The outputs; with a gradient of its own, (outputs, backward), where backward takes the
            gradients of the outputs, None for none, and returns those of the inputs.
        """
        if len(arrays) != self.nr_inputs:
            raise failure(
                ArgumentError, f"{self.name}: expected {self.nr_inputs} inputs, got {len(arrays)}"
            )

        def f(op: OpDef | str, *args: Any, outputs: int = 1, **options: Any) -> Any:
            found = find_op(op, len(args), options) if isinstance(op, str) else op
            results = apply(found, tuple(args))
            return results[0] if outputs == 1 else results

        def c(value: Any, dtype: Any = None, device: str = "cpu") -> Any:
            del device
            return np.asarray(value, self.dtype if dtype is None else dtype)[()]

        result = self.start(tuple(map(np.asarray, arrays)), f, c)
        if not self.custom_grad:
            return self.outputs(result[0], object)
        outputs = self.outputs(self.step(result, None, last=False), object)

        def backward(*dys: Any) -> tuple[Any, ...]:
            filled = self._filled(outputs, dys)
            sent = filled[0] if len(filled) == 1 else filled
            gradients = self.outputs(self.step(result, sent, last=False), object, self.nr_inputs)
            self.step(result, None, last=True)
            return gradients

        return outputs, backward

    def _filled(self, outputs: Sequence[Any], dys: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients of all outputs: zeros, typed like the output, where none is given."""
        if len(dys) != len(outputs):
            raise failure(
                ArgumentError, f"{self.name}: expected {len(outputs)} gradients, got {len(dys)}"
            )
        return tuple(
            np.zeros_like(y) if dy is None else dy for y, dy in zip(outputs, dys, strict=True)
        )


def _reordered(graph: Subgraph, new: dict[int, int]) -> Subgraph:
    """The gradient as a graph from (inputs, outputs, gradients of outputs), nothing made twice."""
    renamed = replace_vars(graph, new)
    exprs: tuple[Expr, ...] = renamed.exprs
    return remove_unused(Subgraph(renamed.inputs, renamed.constants, exprs, renamed.outputs))
