"""The errors opkiln raises: in go a message and its remedy, out comes one type per kind of mistake.

Each derives from OpkilnError and from the builtin that NumPy or Python would raise in its place,
so `except ValueError` written for NumPy keeps working.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import TypedDict, Unpack

    class _Facts(TypedDict, total=False):
        """The keywords of a BuildError."""

        fix: str | None
        command: str
        stage: str
        exit_code: int | None
        output: str
        log_path: Path | None
        source_path: Path | None

    from numpy.exceptions import AxisError as _NumpyAxisError
else:
    try:
        from numpy.exceptions import AxisError as _NumpyAxisError
    except ImportError:  # in a sub-interpreter: SubInterpreterError has to say so
        _NumpyAxisError = IndexError


def _rebuild(cls: type[OpkilnError], args: tuple[Any, ...], state: dict[str, Any]) -> OpkilnError:
    error = cls(*args)
    error.__dict__.update(state)
    return error


class OpkilnError(Exception):
    """Base of all errors of opkiln."""

    def __init__(self, message: str = "", *, fix: str | None = None) -> None:
        """Store the message; `fix` is one sentence that says what to do and ends the message."""
        text = f"{message}\n  how to fix: {fix}" if fix else message
        super().__init__(text)
        self.args = (text,)  # some builtins keep only their own view of the arguments
        self.fix = fix

    def __str__(self) -> str:
        """Return the message only, whatever builtin the subclass also derives from."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by arguments and attributes, because subclasses take keywords of their own."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class OpkilnWarning(UserWarning):
    """Something works less well than it could; the text says what to do about it."""


_RUNTIME = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - importing pathlib costs a warm start


def warn(message: str) -> None:
    """Tell the user: a Python warning at their line, and a log line where logging is set up."""
    import inspect
    import warnings

    logging = sys.modules.get("logging")
    if logging is not None and logging.getLogger("opkiln").hasHandlers():
        logging.getLogger("opkiln").warning("%s", message)
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_RUNTIME):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"opkiln: {message}", OpkilnWarning, stacklevel=level)


# ---- what the user wrote ----


class TraceError(OpkilnError, TypeError):
    """The function cannot be traced: names the user's line and what to write instead.

    Fix: write what the message proposes (`np.where` for an `if` on data), mark a parameter
    `static=`, or keep that part outside the compiled function.
    """


class MissingAttribute(TraceError, AttributeError):
    """A traced array has no such attribute yet; hasattr() sees it as absent.

    Fix: write what the message proposes, or take the attribute outside the compiled function.
    """


class GradientError(TraceError):
    """A gradient is asked for that does not exist, or whose rule is missing.

    Fix: differentiate with respect to float arrays that the result depends on smoothly; give an op
    without a rule one by `ok.custom_gradient`.
    """


class ArgumentError(OpkilnError, TypeError):
    """A call has the wrong number, names or kinds of arguments.

    Fix: compare the call, or the options of `ok.compile`, with what the message expects.
    """


class UnsupportedDType(OpkilnError, TypeError):
    """An array has a dtype that opkiln does not compute with.

    Fix: convert first (`x.astype(np.float32)`); take object, string and date arrays apart.
    """


class ShapeError(OpkilnError, ValueError):
    """Shapes do not fit each other or the operation.

    Fix: make the shapes agree (`reshape`, `x[:, None]`); the message gives both.
    """


class ReductionError(OpkilnError, ValueError):
    """The arguments of a reduction contradict each other, or give it nothing to start from.

    Fix: pass `initial=` beside `where=` to `min` and `max`, and one of `ddof=` and `correction=`.
    """


class AxisError(ShapeError, _NumpyAxisError):
    """An axis is out of range or repeated.

    Fix: name each axis once, from `-x.ndim` to `x.ndim - 1`.
    """


class BoundsError(OpkilnError, IndexError):
    """An index lies outside the axis that it picks from.

    Fix: pick from `-n` to `n - 1` of an axis of length n; slices may go beyond.
    """


class ReadOnlyError(OpkilnError, ValueError):
    """A result was to be written into a read-only array.

    Fix: pass a writeable `out=`, or none.
    """


class DeviceMismatch(OpkilnError, ValueError):
    """Arguments of one operation live on different devices.

    Fix: move the arguments to one device before the call.
    """


class HostRangeError(OpkilnError, OverflowError):
    """A Python number does not fit the dtype it meets, or size arithmetic overflows int64.

    Fix: pass a number that fits, or an array of a wider dtype.
    """


class HostDivisionError(OpkilnError, ZeroDivisionError):
    """Size or scalar arithmetic divides by zero.

    Fix: guard the size or number before the call.
    """


class IntegerDivisionError(OpkilnError, FloatingPointError):
    """An integer was divided by zero, or its division overflowed, and errstate says "raise".

    Fix: keep zeros out, or take NumPy's value with `ok.errstate(integer_divide="ignore")`.
    """


