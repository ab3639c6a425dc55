"""The op bodies and the expressions over them: what every emitter pastes into its text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from opkiln.ops.dtypes import dtype_row, part_of
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime import kernel as k

# os.path: pathlib takes 4 ms to import.
_HEADERS = os.path.join(os.path.dirname(__file__), "..", "native", "include", "opkiln")  # noqa: PTH118, PTH120

_ALWAYS = ("types", "core", "names", "lanes", "masks")


@cache
def sections(name: str = "bodies") -> dict[str, tuple[tuple[str, ...], str]]:
    """A header, or every header of a folder, as name -> (sections it needs, text).

    What a device needs otherwise lies in a folder of its own, over the bodies of all.
    """
    path = os.path.join(_HEADERS, name)  # noqa: PTH118
    folder = os.path.isdir(path)  # noqa: PTH112
    files = sorted(f"{path}/{f}" for f in os.listdir(path)) if folder else [path]  # noqa: PTH208
    text = ""
    for each in files:
        with open(each, encoding="utf-8") as file:  # noqa: PTH123
            text += file.read()
    own: dict[str, tuple[tuple[str, ...], str]] = {}
    for chunk in re.split(r"^//@ ", text, flags=re.MULTILINE)[1:]:
        head, _, body = chunk.partition("\n")
        title, _, needs = head.partition(":")
        if title.strip() in own:
            raise ValueError(f"bodies: the section {title.strip()} is defined twice")
        own[title.strip()] = (tuple(needs.split()), body)
    return sections() | own if folder and name != "bodies" else own


@cache
def functions(target: str = "bodies") -> dict[str, str]:
    """Which section defines each op body."""
    return {
        name: title
        for title, (_, body) in sections(target).items()
        for name in re.findall(r"OK_FN [^;{(]*?\b(ok_\w+)\(", body)
    }


def closure(text: Iterable[str], target: str = "bodies") -> list[str]:
    """Names of the sections that these texts use, each after what it needs."""
    table, home = sections(target), functions(target)
    order = list(_ALWAYS)
    wanted = sorted({home[m] for t in text for m in re.findall(r"\bok_\w+", t) if m in home})
    stack = list(reversed(wanted))
    while stack:
        name = stack[-1]
        missing = [d for d in table[name][0] if d not in order]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if name not in order:
            order.append(name)
    return order


def head(lanes: int) -> str:
    """What the sections take as given: the number of lanes, and their indices as a list."""
    return f"#define OK_N {lanes}\n#define OK_IOTA {', '.join(map(str, range(lanes)))}\n"


def every_body() -> str:
    """All sections in an order that compiles, for tools that measure them."""
    return "\n".join(sections()[name][1] for name in closure(functions()))


def comments(kernel: k.Kernel) -> list[str]:
    """The kernel's statements as comments.

    What a plan binds to the kernel stays out: it is no part of the text.
    """
    lines: list[str] = []
    for section in kernel.sections:
        lines.append(f"//   {section.kind}:")
        lines += [f"//     {kernel.show(s)}" for s in section.body]
    return lines


def expression(kernel: k.Kernel, s: k.Statement) -> str:
    """The right-hand side of a computing statement, with v<i> for values."""
    match s:
        case k.Apply(_, name, args):
            kinds = [kernel.dtypes[a].kind for a in args]
            mixed = "".join(kinds) if len(set(kinds)) > 1 and kinds[0] != "b" else kinds[0]
            return ELEMENTWISE[name].body(mixed).format(*(f"v{a}" for a in args), f="fault")
        case k.Convert(value, arg):
            return _converted(f"v{arg}", kernel.dtypes[arg], kernel.dtypes[value])
        case k.Const(_, constant):
            return literal(constant)
        case _:
            return ""


def _converted(text: str, source: k.DT, target: k.DT) -> str:
    """A value of `source` as one of `target`."""
    if source == target:
        return text
    if target.kind == "b":
        return f"ok_to_bool({text})"
    if source.kind == "c":
        parts = [_converted(f"{text}.{p}", part_of(source), part_of(target)) for p in ("re", "im")]
        return f"ok_complex({', '.join(parts)})" if target.kind == "c" else parts[0]
    if target.kind == "c":
        return f"ok_complex({_converted(text, source, part_of(target))})"
    function = "ok_cast_from_bool" if source.kind == "b" else "ok_cast"
    return f"{function}<{scalar(target)}>({text})"


def scalar(dtype: k.DT) -> str:
    return dtype_row(dtype).cxx


def memory(dtype: k.DT) -> str:
    """What follows ok_load and the like in the name of the function for this dtype."""
    row = dtype_row(dtype)
    return row.memory or f"<{row.cxx}>"


def literal(constant: np.generic) -> str:
    """A constant by its bits, so that -0.0, inf and NaN payloads survive."""
    if constant.dtype.kind == "b":
        return f"ok_splat_bool({int(constant)})"
    kind = scalar(constant.dtype)
    if constant.dtype.kind == "c":
        parts = ", ".join(_bits(part) for part in (constant.real, constant.imag))
        return f"ok_splat_complex({kind}{{{parts}}})"
    if constant.dtype.kind == "f":
        return f"ok_splat<{kind}>({_bits(constant)})"
    bits = int.from_bytes(constant.tobytes(), "little")
    return f"ok_splat<{kind}>(({kind}){bits}ul)"


def _bits(number: np.generic) -> str:
    """A float by its bits."""
    suffix = "u" if number.dtype.itemsize == 4 else "ul"
    bits = int.from_bytes(number.tobytes(), "little")
    return f"__builtin_bit_cast({scalar(number.dtype)}, {bits:#x}{suffix})"


def identity(row: str, dtype: k.DT) -> str:
    """The scalar that fills idle lanes."""
    value = REDUCTIONS[row].identity_of(dtype)
    if dtype.kind == "b":  # a byte of a mask
        return "-1" if value else "0"
    if dtype.kind == "f":
        return repr(float(value)).replace("inf", "__builtin_inf()")
    if dtype.itemsize < 8:
        return str(value)
    return f"({scalar(dtype)}){int(value) % 2**64:#x}ul" if value else "0"
