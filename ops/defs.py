"""What an op is: a frozen value with a canonical key.

From the key follow equality, props, a name and a digest that is the same in every process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from opkiln.ops.dtypes import kind_of
from opkiln.ops.record import fields_of, record

try:  # hashlib loads OpenSSL, 5 ms that an import need not spend
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

# Raise it when the meaning of an op's fields changes: every digest then differs.
SCHEMA = 1

# What a key may hold.
_Atom = bool | Enum | int | float | complex | str | bytes | np.dtype[Any] | np.generic
Key: TypeAlias = "_Atom | tuple[Key, ...] | OpDef | None"


def encode(value: Key) -> bytes:
    """Length-delimited canonical bytes of a key value; equal values encode equally anywhere.

    Floats go by their bits, so -0.0 and 0.0 differ; True, 1 and 1.0 differ by tag.

    Raises:
        TypeError: the value has no canonical encoding.
    """
    match value:
        case None:
            tag, body = b"N", b""
        case bool():
            tag, body = b"B", b"1" if value else b"0"
        case Enum():
            tag, body = b"E", encode((type(value).__name__, value.name))
        case int():
            tag, body = b"I", str(value).encode()
        case float():
            tag, body = b"F", struct.pack("<d", value)
        case complex():
            tag, body = b"C", struct.pack("<dd", value.real, value.imag)
        case str():
            tag, body = b"S", value.encode("utf-8", "surrogatepass")
        case bytes():
            tag, body = b"Y", value
        case tuple():
            tag, body = b"T", b"".join(encode(item) for item in value)
        case np.dtype():
            tag, body = b"D", _dtype_text(value)
        case np.generic():
            tag, body = b"G", _dtype_text(value.dtype) + b":" + value.tobytes()
        case OpDef():
            tag, body = b"O", value.digest
        case _:
            raise TypeError(
                f"no canonical encoding for {type(value).__name__} {value!r} in an op's key"
            )
    return tag + struct.pack("<Q", len(body)) + body


def _dtype_text(dtype: np.dtype[np.generic]) -> bytes:
    # bfloat16 calls itself <V2, as two bytes of anything do.
    return (dtype.name if dtype.kind == "V" else dtype.str).encode()


def digest_of(value: Key) -> bytes:
    """blake2b-128 of a value's canonical encoding: the same in every process."""
    digest: bytes = blake2b(encode(value), digest_size=16).digest()
    return digest


def _is_traced(value: Any) -> bool:
    kind = cast("Any", type(value))
    return any(map(_is_traced, value)) if kind is tuple else hasattr(kind, "__opkiln_tracer__")


def _trait(method: str, op: OpDef, *args: Any) -> Any:
    from opkiln.ops.rules import RULES  # which is a table of these ops

    return RULES.find(method, op)(op, *args)


@record
class OpDef:
    """Base of every op value: two ops are equal when their types and fields are.

    Source: SEMANTICS 2; replaces the address and hash identity of seed rows C6, C9 and K20.
    """

    version: ClassVar[int] = 1
    __match_args__: ClassVar[tuple[str, ...]] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Type tag, schema and version, then the fields in declared order."""
        return (type(self).__name__, SCHEMA, self.version, *fields_of(self))

    @property
    def digest(self) -> bytes:
        """blake2b-128 of the canonical key: the same in every process."""
        cached: bytes | None = self.__dict__.get("_digest")
        if cached is None:
            cached = self.__dict__["_digest"] = digest_of(self.key)
        return cached

    @property
    def name(self) -> str:
        """Display name; not part of the identity."""
        return type(self).__name__

    @property
    def props(self) -> dict[str, Any]:
        """The declared fields by name."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @property
    def opaque(self) -> bool:
        """Whether a part of it is the user's own code, which runs in order and is never traced."""
        return False

    # *** traits: rules found in the table by method and type; runtime/traits.py registers them ***

    def apply(self, *inputs: Any) -> tuple[Any, ...]:
        """The results on arrays, at once; on the values of a trace they become part of it."""
        traced = any(map(_is_traced, inputs))
        return _trait("apply_graph" if traced else "apply", self, inputs)  # type: ignore[no-any-return]

    def infer(self, descs: Sequence[Any]) -> tuple[tuple[Any, ...], bool]:
        """Descriptions of the results, and whether all that is computed has a known shape.

        Args:
            descs: a `TensorDesc` per input.
        """
        return _trait("infer_descs", self, tuple(descs))  # type: ignore[no-any-return]

    def forward_graph(self, descs: Sequence[Any]) -> Any:
        """The subgraph that the op stands for, as an `EncodedGraph`."""
        return _trait("forward_graph", self, tuple(descs))

    def backward_graph(
        self, descs: Sequence[Any], need: Sequence[bool], has: Sequence[bool]
    ) -> Any:
        """The op from (inputs, results, gradients of the results) to gradients of the inputs.

        Args:
            descs: a `TensorDesc` per input, of which dtype and rank count.
            need: per input, whether its gradient is wanted.
            has: per result, whether a gradient of it is given.

        Returns:
            An `EncodedGraph`, whose masks say which of those it takes and gives; or `EMPTY`.
        """
        return _trait("backward_graph", self, tuple(descs), tuple(need), tuple(has))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, OpDef) or type(self) is not type(other):
            return False
        return self.digest == other.digest

    def __hash__(self) -> int:
        cached: int | None = self.__dict__.get("_hash")
        if cached is None:
            cached = self.__dict__["_hash"] = int.from_bytes(self.digest[:8], "little")
        return cached

    def __getstate__(self) -> dict[str, Any]:
        return self.props

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


