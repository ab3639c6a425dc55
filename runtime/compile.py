"""The user's door: a Python function in, a native callable out that runs it.

The callable traces, builds and loads on demand.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakSet

import numpy as np

from opkiln import native
from opkiln.runtime import blame, debug, interop, jit
from opkiln.runtime.config import config
from opkiln.runtime.errors import (
    ArgumentError,
    NotCached,
    OpkilnError,
    OpkilnWarning,
    ToolchainNotFound,
)
from opkiln.runtime.errstate import MODES
from opkiln.runtime.executor import Info, RuntimeInfo, apply_limits, info_of, runtime_info_of
from opkiln.runtime.explain import Cause, Explanation, History, Kernels
from opkiln.runtime.graph import Graph
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.options import Options, checked
from opkiln.runtime.parts import (
    Change,
    argument_parts,
    capture_parts,
    class_changes,
    pin_parts,
    summary,
)
from opkiln.runtime.program import Program, Request, clear_programs, pins_hold, program_of
from opkiln.runtime.reference import interpret
from opkiln.runtime.rewrite import rewrite
from opkiln.runtime.spec import Warmed
from opkiln.runtime.stages import Lowering
from opkiln.runtime.trace import Nested, Out, Traced, check_traceable, labels_of, trace
from opkiln.runtime.tree import hashable, mapped

if TYPE_CHECKING:
    from typing import Unpack

    from opkiln.runtime.options import Keywords

SIGNATURES = 4096  # records that one function remembers for other threads

Array = np.ndarray[Any, np.dtype[Any]]
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Compiled(Protocol[P, R_co]):
    """The type of a compiled function: called as the function itself, plus `out=`."""

    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function on arrays; the first call of a kind traces and builds.

        Arrays have bool, 8 to 64-bit integers, float32 or float64, and any strides. Results have
        NumPy's dtype and shape and own their memory; one without axes is a NumPy scalar. `out=` is
        an array of the exact shape, or a tuple with one for each array result.

        Raises:
            ArgumentError: the arguments do not fit the signature.
            UnsupportedDType: an array has another dtype, or `out=` one that cannot hold the result.
            TraceError: the function does what cannot be traced.
            ShapeError: shapes do not fit each other, or `out=`.
            ReadOnlyError: `out=` cannot be written.
            HostRangeError: a Python number does not fit the dtype that it meets.
            CompileFailed: the compiler refused the kernel.
        """
        ...

    def info(self) -> Info:
        """Counters since the function was made."""
        ...

    def explain(self) -> Explanation:
        """Why calls missed, and what each miss cost; print it."""
        ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowering:
        """Graph, kernels and source for these arguments; nothing runs."""
        ...

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R_co]:
        """A callable that repeats this call on the same arrays, with results in the same arrays."""
        ...

    def warmup(self, *args: Any, **kwargs: Any) -> Warmed:
        """Build ahead what a call would need, from `TensorSpec`s in place of arrays."""
        ...

    def clear(self) -> None:
        """Forget traces, programs and executors of this function; captured names are read anew."""
        ...


class Record:
    """What the native side keeps per signature: plan, tree of results, captured arrays."""

    __slots__ = (
        "__weakref__",
        "captured",
        "captures",
        "cause",
        "divides",
        "graph",
        "kinds",
        "labels",
        "out_tree",
        "plan",
        "program",
    )

    def __init__(
        self, traced: Traced, program: Program, kinds: str, labels: tuple[str, ...], cause: Cause
    ) -> None:
        self.graph = traced.graph  # equal to the program's, with this function's own lines
        self.program = program
        self.kinds = kinds
        self.plan = program.plan
        self.captures = traced.captures
        self.captured = traced.captured
        self.labels = labels  # of the array leaves, then of the captures
        self.divides = bool(blame.divisions(program.graph, -1))
        self.cause: Cause | None = cause  # of the trace, until a miss has told it
        # The native side's marks for outputs; equal values share one.
        slots = program.lowered.slots
        self.out_tree = mapped(
            traced.out_tree, lambda v: native.Slot(slots[v.index]) if isinstance(v, Out) else v
        )


