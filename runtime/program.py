"""Program: a traced graph in, a plan whose kernels are compiled and loaded on demand out.

Equal graphs share one program.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from opkiln.native import Plan
from opkiln.runtime import debug, jit
from opkiln.runtime.config import config
from opkiln.runtime.emit_cpp import Job, emit
from opkiln.runtime.errors import ToolchainNotFound
from opkiln.runtime.graph import Graph, Node
from opkiln.runtime.kernel import Lowered
from opkiln.runtime.locks import ForkLock
from opkiln.runtime.lower import lower
from opkiln.runtime.plan import make_plan
from opkiln.runtime.rewrite import rewrite

Request = tuple[int, str]  # kernel index, column class per operand
Pins = tuple[tuple[int, int, int], ...]


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
        self._lock = ForkLock()
        self.show(graph)

    def show(self, traced: Graph) -> None:
        """The stages for OPKILN_DEBUG=3 and OPKILN_DUMP_DIR."""
        if debug.enabled(3):
            debug.log(3, "graph\n%s\nkernels\n%s", self.graph, self.lowered)
        if config.dump_dir is not None:
            debug.dump("traced.txt", self.name, str(traced))
            debug.dump("graph.txt", self.name, str(self.graph))
            debug.dump("graph.dot", self.name, debug.to_dot(self.graph))
            debug.dump("kernels.txt", self.name, str(self.lowered))

    @property
    def name(self) -> str:
        """Names the program in logs and dumps: by content, never by a user's identifier."""
        return f"program-{self.graph.digest.hex()[:12]}"

    def source(self, requests: list[Request]) -> str:
        """The translation unit that serves these requests."""
        launches = self.lowered.launches
        return emit(
            [
                Job(f"ok_k{n}", launches[i].kernel, classes)
                for n, (i, classes) in enumerate(requests)
            ],
            vector_bytes=_vector_bytes(),
        )

    def build(self, requests: list[Request]) -> list[jit.Loaded]:
        """Compile or load what is missing of `requests` and register it; one builder at a time.

        Raises:
            ToolchainNotFound, CompileFailed, CompileTimeout, LoadFailed, SymbolMissing, CacheError.
        """
        with self._lock:
            missing = [r for r in requests if r not in self.built]
            if not missing:
                return []
            text = self.source(missing)
            debug.log(4, "source\n%s", text)
            debug.dump("kernel.cpp", self.name, text)
            symbols = [f"ok_k{n}" for n in range(len(missing))]
            loaded = jit.build_or_load(text, symbols, name="kernel")
            debug.log(
                1,
                "%s: kernels %s %s in %.1f ms",
                self.name,
                missing,
                loaded.hit,
                loaded.seconds * 1e3,
            )
            for (index, classes), symbol in zip(missing, symbols, strict=True):
                self.plan.add_variant(index, classes, loaded.addresses[symbol], loaded.library)
                self.built[index, classes] = loaded.path
            return [loaded]


def _vector_bytes() -> int:
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
