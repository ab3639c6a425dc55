"""Program: a traced graph in, a plan whose kernels are compiled and loaded on demand out.

Equal graphs share one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from opkiln.native import Plan
from opkiln.runtime import debug, jit
from opkiln.runtime.config import config
from opkiln.runtime.emit_cpp import Job, emit
from opkiln.runtime.errors import ToolchainNotFound
from opkiln.runtime.graph import NOT_ONE, Graph, Node, Pin
from opkiln.runtime.kernel import Lowered
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.lower import lower
from opkiln.runtime.picture import to_dot
from opkiln.runtime.plan import make_plan
from opkiln.runtime.rewrite import rewrite

Request = tuple[int, str]  # kernel index, column class per operand
Pins = tuple[Pin, ...]


class Program:
    """An immutable program and the variants of its kernels built so far; any thread may use it.

    Functions whose graphs are equal share it, so it knows no user's lines: those are each record's.
    """

    def __init__(self, graph: Graph, args: int, pins: Pins, opt_level: int) -> None:
        self.pins = pins
        self.graph = rewrite(graph, opt_level=opt_level)
        self.lowered: Lowered = lower(self.graph, opt_level=opt_level)
        self.plan: Plan
        self.registers: dict[int, Node]
        self.plan, self.registers = make_plan(self.lowered, args=args, pins=pins)
        self.built: dict[Request, str] = {}  # request -> path of the artifact
        self.no_compiler = ""  # why its plan is interpreted
        self._lock = ForkLock()
        self.show(graph)

    def show(self, traced: Graph) -> None:
        """The stages for OPKILN_DEBUG=3 and OPKILN_DUMP_DIR."""
        if debug.enabled(3):
            debug.log(3, "graph\n%s\nkernels\n%s", self.graph, self.lowered)
        if config.dump_dir is not None:
            debug.dump("traced.txt", self.name, str(traced))
            debug.dump("graph.txt", self.name, str(self.graph))
            debug.dump("graph.dot", self.name, to_dot(self.graph))
            debug.dump("kernels.txt", self.name, str(self.lowered))

    @property
    def name(self) -> str:
        """Names the program in logs and dumps: by content, never by a user's identifier."""
        return f"program-{self.graph.digest.hex()[:12]}"

    def source(self, requests: Sequence[Request]) -> str:
        """The translation unit that serves these requests."""
        return unit_of([(self, requests)])[0]

    def build(self, requests: list[Request]) -> list[jit.Loaded]:
        """Compile or load what is missing of `requests` and register it; one builder at a time.

        Raises:
            ToolchainNotFound, CompileFailed, CompileTimeout, LoadFailed, SymbolMissing, CacheError.
        """
        with self._lock:
            missing = [r for r in requests if r not in self.built]
            if not missing:
                return []
            found = self._load_apart(missing)
            missing = [r for r in missing if r not in self.built]
            if not missing:
                return found
            text, symbols = unit_of([(self, missing)])
            debug.log(4, "source\n%s", text)
            debug.dump("kernel.cpp", self.name, text)
            loaded = jit.build_or_load(text, symbols, name="kernel")
            ms = loaded.seconds * 1e3
            debug.log(2, "%s: kernels %s %s in %.1f ms", self.name, missing, loaded.hit, ms)
            self.register(missing, symbols, loaded)
            return [*found, loaded]

    def _load_apart(self, missing: Sequence[Request]) -> list[jit.Loaded]:
        """Load what lies on disk in units of its own, of kernels that are wanted in two classes.

        Short rows bring the class of longer ones along. A warm-up, or a call with long rows, has
        built that class alone.
        """
        kernels = [index for index, _ in missing]
        first = [r for at, r in enumerate(missing) if r[0] not in kernels[:at]]
        along = [r for r in missing if r not in first]
        if not along:
            return []
        whole = self._load(missing)
        parts = [whole] if whole else [self._load(first), self._load(along)]
        return [one for one in parts if one]

    def _load(self, part: Sequence[Request]) -> jit.Loaded | None:
        text, symbols = unit_of([(self, part)])
        loaded = jit.on_disk(text, symbols, name="kernel")
        if loaded:
            self.register(part, symbols, loaded)
        return loaded

    def register(
        self, requests: Sequence[Request], symbols: Sequence[str], loaded: jit.Loaded
    ) -> None:
        """Make loaded kernels callable, those that are not yet."""
        with self._lock:
            for request, symbol in zip(requests, symbols, strict=True):
                if request not in self.built:
                    self.plan.add_variant(*request, loaded.addresses[symbol], loaded.library)
                    self.built[request] = loaded.path


def unit_of(parts: Sequence[tuple[Program, Sequence[Request]]]) -> tuple[str, list[str]]:
    """One translation unit for requests of several programs, and its symbols in their order."""
    wanted = [(program.lowered.launches[i].kernel, c) for program, part in parts for i, c in part]
    jobs = [Job(f"ok_k{n}", kernel, classes) for n, (kernel, classes) in enumerate(wanted)]
    return emit(jobs, vector_bytes=vector_bytes()), [job.symbol for job in jobs]


def vector_bytes() -> int:
    """Width of the target's vector registers; wider vectors would compile to lane-wise code."""
    try:
        features = jit.compiler().features
    except ToolchainNotFound:
        return 64
    if "__AVX512F__" in features:
        return 64
    return 32 if "__AVX2__" in features else 16


_PROGRAMS: WeakValueDictionary[tuple[object, ...], Program] = WeakValueDictionary()
_LOCK = ForkLock()


def pins_hold(pins: Pins, arrays: Sequence[Any]) -> bool:
    """Whether a program with these pins serves arrays of these shapes."""

    def holds(extent: int, size: int | tuple[int, int]) -> bool:
        if isinstance(size, tuple):
            return bool(arrays[size[0]].shape[size[1]] == extent)
        return extent != 1 if size == NOT_ONE else extent == size

    return all(holds(arrays[i].shape[axis], size) for i, axis, size in pins)


def program_of(graph: Graph, *, args: int, pins: Pins, opt_level: int) -> tuple[Program, bool]:
    """The program of a graph and whether it is new; it is not if a function holds an equal one."""
    key = (graph.digest, args, pins, opt_level)
    with _LOCK:
        found = _PROGRAMS.get(key)
    if found is not None:
        return found, False
    made = Program(graph, args, pins, opt_level)
    with _LOCK:
        kept = _PROGRAMS.setdefault(key, made)
    return kept, kept is made


def clear_programs() -> None:
    """Forget which programs exist; functions keep those they hold."""
    with _LOCK:
        _PROGRAMS.clear()
