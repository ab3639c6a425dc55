"""The words of --shapes in, the arguments of a call out.

The words are Python, with dtypes as names: `float32[64, 1024]` is an array of that shape, which may
be transposed (`.T`) and sliced (`[::2]`); numbers, texts, None, tuples, lists and dicts stand for
themselves, and `name=value` is a keyword. Arrays hold nothing: only their layout counts.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from opkiln.ops.dtypes import DTYPES, SUPPORTED
from opkiln.runtime.errors import UsageError

TIMES = tuple(row.name for row in DTYPES.values() if row.kind in "mM")
FIX = "write --shapes 'float32[64,1024] float32[8].T 3.0 axis=1', in quotes; see `show --help`"


class Arguments(NamedTuple):
    """What a call gets, and the same as the user wrote it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    words: tuple[str, ...]


def parse(text: str) -> Arguments:
    """The arguments that the text describes.

    Raises:
        UsageError: names the word that cannot be read.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    words = tuple(_words(text))
    for word in words:
        try:
            call = ast.parse(f"f({word})", mode="eval").body
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
        ):  # the last two: nested too deep
            _refuse(word, "is not a dtype with a shape, and not a Python value")
        if not isinstance(call, ast.Call) or len(call.args) + len(call.keywords) != 1:
            _refuse(word, "is not one argument")
        try:
            for node in call.args:
                if kwargs:
                    _refuse(word, "follows a keyword argument")
                args.append(_value(node))
            for keyword in call.keywords:
                if keyword.arg is None or keyword.arg in kwargs:
                    _refuse(word, "is not a keyword argument that is given once")
                kwargs[keyword.arg] = _value(keyword.value)
        except UsageError:
            raise
        except (TypeError, ValueError, IndexError, RecursionError) as error:
            _refuse(word, f"is no Python value ({error})")  # a step of 0, a list as key of a dict
    return Arguments(tuple(args), kwargs, words)


def _words(text: str) -> Iterator[str]:
    """Split at spaces and commas that stand outside of brackets and quotes."""
    word, depth, quote = "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if not quote and depth <= 0 and (letter.isspace() or letter == ","):
            if word:
                yield word
            word = ""
        else:
            word += letter
    if word:
        yield word


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.List(elts=items):
            return list(map(_value, items))
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_value(key): _value(value) for key, value in pairs if key is not None}
        case ast.Name(id="inf" | "nan" as word):
            return float(word)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf" | "nan" as word)):
            return -float(word)
        case ast.Subscript(value=ast.Name(id=name), slice=extents):
            return _array(node, name, extents)
        case ast.Subscript(
            value=ast.Subscript(value=ast.Name(id=name), slice=unit), slice=extents
        ) if name in TIMES:
            return _array(node, name, extents, _unit(unit))
        case ast.Subscript() | ast.Attribute(attr="T"):
            return _view(node)
        case ast.Name(id=name) if name in DTYPES:
            _refuse(name, "has no shape", f"write {name}[64,1024]; {name}[()] has no axes")
        case ast.Name(id=name):
            near = difflib.get_close_matches(name, DTYPES, n=1)
            hint = f"did you mean {near[0]}[...]?" if near else f"a text needs quotes: '\"{name}\"'"
            _refuse(name, "is not a Python value", hint)
        case _:
            _refuse(ast.unparse(node), "is not a dtype with a shape, and not a Python value")


def _unit(node: ast.expr) -> str:
    """The unit of a time, such as s or '10ms'."""
    match node:
        case ast.Name(id=unit) | ast.Constant(value=str(unit)) if _is_unit(unit):
            return f"[{unit}]"
        case _:
            _refuse(ast.unparse(node), "is no unit of time", "write datetime64[s][64,1024]")


def _is_unit(unit: str) -> bool:
    try:
        np.dtype(f"M8[{unit}]")
    except TypeError:
        return False
    return True


def _array(node: ast.expr, name: str, extents: ast.expr, unit: str = "") -> Any:
    word = ast.unparse(node)
    if name not in DTYPES:
        near = difflib.get_close_matches(name, DTYPES, n=1)
        known = ", ".join([*(row.name for row in SUPPORTED), *(f"{name}[s]" for name in TIMES)])
        hint = f"did you mean {near[0]}?" if near else f"the dtypes are {known}"
        _refuse(word, f"has the unknown dtype {name}", hint)
    shape = tuple(map(_value, extents.elts if isinstance(extents, ast.Tuple) else [extents]))
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        _refuse(word, "has a shape that is not of whole numbers from 0", f"write {name}[64,1024]")
    try:
        dtype = np.dtype(name + unit) if unit else DTYPES[name].numpy
    except TypeError as error:
        _refuse(word, f"has a dtype that is not installed: {error}")
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        _refuse(word, f"cannot be made ({error})", "the kernels are the same for smaller extents")


def _view(node: ast.Subscript | ast.Attribute) -> Any:
    """A transposed or sliced array."""
    array = _value(node.value)
    if not isinstance(array, np.ndarray):
        _refuse(ast.unparse(node), "is a view of something that is no array")
    if isinstance(node, ast.Attribute):
        return cast("Any", array).T
    try:
        return cast("Any", array)[_index(node.slice)]
    except IndexError as error:
        _refuse(ast.unparse(node), f"cannot be sliced ({error})")


def _index(node: ast.expr) -> Any:
    match node:
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _value(part) for part in (lower, upper, step)))
        case ast.Tuple(elts=items):
            return tuple(map(_index, items))
        case _:
            return _value(node)


def _refuse(word: str, problem: str, fix: str = FIX) -> NoReturn:
    raise UsageError(f"--shapes: {word!r} {problem}", fix=fix)
