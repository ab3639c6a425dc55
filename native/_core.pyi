"""The native core of opkiln: plans, executors and the callable type."""

from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from os import PathLike
from typing import Any, Final, Protocol, Self, TypedDict, final, type_check_only

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]

@type_check_only
class Record(Protocol):
    """What `Frontend.trace` returns: one traced signature."""

    @property
    def plan(self) -> Plan: ...
    @property
    def out_tree(self) -> Any: ...
    @property
    def captures(self) -> tuple[np.ndarray[Any, Any], ...]: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def divides(self) -> bool: ...

@type_check_only
class Frontend(Protocol):
    """The hooks that the native call path needs on a miss; all run with the GIL held."""

    def trace(self, tree: tuple[Any, ...], leaves: list[Any], kinds: str, /) -> Any: ...
    def build(self, record: Any, requests: list[tuple[int, str]], /) -> Any: ...
    def missed(self, record: Any, number: int, built: Any, /) -> None: ...
    def leased(self, line: str, /) -> None: ...
    def interpret(self, record: Any, leaves: list[Any], /) -> tuple[Any, ...]: ...
    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any: ...
    def host_error(
        self,
        record: Any,
        kind: str,
        register: int,
        values: tuple[int, int, tuple[tuple[int, ...], ...]],
        /,
    ) -> None: ...
    def op_error(self, record: Any, kernel: int, said: str, /) -> None: ...
    def fault(self, record: Any, bits: int, raises: bool, /) -> None: ...
    def export(self, library: str, array: _Array, /) -> Any: ...

@type_check_only
class Device(Protocol):
    """`ok.Device`."""

    @property
    def kind(self) -> str: ...
    @property
    def index(self) -> int: ...

@final
class Missing:
    """The type of MISSING: a parameter without default."""

MISSING: Final[Missing]

