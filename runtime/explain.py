"""Why calls missed: what hooks and the native log saw in, named differences and their cost out.

A miss is explained by the parts in which its key differs from the earlier one nearest to it.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, overload

from opkiln.native import dtype_of
from opkiln.ops.record import record
from opkiln.runtime import debug
from opkiln.runtime.key import sha256
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.options import Options
from opkiln.runtime.parts import Change, Parts, layout_parts, nearest
from opkiln.runtime.trace.captured import Captured

KEPT = 256  # misses that one function remembers
_NAMES = 256  # names of functions whose last keys are remembered, in case they are defined again
_PER_NAME = 64  # keys per name

Layout = tuple[int, tuple[int, ...], tuple[int, ...]]  # dtype code, shape, byte strides


@record
class Cause:
    """What a trace adds to a miss."""

    changes: tuple[Change, ...]  # none: nothing earlier to compare with
    trace_ms: float
    lower_ms: float
    shared: bool  # an equal graph had been lowered before
    ahead: str = ""  # if it was made before the call: how, and what it cost


@record
class Kernels:
    """What bringing kernels in adds to a miss."""

    changes: tuple[Change, ...]
    source: str  # built, disk, memory (another thread was first), interpreted, or an error's name
    seconds: float
    cache_changes: tuple[Change, ...]  # for a build: the key against the nearest one in the cache


@record
class Miss:
    """One call that no executor of its thread could serve."""

    number: int  #: counts from 1 for each function; a call that failed while building has 0
    layer: str  #: the deepest that missed: "executor", "program" or "artifact" (kernels)
    changes: tuple[Change, ...]  #: against the nearest earlier call
    cache_changes: tuple[Change, ...]  #: of a build: against the nearest kernel on disk
    source: str  #: where the kernels came from: "memory", "disk", "built", "interpreted", an error
    trace_ms: float
    lower_ms: float
    build_ms: float
    load_ms: float
    total_ms: float  #: the whole miss, with making the executor
    ahead: str = ""  #: what had been done before the call, such as "warmed up before: 71.2 ms"

    @property
    def reasons(self) -> list[str]:
        """The changes, one text each; those against the cache on disk last."""
        ours = [str(change) for change in self.changes] or ["first call"]
        ours += [self.ahead] if self.ahead else []
        return [*ours, *(f"on disk: {change}" for change in self.cache_changes)]

    @property
    def reason(self) -> str:
        """The changes in one line."""
        return "; ".join(self.reasons)

    @property
    def what(self) -> str:
        """The layer, and where its kernels came from."""
        return self.layer if self.source == "memory" else f"{self.layer} ({self.source})"

    @property
    def cost(self) -> str:
        """Total and parts, such as "72.9 ms (trace 0.5, lower 1.1, build 71.2)"."""
        parts = ", ".join(
            f"{name} {ms:.1f}"
            for name, ms in (
                ("trace", self.trace_ms),
                ("lower", self.lower_ms),
                ("build", self.build_ms),
                ("load", self.load_ms),
            )
            if ms
        )
        total = _ms(self.total_ms)
        return f"{total} ({parts})" if parts else total

    def __str__(self) -> str:
        number = f"miss {self.number}" if self.number else "failed"
        return f"{number}, {self.what}, {self.cost}: {self.reason}"


def _ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms >= 0.1 else f"{ms * 1e3:.1f} us"


@record
class Explanation:
    """The misses of one function, oldest first; printed, it is a table of reasons and costs."""

    name: str
    misses: tuple[Miss, ...]
    dropped: int  #: older misses that are no longer remembered
    remarks: tuple[str, ...]  #: copies, fall-backs, faults

    def __len__(self) -> int:
        return len(self.misses)

    def __iter__(self) -> Iterator[Miss]:
        return iter(self.misses)

    @overload
    def __getitem__(self, index: int) -> Miss: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Miss, ...]: ...
    def __getitem__(self, index: int | slice) -> Miss | tuple[Miss, ...]:
        """A miss, or several."""
        return self.misses[index]

    def __str__(self) -> str:
        total = len(self.misses) + self.dropped
        spent = sum(miss.total_ms for miss in self.misses)
        lines = [f"{self.name}: {total} miss{'es' * (total != 1)}, {spent:.1f} ms"]
        if self.dropped:
            lines.append(f"  ({self.dropped} older ones are no longer remembered)")
        rows = [(str(m.number or "-"), m.what, m.cost) for m in self.misses]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for miss, (number, what, cost) in zip(self.misses, rows, strict=True):
            first, *more = miss.reasons
            head = f"  {number:>{wide[0]}}  {what:<{wide[1]}}  {cost:<{wide[2]}}  "
            lines += [head + first, *(" " * len(head) + reason for reason in more)]
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks)])

    __repr__ = __str__


# *** what one function remembers ***


class _Name:
    """The keys of all functions that had this name, for those that are defined again."""

    def __init__(self) -> None:
        self.definitions = 0
        self.keys: deque[Parts] = deque(maxlen=_PER_NAME)


_names: dict[str, _Name] = {}
_lock = ForkLock()


def _body_of(code: CodeType) -> str:
    consts = [_body_of(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, consts))


def _identity(fn: Any, options: Options) -> tuple[str, Parts]:
    """The name under which definitions of a function are compared, and what sets them apart."""
    code = getattr(fn, "__code__", None)
    name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    parts: Parts = {
        ("option", "opt_level"): str(options.opt_level),
        ("option", "static"): ", ".join(options.static) or "none",
    }
    if isinstance(code, CodeType):
        if "<" in name:  # others of this name need not be the same function: <lambda>, <locals>
            name += f"@{code.co_filename}:{code.co_firstlineno}"
        body = sha256(_body_of(code).encode("utf-8", "surrogateescape"))[:8]
        parts["function", "body"] = f"{code.co_filename}:{code.co_firstlineno} ({body})"
    return name, parts


class History:
    """The misses of one function; any thread may add."""

    def __init__(self, name: str, fn: Any, options: Options) -> None:
        self.name = name
        self._fn = fn
        self._options = options
        self._family: _Name | None = None
        self._identity: Parts = {}
        self._clears = 0
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._told: deque[tuple[int, Cause | None, Kernels | None, bool]] = deque(maxlen=KEPT)
        self._warmups: list[float] = []  # milliseconds of each
        self._divisions: dict[str, None] = {}
        self.no_compiler = ""  # why calls run in the interpreter
        self._lock = ForkLock()

    def traced(
        self, parts: Parts, trace_ms: float, lower_ms: float, *, shared: bool,
        divisions: Iterable[str],
    ) -> Cause:  # fmt: skip
        """Note a trace: its key against the nearest earlier one of this or a namesake function."""
        with self._lock:
            if self._family is None:
                self._join()
            assert self._family is not None
            whole = {**parts, **self._identity, ("f.clear()", "calls"): str(self._clears)}
            with _lock:  # namesakes add to the same keys
                earlier = list(self._family.keys)
                self._family.keys.append(whole)
            changes = nearest(earlier, whole)
            self._divisions.update(dict.fromkeys(divisions))
        if changes == ():
            changes = (Change("executor", "", "its trace was no longer held"),)
        return Cause(changes or (), trace_ms, lower_ms, shared)

    def _join(self) -> None:
        name, identity = _identity(self._fn, self._options)
        with _lock:
            self._family = _names.pop(name, None) or _Name()
            _names[name] = self._family  # the newest last
            if len(_names) > _NAMES:
                del _names[next(iter(_names))]
            self._family.definitions += 1
            self._identity = {
                ("function", "definition"): f"no. {self._family.definitions}", **identity
            }  # fmt: skip

    def number(self, value: Any, native_id: int) -> int:
        """A static value's number in texts: that of its first trace, also after a clear()."""
        known = self._numbers.get(id(value))
        if known and known[0]() is value:
            return known[1]
        numbers, key = self._numbers, id(value)
        with contextlib.suppress(TypeError):  # texts and tuples, which their value tells apart
            numbers[key] = weakref.ref(value, lambda _: numbers.pop(key, None)), native_id
        return native_id

    def cleared(self) -> None:
        """Note a clear(): traces that follow differ from earlier ones by it."""
        with self._lock:
            self._clears += 1

    def ahead(self, cause: Cause | None, door: str, ms: float = 0.0) -> Cause | None:
        """The cause of a trace that no call has told yet, made ahead by `door`."""
        if cause is not None and not cause.ahead:
            ms += cause.trace_ms + cause.lower_ms
            how = "warmed up before" if door == "warmup" else f"traced before by {door}()"
            cause = Cause(cause.changes, 0.0, 0.0, cause.shared, f"{how}: {_ms(ms)}")
        if door == "warmup":
            self._warmups.append(ms)
        return cause

    def missed(self, log: Log, number: int, cause: Cause | None, kernels: Kernels | None) -> None:
        """Note what hooks added to a miss, and log it."""
        if cause or kernels:
            self._told.append((number, cause, kernels, False))
        level = 1 if cause or kernels else 2
        if debug.enabled(level):
            newest = [m for m in self._merged(log[1]) if m.number == number]
            debug.log(level, "%s: %s", self.name, newest[-1] if newest else f"miss {number}")

    def failed(self, log: Log, cause: Cause | None, kernels: Kernels) -> Miss:
        """Note a miss that ended with an error."""
        self._told.append((log[0] + 1, cause, kernels, True))
        return _miss(cause, kernels)

    def explanation(
        self, log: Log, copies: Iterable[Copy], counts: dict[str, int], held: Sequence[Captured]
    ) -> Explanation:
        """All that is remembered, in order; `held` are the captured arrays of living traces."""
        misses = self._merged(log[1])
        shown = sum(1 for miss in misses if miss.number)
        return Explanation(
            self.name,
            tuple(misses),
            max(0, log[0] - shown),
            (*self._remarks(copies, counts), *_capture_remarks(held)),
        )

    def _merged(self, entries: Sequence[Entry]) -> list[Miss]:
        with self._lock:
            told = list(self._told)
        hooked = {number for number, _, _, failed in told if not failed}
        misses: list[tuple[int, Miss]] = []
        spent: dict[int, int] = {}  # nanoseconds of a miss
        orders: dict[int, tuple[Change, ...]] = {}  # memory orders that no earlier call had
        earlier: list[tuple[Entry, Parts]] = []
        for entry in entries:
            number, parts = entry[0], _entry_parts(entry)
            if number in hooked:
                near = nearest((known for _, known in earlier), parts) or ()
                orders[number] = tuple(c for c in near if c.name.endswith(" memory order"))
                spent[number] = entry[1]
            else:
                changes = _executor_changes(entry, parts, earlier)
                misses.append((number, _executor_miss(entry, changes)))
            earlier.append((entry, parts))
        for number, cause, kernels, failed in told:
            made = (0, 0, ()) if failed else (number, spent.get(number, 0), orders.get(number, ()))
            misses.append((number, _miss(cause, kernels, *made)))
        return [miss for _, miss in sorted(misses, key=lambda item: item[0])]

    def _remarks(self, copies: Iterable[Copy], counts: dict[str, int]) -> Iterator[str]:
        if self._warmups:
            yield f"warmed up {_times(len(self._warmups))}, {_ms(sum(self._warmups))}"
        for why, result, name, times in copies:
            yield f"{_COPY[why].format(k=result, name=_quoted(name))}: {_times(times)}"
        if counts["packs"]:
            yield f"operands copied for a reduction or a custom op: {_times(counts['packs'])}"
        if counts["fallbacks"]:
            yield f"run by the interpreter, {self.no_compiler}: {_times(counts['fallbacks'])}"
        if counts["integer_faults"]:
            where = " or ".join(self._divisions)
            yield f"integer division by zero or overflow in {where}: " + _times(
                counts["integer_faults"]
            )


