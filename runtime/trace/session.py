"""One trace: makes nodes, keeps captured arrays, pinned sizes and the user's line of each node."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np

import opkiln.ops
from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.ops.dtypes import SUPPORTED, find_row
from opkiln.runtime import interop
from opkiln.runtime.errors import (
    OpkilnError,
    ReadOnlyError,
    ShapeError,
    TraceError,
    UnsupportedDType,
)
from opkiln.runtime.graph import NOT_ONE, Node, const_value, make, substituted, topological
from opkiln.runtime.infer import graph_input
from opkiln.runtime.reference import evaluate_host

# Code object and instruction: turned into file:line when asked for. Of a finished graph that text.
Place = tuple[CodeType, int] | str


def _folder(path: str | None, up: int = 1) -> str:
    for _ in range(up):
        path = os.path.dirname(path or "")  # noqa: PTH120  pathlib takes 4 ms to import
    return path + os.sep if path else ""


_RUNTIME = _folder(__file__, 2)
_INSIDE = (
    _RUNTIME,
    _folder(__file__, 3) + "native" + os.sep,
    _folder(opkiln.ops.__file__),
    _folder(np.__file__),
)
_LIBRARIES = tuple(  # that may call a tracer in the user's name
    os.path.join("site-packages", *name) + os.sep  # noqa: PTH118
    for name in (("jax", "_src"), ("torch",))
)
_DEMO = _RUNTIME + "demo.py"  # a user's program that happens to live among ours
_is_ours: dict[str, bool] = {}


def user_place() -> Place | None:
    """The innermost frame outside opkiln, NumPy and other libraries of arrays."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        ours = _is_ours.get(name)
        if ours is None:
            inside = name.startswith(_INSIDE) or any(part in name for part in _LIBRARIES)
            ours = _is_ours[name] = inside and name != _DEMO
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def place_text(place: Place | None, lines: dict[CodeType, list[int | None]] | None = None) -> str:
    """The text file:line of a place; `lines` caches line tables of code objects between calls."""
    if place is None or isinstance(place, str):
        return place or "<unknown>:0"
    code, instruction = place
    table = None if lines is None else lines.get(code)
    if table is None:
        table = [line for line, *_ in code.co_positions()]
        if lines is not None:
            lines[code] = table
    return f"{code.co_filename}:{table[instruction // 2] or code.co_firstlineno}"


def failure(
    cls: type[OpkilnError], message: str, *, fix: str | None = None, place: Place | None = None
) -> OpkilnError:
    """An error that names the user's line."""
    return cls(f"{message} ({place_text(place or user_place())})", fix=fix)


def bare_text(error: OpkilnError) -> str:
    """What is wrong, without the line and the fix."""
    text = str(error).partition("\n  how to fix")[0]
    return re.sub(r" \([^()]*:\d+\)$", "", text)


def is_a(value: Any, *kinds: type) -> bool:
    """As isinstance, without telling a type checker what it cannot name (tuple of what?)."""
    return isinstance(value, kinds)


_HASHED = 2**18  # elements of one captured array

_CONVERT = {
    "c": "convert first, for example with x.astype(np.complex128)",
    "f": "convert first, for example with x.astype(np.float64)",
    "e": "convert first, for example with x.astype(np.float32)",
}


def require_dtype(dtype: np.dtype[Any], what: str) -> None:
    """Refuse dtypes that opkiln does not compute in yet.

    Raises:
        UnsupportedDType: with the accepted names and how to convert.
    """
    if find_row(dtype) is None:
        raise failure(
            UnsupportedDType,
            f"{what}: dtype {dtype.name} is not supported yet; "
            f"expected one of {', '.join(r.name for r in SUPPORTED)}",
            fix=_CONVERT.get(dtype.kind, _CONVERT["f"]) if dtype.itemsize > 2 else _CONVERT["e"],
        )


def _contents(array: np.ndarray[Any, Any]) -> int:
    """A hash of the elements; of a large array every n-th counts, so that a trace stays quick."""
    step = array.size // _HASHED + 1
    return hash((array if step == 1 else array.flat[::step]).tobytes())


