"""Keys as tables of named parts, and how two of them differ, in words.

A key is `{(subject, aspect): value}`, such as `("argument `x`", "dtype")`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np

from opkiln.ops.record import record
from opkiln.runtime.graph import NOT_ONE, Pin
from opkiln.runtime.kernel import Lowered
from opkiln.runtime.key import sha256

Parts = dict[tuple[str, str], str]


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


def difference(old: Parts, new: Parts) -> tuple[Change, ...]:
    """The parts that differ. Of a subject whose `kind` differs, only that: the rest follows.

    That a static value is another one is only said of two that look the same, in one definition.
    """
    names = [*old, *(name for name in new if name not in old)]
    names = [name for name in names if name[1] != "type" and old.get(name) != new.get(name)]
    names = [name for name in names if name[1] != "identity"] or names
    other_kind = {subject for subject, aspect in names if aspect == "kind"}
    return tuple(
        Change(_name(*name), _shown(old, name), _shown(new, name))
        for name in names
        if name[1] == "kind" or name[0] not in other_kind
    )


def _shown(parts: Parts, name: tuple[str, str]) -> str:
    """A part in words; the kind of a static value is its type and value, such as "bool True"."""
    subject, aspect = name
    if aspect != "kind" or (subject, "value") not in parts:
        return parts.get(name, "")
    return f"{parts[subject, 'type']} {parts[subject, 'value']}".strip()


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
_TYPED = frozenset([str, bytes, int, float, bool])  # whose values do not say their type to all
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
            parts[subject, "type"] = type(leaf).__name__ if type(leaf) in _TYPED else ""
    return parts


def _static_text(value: Any, number: int | None, *, by_identity: bool = False) -> str:
    """A static value for people, as text, since the value itself must not be kept alive."""
    kind = type(cast("object", value))
    if kind is tuple and not by_identity:
        return _cut(f"({', '.join(_static_text(item, number) for item in value)})")
    if kind in _PLAIN or isinstance(value, np.dtype):
        return _cut(repr(cast("object", value)))
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


def capture_parts(labels: Sequence[str], captures: Sequence[Any]) -> Parts:
    """The layouts of captured arrays, which hold for the life of a trace."""
    parts: Parts = {}
    for label, array in zip(labels, captures, strict=True):
        parts.update(layout_parts(label, array.dtype, array.shape, array.strides))
    return parts


def pin_parts(pins: Iterable[tuple[Pin, str]], labels: Sequence[str]) -> Parts:
    """The sizes that a trace holds for, and the user's line of each."""

    def size(index: int, axis: int) -> str:
        return f"{labels[index]}.shape[{axis}]"

    parts: dict[tuple[str, str], str] = {}
    for (index, axis, value), at in pins:
        if isinstance(value, tuple):
            text = f"as {size(*value)}"
        else:
            text = "not 1" if value == NOT_ONE else str(value)
        parts[f"size {size(index, axis)}", f"pinned by {at}"] = text
    return parts


def layout_parts(subject: str, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> Parts:
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