Entry = tuple[int, int, int, int, str, tuple[str, ...], list[Layout | None]]
Log = tuple[int, list[Entry]]  # how many, and the newest
Copy = tuple[str, int, str | None, int]

_COPY = {
    "b": "argument {name} copied, since its byte order is not the machine's",
    "u": "argument {name} copied, since its elements are not aligned",
    "h": "{name} copied, since its elements are not aligned or not in the machine's byte order",
    "o": "out= overlaps {name}: result {k} computed into a temporary and copied",
    "c": "out= needs another dtype, byte order or alignment: result {k} copied",
    "p": "an integer power may raise, so result {k} goes to out= by copy",
    "e": "errstate raise leaves out= untouched, so result {k} goes to it by copy",
    "i": "result {k} of the interpreter copied to out=",
}


def _capture_remarks(held: Sequence[Captured]) -> Iterator[str]:
    names = dict.fromkeys(one.name or "an array without a name" for one in held)
    if names:
        yield f"captured by reference: {', '.join(names)}"
    rebound = ((one.name.removeprefix("view of "), one.place) for one in held if one.rebound)
    for name, place in dict.fromkeys(rebound):
        yield (
            f"{name} was bound to another array since the trace ({place}): calls go on with the "
            f"old one; write {name}[...] = or an operator like -= in place, or call f.clear()"
        )


