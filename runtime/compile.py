"""The user's door: a Python function in, a native callable out that runs it.

The callable traces, builds and loads on demand.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import numpy as np

from opkiln import native
from opkiln.ops.dtypes import BY_CODE
from opkiln.ops.primitives import FromHost, Reduce
from opkiln.ops.record import record
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import jit
from opkiln.runtime.config import config
from opkiln.runtime.debug import to_dot
from opkiln.runtime.errors import (
    ArgumentError,
    HostDivisionError,
    HostRangeError,
    IntegerPowerError,
    NotYet,
    OpkilnWarning,
    ShapeError,
    ToolchainNotFound,
)
from opkiln.runtime.graph import Graph, Node, topological
from opkiln.runtime.kernel import Kernel
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.program import Program, Request, clear_programs, program_of
from opkiln.runtime.reference import interpret
from opkiln.runtime.trace import Out, Traced, check_traceable, trace

Array = np.ndarray[Any, np.dtype[Any]]
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@record
class Info:
    """Counts of one compiled function since it was made or cleared."""

    calls: int
    hits: int  # calls served by an executor of this thread
    misses: int
    traces: int
    programs: int
    builds: int  # translation units compiled
    disk_hits: int  # translation units found in the cache directory
    fallbacks: int  # calls run by the interpreter for want of a compiler
    executors: int  # live, over all threads
    in_flight: int
    waits: int  # times a call waited for an executor's events
    copies: int  # arguments or results copied because of layout, alignment, byte order or overlap
    integer_faults: int  # calls in which an integer was divided by zero or overflowed in division
    bytes: int  # executors, beside workspace
    workspace_bytes: int
    evictions: int


@record
class Lowering:
    """What one call becomes at each stage."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    source: str

    @property
    def asm(self) -> str:
        """The compiler's assembly of the source, with the flags of a build.

        Raises:
            ToolchainNotFound: there is no compiler.
        """
        return jit.assembly(self.source)

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        return to_dot(self.graph)


class Compiled(Protocol[P, R_co]):
    """The type of a compiled function: called as the function itself, plus `out=`."""

    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function on arrays."""
        ...

    def info(self) -> Info:
        """Counters since the function was made or cleared."""
        ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowering:
        """Graph, kernels and source for these arguments; nothing runs."""
        ...

    def clear(self) -> None:
        """Forget traces, programs and executors of this function; captured names are read anew."""
        ...


class Plain(Generic[P, R]):
    """A function under OPKILN_DISABLE=1: itself, by NumPy, with the methods of a compiled one."""

    def __init__(self, fn: Callable[P, R]) -> None:
        self.fn: Callable[..., Any] = fn
        self.calls = 0
        functools.update_wrapper(cast("Any", self), fn)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the function as it is; results go to `out` by np.copyto."""
        self.calls += 1
        result = self.fn(*args, **kwargs)
        if out is None:
            return result
        several = isinstance(out, tuple)
        pairs: Iterable[tuple[Any, Array | None]] = (
            zip(result, cast("tuple[Array | None, ...]", out), strict=True)
            if several
            else ((result, out),)
        )
        for value, target in pairs:
            if target is not None:
                np.copyto(target, value, casting="same_kind")
        return out

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a method."""
        return self if instance is None else functools.partial(self, instance)

    def info(self) -> Info:
        """All zeros but `calls` and `fallbacks`."""
        return Info(
            **dict.fromkeys(Info.__match_args__, 0) | {"calls": self.calls, "fallbacks": self.calls}
        )

    def lower(self, *args: Any, **kwargs: Any) -> Lowering:
        """Nothing is lowered while opkiln is disabled."""
        raise NotYet("OPKILN_DISABLE is set, so nothing is lowered", fix="unset OPKILN_DISABLE")

    def clear(self) -> None:
        """Forget the count of calls."""
        self.calls = 0


class Record:
    """What the native side keeps per signature: plan, tree of results, captured arrays."""

    __slots__ = ("captures", "kinds", "n_outputs", "out_tree", "plan", "program", "where")

    def __init__(self, traced: Traced, program: Program, kinds: str) -> None:
        self.program = program
        self.kinds = kinds
        self.plan = program.plan
        self.captures = traced.captures
        self.out_tree = _with_slots(traced.out_tree)
        self.n_outputs = sum(kind == "buffer" for kind, _ in program.lowered.outputs)
        self.where = traced.graph.where


def _with_slots(tree: Any) -> Any:
    """The traced result tree with the native side's marks for outputs."""
    match tree:
        case Out():
            return native.Slot(tree.index)
        case tuple() | list():
            items = cast("tuple[object, ...] | list[object]", tree)
            return type(items)(_with_slots(item) for item in items)
        case dict():
            entries = cast("dict[object, object]", tree)
            return {key: _with_slots(item) for key, item in entries.items()}
        case _:
            return tree