class IntegerPowerError(OpkilnError, ValueError):
    """An integer is raised to a negative power.

    Fix: make the base or the exponent a float.
    """


class ChoiceError(OpkilnError, ValueError):
    """An index of `np.choose` names none of the choices.

    Fix: keep indices in range, or say what others mean with `mode="clip"` or `mode="wrap"`.
    """


class CallError(OpkilnError, ValueError):
    """The arguments of a NumPy function contradict each other, or one has a value that it lacks.

    Fix: write what the message proposes; the function's arguments are NumPy's.
    """


class NotYet(OpkilnError, NotImplementedError):
    """A documented option or feature that this version does not have yet.

    Fix: use what the message names instead.
    """


class NotYetName(NotYet, AttributeError):
    """A public name that is planned and not built yet; hasattr() sees it as absent.

    Fix: ask with `hasattr(opkiln, name)`, or use what the message names.
    """


class NotYetFunction(TraceError, NotYet):
    """A NumPy function that cannot be traced yet.

    Fix: write what the message proposes, or call it outside the compiled function.
    """


class NotYetScalar(TraceError, NotYet):
    """Arithmetic of scalar arguments that has no native counterpart yet.

    Fix: write what the message proposes, or name the parameter in `static=`.
    """


class NotImplementedTrait(OpkilnError, NotImplementedError):
    """An op has no rule for what was asked of it: names the op and the trait.

    Fix: register a rule, or add the hook that the message names to the object of a `GenericPyOp`.
    """


class UnknownOp(OpkilnError, LookupError):
    """No op has this name, or none that takes so many inputs.

    Fix: use one of the names that the message proposes, or pass an op in place of a name.
    """


class GraphError(OpkilnError, ValueError):
    """A subgraph contradicts itself: a variable that nothing makes, or that makes itself.

    An encoded graph raises it for values that its masks have no place for.

    Fix: use variables of the same builder, after the line that makes them.
    """


class FusionUnsupported(OpkilnError, NotImplementedError):
    """An op cannot be part of a fused kernel: names it.

    Fix: use `CompiledOp` of the op inside, which makes several kernels where it has to.
    """


class ConfigError(OpkilnError, ValueError):
    """A setting cannot be used: names the variable, the value and what is accepted.

    Fix: set the variable to what the message accepts, or unset it.
    """


class UsageError(OpkilnError, ValueError):
    """The command line asks for what does not exist: names the argument and what is accepted.

    Fix: write what the message proposes; `opkiln COMMAND --help` has examples.
    """


class UserCodeError(OpkilnError, RuntimeError):
    """A command imported or traced your code, and that raised: holds your part of the traceback.

    Fix: make the code run under plain Python first; put what a command must not run under
    `if __name__ == "__main__":`.
    """


# ---- running ----


class PoolTimeout(OpkilnError, TimeoutError):
    """No executor became free in time.

    Fix: raise `OPKILN_POOL_TIMEOUT` or `OPKILN_POOL_CAP`, or keep fewer calls in flight.
    """


class PoolLimitError(OpkilnError, RuntimeError):
    """More threads hold executor pools than OPKILN_MAX_THREAD_POOLS allows.

    Fix: raise or unset `OPKILN_MAX_THREAD_POOLS`, or use fewer threads.
    """


class BusyError(OpkilnError, RuntimeError):
    """A bound call is run by two threads at once.

    Fix: bind the call once per thread, since each handle has results of its own.
    """


class CustomOpError(OpkilnError, RuntimeError):
    """A custom op reported an error, or threw: names the op and holds its words.

    Fix: see what the op says of its arguments; the call can be repeated.
    """


class SchemaError(OpkilnError, ValueError):
    """The schema of a custom op cannot be read: says where, and what was expected.

    Fix: write it as `"ns::f(Tensor a, Tensor? b, float k=1.0) -> Tensor"`.
    """


class RegistrationError(OpkilnError, ValueError):
    """A custom op has the name of another one with other content, or is not registered.

    Fix: choose another name, or `unregister()` the op that has it.
    """


class SubInterpreterError(OpkilnError, ImportError):
    """opkiln, which needs NumPy, was asked for in a sub-interpreter.

    Fix: use threads or processes; NumPy serves the first interpreter of a process only.
    """


class AllocatorError(OpkilnError, ValueError):
    """An allocator given to opkiln returned something that cannot hold the result.

    Fix: return an object with a writable, contiguous buffer of at least the bytes asked for,
    aligned for the dtype, that no argument and no other result uses.
    """


class EventError(OpkilnError, RuntimeError):
    """An event is used before it was recorded or after it was given back.

    Fix: record an event before waiting for it, and drop it after use.
    """


class EventTimeout(EventError, TimeoutError):
    """An event, a stream or a future was not done within the `timeout` that was given.

    Fix: wait longer, or look at `stream.pending` to see what it has to do first.
    """