class Session:
    """State of one trace. Values made by it carry it, so no global says which trace is current."""

    __slots__ = (
        "_captured",
        "_contents",
        "_place",
        "arguments",
        "captures",
        "custom",
        "derived",
        "equal",
        "fixed",
        "inputs",
        "labels",
        "name",
        "open",
        "pins",
        "places",
        "shapes",
        "transient",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = True
        self.labels: list[tuple[str, str]] = []  # parameter and expression of each scalar argument
        self.places: dict[Node, Place | None] = {}
        self.inputs: list[Node] = []
        self.shapes: list[tuple[int, ...]] = []  # concrete, for pins
        self.captures: list[np.ndarray[Any, Any]] = []
        self.pins: dict[tuple[int, int], tuple[int, Place | None]] = {}
        self._captured: dict[int, tuple[Any, Node, Place | None]] = {}
        self._contents: dict[int, tuple[np.ndarray[Any, Any], int]] = {}  # of captures, when taken
        self._place: Place | None = None
        self.arguments = 0  # inputs that are arguments; captures follow them
        self.equal: dict[tuple[int, int], tuple[tuple[int, int], Place | None]] = {}
        self.transient = False  # whether nodes were made that no finished graph has
        self.custom: dict[int, Any] = {}  # gradients that the user defined, by their number
        self.derived: set[Node] = set()  # gradients, of which a derivative may be 0 everywhere

    def close(self) -> None:
        """End the trace: its values are of no more use, and must not keep the user's arrays alive.

        They are cyclic garbage by now, which may lie about for long.
        """
        self.open = False
        self.captures.clear()
        self._captured.clear()
        self._contents.clear()

    def make(self, op: OpDef, *src: Node) -> Node:
        """The node of `op`, with the user's line on it and on any complaint about it."""
        try:
            node = make(op, *src)
        except ShapeError as error:
            shapes = " ".join(str(list(s.shape)) for s in src if not s.is_host)
            raise failure(
                type(error), f"{error}, operands {shapes}" if shapes else str(error)
            ) from None
        except TypeError as error:
            raise failure(TraceError, str(error)) from None
        if node not in self.places:
            self.places[node] = self._place or user_place()
        return node

    @contextmanager
    def at(self, place: Place | None) -> Generator[None]:
        """Give the nodes made meanwhile this line of the user's."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def substitute(
        self, roots: Iterable[Node], known: Mapping[Node, Node], *, finish: bool = False,
        remake: Callable[..., Node] | None = None,
    ) -> dict[Node, Node]:  # fmt: skip
        """`substituted`, with the user's lines on the nodes that it makes."""
        new = substituted(roots, known, finish=finish, remake=remake or make)
        for old, node in new.items():
            if node not in self.places and old in self.places:
                self.places[node] = self.places[old]
        return new

    def add_input(self, array: Any) -> Node:
        """The node of the next array leaf or capture."""
        node = graph_input(len(self.inputs), array.dtype.newbyteorder("="), array.ndim)
        self.inputs.append(node)
        self.shapes.append(array.shape)
        return node

    def capture(self, array: Any, owner: Any = None) -> Node:
        """The hidden input of an array that the function holds; the same object is one input."""
        owner = array if owner is None else owner
        known = self._captured.get(id(owner))
        if known is not None:
            return known[1]
        require_dtype(array.dtype, "captured array")
        if not array.dtype.isnative or not array.flags.aligned:
            raise failure(
                UnsupportedDType,
                f"captured array: {array.dtype.str} data is byte-swapped or unaligned, and a copy "
                f"would not see later changes",
                fix="use a.astype(a.dtype.newbyteorder('=')), or make it an argument",
            )
        node = self.add_input(array)
        self.captures.append(array)
        self._captured[id(owner)] = (owner, node, user_place())
        self._contents[id(owner)] = array, _contents(array)
        return node

    def capture_list(self, values: Any) -> Node:
        """The hidden input of a list as it is now, which later changes do not reach."""
        array = np.asarray(values)
        before, _ = self._contents.get(id(values), (None, 0))
        if before is not None and (before.dtype, before.shape, before.tobytes()) != (
            array.dtype, array.shape, array.tobytes(),
        ):  # fmt: skip
            return self.capture(array)
        return self.capture(array, owner=values)

    def require_unchanged(self, owner: Any, place: Place | None) -> None:
        """Refuse an array of the function's own that it writes into after an operation read it.

        Its capture is read when a program runs, so the operation would see the later values.

        Raises:
            TraceError: with the line that took it.
        """
        array, before = self._contents.get(id(owner), (None, 0))
        if array is not None and _contents(array) != before:
            raise failure(
                TraceError,
                f"{self.name} changes a NumPy array in place after an operation on traced values "
                f"used it, which would see the new values",
                fix="use a copy there, x * buffer.copy(), or make a new array for the new values",
                place=place,
            )

    @property
    def owners(self) -> Iterable[tuple[Any, Place | None]]:
        """What the function holds of each captured array, and the user's line that took it."""
        return [(owner, place) for owner, _, place in self._captured.values()]

    def hold(self, array: Any, node: Node) -> None:
        """Let this node stand for an array wherever the function captures it."""
        self._captured[id(array)] = (array, node, user_place())

    def capture_foreign(self, value: Any) -> Node:
        """The hidden input of another library's array.

        Raises:
            OpkilnError: of the kind and with the advice that it would have as an argument.
        """
        try:
            array = interop.captured(value)
        except OpkilnError as error:
            text, _, fix = str(error).partition("\n  how to fix: ")
            raise failure(type(error), f"captured array: {text}", fix=fix) from None
        return self.capture(array, owner=value)

    def scalars(self, node: Node) -> list[int]:
        """Which scalar arguments a value comes from."""
        order = topological([node], stop=frozenset(self.inputs))
        return [n.op.index for n in order if isinstance(n.op, p.HostArg)]

    def static_advice(self, scalars: list[int]) -> str:
        """How to fix the values of these scalar arguments while tracing."""
        names = list(dict.fromkeys(self.labels[i][0] for i in scalars))
        quoted = ", ".join(f'"{n}"' for n in names)
        return f"use ok.compile(static={quoted if len(names) == 1 else f'({quoted})'})"

    def scalar_failure(
        self, node: Node, what: str, fix: str = "", cls: type[OpkilnError] = TraceError
    ) -> OpkilnError:
        """An error about a value that scalar arguments decide; `fix` comes before static=."""
        found = self.scalars(node)
        paths = ", ".join(dict.fromkeys(self.labels[i][1] for i in found))
        whose = f"the scalar argument {paths}"
        if not isinstance(node.op, p.HostArg):
            whose = f"a value that depends on {whose}"
        return failure(
            cls,
            f"{what} {whose}: its value is not fixed while tracing (one program serves all)",
            fix=f"{fix}{', or ' if fix else ''}{self.static_advice(found)} for a program per value",
        )

    def pin(self, node: Node, what: str = "the value of", fix: str = "") -> int | float:
        """The concrete value of a size; every extent it came from joins the trace key.

        Raises:
            TraceError: the value depends on an argument's value, not only on sizes.
        """
        dims: list[tuple[int, int]] = []
        inputs = frozenset(self.inputs)
        for part in topological([node], stop=inputs):
            if isinstance(part.op, p.HostArg):
                raise self.scalar_failure(node, what, fix)
            if isinstance(part.op, p.Dim):
                source = part.src[0].op
                assert isinstance(source, p.Input)
                dims.append((source.index, part.op.axis))
        place = user_place()
        for at in dims:
            if at not in self.pins or self.pins[at][0] == NOT_ONE:
                self.pins[at] = self.shapes[at[0]][at[1]], place
        try:
            (value,) = evaluate_host([node], self.shapes)
        except OpkilnError as error:
            raise failure(type(error), str(error), place=place) from None
        return value

    def is_one(self, extent: Node) -> bool | None:
        """Whether an extent is 1, which joins the trace key; None where no shapes are known."""
        value = const_value(extent)
        if value is not None or not self.shapes:
            return None if value is None else value == 1
        if isinstance(extent.op, p.HostOp) and extent.op.fn == "bcast":
            # Of a set that is not 1, one member that is not 1 says it all.
            members = sorted(extent.src, key=lambda n: self._concrete(n) == 1)
            return bool(self.is_one(members[0]))
        if not isinstance(extent.op, p.Dim):
            return self.pin(extent) == 1
        source = extent.src[0].op
        assert isinstance(source, p.Input)
        at = source.index, extent.op.axis
        one = self.shapes[at[0]][at[1]] == 1
        self.pins.setdefault(at, (1 if one else NOT_ONE, user_place()))
        return one

    def _concrete(self, node: Node) -> int | float:
        return evaluate_host([node], self.shapes)[0]

    def where(self, outputs: Iterable[Node]) -> dict[Node, str]:
        """The user's "file:line" of every node that the outputs or their extents need."""
        order = topological(outputs)
        needed = {*order, *topological({dim for node in order for dim in node.shape})}
        lines: dict[CodeType, list[int | None]] = {}
        return {n: place_text(at, lines) for n, at in self.places.items() if n in needed}

    def check_open(self) -> None:
        """Refuse values that outlived their trace.

        Raises:
            TraceError: the trace has ended.
        """
        if not self.open:
            raise failure(
                TraceError,
                f"a traced value of {self.name} is used after its trace ended",
                fix="return the value from the compiled function instead of storing it elsewhere",
            )


class HostValue:
    """A symbolic Python number: a size, or a weak scalar argument, or arithmetic on them."""

    __slots__ = ("node", "session")
    __opkiln_tracer__ = True

    def __init__(self, session: Session, node: Node) -> None:
        self.session = session
        self.node = node


class ArrayValue:
    """A symbolic array. A root holds its node; a view recomputes its node when its root changed.

    `owned` is true for intermediates: only those may be updated in place. `put` writes a view: the
    parent's old value and the view's new one in, the parent's new value out. `kin` are roots that
    share this one's memory or not, as its layout decides; once one of them is updated, the others
    are `unsure`.
    """

    __slots__ = ("held", "kin", "mapping", "owned", "parent", "put", "root", "seen", "session",
                 "unsure")  # fmt: skip
    __opkiln_tracer__ = True

    def __init__(self, session: Session, node: Node, *, owned: bool = True) -> None:
        self.session = session
        self.root: ArrayValue = self
        self.owned = owned
        self.held = node
        self.parent: ArrayValue | None = None
        self.mapping: Callable[[Node], Node] | None = None
        self.put: Callable[[Node, Node], Node] | None = None
        self.seen: Node | None = None
        self.kin: list[ArrayValue] | None = None
        self.unsure: Place | None = None

    @property
    def node(self) -> Node:
        """The current value."""
        if self.root.unsure is not None:
            raise failure(
                TraceError,
                "an array and its reshape are used after the other was updated in place "
                f"({place_text(self.root.unsure)}): whether this one changed with it depends on "
                "its memory layout",
                fix="make the reshape after the update, or of a copy: x.copy().reshape(...)",
            )
        if self.parent is None or self.seen is self.root.held:
            return self.held
        current = self.root.held
        stale: list[ArrayValue] = []
        value: ArrayValue = self
        while value.parent is not None and value.seen is not current:
            stale.append(value)
            value = value.parent
        for view in reversed(stale):  # not recursive: chains of views may be long
            assert view.mapping is not None and view.parent is not None
            view.held, view.seen = view.mapping(view.parent.held), current
        return self.held

    def update(self, node: Node) -> None:
        """Give an owned array another value, which every alias sees; a view writes into its root.

        Raises:
            ReadOnlyError: NumPy makes this view read-only.
        """
        value: ArrayValue = self
        while value.parent is not None:
            if value.put is None:
                raise failure(
                    ReadOnlyError,
                    "assignment destination is read-only",
                    fix="update the array that it looks at, or a copy: x.copy()",
                )
            node = value.put(value.parent.node, node)
            value = value.parent
        value.held = node
        for other in value.kin or ():
            if other is not value:
                other.unsure = user_place()
