"""The registry: what `ok.custom_op` is given in, one definition per name out.

A definition knows where the native code lies, which the op, a value, does not: programs and ops
find it by the op's name and content.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from opkiln import native
from opkiln.ops.definitions import CustomOp
from opkiln.ops.defs import Key, OpDef, encode
from opkiln.ops.record import record
from opkiln.runtime.custom_op.schema import Param, Schema, check_scalar
from opkiln.runtime.errors import (
    AbiMismatch,
    ArgumentError,
    DeviceMismatch,
    LoadFailed,
    RegistrationError,
    SymbolMissing,
)
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.memo import Memo
from opkiln.runtime.trace.session import failure, is_a

_KINDS = {"bool": 0, "int": 1, "float": 2, "str": 3}  # of opkiln/op.h


@record
class Code:
    """Where the descriptor of an op lies in this process, and what it is to every process."""

    address: int
    library: native.Library
    file: str  # digest of the library
    symbol: str  # or the offset in it

    @property
    def key(self) -> Key:
        """Its content."""
        return self.file, self.symbol


class Definition:
    """All about one registered op."""

    def __init__(
        self, schema: Schema, code: Mapping[str, Code], infer: Callable[..., Any] | None,
        backward: Any, any_layout: bool,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.code = dict(code)
        self.infer = infer
        self.backward = backward
        self.any_layout = any_layout
        parts: Key = (
            tuple((device, one.key) for device, one in sorted(code.items())), _code_key(infer),
            _code_key(backward), any_layout,
        )  # fmt: skip
        self.content = hashlib.sha256(encode((str(schema), parts))).digest()
        self.texts = tuple(p.name for p in schema.scalars if p.kind == "str")
        self.plain: dict[tuple[str, tuple[bool, ...]], native.OpSpec] = {}  # without texts
        self.specs: Memo[native.OpSpec] = Memo(1024)
        for device in code:
            self.spec(device, (True,) * len(schema.tensors), self.bound(()))  # checks the ABI

    @property
    def op(self) -> CustomOp:
        """The op, with the scalars of its schema."""
        return CustomOp(str(self.schema), self.content)

    def bound(self, params: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
        """Each scalar by name; `inspect.Parameter.empty` where there is none yet."""
        return {**{p.name: p.default for p in self.schema.scalars}, **dict(params)}

    def spec(
        self, device: str, given: tuple[bool, ...], scalars: Mapping[str, Any]
    ) -> native.OpSpec:
        """The native op with these tensors given, and with the strings among the scalars.

        Raises:
            DeviceMismatch: there is no code for such devices.
            AbiMismatch: it is no op of a version that this runtime knows.
        """
        known = self.plain.get((device, given))
        if known is not None:
            return known
        if device not in self.code:
            have = " and ".join(self.code)
            raise failure(
                DeviceMismatch,
                f"{self.schema.name}: there is code for {have}, none for {device}",
                fix=f"pass {device}= to ok.custom_op, or move the arrays",
            )
        texts = {n: scalars[n] if type(scalars[n]) is str else "" for n in self.texts}
        if not texts:
            return self.plain.setdefault((device, given), self._spec(device, given, texts))
        key = device, given, tuple(texts.values())
        return self.specs.get(key, lambda: self._spec(device, given, texts))

    def _spec(
        self, device: str, given: tuple[bool, ...], texts: Mapping[str, str]
    ) -> native.OpSpec:
        code = self.code[device]
        kinds = [(_KINDS[p.kind], texts.get(p.name, "")) for p in self.schema.scalars]
        try:
            return native.OpSpec(code.address, code.library, given, kinds, self.any_layout)
        except AbiMismatch as error:
            raise failure(
                AbiMismatch, f"{self.schema.name}: {code.symbol} of {code.library.path}: {error}"
            ) from None

    def numbers(self, scalars: Mapping[str, Any]) -> list[Any]:
        """The scalars that are no strings, in order."""
        return [scalars[p.name] for p in self.schema.scalars if p.kind != "str"]


def _code_key(value: Any) -> Key:
    """What a function does, as far as its code tells; of an op its name."""
    if value is None or isinstance(value, (str, CustomOp)):
        return value
    code = getattr(value, "__code__", None)
    kept = [*(getattr(value, "__defaults__", None) or ())]
    for cell in getattr(value, "__closure__", None) or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet, such as that of an op defined later
            continue
    return (
        f"{value.__module__}.{value.__qualname__}",
        _code_parts(code) if isinstance(code, CodeType) else None,
        tuple(_plain(v) for v in kept if not isinstance(v, OpDef)),  # as ops name each other
    )


def _code_parts(code: CodeType) -> Key:
    consts = tuple(_code_parts(c) if isinstance(c, CodeType) else _plain(c) for c in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames


def _plain(value: Any) -> Key:
    try:
        encode(value)
    except TypeError:
        return type(value).__qualname__
    return value  # type: ignore[no-any-return]


# ---- the code of an op ----


def find_code(name: str, device: str, given: str | int, library: Any) -> Code:
    """The descriptor of an op, by its symbol in a library or its address.

    Raises:
        ArgumentError: neither, or no library for a symbol.
        LoadFailed, SymbolMissing: the library, or the symbol in it, is not there.
    """
    if type(given) is int:
        place = native.place_of(given)
        if place is None:
            raise failure(
                ArgumentError, f"{name}: {device}={given:#x} lies in no shared library",
                fix="pass the name of a symbol, and library=",
            )  # fmt: skip
        path, offset = place
        return Code(given, native.Library(path), _digest(path), f"+{offset:#x}")
    if not isinstance(given, str):
        raise failure(
            ArgumentError,
            f"{name}: {device}: expected a symbol or an address, got {given!r:.60}",
        )
    loaded = _loaded(name, library)
    # What ok.load built is known by its key; its file may have moved when it was published.
    key: str | None = getattr(getattr(library, "parts", None), "hexdigest", None)
    try:
        address = loaded.symbol(given)
    except SymbolMissing as error:
        raise failure(
            SymbolMissing, f"{name}: {error}",
            fix=f"export it: OK_OP({given}, ...) in C, OK_CPP_OP({given}, ...) in C++",
        ) from None  # fmt: skip
    return Code(address, loaded, key or _digest(loaded.path), given)


def _loaded(name: str, library: Any) -> native.Library:
    """The library that `library=` means: a loaded one, what `ok.load` gave, or a path."""
    found = getattr(library, "library", library)
    if isinstance(found, native.Library):
        return found
    if not is_a(found, str, os.PathLike):
        raise failure(
            ArgumentError,
            f"{name}: library: expected what ok.load gives, or a path, got {library!r:.60}",
        )
    try:
        return native.Library(os.path.realpath(found))
    except OSError as error:
        raise failure(LoadFailed, f"{name}: {str(error).splitlines()[0]}") from None


def _digest(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- names ----

_lock = ForkLock()
_live: dict[str, Definition] = {}


def register(made: Definition, hold: Any) -> CustomOp:
    """The op of a definition; one of equal content that is there already stays.

    Raises:
        RegistrationError: another op has the name.
    """
    name = made.schema.name
    with _lock:
        known = _live.get(name)
        if known is None:
            _live[name] = made
            _held[name] = hold
            if hasattr(hold, "hold"):
                hold.hold(name)
        elif known.content != made.content:
            raise failure(
                RegistrationError,
                f"{name} is registered with other content: {_difference(known, made)}",
                fix="choose another name, or unregister() the op that has it",
            )
    return made.op


_held: dict[str, Any] = {}  # what ok.load gave, which is not unloaded meanwhile


def unregister(op: CustomOp) -> None:
    """Give the name of an op free.

    Raises:
        RegistrationError: it does not have it.
    """
    definition(op)
    with _lock:
        _live.pop(op.name, None)
        hold = _held.pop(op.name, None)
    if hasattr(hold, "release"):
        hold.release(op.name)


def _difference(known: Definition, made: Definition) -> str:
    if str(known.schema) != str(made.schema):
        return f"its schema is {known.schema}"
    for device in {**known.code, **made.code}:
        one, other = known.code.get(device), made.code.get(device)
        if one is None or other is None or one.key != other.key:
            path = one.library.path if one else "none"
            return f"its {device} code is {one.symbol + ' of ' if one else ''}{path}"
    return "its infer=, backward= or layout= differ"


def definition(op: CustomOp) -> Definition:
    """What an op stands for in this process.

    Raises:
        RegistrationError: it was unregistered, or never registered here.
    """
    found = _live.get(op.name)
    if found is None or found.content != op.content:
        other = ": another op has its name" if found is not None else ""
        raise failure(
            RegistrationError,
            f"{op.name} is not registered in this process{other}",
            fix="run the ok.custom_op(...) that made it",
        )
    return found


def by_name(name: str) -> Definition:
    """The definition that has a name now.

    Raises:
        RegistrationError: none has.
    """
    found = _live.get(name)
    if found is None:
        raise failure(
            RegistrationError, f"no op {name} is registered in this process",
            fix="define it by ok.custom_op before it is needed",
        )  # fmt: skip
    return found


def registered() -> tuple[str, ...]:
    """The names of all ops, sorted."""
    return tuple(sorted(_live))


# ---- calls ----


def arguments(
    op: CustomOp, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Definition, list[Any], dict[str, Any]]:
    """The definition, the tensors (None: not given) and the scalars of a call.

    Raises:
        ArgumentError: they do not fit the schema.
    """
    found = definition(op)
    schema = found.schema
    values = {**dict(op.params), **kwargs}
    for param, value in zip(schema.params, args, strict=False):
        if param.name in kwargs or param.named:
            raise _misfit(op, schema, args, kwargs)
        values[param.name] = value
    if len(args) > len(schema.params) or not schema.names >= values.keys():
        raise _misfit(op, schema, args, kwargs)
    tensors = [_argument(op, schema, p, values) for p in schema.tensors]
    scalars = {p.name: _argument(op, schema, p, values) for p in schema.scalars}
    return found, tensors, scalars


def _misfit(
    op: CustomOp, schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ArgumentError:
    """What Python says of such a call."""
    said = "its arguments do not fit"
    try:
        schema.signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        said = str(error)
    found = failure(ArgumentError, f"{op.name}(): {said}", fix=str(schema))
    assert isinstance(found, ArgumentError)
    return found


def _argument(op: CustomOp, schema: Schema, param: Param, values: Mapping[str, Any]) -> Any:
    value = values.get(param.name, param.default)
    if value is inspect.Parameter.empty:
        raise failure(
            ArgumentError, f"{op.name}(): missing argument {param.name!r}", fix=str(schema)
        )
    if param.kind == "Tensor":
        if value is None:
            raise failure(
                ArgumentError, f"{op.name}(): argument {param.name!r}: expected a tensor, got None"
            )
        return value
    if param.kind == "Tensor?":
        return value
    traced = hasattr(value, "__opkiln_tracer__")
    return value if traced else check_scalar(op.name, param, value)
