"""Schemas of custom ops: `"ns::f(Tensor a, float k=1.0) -> Tensor"` in, its parts out."""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from functools import cached_property
from typing import Any, NoReturn

from opkiln.ops.record import record
from opkiln.runtime.errors import ArgumentError, SchemaError
from opkiln.runtime.trace.session import failure

TENSOR, OPTIONAL = "Tensor", "Tensor?"
SCALARS: dict[str, type[Any]] = {"bool": bool, "int": int, "float": float, "str": str}
_FIX = 'write it as "ns::f(Tensor a, Tensor? b, float k=1.0) -> Tensor"'
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]inf)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>::|->|[(),?=*]))""",
    re.VERBOSE,
)
_MISSING: Any = inspect.Parameter.empty


@record
class Param:
    """A parameter: "Tensor", "Tensor?" or the name of a scalar type; `default` may be empty."""

    name: str
    kind: str
    default: Any
    named: bool  # given by name alone

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, optional or not."""
        return self.kind in (TENSOR, OPTIONAL)

    def __str__(self) -> str:
        # An optional tensor needs no default: it is None.
        default = "" if self.is_tensor or self.default is _MISSING else f"={self.default!r}"
        return f"{self.kind} {self.name}{default}"


@record
class Schema:
    """What an op is called, takes and gives."""

    name: str  # ns::f
    params: tuple[Param, ...]
    results: tuple[str, ...]  # their names

    @cached_property
    def tensors(self) -> tuple[Param, ...]:
        """The parameters that are tensors, in order."""
        return tuple(p for p in self.params if p.is_tensor)

    @cached_property
    def scalars(self) -> tuple[Param, ...]:
        """The others."""
        return tuple(p for p in self.params if not p.is_tensor)

    @cached_property
    def names(self) -> frozenset[str]:
        """Of all parameters."""
        return frozenset(p.name for p in self.params)

    @property
    def gradients(self) -> tuple[str, ...]:
        """What the gradients of the results are called for `backward=`."""
        return tuple(_GRADIENT.get(name, f"grad_{name}") for name in self.results)

    @cached_property
    def signature(self) -> inspect.Signature:
        """As Python binds a call."""
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [inspect.Parameter(p.name, kinds[p.named], default=p.default) for p in self.params]
        )

    def __str__(self) -> str:
        parts: list[str] = []
        for param in self.params:
            parts += ["*"] if param.named and "*" not in parts else []
            parts.append(str(param))
        given = tuple(_result(name) for name in self.results)
        results = given[0] if len(given) == 1 else f"({', '.join(given)})"
        return f"{self.name}({', '.join(parts)}) -> {results}"


_GRADIENT = {"out": "grad"}


def _result(name: str) -> str:
    return TENSOR if re.fullmatch(r"out[0-9]*", name) else f"{TENSOR} {name}"


