"""Subgraphs: ops applied to numbered variables, as frozen data; a digest of the structure out.

Variables are integers from 1; 0 stands for no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opkiln.ops.defs import Key, OpDef, digest_of
from opkiln.ops.record import record

Array = np.ndarray[Any, np.dtype[Any]]
Number = bool | int | float | complex  # weak: it takes the dtype of what it meets


@record
class Literal:
    """A constant array, by its bytes: NaN payloads and the sign of zero count."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, value: Any) -> Literal:
        """A copy of the array."""
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        return cls(array.dtype, array.shape, array.tobytes())

    @property
    def array(self) -> Array:
        """The array, read-only and always the same object; without axes a NumPy scalar."""
        made: Array | None = self.__dict__.get("_array")
        if made is None:
            made = np.frombuffer(self.data, self.dtype).reshape(self.shape)
            made = self.__dict__["_array"] = made if self.shape else made[()]
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __repr__(self) -> str:
        body = str(self.array) if len(self.data) <= 64 else f"array of shape {self.shape}"
        return f"{self.dtype.name} {body}"


Constant = Literal | Number


@record
class Expr:
    """One op: the variables that it takes and those that it gives."""

    op: OpDef
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __repr__(self) -> str:
        left, right = (" ".join(f"%{v}" for v in part) for part in (self.outputs, self.inputs))
        return f"{left} = {self.op.name} {right}".strip()


@record
class Subgraph:
    """Inputs, constants, exprs in an order in which they can run, outputs.

    Equal digests mean equal structure, whatever the numbers of the variables and the order of
    exprs that do not depend on each other.
    """

    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Constant], ...]
    exprs: tuple[Expr, ...]
    outputs: tuple[int, ...]

    @property
    def digest(self) -> bytes:
        """128 bits over the structure; the same in every process."""
        cached: bytes | None = self.__dict__.get("_digest")
        if cached is None:
            cached = self.__dict__["_digest"] = digest_of(self._key())
        return cached

    def _key(self) -> Key:
        """Each variable by what makes it, from the inputs on; so no number is left."""
        var: dict[int, Key] = {0: None}
        var.update({v: ("input", i) for i, v in enumerate(self.inputs)})
        for v, value in self.constants:
            if isinstance(value, Literal):
                var[v] = ("constant", value.dtype, value.shape, value.data)
            else:
                var[v] = ("number", value)
        ordered: list[Key] = []  # what runs the user's code keeps its order
        for expr in self.exprs:
            made = digest_of((expr.op, *(var[v] for v in expr.inputs)))
            var.update({v: (made, i) for i, v in enumerate(expr.outputs)})
            if expr.op.opaque:
                ordered.append(made)
        outputs = tuple(var[v] for v in self.outputs)
        return ("subgraph", len(self.inputs), outputs, tuple(ordered))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subgraph) and self.digest == other.digest

    def __hash__(self) -> int:
        return int.from_bytes(self.digest[:8], "little")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    @property
    def input_mask(self) -> tuple[bool, ...]:
        """Per input, whether an expr takes it or it is an output itself."""
        used = {*self.outputs, *(v for expr in self.exprs for v in expr.inputs)}
        return tuple(v in used for v in self.inputs)

    @property
    def output_mask(self) -> tuple[bool, ...]:
        """Per output, whether it has a value."""
        return tuple(v != 0 for v in self.outputs)

    @property
    def is_single(self) -> bool:
        """Whether one expr is all there is: its inputs and outputs are the graph's, in order."""
        if len(self.exprs) != 1 or self.constants:
            return False
        expr = self.exprs[0]
        return expr.inputs == self.inputs and expr.outputs == self.outputs

    @property
    def opaque(self) -> bool:
        """Whether a part of it is the user's own code."""
        return any(expr.op.opaque for expr in self.exprs)

    def needed(self, wanted: Sequence[int], *, own_code: bool = True) -> Iterator[Expr]:
        """The exprs that these variables come from, last first; `own_code` of the user always."""
        alive = set(wanted)
        for expr in reversed(self.exprs):
            if (own_code and expr.op.opaque) or alive.intersection(expr.outputs):
                alive.update(expr.inputs)
                yield expr

    def encoded(self) -> tuple[Subgraph, tuple[bool, ...], tuple[bool, ...]]:
        """The graph of the inputs that are used and of outputs with a value, and the masks."""
        ins, outs = self.input_mask, self.output_mask
        small = Subgraph(
            tuple(v for v, used in zip(self.inputs, ins, strict=True) if used),
            self.constants,
            self.exprs,
            tuple(v for v in self.outputs if v),
        )
        return small, ins, outs

    def __str__(self) -> str:
        lines = [f"inputs {' '.join(f'%{v}' for v in self.inputs)}".strip()]
        lines += [f"%{v} = {value!r}" for v, value in self.constants]
        lines += [repr(expr) for expr in self.exprs]
        return "\n".join([*lines, f"return {' '.join(f'%{v}' for v in self.outputs)}".strip()])
