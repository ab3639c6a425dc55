"""Why calls missed: what hooks and the native log saw in, named differences and their cost out.

A key is a table of parts, `{(subject, aspect): value}`, such as `("argument `x`", "dtype")`. A miss
is explained by the parts in which it differs from the earlier key that is nearest to it.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from types import CodeType
from typing import Any, cast, overload

import numpy as np

from opkiln.ops.dtypes import BY_CODE
from opkiln.ops.record import record
from opkiln.runtime import debug
from opkiln.runtime.kernel import Lowered
from opkiln.runtime.key import sha256
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.options import Options

KEPT = 256  # misses that one function remembers
_NAMES = 256  # names of functions whose last keys are remembered, in case they are defined again
_PER_NAME = 64  # keys per name

Parts = dict[tuple[str, str], str]
Layout = tuple[int, tuple[int, ...], tuple[int, ...]]  # dtype code, shape, byte strides


@record
class Change:
    """One part of a key that differs: its name, the value before and the value now; '' is none."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        if not self.old and self.name in _REMARKS:
            return f"{self.name}: {self.new}"
        return f"{self.name}: {self.old or 'absent'} -> {self.new or 'absent'}"


_REMARKS = frozenset(["cache directory", "cache entry", "kernel text", "executor"])


@record
class Cause:
    """What a trace adds to a miss."""

    changes: tuple[Change, ...]  # none: nothing earlier to compare with
    trace_ms: float
    lower_ms: float
    shared: bool  # an equal graph had been lowered before


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

    @property
    def reasons(self) -> list[str]:
        """The changes, one text each; those against the cache on disk last."""
        ours = [str(change) for change in self.changes] or ["first call"]
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
        total = (
            f"{self.total_ms:.1f} ms" if self.total_ms >= 0.1 else f"{self.total_ms * 1e3:.1f} us"
        )
        return f"{total} ({parts})" if parts else total

    def __str__(self) -> str:
        number = f"miss {self.number}" if self.number else "failed"
        return f"{number}, {self.what}, {self.cost}: {self.reason}"


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


# *** keys ***


def difference(old: Parts, new: Parts) -> tuple[Change, ...]:
    """The parts that differ. Of a subject whose `kind` differs, only that: the rest follows.

    That a static value is another one is only said of two that look the same, in one definition.
    """
    names = [*old, *(name for name in new if name not in old)]
    names = [name for name in names if old.get(name) != new.get(name)]
    names = [name for name in names if name[1] != "identity"] or names
    other_kind = {subject for subject, aspect in names if aspect == "kind"}
    return tuple(
        Change(_name(*name), old.get(name, ""), new.get(name, ""))
        for name in names
        if name[1] == "kind" or name[0] not in other_kind
    )


def _name(subject: str, aspect: str) -> str:
    given = subject.startswith("out=") and aspect == "kind"  # there or not is all it says
    return subject if given else f"{subject} {aspect}".strip()


def nearest(earlier: Iterable[Parts], parts: Parts) -> tuple[Change, ...] | None:
    """The shortest difference from an earlier key, the newest of equals; None if there is none."""
    best: tuple[Change, ...] | None = None
    for other in earlier:
        found = difference(other, parts)
        if best is None or len(found) <= len(best):
            best = found
    return best


_KINDS = {"a": "array", "i": "int", "u": "int above int64", "f": "float", "s": "static"}
_PLAIN = frozenset([str, bytes, int, float, bool, type(None), slice, type(...)])


def argument_parts(
    labels: Sequence[str], leaves: Sequence[Any], kinds: str, static_ids: Sequence[int | None]
) -> Parts:
    """What of the arguments decides a program: kinds, dtypes, ranks, static values."""
    parts: Parts = {}
    for label, leaf, kind, number in zip(labels, leaves, kinds, static_ids, strict=True):
        subject = f"argument `{label}`"
        parts[subject, "kind"] = _KINDS[kind]
        if kind == "a":
            parts[subject, "dtype"] = str(np.dtype(leaf.dtype).name)
            parts[subject, "rank"] = str(leaf.ndim)
        elif kind == "s":
            parts[subject, "value"] = _static_text(leaf, number, by_identity=label == "self")
            parts[subject, "identity"] = f"no. {number}"
    return parts


