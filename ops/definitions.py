"""Op definitions: ops made of other ops, and of the user's own code; keys for their caches.

Each docstring says what the op does in each context. docs/op-definitions.md shows them at work.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from opkiln.ops.defs import SCHEMA, Key, OpDef
from opkiln.ops.record import record
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Subgraph

__all__ = [
    "BackwardOpKey",
    "CompiledOp",
    "CustomOp",
    "FastpathCopy",
    "GenericPyGrad",
    "GenericPyOp",
    "Identity",
    "JITFusionOp",
    "ShapeInfer",
    "SubgraphOp",
    "UniqueKey",
]


def _checked(made: OpDef, /, **fields: Any) -> None:
    """Set the fields, then run the rule "check", which raises what is wrong with them."""
    made.__dict__.update(fields)
    check = RULES.get("check", made)
    if check is not None:
        check(made)


@record
class Identity(OpDef):
    """The input itself.

    Eager: a new array over the same memory. In a graph: the same value, no node. Inference: the
    same description, with its value. Compiled: no kernel; a result that is an argument is copied,
    as results never share memory with what the caller holds. Exported: kept.
    """


@record
class FastpathCopy(OpDef):
    """The very input, to mark a place where a value is captured.

    Eager: the same object. In a graph: the same value. Inference: the same description. Compiled:
    gone before anything is planned. Exported: removed.
    """


@record
class ShapeInfer(OpDef):
    """Shapes in, as integer vectors; the shapes that `op` gives for such inputs out, as int32.

    Eager: vectors, by inference of `op`; an error if that leaves a size open. In a graph: `op` on
    inputs without elements of their own; only the sizes are computed. Inference: the results have
    values where the inputs do, and are validated where those of `op` are. Compiled: host
    arithmetic on sizes. Exported: kept.

    Args:
        op: whose shapes to infer.
        devices: of its inputs; the last one holds for all further inputs, and none means "cpu".
        dtypes: of its inputs, likewise; none means float32.
    """

    op: OpDef
    devices: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]

    def __init__(self, op: OpDef, devices: Iterable[str] = (), dtypes: Iterable[Any] = ()) -> None:
        """Check and keep the fields."""
        devices = (devices,) if isinstance(devices, str) else tuple(devices)
        given: Any = dtypes if isinstance(dtypes, (tuple, list)) else (dtypes,)
        _checked(self, op=op, devices=devices, dtypes=tuple(map(np.dtype, given)))

    @property
    def name(self) -> str:
        """As ShapeInfer[add]."""
        return f"ShapeInfer[{self.op.name}]"

    def of(self, index: int) -> tuple[str, np.dtype[Any]]:
        """Device and dtype of an input."""
        device = self.devices[min(index, len(self.devices) - 1)] if self.devices else "cpu"
        none = np.dtype(np.float32)
        return device, self.dtypes[min(index, len(self.dtypes) - 1)] if self.dtypes else none


@record
class SubgraphOp(OpDef):
    """A subgraph as an op.

    Eager: its exprs one after the other, interpreted. In a graph: inlined. Inference: of the whole
    graph; validated if every value in it has a known shape. Compiled: planned as part of the
    parent. Exported: inlined.

    Two are equal if their graphs have equal structure and their masks and keys are equal; the name
    is for people.

    Args:
        graph: the subgraph.
        label: shown in messages.
        grad_mask: per output, whether gradients flow back from it; empty means all.
        user_key: what to tell apart beyond the structure.
        gradient: from (inputs, outputs, gradients of outputs) to gradients of the inputs, in place
            of the one that follows from the exprs.
    """

    graph: Subgraph
    label: str
    grad_mask: tuple[bool, ...]
    user_key: Key
    gradient: Subgraph | None

    def __init__(
        self,
        graph: Subgraph,
        label: str = "",
        grad_mask: Iterable[bool] = (),
        user_key: Key = None,
        gradient: Subgraph | None = None,
    ) -> None:
        """Check and keep the fields."""
        mask = tuple(map(bool, grad_mask))
        _checked(
            self,
            graph=graph,
            label=label or "SubgraphOp",
            grad_mask=() if all(mask) and len(mask) == len(graph.outputs) else mask,
            user_key=user_key,
            gradient=gradient,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """Structure, mask and key of the user; not the name."""
        return (
            type(self).__name__, SCHEMA, self.version, self.graph.digest, self.grad_mask,
            self.user_key, None if self.gradient is None else self.gradient.digest,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    @property
    def props(self) -> dict[str, Any]:
        """The declared fields by name."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @property
    def opaque(self) -> bool:
        """Whether an expr is the user's own code."""
        return self.graph.opaque

    def has_grad(self, index: int) -> bool:
        """Whether gradients flow back from an output."""
        return self.grad_mask[index] if self.grad_mask else True


