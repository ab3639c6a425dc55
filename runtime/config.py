"""Every OPKILN_* variable: in goes the environment, out comes one typed, checked value per setting.

One row of the class `Config` is one setting; `Config.table()` hands the rows to the documentation.
A value is looked up in this order: the innermost `config.scope(...)` of the current context, an
assignment `config.name = value` (whole process), the environment (read once, at first need), the
default.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar, cast, overload

from opkiln.runtime.errors import ConfigError, warn

T = TypeVar("T")

_UNITS = {
    "": 1,
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
}
_SCOPED: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("opkiln_config")
_NOTHING: dict[str, Any] = {}


# ---- readers: take a text from the environment or a Python value, return the checked value or
# raise ValueError, TypeError; the caller adds the names ----


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError


def _whole(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    number = int(value)
    if not low <= number <= high:
        raise ValueError
    return number


def _debug(value: object) -> int:
    return int(value) if isinstance(value, bool) else _whole(value, 0, 5)


def _count(value: object) -> int:
    return _whole(value, 1, 1_000_000)


def _optional_count(value: object) -> int | None:
    return None if value is None else _count(value)


def _threads(value: object) -> int | None:
    # OMP_NUM_THREADS may have one number for each level of nesting.
    return _optional_count(value.split(",")[0] if isinstance(value, str) else value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    text = value.strip().removesuffix("s") if isinstance(value, str) else value
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise ValueError
    return number


def _positive_seconds(value: object) -> float:
    number = _seconds(value)
    if number == 0:
        raise ValueError
    return number


def _size(value: object) -> int:
    if not isinstance(value, str):
        return _whole(value, 0, 2**62)
    text = value.strip().lower().removesuffix("b")
    digits = text.rstrip("kmgti")
    number = float(digits) * _UNITS[text[len(digits) :].strip()]
    if not 0 <= number <= 2**62:
        raise ValueError
    return int(number)


def _path(value: object) -> str | None:
    # A text, not a Path: importing pathlib takes 4 ms, which a warm start does not have.
    if value is None or value == "":
        return None
    text = os.path.expanduser(_text(value))  # noqa: PTH111
    if "\0" in text or text.startswith("~"):  # "~" without a home directory
        raise ValueError
    return text


def _words(value: object) -> str | None:
    if value is None:
        return None
    return _text(value).strip() or None


def _abi_check(value: object) -> str:
    word = _text(value).strip().lower()
    if word not in {"strict", "warn", "off"}:
        raise ValueError
    return word


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(cast("os.PathLike[str]", value))
    raise TypeError


_ROWS: dict[str, Setting[Any]] = {}
_PREFIX = "OPKILN_"
_OTHERS = frozenset(["OPKILN_SANITIZE"])  # read by the build of the native module
_LOOKED = ""  # the key, which no field has, that says that `_look_round` is done


def _look_round(values: dict[str, Any]) -> None:
    """Once: refuse values that cannot be used, name variables that are not settings.

    So a mistake shows at the first use of any setting, not when its own turn comes, or never.
    """
    if _LOOKED in values:
        return
    known = {name: row for row in _ROWS.values() for name in row.variables}
    unknown: list[str] = []
    for name in os.environ:
        text = os.environ.get(name, "").strip()
        if not name.startswith(_PREFIX) or not text or name in _OTHERS:
            continue
        row = known.get(name)
        if row is None:
            unknown.append(name)
        elif row.name not in values:
            row.checked(text, name)
    values[_LOOKED] = True
    if unknown:
        import difflib

        ours = [name.removeprefix(_PREFIX) for name in known]
        near = [difflib.get_close_matches(n.removeprefix(_PREFIX), ours, n=1) for n in unknown]
        shown = ", ".join(
            f"{name} (did you mean {_PREFIX}{best[0]}?)" if best else name
            for name, best in zip(unknown, near, strict=True)
        )
        warn(f"no such setting in the environment: {shown}; ok.config lists all of them")


class Setting(Generic[T]):
    """One row: variables that may hold it (first found wins), reader, default, documentation."""

    def __init__(
        self,
        variables: str,
        read: Callable[[object], T],
        default: T,
        accepts: str,
        doc: str,
    ) -> None:
        """Describe the setting; the field name comes from the class body."""
        self.name = ""
        self.variables = tuple(variables.split())
        self.read = read
        self.default = default
        self.accepts = accepts
        self.doc = doc
        #: What else must learn of a new value, and of scopes that begin or end in this thread.
        self.tell: Callable[[T], object] | None = None
        self.tell_scope: Callable[[], object] | None = None

    def __set_name__(self, owner: type[Config], name: str) -> None:
        """Learn the field name."""
        self.name = name
        _ROWS[name] = self

    @overload
    def __get__(self, instance: None, owner: type[Config]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Config, owner: type[Config]) -> T: ...
    def __get__(self, instance: Config | None, owner: type[Config]) -> T | Setting[T]:
        """Return the value in force in this context."""
        if instance is None:
            return self
        scoped = _SCOPED.get(_NOTHING)
        if self.name in scoped:
            value: T = scoped[self.name]
            return value
        return self.of_process(instance)

    def is_scoped(self) -> bool:
        """Whether a scope of this context sets it."""
        return self.name in _SCOPED.get(_NOTHING)

    def of_process(self, instance: Config) -> T:
        """The value outside all scopes."""
        values = instance.__dict__
        if self.name not in values:
            _look_round(values)
            values[self.name] = self._from_environment()
        value: T = values[self.name]
        return value

    def __set__(self, instance: Config, value: object) -> None:
        """Set the value for the whole process, after checking it."""
        checked = self.checked(value, f"config.{self.name}")
        instance.__dict__[self.name] = checked
        if self.tell is not None:
            self.tell(checked)

    def checked(self, value: object, where: str) -> T:
        """Return the value that `value` (text or Python value) stands for, or raise ConfigError."""
        try:
            return self.read(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            message = f"{where}: expected {self.accepts}, got {value!r}"
            fix = f"set {self.variables[0]} (or config.{self.name}) to {self.accepts}, or unset it"
            raise ConfigError(message, fix=fix) from None

    def _from_environment(self) -> T:
        for variable in self.variables:
            text = os.environ.get(variable)
            if text is not None and text.strip():
                return self.checked(text, variable)
        return self.default


class Config:
    """The settings, one row each; unknown names are refused with a suggestion."""

    cache_dir = Setting(
        "OPKILN_CACHE_DIR", _path, None, "a directory path",
        "where compiled kernels are kept; default: the user's cache directory")  # fmt: skip
    cache_lower = Setting(
        "OPKILN_CACHE_LOWER", _path, None, "a directory path",
        "a second, read-only cache that is searched after the first")  # fmt: skip
    cache_max_bytes = Setting(
        "OPKILN_CACHE_MAX_BYTES", _size, 2 * 2**30, "a size such as 500M, 2GiB or 0 (no limit)",
        "the cache is pruned towards this size")  # fmt: skip
    compile_timeout = Setting(
        "OPKILN_COMPILE_TIMEOUT", _positive_seconds, 120.0, "seconds above 0",
        "a compiler that runs longer is stopped with all its children")  # fmt: skip
    lock_wait = Setting(
        "OPKILN_LOCK_WAIT", _seconds, 120.0, "seconds from 0",
        "seconds to wait for another process that builds the same kernel")  # fmt: skip
    num_threads = Setting(
        "OPKILN_NUM_THREADS OMP_NUM_THREADS", _threads, None, "a whole number from 1",
        "threads that work on one large call; default: the CPUs this process may use")  # fmt: skip
    max_jobs = Setting(
        "OPKILN_MAX_JOBS MAX_JOBS", _optional_count, None, "a whole number from 1",
        "compilers that run at once; default: the CPUs this process may use")  # fmt: skip
    cxx = Setting(
        "OPKILN_CXX CXX", _words, None, "a compiler command such as g++ or 'ccache g++'",
        "the C++ compiler; default: the first that works of c++, g++, clang++")  # fmt: skip
    cuda_arch = Setting(
        "OPKILN_CUDA_ARCH", _words, None, "a GPU architecture such as sm_90",
        "what generated kernels are compiled for; default: the first GPU here")  # fmt: skip
    cuda_archs = Setting(
        "OPKILN_CUDA_ARCHS CUDAARCHS TORCH_CUDA_ARCH_LIST", _words, None,
        "GPU architectures such as '8.0;9.0+PTX'",
        "what CUDA sources of yours are compiled for; default: all GPUs here")  # fmt: skip
    cuda_home = Setting(
        "OPKILN_CUDA_HOME CUDA_HOME CUDA_PATH CUDA_ROOT_DIR", _path, None, "a directory path",
        "the CUDA toolkit; default: wheels, then nvcc on PATH, then /usr/local/cuda")  # fmt: skip
    nvcc = Setting(
        "OPKILN_NVCC", _path, None, "the path or name of an nvcc",
        "the CUDA compiler, asked for its toolkit; comes before OPKILN_CUDA_HOME")  # fmt: skip
    cudnn_root = Setting(
        "OPKILN_CUDNN_ROOT CUDNN_ROOT_DIR", _path, None, "a directory path",
        "cuDNN; default: wheels, then the CUDA toolkit, then the system")  # fmt: skip
    cuda_allow_unsupported = Setting(
        "OPKILN_CUDA_ALLOW_UNSUPPORTED", _flag, False, "0 or 1",
        "1 lets nvcc try a C++ compiler of a version that it does not support")  # fmt: skip
    abi_check = Setting(
        "OPKILN_ABI_CHECK", _abi_check, "warn", "strict, warn or off",
        "what happens if the C++ library of your sources is not that of this process")  # fmt: skip
    debug = Setting(
        "OPKILN_DEBUG", _debug, 0, "a whole number from 0 to 5",
        "1 misses, 2 also new shapes, traces, pools, 3 graphs, 4 texts, 5 compilers")  # fmt: skip
    dump_dir = Setting(
        "OPKILN_DUMP_DIR", _path, None, "a directory path",
        "each stage of a compilation is written there as a file")  # fmt: skip
    disable = Setting(
        "OPKILN_DISABLE", _flag, False, "0 or 1",
        "1 runs the plain Python function, nothing is compiled")  # fmt: skip
    assert_cached = Setting(
        "OPKILN_ASSERT_CACHED", _flag, False, "0 or 1",
        "1 turns a kernel that would have to be compiled into an error")  # fmt: skip
    pool_cap = Setting(
        "OPKILN_POOL_CAP", _count, 10, "a whole number from 1",
        "executors of one key that one thread may hold before it waits")  # fmt: skip
    pool_timeout = Setting(
        "OPKILN_POOL_TIMEOUT", _positive_seconds, 60.0, "seconds above 0",
        "how long a call waits for a free executor")  # fmt: skip
    max_thread_pools = Setting(
        "OPKILN_MAX_THREAD_POOLS", _optional_count, None, "a whole number from 1",
        "threads that may hold an executor pool at once; default: no limit")  # fmt: skip

    @classmethod
    def table(cls) -> tuple[Setting[Any], ...]:
        """All settings, in the order of their rows."""
        return tuple(_ROWS.values())

    @contextlib.contextmanager
    def scope(self, **values: object) -> Generator[Config]:
        """Override settings for the current context (thread or task) until the block ends."""
        checked = dict(_SCOPED.get(_NOTHING))
        for name, value in values.items():
            checked[name] = self._row(name).checked(value, f"config.scope({name}=)")
        token = _SCOPED.set(checked)
        try:
            self._tell_scope(values)
            yield self
        finally:
            _SCOPED.reset(token)
            self._tell_scope(values)

    def _tell_scope(self, names: Iterable[str]) -> None:
        for name in names:
            if tell := self._row(name).tell_scope:
                tell()

    def reload(self) -> None:
        """Forget assignments and the values read so far, so that the environment is read again."""
        self.__dict__.clear()

    def as_dict(self) -> dict[str, Any]:
        """The values in force, by field name."""
        return {row.name: getattr(self, row.name) for row in self.table()}

    def __repr__(self) -> str:
        """Show each setting and its value."""
        return f"Config({', '.join(f'{k}={v!r}' for k, v in self.as_dict().items())})"

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse names that are not settings; a typing mistake must not pass silently."""
        self._row(name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Reached only for unknown names."""
        self._row(name)
        raise AttributeError(name)

    def _row(self, name: str) -> Setting[Any]:
        row = _ROWS.get(name)
        if row is not None:
            return row
        import difflib  # an error path: not worth its import time elsewhere

        near = difflib.get_close_matches(name, list(_ROWS), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"config has no setting {name!r}{hint}")


config = Config()