def parse(text: str) -> Schema:
    """The parts of a schema.

    Results without a name are `out`, or `out0`, `out1` of several; their gradients `grad`, and
    `grad_out0`; that of a result `y` is `grad_y`.

    Raises:
        SchemaError: names the column and what was expected there.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise failure(SchemaError, f"schema: expected a str, got {text!r:.60}", fix=_FIX)
    return _Parser(text).schema()


class _Parser:
    """Tokens of one schema, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.kind, self.token, self.start = "", "", 0
        self.advance()

    def advance(self) -> None:
        rest = self.text[self.at :]
        if not rest.strip():
            self.kind, self.token, self.start = "end", "the end", len(self.text.rstrip())
            return
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            self.start = self.at + len(rest) - len(rest.lstrip())
            self.token = self.text[self.start]
            self.refuse("a name, a number, a text or one of ( ) , ? = * :: ->")
        self.kind = str(found.lastgroup)
        self.token = found.group(self.kind)
        self.start, self.at = found.start(self.kind), found.end()

    def refuse(self, expected: str, start: int | None = None) -> NoReturn:
        """Point at the token that does not fit."""
        column = self.start if start is None else start
        got = "the end" if self.kind == "end" and start is None else repr(self.text[column:][:20])
        line = self.text.replace("\n", " ").replace("\t", " ")
        raise failure(
            SchemaError,
            f"schema, column {column + 1}: expected {expected}, got {got}\n  {line}\n"
            f"  {' ' * column}^\n ",
            fix=_FIX,
        )

    def take(self, mark: str) -> None:
        if self.kind != "mark" or self.token != mark:
            self.refuse(repr(mark))
        self.advance()

    def accept(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def identifier(self, what: str) -> str:
        token = self.token
        if self.kind != "name" or keyword.iskeyword(token) or token.startswith("__"):
            self.refuse(f"{what}, which is no keyword and does not begin with __")
        self.advance()
        return token

    def schema(self) -> Schema:
        name = self.identifier("a namespace")
        self.take("::")
        name += "::" + self.identifier("the name of the op")
        params = self.params()
        self.take("->")
        results = self.results({p.name for p in params})
        if self.kind != "end":
            self.refuse("the end")
        return Schema(name, params, results)

    def params(self) -> tuple[Param, ...]:
        self.take("(")
        found: list[Param] = []
        named = defaults = False
        while not self.accept(")"):
            if found or named:
                self.take(",")
            if not named and self.accept("*"):
                named = True
                continue
            start = self.start
            param = self.param(named)
            if any(param.name == p.name for p in found):
                self.refuse("another name, since there is such a parameter", start)
            if param.default is _MISSING and defaults and not named:
                self.refuse("a default, since the parameter before has one", start)
            defaults = defaults or param.default is not _MISSING
            found.append(param)
        if not any(p.is_tensor for p in found):
            self.refuse("a Tensor among the parameters", 0)
        return tuple(found)

    def param(self, named: bool) -> Param:
        kind = self.token
        if kind != TENSOR and kind not in SCALARS:
            self.refuse(f"a type, one of {TENSOR}, {OPTIONAL}, {', '.join(SCALARS)}")
        self.advance()
        if kind == TENSOR and self.accept("?"):
            kind = OPTIONAL
        name = self.identifier("a name")
        default = None if kind == OPTIONAL else _MISSING
        if self.accept("="):
            default = self.default(kind)
        return Param(name, kind, default, named)

    def default(self, kind: str) -> Any:
        """The value after "="."""
        if kind == TENSOR:
            self.refuse(f"no default: a tensor that may be left out is a {OPTIONAL}")
        token, which = self.token, self.kind
        value: Any = _MISSING
        if which == "text":
            value = ast.literal_eval(token)
        elif which == "name":
            value = {"True": True, "False": False, "None": None, "inf": float("inf"),
                     "nan": float("nan")}.get(token, _MISSING)  # fmt: skip
        elif which == "number":
            whole = re.fullmatch(r"[+-]?[0-9]+", token)
            value = int(token) if whole else float(token)
        wanted = SCALARS.get(kind, type(None))
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            self.refuse("None" if kind == OPTIONAL else f"a default of type {kind}")
        if wanted is int and not -(2**63) <= value < 2**63:
            self.refuse("an int of 64 bits")
        self.advance()
        return value

    def results(self, taken: set[str]) -> tuple[str, ...]:
        several = self.accept("(")
        names: list[str | None] = [self.result(taken)]
        while several and self.accept(","):
            names.append(self.result(taken))
        if several:
            self.take(")")
        many = len(names) > 1
        return tuple(n or (f"out{i}" if many else "out") for i, n in enumerate(names))

    def result(self, taken: set[str]) -> str | None:
        if self.token != TENSOR:
            self.refuse(TENSOR)
        self.advance()
        if self.kind != "name":
            return None
        if self.token in taken:
            self.refuse("another name, since there is such a parameter or result")
        name = self.identifier("a name")
        taken.add(name)
        return name


def check_scalar(op: str, param: Param, value: Any) -> Any:
    """A value for a scalar parameter, as that type; numbers of NumPy are taken.

    Raises:
        ArgumentError: names op and argument.
    """
    wanted = SCALARS[param.kind]
    if type(value) is wanted and wanted is not int:
        return value
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is wanted and (wanted is not int or -(2**63) <= value < 2**63):
        return value
    raise failure(
        ArgumentError, f"{op}(): argument {param.name!r}: expected {param.kind}, got {value!r:.60}"
    )