class Function(Generic[P, R]):
    """The Python side of one compiled function: what the native object calls on a miss."""

    def __init__(self, fn: Callable[P, R], options: Options, *, takes_out: bool = True) -> None:
        check_traceable(fn)
        self.fn = fn
        self.options = options
        own_name: str = getattr(fn, "__qualname__", type(fn).__name__)
        self.name = options.name or own_name
        self.__qualname__ = self.name  # what the native side calls the function in messages
        self.signature = _signature(fn)
        self.parameters = tuple(self.signature.parameters.values())
        self.native = self._native(takes_out)
        self.history = History(self.name, fn, options)
        # Held by the native side, which lets go of them when a receiver dies.
        self._records: dict[Any, WeakSet[Record]] = {}
        self._lock = ForkLock()

    def _native(self, takes_out: bool) -> native.Compiled:
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
            MODES.index(self.options.errstate),
            takes_out,
        )
        functools.update_wrapper(cast("Any", made), self.fn)
        return made

    # *** hooks of the native side ***

    def trace(self, tree: Any, leaves: list[Any], kinds: str) -> Record:
        """The record of a signature not seen yet: traced, rewritten and lowered, not built."""
        key = (
            hashable(tree),
            kinds,
            tuple(self._leaf_key(v, k) for v, k in zip(leaves, kinds, strict=True)),
        )
        arrays = [v for v, k in zip(leaves, kinds, strict=True) if k == "a"]
        with self._lock:
            records = self._records  # clear() puts another in its place, also during the trace
            for record in records.get(key, ()):
                # Another thread was first, or another executor asks again with the pinned sizes.
                if pins_hold(record.program.pins, arrays):
                    return record
            names = tuple(p.name for p in self.parameters)
            param_kinds = tuple(p.kind for p in self.parameters)
            start = time.perf_counter()
            # Calls in the function have values, whatever stream this one is for.
            with Nested(self, self.name), native.Stream.inline():
                traced = trace(self.fn, names, param_kinds, tree, leaves, kinds, name=self.name)
            trace_end = time.perf_counter()
            self.native._count("traces", 1)
            # The layout of captured arrays is checked on every call, so their sizes need no pin.
            pins = tuple(pin for pin in traced.pins if pin[0] < len(arrays))
            paths = labels_of(names, tree)
            labels = tuple(paths[i][1] for i in range(len(leaves)))
            program, new = program_of(
                traced.graph, args=len(arrays), pins=pins, opt_level=self.options.opt_level
            )
            self.native._count("programs", int(new))
            parts = self._parts(traced, labels, leaves, kinds)
            if debug.enabled(2):
                debug.log(2, "%s: traced for (%s), %s", self.name, summary(parts), program.name)
            cause = self.history.traced(
                parts,
                (trace_end - start) * 1e3,
                (time.perf_counter() - trace_end) * 1e3,
                shared=not new,
                divisions=(f"{op} ({at})" for op, at in blame.divisions(traced.graph, -1)),
            )
            record = Record(traced, program, kinds, _array_labels(traced, labels, kinds), cause)
            if config.disable:
                record.plan.set_fallback()
            records.setdefault(key, WeakSet()).add(record)
            if len(records) > SIGNATURES:  # the native side still holds those it uses
                records.pop(next(iter(records)))
            return record

    def _leaf_key(self, value: Any, kind: str) -> Any:
        """What a leaf adds to the signature: dtype and rank, a static value's id, or its kind."""
        if kind == "a":
            return native.dtype_code(value.dtype), value.ndim
        return self.native._static_id(value) if kind == "s" else kind

    def _parts(
        self, traced: Traced, labels: tuple[str, ...], leaves: list[Any], kinds: str
    ) -> dict[tuple[str, str], str]:
        """The named parts of a trace's key."""
        ids = [
            self.history.number(v, self.native._static_id(v)) if k == "s" else None
            for v, k in zip(leaves, kinds, strict=True)
        ]
        arrays = [label for label, k in zip(labels, kinds, strict=True) if k == "a"]
        pins = zip(traced.pins, traced.pin_places, strict=True)
        own = [(pin, at) for pin, at in pins if pin[0] < len(arrays)]
        return {
            **argument_parts(labels, leaves, kinds, ids),
            **pin_parts(own, arrays),
            **capture_parts(_capture_labels(traced), traced.captures),
        }

    def build(self, record: Record, requests: list[Request]) -> Kernels:
        """Make the requested kernels callable; without a compiler mark the plan as interpreted."""
        program, start = record.program, time.perf_counter()
        changes = class_changes(program.lowered, program.built, requests, record.labels)

        def kernels(source: str, why: tuple[Change, ...] = ()) -> Kernels:
            return Kernels(changes, source, time.perf_counter() - start, why)

        try:
            loaded = program.build(requests)
        except NotCached as error:
            raise self.not_cached(record, error, kernels("NotCached")) from None
        except ToolchainNotFound as error:
            self.without_compiler(record, error, kernels("NotCached"))
            return kernels("interpreted")
        except OpkilnError as error:
            self.history.failed(self.native._misses(), record.cause, kernels(type(error).__name__))
            raise
        for one in loaded:
            self.count(one)
        sources = [one.hit for one in loaded]
        source = "built" if "built" in sources else "disk" if sources else "memory"
        return kernels(source, tuple(Change(*part) for one in loaded for part in one.why))

    def count(self, loaded: jit.Loaded) -> None:
        """Count a translation unit of this function."""
        self.native._count("builds" if loaded.hit == "built" else "disk_hits", 1)

    def without_compiler(
        self, record: Record, error: ToolchainNotFound, kernels: Kernels | None = None
    ) -> None:
        """From now on the record's calls are interpreted, unless a build is an error."""
        if config.assert_cached:
            raise self.not_cached(record, error, kernels) from error
        record.plan.set_fallback()
        record.program.no_compiler = str(error).splitlines()[0]
        _warn_interpreted(error)

    def not_cached(
        self, record: Record, error: OpkilnError, kernels: Kernels | None = None
    ) -> NotCached:
        """The error of OPKILN_ASSERT_CACHED, with the reason that explain() gives."""
        lost = kernels or Kernels((), "NotCached", 0.0, ())
        miss = self.history.failed(self.native._misses(), record.cause, lost)
        message, _, fix = str(error).partition("\n  how to fix: ")
        return NotCached(f"{self.name}: {miss.reason}; {message}", fix=fix or None)

    def missed(self, record: Record, number: int, built: Kernels | None) -> None:
        """Note a miss in which a hook ran, or any for the log."""
        with self._lock:
            cause, record.cause = record.cause, None
        self.history.missed(self.native._misses(), number, cause, built)

    def leased(self, line: str) -> None:
        """Log what the native pool did for a call; asked only with level 2 on."""
        debug.log(2, "%s: %s", self.name, line)

    def ahead(self, record: Record, door: str, seconds: float = 0.0) -> None:
        """Note a trace made by a method, before any call that needs it."""
        with self._lock:
            record.cause = self.history.ahead(record.cause, door, seconds * 1e3)

    def interpret(self, record: Record, leaves: list[Any]) -> tuple[Any, ...]:
        """Run a call without a compiler: by the reference interpreter."""
        if config.assert_cached:
            raise NotCached(
                f"{self.name}: runs in the interpreter, since no compiler was found",
                fix="install a compiler or fill the cache, and start the process again",
            )
        kinds = record.kinds
        arrays = [np.asarray(v) for v, k in zip(leaves, kinds, strict=True) if k == "a"]
        weak = [v for v, k in zip(leaves, kinds, strict=True) if k in "iuf"]
        faults: set[int] = set()
        inputs = [*arrays, *record.captures]
        values = interpret(record.program.graph, inputs, weak, on_fault=faults.add)
        self.history.no_compiler = record.program.no_compiler
        if faults:
            self.native._count("integer_faults", 1)
            mode = MODES[self.native._errstate()]
            if mode != "ignore":
                self.fault(record, sum(faults), mode == "raise")
        # One value per plan output: graph outputs that are equal share a place.
        return tuple(dict(zip(record.program.lowered.slots, values, strict=True)).values())

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called while another function is traced: this one becomes part of it."""
        with Nested(self, self.name):
            return self.fn(*args, **kwargs)

    def export(self, library: str, array: Array) -> Any:
        """A result as the kind of array that the arguments were."""
        return interop.export(library, array)

    def host_error(self, record: Record, kind: str, register: int, values: blame.Values) -> None:
        """Raise what a failed size or scalar computation means, naming the user's line."""
        node = record.program.registers.get(register)
        blame.host_error(self._located(record), kind, node, values)

    def op_error(self, record: Record, kernel: int, said: str) -> None:
        """Raise what a custom op reported, naming the user's line."""
        call = record.program.lowered.launches[kernel].kernel.call
        blame.op_error(self._located(record), call, said)

    def fault(self, record: Record, bits: int, raises: bool) -> None:
        """Raise or warn for kernels that met data on which NumPy does, or errstate says so."""
        namespace = getattr(self.fn, "__globals__", {})
        blame.fault(self._located(record), bits, namespace, raises=raises)

    def _located(self, record: Record) -> Graph:
        """The program's graph with this function's lines; equal graphs rewrite alike."""
        return rewrite(record.graph, opt_level=self.options.opt_level)

    # *** the user's methods ***

    def info(self) -> Info:
        """Counters since the function was made."""
        return info_of([self.native])

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> Lowering:
        """Graph, kernels and source for these arguments; nothing is built and nothing runs."""
        with self._method_hint("lower"):
            tree, leaves, kinds = self.native._flatten(*args, **kwargs)
        record, _ = self.native._missing(*args, **kwargs)
        self.ahead(record, "lower")
        arrays = [v for v, kind in zip(leaves, kinds, strict=True) if kind == "a"]
        # A program of its own has no variants yet, so all that a call needs is missing from it.
        program = Program(record.graph, len(arrays), record.program.pins, self.options.opt_level)
        requests = program.plan.missing(arrays, record.captures)
        labels = labels_of([p.name for p in self.parameters], tree)
        paths = [labels[at][1] for at in range(len(leaves))]
        return Lowering(
            record.graph,
            program.graph,
            program.lowered,
            program.source(requests) if requests else "",
            arrays=(
                *(path for path, kind in zip(paths, kinds, strict=True) if kind == "a"),
                *(c.name or f"captured{i}" for i, c in enumerate(record.captured)),
            ),
            scalars=tuple(path for path, kind in zip(paths, kinds, strict=True) if kind in "iuf"),
            shapes=tuple(np.shape(array) for array in [*arrays, *record.captures]),
        )

    def clear(self) -> None:
        """Forget traces, programs and executors; captured names are read anew on the next call."""
        self._records = {}  # without the lock: a trace in progress serves its own call only
        self.native._clear()
        self.history.cleared()

    def explain(self) -> Explanation:
        """Why calls missed: for each miss the parts of its key that changed, and what it cost."""
        counts = self.native._counters()
        with self._lock:
            records = [record for held in self._records.values() for record in held]
        captured = [one for record in records for one in record.captured]
        return self.history.explanation(
            self.native._misses(), self.native._copies(), counts, captured
        )

    def warmup(self, /, *args: Any, **kwargs: Any) -> Warmed:
        """Build ahead what such a call needs; nothing runs, and no array is needed.

        Args:
            args: as the function takes them, with a `TensorSpec` in place of each array, and the
                type int or float in place of any number. Arrays and numbers will do too.
            kwargs: the same, and `out=` if calls will have it in another memory order.

        Raises:
            OpkilnError: as the call would, for want of data that only a run has excepted.
        """
        from opkiln.runtime.warmup import Call, warm  # 1 ms that no import need spend

        with self._method_hint("warmup"):
            return warm([Call(self.native, args, kwargs)])[0]

    def bind(self, /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """A callable that repeats this call on these very arrays, with results in the same arrays.

        For the tightest loops: nothing is looked up or allocated. Write new data into the arrays
        between the calls. One thread at a time may call it.
        """
        # Containers are copied, so that what is bound stays bound.
        args, kwargs = mapped((args, kwargs), lambda v: v)
        with self._method_hint("bind"):
            return self.native._bind(*args, **kwargs)

    @contextmanager
    def _method_hint(self, door: str) -> Generator[None]:
        """In obj.method.bind Python drops obj: say so when an argument is missing."""
        try:
            yield
        except ArgumentError as error:
            if error.fix or not self.parameters or self.parameters[0].name not in ("self", "cls"):
                raise
            fix = f"of a method, name the instance too: Class.{self.fn.__name__}.{door}(obj, ...)"
            raise ArgumentError(str(error), fix=fix) from None

    def __reduce__(self) -> str:
        name: str | None = getattr(self.fn, "__qualname__", None)
        if name is None:
            raise TypeError(
                f"cannot pickle {self!r}: a {type(self.fn).__name__} has no name to be found by"
            )
        return name

    def __repr__(self) -> str:
        return f"<opkiln.compile {self.name}>"


@overload
def compile(fn: Callable[P, R], /, **options: Unpack[Keywords]) -> Compiled[P, R]: ...
@overload
def compile(
    fn: None = None, /, **options: Unpack[Keywords]
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...
def compile(fn: Any = None, /, **options: Unpack[Keywords]) -> Any:
    """Compile a function over NumPy arrays; use as a decorator or a call.

    Args:
        fn: plain NumPy code. Arrays may be nested in tuples, lists and dicts.
        name: shown in messages instead of the function's own name.
        static: names of parameters whose value is fixed while tracing (one program per value).
        opt_level: 0 one kernel per op, 1 folding and sharing, 2 fusion; the bits stay the same.
        math: "strict": NumPy's bits where docs/numerics.md promises them.
        backend: "auto" or "cpu".
        mode: "sync".
        errstate: of integer division by zero and its overflow: "ignore" gives NumPy's value and a
            count in info(), "warn" NumPy's warning too, "raise" an error. `ok.errstate` wins.

    Returns:
        A native callable with `.info()`, `.explain()`, `.lower()`, `.clear()`; it accepts `out=`.

    Raises:
        NotYet: an option that is not built yet.
        ArgumentError: an unknown option value or static name.
    """
    chosen = checked(dict(options))

    def decorate(function: Callable[..., Any]) -> Any:
        return callable_of(function, chosen)

    return decorate if fn is None else decorate(fn)


def callable_of(function: Callable[..., Any], options: Options, *, derivative: bool = False) -> Any:
    """The callable of a function.

    A derivative takes no `out=`; it cannot run as plain NumPy, so under OPKILN_DISABLE=1 it is
    interpreted.
    """
    if config.disable and not derivative:
        from opkiln.runtime.plain import Plain

        return Plain(function)
    apply_limits()
    made = Function(function, options, takes_out=not derivative).native
    _LIVE.add(made)
    return made


def _array_labels(traced: Traced, labels: tuple[str, ...], kinds: str) -> tuple[str, ...]:
    """Names of a program's inputs: array leaves, then captures."""
    arrays = [label for label, kind in zip(labels, kinds, strict=True) if kind == "a"]
    return (*arrays, *_capture_labels(traced))


def _capture_labels(traced: Traced) -> tuple[str, ...]:
    """What captured arrays are called: by where the function has them from, else by number."""
    return tuple(f"captured array {c.name or i}" for i, c in enumerate(traced.captured))


def _signature(fn: Any) -> inspect.Signature:
    """The parameters a call may fill; of a ufunc its operands only, since `out` is ours."""
    if isinstance(fn, np.ufunc):
        names = [f"x{i + 1}" for i in range(fn.nin)]
        return inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
        )
    try:
        return inspect.signature(fn)
    except ValueError:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise ArgumentError(
            f"compile: Python does not know the parameters of the builtin {name}",
            fix=f"wrap it: ok.compile(lambda x: {name}(x))",
        ) from None


_LIVE: WeakSet[native.Compiled] = WeakSet()  # what runtime_info() adds up
_warned: list[str] = []


def _warn_interpreted(error: ToolchainNotFound) -> None:
    """Say once per process that calls are interpreted; info().fallbacks counts them."""
    if _warned:
        return
    import warnings

    _warned.append(str(error))
    text = f"compiled functions run in the interpreter, no faster than NumPy: {error}"
    warnings.warn(text, OpkilnWarning, stacklevel=2)


def warmup(*calls: object) -> tuple[Warmed, ...]:
    """Build ahead what several calls need, side by side; see `Compiled.warmup`.

    Args:
        calls: each a tuple (function, argument, ...) or a functools.partial, of compiled functions.

    Returns:
        What was found of each call, in order.

    Raises:
        OpkilnError: the first of the calls that failed, after all others were built.
    """
    from opkiln.runtime.warmup import call_of, warm

    return warm([call_of(call) for call in calls])


def clear_cache() -> None:
    """Forget what this process compiled: each function's traces, programs and executors.

    The cache on disk stays; `opkiln cache clear` empties that.
    """
    for function in list(_LIVE):
        function._frontend.clear()
    clear_programs()


def runtime_info() -> RuntimeInfo:
    """The counts of all live compiled functions, and what this thread's pools hold."""
    return runtime_info_of(list(_LIVE))