class StreamError(OpkilnError, RuntimeError):
    """A stream is used that is closed, or whose process this one was forked from; or work is lost.

    Fix: make a stream per process and close it last.
    """


# ---- building and loading ----


class Probe(NamedTuple):
    """One place where a tool was looked for, and what came of it."""

    tool: str
    source: str  # who named the place: an argument, a variable, "PATH"
    place: str
    won: bool
    why: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.place}: {self.why} ({self.source})"


class BuildError(OpkilnError, RuntimeError):
    """Base of what can go wrong between a source and a loaded library.

    Each holds what a tool needs to show it in its own way: `command`, `stage` ("find", "compile",
    "link", "load"), `exit_code`, `output` (undecodable bytes replaced), `log_path`, `source_path`
    and `fix`; what does not apply is empty or None.

    Fix: do what the message of the subclass at hand says.
    """

    usual_stage: ClassVar[str] = ""

    def __init__(
        self,
        message: str = "",
        *,
        fix: str | None = None,
        command: str = "",
        stage: str = "",
        exit_code: int | None = None,
        output: str = "",
        log_path: Path | None = None,
        source_path: Path | None = None,
    ) -> None:
        """Store the message and the facts."""
        super().__init__(message, fix=fix)
        self.command = command
        self.stage = stage or self.usual_stage
        self.exit_code = exit_code
        self.output = output
        self.log_path = log_path
        self.source_path = source_path


class ToolchainNotFound(BuildError):
    """No usable compiler (C++, nvcc, ninja): lists each place tried and how to install one.

    The attribute `probes` has them as values; `opkiln doctor --toolchain` prints them.

    Fix: install a compiler as the message says, or point `OPKILN_CXX` or `OPKILN_CUDA_HOME` at one.
    """

    usual_stage = "find"

    def __init__(
        self, message: str = "", *, probes: Iterable[Probe] = (), **facts: Unpack[_Facts]
    ) -> None:
        """Store the message, the facts and the places tried."""
        super().__init__(message, **facts)
        self.probes = tuple(probes)


class CompileFailed(BuildError):
    """The compiler or linker refused a source: shows the first error and its line.

    Fix: mend the first error in the message; the log beside it has the whole output. Of a generated
    kernel, with the default compiler and no flags of yours, report it with the kept source.
    """

    usual_stage = "compile"


class CompileTimeout(CompileFailed, TimeoutError):
    """The compiler ran longer than OPKILN_COMPILE_TIMEOUT and was stopped with all its children.

    Fix: raise `OPKILN_COMPILE_TIMEOUT`, or see why the compiler hangs.
    """


class ExtensionError(OpkilnError, ValueError):
    """An argument of `ok.load` cannot be used: names it, what is accepted and what came.

    Fix: pass what the message accepts.
    """


class InUse(OpkilnError, RuntimeError):
    """A library is to be unloaded while something uses it, or used after that.

    Fix: drop the functions, ops and compiled calls that use it first; load it again afterwards.
    """


class HostCompilerIncompatible(CompileFailed):
    """nvcc says that it does not support this version of the C++ compiler.

    Fix: point `OPKILN_CXX` at a compiler of a version that the message names, or let nvcc try with
    `OPKILN_CUDA_ALLOW_UNSUPPORTED=1`.
    """


class UnsupportedArch(CompileFailed, ValueError):
    """A GPU architecture that nvcc does not know, that no GPU has, or that this GPU cannot run.

    Fix: name one of those that the message lists, in `OPKILN_CUDA_ARCHS` or the argument, or
    install a CUDA toolkit of the GPU's time.
    """

    usual_stage = "find"


class AbiMismatch(BuildError):
    """Two sides of an interface do not fit: C++ libraries, or versions of `opkiln/op.h`.

    Where two compilers disagree on the C++ library, its strings or their layout, it is raised with
    `OPKILN_ABI_CHECK=strict`, and is a warning otherwise, since functions of `extern "C"` do not
    care. A custom op of a version that this one does not know always raises it.

    Fix: build with the flags, the compiler or the header that the message names, or keep to
    `extern "C"` functions over plain C types.
    """

    usual_stage = "load"


class LoadFailed(BuildError, OSError):
    """A shared library cannot be loaded: missing dependency, wrong machine, noexec.

    Fix: do what the message proposes for the reason that the system gave.
    """

    usual_stage = "load"


class SymbolMissing(BuildError, AttributeError):
    """A shared library lacks a function that it should export.

    Fix: declare it `extern "C"`, and not static, in the sources that were given.
    """

    usual_stage = "load"


class CacheError(OpkilnError, OSError):
    """The artifact cache cannot be used: names the directory and the setting that moves it.

    Fix: set `OPKILN_CACHE_DIR` to a directory that you own and can write to.
    """


class NotCached(CacheError):
    """OPKILN_ASSERT_CACHED is set and a kernel would have to be compiled.

    Fix: run once without it where a compiler is, and ship that cache directory.
    """