def _static_text(value: Any, number: int | None, *, by_identity: bool = False) -> str:
    """A static value for people, as text, since the value itself must not be kept alive."""
    kind = type(cast("object", value))
    if kind is tuple and not by_identity:
        return _cut(f"({', '.join(_static_text(item, number) for item in value)})")
    if kind in _PLAIN or isinstance(value, np.dtype):
        return _cut(repr(value))
    if isinstance(value, Enum):
        return _cut(f"{kind.__name__}.{value.name}")
    if isinstance(value, type):
        return _cut(value.__name__)
    text = f"{kind.__name__} object"
    if not by_identity:
        with contextlib.suppress(Exception):  # the user's code, and only words are wanted
            text = repr(value)
    return f"{_cut(text)} (no. {number})"


def _cut(text: str) -> str:
    """One line of bounded length; what is cut off is told apart by a digest."""
    shown = text[:80] if text.isprintable() else repr(text[:80])[1:-1]
    if len(text) <= 60 and shown.isprintable():
        return shown
    digest = sha256(text.encode("utf-8", "surrogatepass"))[:8]
    return f"{shown[:50]}... ({len(text)} characters, {digest})"


def summary(parts: Parts) -> str:
    """A key in a few words, for the log."""
    subjects = dict.fromkeys(subject for subject, aspect in parts if aspect == "kind")
    words: list[str] = []
    for subject in subjects:
        dtype, value = parts.get((subject, "dtype")), parts.get((subject, "value"))
        array = dtype and f"{dtype}[{parts[subject, 'rank']}d]"
        label = subject.removeprefix("argument ").strip("`")
        words.append(f"{label}: {array or value or parts[subject, 'kind']}")
    return ", ".join(words)


def capture_parts(captures: Sequence[Any]) -> Parts:
    """The layouts of captured arrays, which hold for the life of a trace."""
    parts: Parts = {}
    for i, array in enumerate(captures):
        parts.update(_layout_parts(f"captured array {i}", array.dtype, array.shape, array.strides))
    return parts


def pin_parts(pins: Iterable[tuple[int, int, int, str]], labels: Sequence[str]) -> Parts:
    """The sizes that a trace holds for: (array, axis, size) and the user's line that fixed it."""
    return {
        (f"size {labels[index]}.shape[{axis}]", f"pinned by {at}"): str(value)
        for index, axis, value, at in pins
    }


