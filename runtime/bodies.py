"""The op bodies and the expressions over them: what every emitter pastes into its text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from opkiln.ops.dtypes import dtype_row, is_half, kind_of, lossless, part_of
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime import kernel as k

# os.path: pathlib takes 4 ms to import.
_HEADERS = os.path.join(os.path.dirname(__file__), "..", "native", "include", "opkiln")  # noqa: PTH118, PTH120

_ALWAYS: tuple[str, ...] = ("types", "core", "names", "lanes", "masks")


@cache
def sections(name: str) -> dict[str, tuple[tuple[str, ...], str]]:
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
    for chunk in f"\n{text}".split("\n//@ ")[1:]:
        head, _, body = chunk.partition("\n")
        title, _, needs = head.partition(":")
        if title.strip() in own:
            raise ValueError(f"bodies: the section {title.strip()} is defined twice")
        own[title.strip()] = (tuple(needs.split()), body)
    return sections("bodies") | own if folder and name != "bodies" else own


@cache
def functions(target: str) -> dict[str, str]:
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
    table = sections("bodies")
    return "\n".join(table[name][1] for name in closure(functions("bodies")))


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
        case k.Apply(value, name, args):
            row, dtypes = ELEMENTWISE[name], [kernel.dtypes[a] for a in args]
            kinds = [kind_of(d) for d in dtypes]
            mixed = "".join(kinds) if len(set(kinds)) > 1 and kinds[0] != "b" else kinds[0]
            text = row.body(mixed, dtypes[0].name).format(*(f"v{a}" for a in args), f="fault")
            return rounded(kernel.dtypes[value], text) if row.rounds else text
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
    if source.kind == "b":
        return f"ok_cast_from_bool<{scalar(target)}>({text})"
    if source == np.float64 and target == np.float16:  # no float32 on the way rounds it
        text = f"ok_odd({text})"
    if scalar(source) != scalar(target):
        text = f"ok_cast<{scalar(target)}>({text})"
    return text if lossless(source, target) else rounded(target, text)


def scalar(dtype: k.DT) -> str:
    """The C++ type of its values in registers."""
    return dtype_row(dtype).cxx


def memory(dtype: k.DT) -> str:
    """What follows ok_load and the like in the name of the function for this dtype."""
    row = dtype_row(dtype)
    return row.memory or f"<{row.cxx}>"


def rounded(dtype: k.DT, value: str) -> str:
    """The value as memory of `dtype` would hold it: registers of a half have room for more."""
    return f"ok_round{dtype_row(dtype).memory}({value})" if is_half(dtype) else value


def loaded(dtype: k.DT, function: str, arguments: str) -> str:
    """A call that reads a vector of `dtype` from memory: `function` is ok_load or its like."""
    row = dtype_row(dtype)
    if row.is_half:
        return f"ok_widen{row.memory}({function}<u16>({arguments}))"
    return f"{function}{memory(dtype)}({arguments})"


def stored(dtype: k.DT, value: str) -> tuple[str, str]:
    """Suffix of the function that writes a vector of `dtype`, and what it is given."""
    row = dtype_row(dtype)
    return ("", f"ok_narrow{row.memory}({value})") if row.is_half else (row.memory, value)


def put(dtype: k.DT, at: str, value: str) -> str:
    """A statement that writes the first lane to memory."""
    row = dtype_row(dtype)
    if row.kind == "b":
        return f"*(u8 *){at} = (u8)({value}[0] & 1);"
    if row.kind == "c":
        return f"ok_put{row.memory}({at}, {value});"
    kind = "u16" if row.is_half else row.cxx
    return f"*(ok_vec<{kind}>::one *){at} = {stored(dtype, value)[1]}[0];"


def splat(dtype: k.DT, at: str) -> str:
    """One element of memory in all lanes."""
    row = dtype_row(dtype)
    if row.kind == "b":
        return f"ok_splat_bool(*(const u8 *)({at}))"
    if row.kind == "c":
        return f"ok_splat_complex(*(const {row.cxx} *)({at}))"
    kind = "u16" if row.is_half else row.cxx
    text = f"ok_splat<{kind}>(*(const ok_vec<{kind}>::one *)({at}))"
    return f"ok_widen{row.memory}({text})" if row.is_half else text


def literal(constant: np.generic) -> str:
    """A constant by its bits, so that -0.0, inf and NaN payloads survive."""
    if constant.dtype.kind == "b":
        return f"ok_splat_bool({int(constant)})"
    kind = scalar(constant.dtype)
    if constant.dtype.kind == "c":
        parts = ", ".join(_bits(part) for part in (constant.real, constant.imag))
        return f"ok_splat_complex({kind}{{{parts}}})"
    if is_half(constant.dtype):
        constant = constant.astype(np.float32)
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
    if kind_of(dtype) == "f":
        return repr(float(value)).replace("inf", "__builtin_inf()")
    if dtype.itemsize < 8:
        return str(value)
    return f"({scalar(dtype)}){int(value) % 2**64:#x}ul" if value else "0"