def _quoted(name: str | None) -> str:
    if name is None:
        return "another out="
    return name if name.startswith("captured ") else f"`{name}`"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _miss(
    cause: Cause | None, kernels: Kernels | None, number: int = 0, ns: int = 0,
    orders: tuple[Change, ...] = (),
) -> Miss:  # fmt: skip
    source = kernels.source if kernels else "memory"
    trace_ms, lower_ms = (cause.trace_ms, cause.lower_ms) if cause else (0.0, 0.0)
    kernel_ms = kernels.seconds * 1e3 if kernels else 0.0
    ahead = cause.ahead if cause else ""
    shared = cause is not None and cause.shared and not ahead
    # What a trace differs in says it all. Of a known trace, the layout classes do; but these speak
    # of loops over axes in the order of memory: where that differs, it is what the user knows.
    changes = cause.changes if cause else orders or (kernels.changes if kernels else ())
    return Miss(
        number=number,
        layer="artifact" if source != "memory" else "executor" if ahead else "program",
        changes=changes,
        cache_changes=kernels.cache_changes if kernels else (),
        source="shared" if shared and source == "memory" else source,
        trace_ms=trace_ms,
        lower_ms=lower_ms,
        build_ms=kernel_ms if source != "disk" else 0.0,
        load_ms=kernel_ms if source == "disk" else 0.0,
        total_ms=ns * 1e-6 or trace_ms + lower_ms + kernel_ms,
        ahead=ahead,
    )