# Result of a dtype rule: the dtypes the operands are cast to, then the result's dtype.
Signature = tuple[tuple[np.dtype[np.generic], ...], np.dtype[np.generic]]

# Gradient rule of an op of one, two or three operands. It takes the gradient of the result, the
# result and the operands (arrays or traced values), and gives a gradient per operand or None.
Gradient = (
    Callable[[Any, Any, Any], tuple[Any]]
    | Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    | Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, Any]]
)


@record
class OpRow:
    """One row of the op table: every fact about one op. Adding an op is adding a row.

    `expr` is C++ over vectors: {0}, {1}, {2} are the operands, {f} the fault accumulator. A section
    of native/include/opkiln/bodies/ that the text names is pasted into the kernel. `exprs`
    overrides it by the dtype of the first operand ("float16") or else its kind ("b", "i", "u", "f",
    "c"), or by the kinds of both where they differ ("iu", "ui"). Over complex operands a gradient
    rule does not hold.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]  # the reference, on the resolved dtypes
    signature: Callable[[OpRow, tuple[Any, ...]], Signature]
    expr: str
    exprs: tuple[tuple[str, str], ...] = ()
    exactness: str = "exact"  # exact | ulp | bound
    ungated: str = ""  # what even an exact row leaves open, as NumPy itself does: "zero sign"
    ulp: float = 0.0  # tolerance of `ulp` rows against the true value
    # Whose last place that is: "operand", the larger, where results cancel; or a function of the
    # operands, where that is larger than the result. Its docstring stands in the page of ops.
    unit: str | Callable[..., float] = "result"
    domain: tuple[float, float] = (-8.0, 8.0)  # where tests draw float operands
    gradient: Gradient | None = None
    # False: declared to have no gradient. True without a rule: there is one, which no row computes.
    differentiable: bool = True
    cost: float = 1.0  # about: quarter nanoseconds per float32 element, for fusion and the GIL
    faults: int = 0  # fault bits the body may raise (native/include/opkiln/kernel.h)
    rounds: bool = True  # False: of halves it makes a half, with nothing to round
    complex: str = ""  # exactness over complex operands, where it differs: bound | modulus
    accepts: str = "biuf"  # operand kinds with a body
    doc: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpRow) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def exactness_of(self, kind: str) -> str:
        """How exact the row is over operands of this kind.

        Complex rows of "modulus" err by 16 eps of the result's modulus at most.
        """
        return (self.complex or self.exactness) if kind == "c" else self.exactness

    def body(self, kind: str, dtype: str = "") -> str:
        """The expression for operands of this kind and dtype."""
        exprs = dict(self.exprs)
        return exprs.get(dtype) or exprs.get(kind, self.expr)


@record
class ReduceRow:
    """One row of the reduction table: every fact about one reduction.

    `combine` is C++ over two accumulators. A row that `finds` folds (value, index) pairs instead;
    there `combine` says where the first of two values stays, and the result is the index.
    """

    name: str
    numpy: Any  # the ufunc whose .reduce is the reference; np.argmax or np.argmin of rows that find
    combine: str
    identity: str  # zero | one | lowest | highest | ones: leaves every other operand as it is
    accumulate: Callable[[np.dtype[np.generic]], np.dtype[np.generic]]
    empty: str = ""  # NumPy's refusal to reduce nothing; without one, nothing gives the identity
    exactness: str = "exact"  # exact | bound
    ungated: str = ""  # what even an exact row leaves open: "zero sign"
    accepts: str = "biuf"  # kinds that it accumulates in
    on_bool: str = ""  # the row that serves bools; without one, bytes of 0 and 1 do
    finds: bool = False  # the index of a value, counted along the reduced axes
    blocked: bool = False  # floats add up in blocks, to bound the error
    # Of the gradient and the result, with axes of 1 where there were others, the operand, the axes.
    gradient: Callable[[Any, Any, Any, tuple[int, ...]], Any] | None = None
    cost: float = 1.0
    doc: str = ""

    def result(self, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
        """The dtype of a reduction that accumulates in `dtype`."""
        return np.dtype(np.int64) if self.finds else dtype

    def identity_of(self, dtype: np.dtype[np.generic]) -> np.generic:
        """What fills idle lanes: -0.0 for a float sum, since x + -0.0 is x for every x."""
        value: int | float
        if kind_of(dtype) == "f":
            value = {"zero": -0.0, "one": 1.0, "lowest": -np.inf, "highest": np.inf}[self.identity]
        elif self.identity in ("lowest", "highest"):
            info = np.iinfo(dtype.name)
            value = int(info.min if self.identity == "lowest" else info.max)
        elif self.identity == "ones":
            return cast("np.generic", np.invert(np.array(0, dtype))[()])
        else:
            value = int(self.identity == "one")
        return dtype.type(value)