class Function(Generic[P, R]):
    """The Python side of one compiled function: what the native object calls on a miss."""

    def __init__(self, fn: Callable[P, R], options: Options) -> None:
        check_traceable(fn)
        self.fn = fn
        self.options = options
        own_name: str = getattr(fn, "__qualname__", type(fn).__name__)
        self.name = options.name or own_name
        self.__qualname__ = self.name  # what the native side calls the function in messages
        self.signature = _signature(fn)
        self.parameters = tuple(self.signature.parameters.values())
        self.native = self._native()
        self._records: dict[Any, list[Record]] = {}
        self._lock = ForkLock()
        self._warned = False

    def _native(self) -> native.Compiled:
        unknown = [s for s in self.options.static if s not in self.signature.parameters]
        if unknown:
            raise ArgumentError(
                f"static={unknown}: {self.name} has no such parameter",
                fix=f"name some of {list(self.signature.parameters)}",
            )
        made = native.Compiled(
            self,
            tuple(p.name for p in self.parameters),
            bytes(int(p.kind) for p in self.parameters),
            tuple(native.MISSING if p.default is p.empty else p.default for p in self.parameters),
            tuple(p.name in self.options.static for p in self.parameters),
        )
        functools.update_wrapper(cast("Any", made), self.fn)
        return made

    # *** hooks of the native side ***

    def trace(self, tree: Any, leaves: list[Any], kinds: str) -> Record:
        """The record of a signature not seen yet: traced, rewritten and lowered, not built."""
        key = (
            _frozen(tree),
            kinds,
            tuple(_leaf_key(v, k) for v, k in zip(leaves, kinds, strict=True)),
        )
        arrays = [v for v, k in zip(leaves, kinds, strict=True) if k == "a"]
        with self._lock:
            for record in self._records.get(key, []):
                # Another thread was first, or another executor asks again with the pinned sizes.
                if all(arrays[i].shape[axis] == value for i, axis, value in record.program.pins):
                    return record
            names = tuple(p.name for p in self.parameters)
            param_kinds = tuple(p.kind for p in self.parameters)
            traced = trace(self.fn, names, param_kinds, tree, leaves, kinds, name=self.name)
            self.native._count("traces", 1)
            # The layout of captured arrays is checked on every call, so their sizes need no pin.
            pins = tuple(pin for pin in traced.pins if pin[0] < len(arrays))
            program, new = program_of(
                traced.graph, args=len(arrays), pins=pins, opt_level=self.options.opt_level
            )
            self.native._count("programs", int(new))
            record = Record(traced, program, kinds)
            self._records.setdefault(key, []).append(record)
            return record

    def build(self, record: Record, requests: list[Request]) -> None:
        """Make the requested kernels callable; without a compiler mark the plan as interpreted."""
        try:
            for loaded in record.program.build(requests):
                self.native._count("builds" if loaded.hit == "built" else "disk_hits", 1)
        except ToolchainNotFound as error:
            record.plan.set_fallback()
            self._warn_interpreted(error)

    def _warn_interpreted(self, error: ToolchainNotFound) -> None:
        if not self._warned:
            import warnings

            self._warned = True
            warnings.warn(
                f"{self.name} runs in the interpreter, at NumPy's speed, for want of a compiler: "
                f"{error}",
                OpkilnWarning,
                stacklevel=2,
            )

    def interpret(self, record: Record, leaves: list[Any]) -> tuple[Any, ...]:
        """Run a call without a compiler: by the reference interpreter."""
        kinds = record.kinds
        arrays = [np.asarray(v) for v, k in zip(leaves, kinds, strict=True) if k == "a"]
        weak = [v for v, k in zip(leaves, kinds, strict=True) if k in "iuf"]
        return tuple(interpret(record.program.graph, [*arrays, *record.captures], weak))

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called while another function is traced: this one becomes part of it."""
        return self.fn(*args, **kwargs)

    def export(self, module: str, array: Array) -> Any:
        """A result as the kind of tensor that the arguments were."""
        import importlib

        return importlib.import_module(module).from_dlpack(array)

    def host_error(self, record: Record, kind: str, register: int, values: tuple[Any, ...]) -> None:
        """Raise what a failed size or scalar computation means, naming the user's line.

        Raises:
            ShapeError, HostRangeError, HostDivisionError, IntegerPowerError.
        """
        node = record.program.registers.get(register)
        a, b = (*values, 0, 0)[:2]
        if kind == "empty_reduction":
            op, at = _place(
                record, lambda n: isinstance(n.op, Reduce) and REDUCTIONS[n.op.row].empty == "error"
            )
            raise ShapeError(f"{op}: zero-size array to a reduction which has no identity{at}")
        op, at = _place(record, lambda n: node is not None and node in _host_nodes(n))
        match kind:
            case "broadcast" | "same":
                raise ShapeError(
                    f"{op}: operands could not be broadcast together: extents {a} and {b}{at}"
                )
            case "range":
                raise HostRangeError(
                    f"{op}: Python integer {a} is out of bounds for {BY_CODE[b].name}{at}"
                )
            case "overflow":
                raise HostRangeError(
                    f"{op}: arithmetic on sizes or Python integers leaves int64{at}"
                )
            case "zero_division":
                raise HostDivisionError(f"{op}: division of a size or Python number by zero{at}")
            case "negative_power":
                raise IntegerPowerError(
                    f"{op}: Python integer to a negative power; use a float{at}"
                )
            case _:
                raise ShapeError(f"{op}: {kind} ({a}, {b}){at}")

    def fault(self, record: Record, bits: int) -> None:
        """Raise for kernels that met data they must refuse.

        Raises:
            IntegerPowerError: always; no other op refuses data.
        """
        del bits
        op, at = _place(record, lambda n: n.op.name == "power")
        raise IntegerPowerError(f"{op}: integers to negative integer powers are not allowed{at}")

    # *** the user's methods ***

    def info(self) -> Info:
        """Counters since the function was made or cleared."""
        counters = self.native._counters()
        counters["copies"] += counters["packs"]  # operands packed inside a call are copies too
        return Info(**{name: counters[name] for name in Info.__match_args__})

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowering:
        """Graph, kernels and source for these arguments; nothing is built and nothing runs."""
        tree, leaves, kinds = self.native._flatten(*args, **kwargs)
        record = self.trace(tree, leaves, kinds)
        arrays = [v for v, kind in zip(leaves, kinds, strict=True) if kind == "a"]
        # A program of its own has no variants yet, so all that a call needs is missing from it.
        program = Program(
            record.program.traced, len(arrays), record.program.pins, self.options.opt_level
        )
        requests = program.plan.missing(arrays, record.captures)
        kernels = tuple(launch.kernel for launch in program.lowered.launches)
        source = program.source(requests) if requests else ""
        return Lowering(program.graph, kernels, source)

    def clear(self) -> None:
        """Forget traces, programs and executors; captured names are read anew on the next call."""
        with self._lock:
            self._records.clear()
            self.native._clear()

    def explain(self) -> str:
        """Not built yet."""
        raise NotYet("explain() is not built yet", fix="use OPKILN_DEBUG=1 to see each miss")

    def warmup(self, *specs: Any) -> None:
        """Not built yet."""
        raise NotYet(
            "warmup() is not built yet", fix="call the function once with arrays of the same kind"
        )

    def bind(self, *args: Any) -> Any:
        """Not built yet."""
        raise NotYet(
            "bind() is not built yet",
            fix="call the function itself; a warm call costs about 100 ns",
        )

    def __reduce__(self) -> str:
        return self.fn.__qualname__

    def __repr__(self) -> str:
        return f"<opkiln.compile {self.name}>"


@record
class Options:
    """How a function is compiled; part of every key."""

    name: str | None = None
    static: tuple[str, ...] = ()
    opt_level: int = 2

    @staticmethod
    def checked(
        name: str | None, static: Any, opt_level: int, math: str, backend: str, mode: str
    ) -> Options:
        """Options from the user's keywords.

        Raises:
            NotYet: an option that exists in the design but is not built yet.
            ArgumentError: a value that no version accepts.
        """
        names = (static,) if isinstance(static, str) else tuple(static)
        if opt_level not in (0, 1, 2):
            raise ArgumentError(f"opt_level: expected 0, 1 or 2, got {opt_level!r}")
        for option, value, now, later in (
            ("math", math, ("strict",), ("fast",)),
            ("backend", backend, ("auto", "cpu"), ("cuda",)),
            ("mode", mode, ("sync",), ("async",)),
        ):
            if value in later:
                raise NotYet(f"{option}={value!r} is not built yet", fix=f"use {option}={now[0]!r}")
            if value not in now:
                raise ArgumentError(f"{option}: expected one of {[*now, *later]}, got {value!r}")
        return Options(name, names, opt_level)


@overload
def compile(fn: Callable[P, R], /) -> Compiled[P, R]: ...
@overload
def compile(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    static: str | tuple[str, ...] = (),
    opt_level: int = 2,
    math: str = "strict",
    backend: str = "auto",
    mode: str = "sync",
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...
@overload
def compile(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    static: str | tuple[str, ...] = (),
    opt_level: int = 2,
    math: str = "strict",
    backend: str = "auto",
    mode: str = "sync",
) -> Compiled[P, R]: ...
def compile(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    static: str | tuple[str, ...] = (),
    opt_level: int = 2,
    math: str = "strict",
    backend: str = "auto",
    mode: str = "sync",
) -> Any:
    """Compile a function over NumPy arrays; use as a decorator or a call.

    Args:
        fn: plain NumPy code. Arrays may be nested in tuples, lists and dicts.
        name: shown in messages instead of the function's own name.
        static: names of parameters whose value is fixed while tracing (one program per value).
        opt_level: 0 one kernel per op, 1 folding and sharing, 2 fusion; the bits stay the same.
        math: "strict" (NumPy's bits where SEMANTICS says so).
        backend: "auto" or "cpu".
        mode: "sync".

    Returns:
        A native callable with `.info()`, `.lower()`, `.clear()`; it accepts `out=`.

    Raises:
        NotYet: an option that is not built yet.
        ArgumentError: an unknown option value or static name.
    """
    options = Options.checked(name, static, opt_level, math, backend, mode)

    def decorate(function: Callable[..., Any]) -> Any:
        if config.disable:
            return Plain(function)
        return Function(function, options).native

    return decorate if fn is None else decorate(fn)


def _signature(fn: Any) -> inspect.Signature:
    """The parameters a call may fill; of a ufunc its operands only, since `out` is ours."""
    if isinstance(fn, np.ufunc):
        names = [f"x{i + 1}" for i in range(fn.nin)]
        return inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
        )
    return inspect.signature(fn)


def clear_cache() -> None:
    """Forget all programs of this process that no function holds. The cache on disk stays."""
    clear_programs()


def runtime_info() -> dict[str, int]:
    """Counts over the whole process: live executors, threads with a pool, bytes."""
    return native.thread_stats()


def _frozen(tree: Any) -> Any:
    """The argument tree as a hashable value."""
    match tree:
        case list():
            items = cast("list[object]", tree)
            return ("list", *(_frozen(item) for item in items))
        case tuple():
            fields = cast("tuple[object, ...]", tree)
            return ("tuple", *(_frozen(item) for item in fields))
        case dict():
            entries = cast("dict[object, object]", tree)
            return ("dict", *((key, _frozen(item)) for key, item in entries.items()))
        case _:
            return tree


def _leaf_key(value: Any, kind: str) -> Any:
    if kind == "a":
        return value.dtype.num, value.ndim
    # repr tells -0.0 from 0.0 and makes NaN equal to itself; the type tells True from 1.
    return (type(value), value, repr(value)) if kind == "s" else kind


def _host_nodes(node: Node) -> list[Node]:
    """The sizes and Python numbers that a node directly depends on."""
    return topological([*node.shape, *(s for s in node.src if s.is_host)])


def _place(record: Record, wanted: Callable[[Node], bool]) -> tuple[str, str]:
    """Name of the first op that fits and where the user wrote it, for messages."""
    graph = record.program.graph
    found: Node | None = None
    for node in graph.nodes:
        if node.is_host:
            continue
        # A Python number enters by a conversion; the user knows the op that it feeds.
        converted = isinstance(getattr(found, "op", None), FromHost)
        if (found is None and wanted(node)) or (converted and found in node.src):
            found = node
        if found is not None and not isinstance(found.op, FromHost):
            break
    if found is None:
        return "call", ""
    at = graph.where.get(found) or record.where.get(found)
    return found.op.name, f" ({at})" if at else ""