@record
class CompiledOp(OpDef):
    """An op compiled to native code.

    Eager: a native executor from the thread's pool; equal ops share programs and executors. In a
    graph: the op inside is inlined, so pools never nest. Inference: of the op inside. Compiled: as
    in a graph. Exported: the op inside.

    The user's own code (`GenericPyOp`) inside cuts it into compiled segments, which run in order.

    Args:
        op: what to compile.
        opt_level: 0 one kernel per op, 1 folding and sharing, 2 fusion; the bits stay the same.
        options: further options of `ok.compile`, such as {"errstate": "raise"}.
    """

    op: OpDef
    opt_level: int
    options: tuple[tuple[str, Key], ...]

    def __init__(
        self,
        op: OpDef,
        opt_level: int = 2,
        options: dict[str, Key] | Iterable[tuple[str, Key]] = (),
    ) -> None:
        """Check and keep the fields."""
        _checked(self, op=op, opt_level=opt_level, options=tuple(sorted(dict(options).items())))

    @property
    def name(self) -> str:
        """As CompiledOp[axpy]."""
        return f"CompiledOp[{self.op.name}]"

    @property
    def opaque(self) -> bool:
        """Whether the op inside is."""
        return self.op.opaque

    @property
    def function(self) -> Any:
        """The native function behind it, for its `info()`, `explain()`, `lower()`, `warmup()`.

        Sizes, such as those that a reshape goes to, are passed to it as arrays of such lengths.
        """
        return RULES.find("function", self)(self)


@record
class JITFusionOp(OpDef):
    """An op that is to become one fused kernel, however many results it has.

    Eager: inputs are checked, then the fused kernel runs; with `ok.fusion_enabled` off, the op
    inside. In a graph: the op inside, with the check; fusion joins it with its neighbours.
    Inference: of the op inside, with the check. Compiled: as in a graph, fused at every opt_level.
    Exported: the op inside.

    Args:
        op: what to fuse.
        strict: inputs must have equal shapes, dtypes and devices; otherwise they broadcast.
    """

    op: OpDef
    strict: bool

    def __init__(self, op: OpDef, strict: bool = True) -> None:
        """Check and keep the fields."""
        _checked(self, op=op, strict=bool(strict))

    @property
    def name(self) -> str:
        """As JITFusionOp[axpy]."""
        return f"JITFusionOp[{self.op.name}]"

    @property
    def opaque(self) -> bool:
        """Whether the op inside is."""
        return self.op.opaque


class _Token:
    """One of the user's objects, and the number that stands for all that equal it."""

    __slots__ = ("__weakref__", "number", "obj")
    _next = 0

    def __init__(self, obj: Any) -> None:
        _Token._next += 1
        self.number, self.obj = _Token._next, obj


_TOKENS: WeakValueDictionary[Any, _Token] = WeakValueDictionary()
_LOCK = threading.RLock()  # the user's __eq__ runs under it


def _token(obj: Any) -> _Token:
    with _LOCK:
        found = _TOKENS.get(obj)
        if found is None:
            found = _TOKENS[obj] = _Token(obj)
        return found


