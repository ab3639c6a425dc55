"""Encoded graphs: an op on some of the values, and masks that say which; all values in, all out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from opkiln.ops.defs import OpDef
from opkiln.ops.record import record
from opkiln.runtime.errors import GraphError


@record
class EncodedGraph:
    """An op that takes some of the inputs and gives some of the outputs; masks say which."""

    op: OpDef
    input_mask: tuple[bool, ...]
    output_mask: tuple[bool, ...]

    def encode(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Those of all inputs that the op takes.

        Raises:
            GraphError: not as many as the mask has places.
        """
        if len(values) != len(self.input_mask):
            raise GraphError(
                f"{self.op.name}: expected {len(self.input_mask)} inputs, got {len(values)}",
                fix="pass a value for each place of input_mask, any for those that it leaves out",
            )
        return tuple(v for v, used in zip(values, self.input_mask, strict=True) if used)

    def decode(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """All outputs, None where the op gives none.

        Raises:
            GraphError: not as many as the mask says.
        """
        if len(results) != sum(self.output_mask):
            raise GraphError(
                f"{self.op.name}: expected {sum(self.output_mask)} results, got {len(results)}",
                fix="pass what the op gave: a result for each True in output_mask",
            )
        given = iter(results)
        return tuple(next(given) if has else None for has in self.output_mask)

    def apply(self, *inputs: Any) -> tuple[Any, ...]:
        """All outputs of all inputs; those that the op does not take may be None.

        Raises:
            GraphError: as `encode`; or None where the op takes an input.
        """
        taken = self.encode(inputs)
        if any(v is None for v in taken):
            missing = [i for i, u in enumerate(self.input_mask) if u and inputs[i] is None]
            raise GraphError(
                f"{self.op.name}: expected an array as input {missing[0]}, got None",
                fix=f"pass an array; None may stand where input_mask is False: {self.input_mask}",
            )
        return self.decode(self.op.apply(*taken))

    def __bool__(self) -> bool:
        return any(self.output_mask)


class _Nothing(OpDef):
    @property
    def name(self) -> str:
        return "Nothing"


EMPTY = EncodedGraph(cast("OpDef", _Nothing()), (), ())  # no gradient at all
