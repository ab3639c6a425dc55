"""How many threads work on one large call: a setting in, the native workers told.

The workers are native/core/threads.h; here are the ways to say how many there may be.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from opkiln import native
from opkiln.runtime.config import Config, config

_told: list[int | None] = []  # what the native side has from the setting
_controllers: list[type] = []  # that threadpoolctl knows


class Restore:
    """Gives the former number of threads back at the end of a `with` block."""

    __slots__ = ("_former",)

    def __init__(self, former: int | None) -> None:
        """Remember the setting as it was."""
        self._former = former

    def __enter__(self) -> None:
        """Nothing: the new number holds since the call."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Set the former number."""
        config.num_threads = self._former


def set_num_threads(count: int | None) -> Restore:
    """Let at most so many threads of this process work on one call, the caller's included.

    No result depends on it. The same as `config.num_threads = count`; for one thread or block alone
    use `config.scope(num_threads=count)`.

    Args:
        count: from 1; None for the default, as many as the process may use CPUs.

    Returns:
        What gives the former number back where a block of `with` ends.

    Raises:
        ConfigError: not such a number.
    """
    former = Config.num_threads.of_process(config)
    config.num_threads = count
    return Restore(former)


def get_num_threads() -> int:
    """How many threads work on one large call of this thread at most."""
    ready()
    return config.num_threads or native.num_threads()


def ready() -> None:
    """Tell the native side what the environment says, and threadpoolctl, once it is in use, of us.

    Raises:
        ConfigError: the environment has no such number.
    """
    if not _told:
        _tell(Config.num_threads.of_process(config))
    threadpoolctl: Any = sys.modules.get("threadpoolctl")
    if threadpoolctl is not None and not _controllers:
        _controllers.append(type("Opkiln", (_Controller, threadpoolctl.LibController), {}))
        threadpoolctl.register(*_controllers)


class _Controller:
    """What threadpoolctl asks of a library whose threads it limits along with those of others."""

    user_api = internal_api = "opkiln"
    filename_prefixes = ("_core.",)
    check_symbols = ("opkiln_num_threads",)  # no other library of this name has it

    def get_num_threads(self) -> int:
        return native.num_threads()

    def set_num_threads(self, num_threads: int) -> None:
        config.num_threads = num_threads

    def get_version(self) -> str:
        from importlib.metadata import version

        return version("opkiln")


def _tell(count: int | None) -> None:
    _told[:] = [count]
    native.set_num_threads(count or 0)


def _tell_scope() -> None:
    count = 0  # as the process
    if Config.num_threads.is_scoped():
        count = config.num_threads or native.usable_cpus()
    native.set_own_num_threads(count)


Config.num_threads.tell = _tell
Config.num_threads.tell_scope = _tell_scope
_tell_scope()  # in case this is imported within one