@record
class GenericPyOp(OpDef):
    """An object of the user's as an op. Its class defines `__hash__` and `__eq__`, and these hooks.

    - `apply` takes arrays, which it must not write to, and gives a tuple of arrays;
    - `infer`, optional, takes `TensorDesc` values and gives (descriptions, validated);
    - `apply_graph`, optional, takes traced values and gives a tuple of them;
    - `grad`, optional, takes (inputs, results, gradients of results) and gives a gradient or None
      per input;
    - `key`, optional, gives a tuple of plain values that is equal for equal objects anywhere.

    Eager: `apply`. In a graph: `apply_graph`, without which it cannot be part of one. Inference:
    `infer`, or that of `apply_graph`, else an error. Compiled: `apply_graph` is inlined; `apply` is
    called between compiled segments, in order. Exported: only with `apply_graph`.
    """

    obj: Any

    def __init__(self, obj: Any) -> None:
        """Check the hooks and keep the object, or an equal one that another op holds already."""
        _checked(self, obj=obj)
        token = _token(obj)
        self.__dict__.update(obj=token.obj, _token=token)

    def __setstate__(self, state: dict[str, Any]) -> None:
        token = _token(state["obj"])
        self.__dict__.update(obj=token.obj, _token=token)

    @property
    def key(self) -> tuple[Any, ...]:
        """The object's own key, or a number that stands for the objects equal to it here."""
        own = getattr(self.obj, "key", None)
        kind = cast("Any", type(self.obj))
        what = ("key", *own()) if own is not None else ("number", self.__dict__["_token"].number)
        return (
            type(self).__name__,
            SCHEMA,
            self.version,
            f"{kind.__module__}.{kind.__qualname__}",
            what,
        )

    @property
    def name(self) -> str:
        """The object's `name`, or its class's."""
        return str(getattr(self.obj, "name", type(self.obj).__name__))

    @property
    def opaque(self) -> bool:
        """Whether it cannot be traced."""
        return not hasattr(self.obj, "apply_graph")


@record
class GenericPyGrad(OpDef):
    """The gradients of a `GenericPyOp`: its hook `grad` on inputs, results, and given gradients.

    Eager: the hook, with zeros for gradients that are not given. Inference: as the inputs. In a
    graph: it cannot be part of one. Compiled: called between compiled segments. Exported: never.

    Args:
        op: whose gradients.
        need: per input, whether its gradient is wanted.
        has: per result, whether its gradient is given.
    """

    op: GenericPyOp
    need: tuple[bool, ...]
    has: tuple[bool, ...]

    @property
    def name(self) -> str:
        """As scaleGrad."""
        return f"{self.op.name}Grad"

    @property
    def opaque(self) -> bool:
        """Always: it is the user's own code."""
        return True


@record
class CustomOp(OpDef):
    """Native code of the user's as an op; `ok.custom_op` makes one.

    Called with tensors and scalars, as its schema says, it gives its result, or a tuple of several;
    `apply` takes the tensors alone. Eager: the code at once, on NumPy's arrays or another
    library's, also on a GPU. In a graph: a call between kernels. Inference: by its function.
    Compiled: the native code with no Python around it. Exported: never.

    Args:
        schema: the canonical text.
        content: digest of the libraries and of all else that decides what it computes.
        params: scalars that differ from what the schema says, by name.
    """

    schema: str
    content: bytes
    params: tuple[tuple[str, Key], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result, or a tuple of several."""
        return RULES.find("call", self)(self, args, kwargs)

    def bind(self, **scalars: Key) -> CustomOp:
        """The op with other scalars."""
        bound: CustomOp = RULES.find("bind", self)(self, scalars)
        return bound

    def __repr__(self) -> str:
        bound = "".join(f", {name}={value!r}" for name, value in self.params)
        return f"CustomOp({self.schema!r}, content={self.content.hex()[:12]}{bound})"

    def unregister(self) -> None:
        """Give the name free; programs that have the op keep working."""
        RULES.find("unregister", self)(self)

    @property
    def name(self) -> str:
        """As ns::f."""
        return self.schema.partition("(")[0]

    @property
    def __signature__(self) -> inspect.Signature:
        """Parameters as in the schema."""
        signature: inspect.Signature = RULES.find("signature", self)(self)
        return signature


# ---- keys ----


@record
class UniqueKey(OpDef):
    """A key that equals its copies and nothing else, here and in every other process."""

    token: bytes

    def __init__(self, token: bytes = b"") -> None:
        """Draw a token, if none is given."""
        if not token:
            from uuid import uuid4

            token = uuid4().bytes
        self.__dict__.update(token=token)


@record
class BackwardOpKey(OpDef):
    """What a backward graph is found by: the op, the masks, and dtypes and ranks of the inputs."""

    op: OpDef
    need: tuple[bool, ...]
    has: tuple[bool, ...]
    dtypes: tuple[np.dtype[Any], ...]
    ranks: tuple[int | None, ...]