def _executor_miss(entry: Entry, changes: tuple[Change, ...]) -> Miss:
    return Miss(entry[0], "executor", changes, (), "memory", 0.0, 0.0, 0.0, 0.0, entry[1] * 1e-6)


def _entry_parts(entry: Entry) -> Parts:
    labels, layouts = entry[5], entry[6]
    names = [f"argument `{label}`" for label in labels if not label.startswith("captured ")]
    outs = len(layouts) - len(names)
    names += ["out="] if outs == 1 else [f"out=[{k}]" for k in range(outs)]
    parts: Parts = {}
    for name, layout in zip(names, layouts, strict=True):
        parts[name, "kind"] = "None" if layout is None else "array"
        if layout is not None:
            parts.update(layout_parts(name, dtype_of(layout[0]), layout[1], layout[2]))
    return parts


def _executor_changes(
    entry: Entry, parts: Parts, earlier: Sequence[tuple[Entry, Parts]]
) -> tuple[Change, ...]:
    """Why an executor was missing although its program and kernels were there."""
    if entry[4] in _EXTRA:
        return (Change("executor", "", _EXTRA[entry[4]]),)
    same = [other for other, known in earlier if known == parts]
    if any(other[2] == entry[2] for other in same):
        return (Change("executor", "", "made again: the limits had it evicted"),)
    if same:
        return (Change("thread", _thread(same[-1][2]), _thread(entry[2])),)
    changes = nearest((known for _, known in earlier), parts)
    return changes or (Change("executor", "", "the first of this layout"),)


_EXTRA = {"u": "one more: those of this layout were in use", "b": "one of its own for bind()"}


def _thread(native_id: int) -> str:
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread.native_id == native_id:
                return str(thread.name)
    return f"one that has ended (no. {native_id})"