def _layout_parts(subject: str, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> Parts:
    """An exact layout: the shape, and how each axis steps.

    An axis is contiguous where it continues the next inner one without a gap, so that a slice
    changes the part of its own axis and no other.
    """
    parts: Parts = {(subject, "dtype"): dtype.name, (subject, "rank"): str(len(shape))}
    steps = _steps(dtype.itemsize, shape, strides, range(len(shape) - 1, -1, -1))
    fortran = _steps(dtype.itemsize, shape, strides, range(len(shape)))
    by_columns = set(steps.values()) != {"contiguous"} == set(fortran.values())
    parts[subject, "memory order"] = "Fortran" if by_columns else "C"
    parts[subject, "shape"] = str(tuple(shape))
    for axis, step in sorted((fortran if by_columns else steps).items()):
        parts[subject, f"axis {axis}"] = step
    return parts


def _steps(
    itemsize: int, shape: Sequence[int], strides: Sequence[int], inner_first: Iterable[int]
) -> dict[int, str]:
    result: dict[int, str] = {}
    span = itemsize  # from one element of this axis to the next, if it is contiguous
    for axis in inner_first:
        stride = strides[axis]
        if 0 in shape or shape[axis] == 1 or stride == span:
            result[axis] = "contiguous"
        elif stride == 0:
            result[axis] = "broadcast"
        else:
            whole, rest = divmod(stride, itemsize)
            result[axis] = f"stride {stride} bytes" if rest else f"stride {whole}"
        if shape[axis] > 1 and stride:
            span = abs(stride) * shape[axis]
    return result


_LETTERS = {"C": "contiguous", "Z": "broadcast", "G": "strided"}


def class_changes(
    lowered: Lowered,
    built: Iterable[tuple[int, str]],
    requests: Iterable[tuple[int, str]],
    labels: Sequence[str],
) -> tuple[Change, ...]:
    """How the layout classes of kernels that are missing differ from those that are there.

    A class has a letter per operand, for its step along the inner loop; a leading "r" says that
    a reduction runs over rows inside.
    """
    have = list(built)
    changes: dict[Change, None] = {}
    for index, wanted in requests:
        known = [letters for i, letters in have if i == index]
        alike = [w for w in known if w.startswith("r") == wanted.startswith("r")]
        if not alike:
            if known:
                closest = ("reduced axis innermost", "kept axis innermost")
                old, new = closest if wanted.startswith("r") else closest[::-1]
                changes[Change(f"memory order under reduction {index}", old, new)] = None
            continue
        near = min(reversed(alike), key=lambda w: sum(map(str.__ne__, w, wanted)))
        row = wanted.startswith("r")
        operands = lowered.launches[index].kernel.operands
        for operand, old, new in zip(operands, near[row:], wanted[row:], strict=True):
            if old != new:
                name = f"{_buffer_name(lowered, operand.buffer, labels)} inner axis"
                changes[Change(name, _LETTERS[old], _LETTERS[new])] = None
    return tuple(changes)


def _buffer_name(lowered: Lowered, buffer: int, labels: Sequence[str]) -> str:
    if buffer < len(labels):
        label = labels[buffer]
        return label if label.startswith("captured ") else f"argument `{label}`"
    if lowered.buffers[buffer].kind != "out":
        return "an intermediate's"
    outs = [i for i, b in enumerate(lowered.buffers) if b.kind == "out"]
    return "result" if len(outs) == 1 else f"result {outs.index(buffer)}"


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
        self._told: deque[tuple[int, Cause | None, Kernels | None, bool]] = deque(maxlen=KEPT)
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

    def cleared(self) -> None:
        """Note a clear(): traces that follow differ from earlier ones by it."""
        with self._lock:
            self._clears += 1

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
        return _miss(0, cause, kernels, 0)

    def explanation(self, log: Log, copies: Iterable[Copy], counts: dict[str, int]) -> Explanation:
        """All that is remembered, in order."""
        misses = self._merged(log[1])
        shown = sum(1 for miss in misses if miss.number)
        return Explanation(
            self.name, tuple(misses), max(0, log[0] - shown), tuple(self._remarks(copies, counts))
        )

    def _merged(self, entries: Sequence[Entry]) -> list[Miss]:
        with self._lock:
            told = list(self._told)
        made = {entry[0]: entry for entry in entries}
        hooked = {number for number, _, _, failed in told if not failed}
        misses: list[tuple[int, Miss]] = []
        for number, cause, kernels, failed in told:
            ns = made[number][1] if number in made and not failed else 0
            misses.append((number, _miss(0 if failed else number, cause, kernels, ns)))
        earlier: list[tuple[Entry, Parts]] = []
        for entry in entries:
            parts = _entry_parts(entry)
            if entry[0] not in hooked:
                changes = _executor_changes(entry, parts, earlier)
                misses.append((entry[0], _executor_miss(entry, changes)))
            earlier.append((entry, parts))
        return [miss for _, miss in sorted(misses, key=lambda item: item[0])]

    def _remarks(self, copies: Iterable[Copy], counts: dict[str, int]) -> Iterator[str]:
        for why, result, name, times in copies:
            yield f"{_COPY[why].format(k=result, name=_quoted(name))}: {_times(times)}"
        if counts["packs"]:
            yield f"operands packed into rows for a reduction: {_times(counts['packs'])}"
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


def _quoted(name: str | None) -> str:
    if name is None:
        return "another out="
    return name if name.startswith("captured ") else f"`{name}`"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _miss(number: int, cause: Cause | None, kernels: Kernels | None, ns: int) -> Miss:
    source = kernels.source if kernels else "memory"
    trace_ms, lower_ms = (cause.trace_ms, cause.lower_ms) if cause else (0.0, 0.0)
    kernel_ms = kernels.seconds * 1e3 if kernels else 0.0
    # What a trace differs in says it all; of a known trace, the layout classes do.
    changes = cause.changes if cause else kernels.changes if kernels else ()
    return Miss(
        number=number,
        layer="program" if source == "memory" else "artifact",
        changes=changes,
        cache_changes=kernels.cache_changes if kernels else (),
        source="shared" if cause and cause.shared and source == "memory" else source,
        trace_ms=trace_ms,
        lower_ms=lower_ms,
        build_ms=kernel_ms if source != "disk" else 0.0,
        load_ms=kernel_ms if source == "disk" else 0.0,
        total_ms=ns * 1e-6 or trace_ms + lower_ms + kernel_ms,
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
            parts.update(_layout_parts(name, BY_CODE[layout[0]].numpy, layout[1], layout[2]))
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
    return f"{native_id}, which has ended"