@final
class Slot:
    """A leaf of out_tree: output `index` of the plan."""

    def __init__(self, index: int) -> None: ...
    @property
    def index(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Library:
    """A loaded shared library; stays loaded while a plan uses it."""

    def __init__(self, path: str | bytes | PathLike[str]) -> None: ...
    def symbol(self, name: str) -> int: ...
    def claim(self, file: str | bytes | PathLike[str], at: int) -> bool:
        """Lock byte `at` of `file`, shared, until the library is closed; False where it cannot."""

    @property
    def users(self) -> int:
        """How many others hold the library: plans, executors on any thread, ops."""

    @property
    def path(self) -> str: ...
    @property
    def handle(self) -> int:
        """What dlopen returned; valid as long as this object is."""

# Address, device type and number, code and bits of the elements, shape, strides in bytes.
_Operand = _Array | tuple[int, int, int, int, int, Sequence[int], Sequence[int]]

@final
class OpSpec:
    """A custom op with the tensors and strings that it is given."""

    def __init__(
        self,
        address: int,
        library: Library | None,
        given: Sequence[bool],
        scalars: Sequence[tuple[int, str]],
        any_layout: bool,
    ) -> None: ...
    @property
    def infers(self) -> bool: ...
    @property
    def wants_workspace(self) -> bool: ...
    def run(
        self,
        operands: Sequence[_Operand],
        numbers: Sequence[int | float],
        workspace: int = 0,
        stream: int = 0,
    ) -> int:
        """How many operands had to be copied."""

    def workspace(self, operands: Sequence[_Operand], numbers: Sequence[int | float]) -> int: ...
    def infer(
        self, operands: Sequence[_Operand], numbers: Sequence[int | float], outputs: int
    ) -> list[tuple[int, int, list[int]]]:
        """Code and bits of the elements, and the shape, of each output."""

@final
class Plan:
    """Host program, buffers, kernels and variants of one traced signature."""

    def __init__(self) -> None: ...
    def host(self, op: str, a: int = -1, b: int = -1, ival: int = 0, fval: float = 0.0) -> int: ...
    def buffer(
        self,
        kind: str,
        dtype: int,
        extents: Sequence[int] = ...,
        rank: int = -1,
        dense: bool = False,
    ) -> int: ...
    def view(
        self,
        dtype: int,
        extents: Sequence[int],
        buffer: int,
        axes: Sequence[tuple[int, int, int]],
        space: Sequence[int],
        copy: int,
    ) -> int: ...
    def scalar(self, reg: int, dtype: int, mode: str) -> int: ...
    def kernel(
        self,
        extents: Sequence[int],
        reduce_mask: int,
        operands: Sequence[tuple[int, Sequence[tuple[int, int, int]], bool]],
        scalars: Sequence[int] = ...,
        ns_per_element: float = 1.0,
        may_raise: bool = False,
        product: bool = False,
        view: int = -1,
        op: OpSpec | None = None,
        ranks: Sequence[int] = ...,
    ) -> int: ...
    def output_buffer(self, buffer: int) -> None: ...
    def output_host(self, reg: int) -> None: ...
    def pin(self, arg_buffer: int, axis: int, value: int) -> None: ...
    def pin_equal(self, arg_buffer: int, axis: int, other_buffer: int, other_axis: int) -> None: ...
    def finish(self) -> None: ...
    def add_variant(
        self, kernel: int, column_class: str, address: int, keepalive: Library | None = None
    ) -> None: ...
    def has_variant(self, kernel: int, column_class: str) -> bool: ...
    def missing(
        self, arrays: Sequence[_Array], captures: Sequence[_Array] = ...
    ) -> list[tuple[int, str]]: ...
    def set_fallback(self) -> None: ...
    @property
    def fallback(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def n_kernels(self) -> int: ...
    @property
    def n_outputs(self) -> int: ...

@final
class BoundCall:
    """Repeats one call on the same arrays."""

    def __call__(self) -> Any: ...
    @property
    def __wrapped__(self) -> Compiled: ...

@final
class Compiled:
    """A callable that runs cached executors and asks its frontend on a miss.

    Attributes it lacks are looked up on the frontend.
    """

    def __new__(
        cls,
        frontend: Any,
        names: tuple[str, ...],
        kinds: bytes,
        defaults: tuple[Any, ...],
        static: tuple[bool, ...],
        errstate: int = 0,
        takes_out: bool = True,
    ) -> Compiled: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __getattr__(self, name: str, /) -> Any: ...
    @property
    def _frontend(self) -> Any: ...
    @property
    def _id(self) -> int: ...
    def _counters(self) -> dict[str, int]: ...
    def _count(self, name: str, n: int = 1, /) -> None: ...
    def _misses(
        self,
    ) -> tuple[
        int,
        list[
            tuple[
                int,
                int,
                int,
                int,
                str,
                tuple[str, ...],
                list[tuple[int, tuple[int, ...], tuple[int, ...]] | None],
            ]
        ],
    ]: ...
    def _copies(self) -> list[tuple[str, int, str | None, int]]: ...
    def _errstate(self) -> int: ...
    def _clear(self) -> None: ...
    def _static_id(self, value: Any, /) -> int: ...
    def _flatten(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], list[Any], str]: ...
    def _bind(self, *args: Any, **kwargs: Any) -> BoundCall: ...
    def _missing(self, *args: Any, **kwargs: Any) -> tuple[Any, list[tuple[int, str]]]: ...

@type_check_only
class Limits(TypedDict):
    """Limits of a thread's executor table."""

    pool_limit: int
    hard_cap: int
    timeout_s: float
    executors: int
    bytes: int
    workspace_bytes: int
    grow: bool

CXX_LIBRARY: str
"""The C++ library of this module and the ABI of its strings; "" if it is another one."""

def dtype_code(dtype: np.dtype[Any]) -> int: ...
def dtype_of(code: int) -> np.dtype[Any]: ...
def foreign_array(array: Any) -> _Array: ...
def check_tensor(tensor: Any) -> None: ...
def place_of(address: int) -> tuple[str, int] | None: ...
def thread_stats() -> dict[str, int]: ...
def get_limits() -> Limits: ...
def set_limits(
    *,
    pool_limit: int | None = None,
    hard_cap: int | None = None,
    timeout_s: float | None = None,
    executors: int | None = None,
    bytes: int | None = None,
    workspace_bytes: int | None = None,
    grow: bool | None = None,
) -> None: ...
def set_gemm(dtype: int, address: int, wide: bool, least: int) -> None: ...
def set_max_thread_pools(limit: int) -> None: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def set_own_num_threads(count: int) -> int: ...
def usable_cpus(root: str = "") -> int: ...
def set_helper_ns(ns: float | None) -> None: ...
def worker_stats() -> dict[str, int]: ...
def stop_workers() -> None: ...
def trim(function_id: int = 0) -> int: ...
def list_pools() -> list[tuple[int, str, int, int, int, int]]: ...
def use_errstate(variable: ContextVar[int]) -> None: ...
def use_allocator(variable: ContextVar[Any], fallback: Any) -> None: ...
def tell_all_misses(on: bool) -> None: ...
def set_exit_patience(seconds: float) -> None: ...
def stream_stats() -> dict[str, int]: ...
def synchronize() -> None:
    """Wait until all that is queued now on the asynchronous streams of the process is done."""

class Stream:
    """A queue of compiled calls that one thread of its own works off in order.

    `with stream:` sends the calls of this context (thread or task) to it: each returns a Future at
    once. Equal when they are the same queue. The thread starts with the first call and ends when
    there was none for `idle_seconds`, after close(), or when nobody holds the stream any more.

    Args:
        device: "cpu" or Device("cpu").
        idle_seconds: None keeps the thread until close().

    Raises:
        ArgumentError: no such device, or no number of seconds.
        NotYet: a device other than the CPU.
    """

    def __init__(
        self, device: str | Device = "cpu", *, idle_seconds: float | None = 10.0
    ) -> None: ...
    @staticmethod
    def inline() -> Stream:
        """The stream that calls run on outside of every block: in the call itself."""

    @staticmethod
    def current() -> Stream:
        """The stream of the innermost `with` block of this context, or the inline one."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all that is queued now is done.

        Raises:
            EventTimeout: it is not, after so many seconds.
        """

    def close(self, timeout: float | None = None) -> None:
        """Take no more work, and wait until what is queued is done.

        Raises:
            EventTimeout: it is not, after so many seconds; the stream is closed all the same.
        """

    def wait_event(self, event: Event, /) -> None:
        """Begin what is queued from now on only after the last record of an event is done.

        Raises:
            EventError: it was never recorded, or was released.
            DeviceMismatch: it is of another device.
            StreamError: the stream is closed.
        """

    def wait_stream(self, stream: Stream, /) -> None:
        """Begin what is queued from now on only after all that is queued there now is done.

        Raises:
            StreamError: this stream is closed.
        """

    @property
    def id(self) -> int:
        """A number that no other stream of the process has or had."""

    @property
    def device(self) -> Device: ...
    @property
    def pending(self) -> int:
        """How many calls, records and waits are queued or running."""

    @property
    def closed(self) -> bool: ...
    @property
    def has_thread(self) -> bool:
        """Whether its thread runs or sleeps now."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PoolProbe:
    """The executor pool by hand: one function, streams with manual clocks (tests)."""

    def __init__(
        self,
        lags: Sequence[int],
        *,
        limit: int = 10,
        hard_cap: int = 64,
        timeout_s: float = 0.0,
        grow: bool = False,
        executors: int = 1024,
        kernels: int = 1,
    ) -> None: ...
    def acquire(self, key: int, stream: int, build: Callable[[], object] | None = None) -> int: ...
    def run(self, executor: int, fail_at: int = -1) -> None: ...
    def release(self, executor: int) -> None: ...
    def drop(self, executor: int) -> None: ...
    def advance(self, stream: int, ticks: int) -> None: ...
    def state(self, key: int) -> tuple[list[int], int, list[int]]: ...
    def trim(self, key: int | None = None) -> int: ...
    def counts(self) -> dict[str, int]: ...

def on_wait(call: Callable[[], object] | None) -> None: ...

@final
class ManualStream(Stream):
    """A stream whose work is done `lag` ticks after it was queued (tests)."""

    def __init__(
        self, lag: int, queue_limited: bool = False, device: str | Device = "cuda:0"
    ) -> None: ...
    def advance(self, ticks: int) -> None: ...

def use_stream(stream: ManualStream | None) -> None: ...

@final
class Event:
    """A point in a stream's work, to ask for and to wait for.

    Args:
        timing: whether elapsed_ms() will be asked.
        device: that of the streams it is recorded on.
    """

    def __init__(self, timing: bool = False, *, device: str | Device = "cpu") -> None: ...
    def record(self, stream: Stream | None = None) -> int:
        """Mark the end of what is queued now, on the present stream if none is given.

        Returns:
            The number of the record. A later one takes its place.

        Raises:
            DeviceMismatch: a stream of another device.
            StreamError: the stream is closed.
            EventError: the event was released.
        """

    def query(self, generation: int | None = None) -> bool:
        """Whether the last record is done; `generation` says which one that must be.

        Raises:
            EventError: it was never recorded, recorded again, or released.
        """

    def wait(self, timeout: float | None = None, generation: int | None = None) -> None:
        """Block until it is done; Ctrl-C ends the wait.

        Raises:
            EventTimeout: it is not, after so many seconds.
            EventError: as query().
        """

    def device_wait(self, stream: Stream, /) -> None:
        """Let a stream wait, as its wait_event()."""

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from the end of `start` to the end of this one.

        Raises:
            EventError: one of the two has no timing, or is not done.
        """

    def release(self) -> None:
        """Give it back to the pool, which happens by itself when nobody holds it.

        Raises:
            EventError: the second time.
        """

    @property
    def generation(self) -> int: ...
    @property
    def timing(self) -> bool: ...
    @property
    def device(self) -> Device: ...

@final
class Future:
    """The result of a compiled call that is queued on a stream.

    It may be an argument of further compiled calls: on the same stream they follow it, on another
    that one waits for it, elsewhere the call waits. NumPy's functions wait too.
    """

    def result(self, timeout: float | None = None) -> Any:
        """The value, waited for; Ctrl-C ends the wait, not the work.

        Raises:
            EventTimeout: it is not there after so many seconds.
            OpkilnError: what the kernels found, as the call itself would have raised it.
        """

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that result() raises, or None; waits as result()."""

    def done(self) -> bool:
        """Whether result() returns at once."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array: ...
    def _on_done(self, callback: Callable[[], object], /) -> None: ...

def answer(value: Any) -> Any:
    """What a call gives whose value is known: the value, on a stream a Future that is done."""
