"""Subgraphs by hand: names of ops and variables in, a SubgraphOp out; and edits of subgraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.calls import FUNCTIONS, MANY, Call
from opkiln.ops.definitions import CompiledOp, FastpathCopy, Identity, JITFusionOp, SubgraphOp
from opkiln.ops.defs import OpDef, encode
from opkiln.ops.dtypes import as_dtype
from opkiln.ops.subgraph import Constant, Expr, Literal, Subgraph
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.describe import device_of
from opkiln.runtime.errors import ArgumentError, GraphError, NotYet, UnknownOp
from opkiln.runtime.trace.session import failure, is_a, require_dtype
from opkiln.runtime.traits import check_graph

# ---- the op index: names that a builder takes, beside those of rows and functions ----

_ROWS: dict[str, dict[int, str]] = {
    "-": {1: "negative", 2: "subtract"},
    "+": {2: "add"}, "additive": {2: "add"}, "*": {2: "multiply"}, "/": {2: "divide"},
    "//": {2: "floor_divide"}, "%": {2: "remainder"}, "**": {2: "power"},
    "max": {2: "maximum"}, "min": {2: "minimum"}, "abs": {1: "absolute"},
    "neg": {1: "negative"}, "sub": {2: "subtract"}, "mul": {2: "multiply"},
    "true_div": {2: "divide"}, "floor_div": {2: "floor_divide"}, "pow": {2: "power"},
}  # fmt: skip
_DEFINITIONS: dict[str, OpDef] = {"identity": Identity(), "fastpath_copy": FastpathCopy()}


def find_op(name: str, arity: int, options: Mapping[str, Any] | None = None) -> OpDef:
    """The op of a name.

    Args:
        name: of a row of the op table, a function of ops/calls.py, or one of their symbols.
        arity: how many inputs it is given.
        options: of functions, such as {"axis": 0}.

    Raises:
        UnknownOp: no such name; the text proposes others.
        ArgumentError: the op takes another number of inputs, or no such options.
    """
    by_arity = _ROWS.get(name)
    row = ELEMENTWISE.get(by_arity.get(arity, "") if by_arity else name)
    found: OpDef | None = _DEFINITIONS.get(name)
    if row is not None:
        found, takes = p.Elementwise(row.name), (row.arity, row.arity)
    elif name in FUNCTIONS:
        takes = (FUNCTIONS[name].least, FUNCTIONS[name].most)
        found = _call(name, options or {})
    elif by_arity is not None:
        takes = (min(by_arity), max(by_arity))
    elif found is not None:
        takes = (1, 1)
    else:
        raise failure(UnknownOp, f"no op is called {name!r}", fix=_like(name))
    if not takes[0] <= arity <= takes[1]:
        counts = str(takes[0]) if takes[0] == takes[1] else f"{takes[0]} to {takes[1]}"
        if takes[1] == MANY:
            counts = f"at least {takes[0]}"
        raise failure(ArgumentError, f"op {name!r}: expected {counts} inputs, got {arity}")
    assert found is not None
    if options and not isinstance(found, Call):
        raise failure(ArgumentError, f"op {name!r} has no option {next(iter(options))!r}")
    return found


def _call(name: str, options: Mapping[str, Any]) -> Call:
    known = FUNCTIONS[name].options
    for option in options:
        if option not in known:
            accepted = f"its options are {', '.join(known)}" if known else "it has none"
            raise failure(ArgumentError, f"op {name!r} has no option {option!r}", fix=accepted)
    return Call(name, ((k, _option(name, k, v)) for k, v in options.items()))


def _option(name: str, option: str, value: Any) -> Any:
    """An option as plain values, in one spelling.

    Raises:
        ArgumentError: it has none.
    """
    if is_a(value, list, tuple):
        return tuple(_option(name, option, v) for v in value)
    try:
        if option == "dtype":
            value = as_dtype("" if value is None else value)
        elif is_a(value, np.generic):
            value = value.item()
        encode(value)
    except TypeError as error:
        raise failure(ArgumentError, f"op {name!r}: {option}={value!r:.60}: {error}") from None
    return value


def _like(name: str) -> str:
    import difflib

    names = [*ELEMENTWISE, *FUNCTIONS, *_ROWS, *_DEFINITIONS]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else "docs/ops.md lists the names"


# ---- edits ----


def replace_vars(graph: Subgraph, new: Mapping[int, int]) -> Subgraph:
    """Take other variables in place of some; chains are followed.

    Raises:
        GraphError: the replacement leads round, or names what is made too late.
    """

    def final(v: int) -> int:
        seen = [v]
        while v in new and new[v] != v:
            v = new[v]
            if v in seen:
                raise failure(
                    GraphError, f"cyclic replacement: {' -> '.join(map(str, [*seen, v]))}"
                )
            seen.append(v)
        return v

    made = Subgraph(
        graph.inputs,
        graph.constants,
        tuple(Expr(e.op, tuple(map(final, e.inputs)), e.outputs) for e in graph.exprs),
        tuple(map(final, graph.outputs)),
    )
    check_graph("replace_vars", made)
    return made


def remove_unused(graph: Subgraph, *, own_code: bool = True) -> Subgraph:
    """Without exprs and constants that no output comes from; `own_code` of the user stays."""
    exprs = tuple(reversed(list(graph.needed(graph.outputs, own_code=own_code))))
    used = {*graph.outputs, *(v for expr in exprs for v in expr.inputs)}
    constants = tuple(c for c in graph.constants if c[0] in used)
    return Subgraph(graph.inputs, constants, exprs, graph.outputs)


def add_outputs(graph: Subgraph, more: Sequence[int]) -> Subgraph:
    """With more outputs, after those that are there, in the order given.

    Raises:
        GraphError: nothing makes such a variable.
    """
    made = Subgraph(graph.inputs, graph.constants, graph.exprs, (*graph.outputs, *more))
    check_graph("add_outputs", made)
    return made


# ---- the builder ----


class Var:
    """A variable of one builder; what it stands for is known when the op runs."""

    __slots__ = ("builder", "number")

    def __init__(self, builder: SubgraphBuilder, number: int) -> None:
        self.builder, self.number = builder, number

    def __repr__(self) -> str:
        return f"<variable {self.number} of {self.builder.name}>"


class SubgraphBuilder:
    """Assembles a subgraph, op by op.

    The op is frozen by the first `get`: later changes are an error, and `copy` starts anew.
    """

    def __init__(self, name: str = "SubgraphOp") -> None:
        """Start with no inputs."""
        self.name = name
        self._count = 0
        self._inputs: list[int] = []
        self._constants: list[tuple[int, Constant]] = []
        self._exprs: list[Expr] = []
        self._outputs: tuple[int, ...] | None = None
        self._has_grad: tuple[bool, ...] = ()
        self._op: SubgraphOp | None = None

    def _refuse_frozen(self) -> None:
        if self._op is not None:
            raise failure(
                GraphError, f"{self.name} is frozen, since get() was called", fix="use copy()"
            )

    def _new(self) -> Var:
        self._refuse_frozen()
        self._count += 1
        return Var(self, self._count)

    def _number(self, var: Any, what: str) -> int:
        if not isinstance(var, Var):
            if type(var) in (bool, int, float, complex):
                return self.apply_const(var).number
            raise failure(
                ArgumentError, f"{self.name}: {what} takes variables, got {var!r:.60}",
                fix="use what input(), apply() and apply_const() return",
            )  # fmt: skip
        if var.builder is not self:
            raise failure(GraphError, f"{self.name}: {what} is given {var!r}")
        return var.number

    def input(self) -> Var:
        """The next input."""
        made = self._new()
        self._inputs.append(made.number)
        return made

    def apply(self, op: OpDef | str, *inputs: Any, outputs: int = 1, **options: Any) -> Any:
        """Apply an op, or the op of a name; numbers take the dtype of what they meet.

        Args:
            op: such as "add", "+", "fma3", "sum", or an op.
            inputs: variables and numbers.
            outputs: how many results the op has.
            options: of an op by name, such as axis=0.

        Returns:
            The variable of the result, or a tuple of several.

        Raises:
            UnknownOp: no op has this name.
            ArgumentError: the op takes another number of inputs, or other options.
            GraphError: a variable of another builder, or the builder is frozen.
        """
        if isinstance(op, str):
            op = find_op(op, len(inputs), options)
        elif not isinstance(op, OpDef):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise failure(ArgumentError, f"{self.name}: expected an op or its name, got {op!r:.60}")
        elif options:
            raise failure(ArgumentError, f"{self.name}: options are for ops by name")
        taken = tuple(self._number(v, op.name) for v in inputs)
        made = tuple(self._new() for _ in range(outputs))
        self._exprs.append(Expr(op, taken, tuple(v.number for v in made)))
        return made[0] if outputs == 1 else made

    def apply_const(self, value: Any, dtype: Any = None, device: str = "cpu") -> Var:
        """A constant: an array of `dtype`, or without one a number that takes its surroundings'.

        Raises:
            NotYet: another device than the CPU.
            UnsupportedDType: opkiln does not compute in it.
            ArgumentError: the value has no such dtype.
        """
        if device_of(device) != "cpu":
            raise failure(NotYet, f"{self.name}: constants on {device} are not supported yet")
        made = self._new()
        plain = dtype is None and type(value) in (bool, int, float, complex)
        held: Constant = value if plain else _literal(value, dtype)
        self._constants.append((made.number, held))
        return made

    def outputs(self, *variables: Any) -> None:
        """Name all outputs, in order."""
        self._refuse_frozen()
        self._outputs = tuple(self._number(v, "outputs()") for v in variables)

    def outputs_has_grad(self, *has: bool) -> None:
        """Say per output whether gradients flow back from it."""
        self._refuse_frozen()
        self._has_grad = tuple(map(bool, has))

    def get(self) -> SubgraphOp:
        """The op; from now on it stays as it is.

        Raises:
            GraphError: outputs() was not called.
        """
        if self._op is None:
            if self._outputs is None:
                raise failure(
                    GraphError, f"{self.name} has no outputs", fix="call outputs(y) first"
                )
            graph = Subgraph(
                tuple(self._inputs), tuple(self._constants), tuple(self._exprs), self._outputs
            )
            self._op = SubgraphOp(remove_unused(graph), self.name, self._has_grad)
        return self._op

    def compile(self, opt_level: int = 2) -> CompiledOp:
        """The op, compiled."""
        return CompiledOp(self.get(), opt_level)

    def jit_fuse(self, strict: bool = True) -> CompiledOp:
        """The op as one fused kernel; several where that cannot be."""
        return CompiledOp(JITFusionOp(self.get(), strict))

    def copy(self) -> SubgraphBuilder:
        """A builder with the same content that is not frozen; its variables are not this one's."""
        other = SubgraphBuilder(self.name)
        other._count, other._outputs = self._count, self._outputs
        other._inputs, other._constants = list(self._inputs), list(self._constants)
        other._exprs, other._has_grad = list(self._exprs), self._has_grad
        return other

    @property
    def inputs_so_far(self) -> tuple[Var, ...]:
        """The inputs."""
        return tuple(Var(self, v) for v in self._inputs)

    @property
    def outputs_so_far(self) -> tuple[Var, ...]:
        """What outputs() was last given."""
        return tuple(Var(self, v) for v in self._outputs or ())


def _literal(value: Any, dtype: Any) -> Literal:
    array = np.asarray(value)
    if dtype is not None:
        array = array.astype(as_dtype(dtype))
    require_dtype(array.dtype, "constant")
    return Literal.of(array)
