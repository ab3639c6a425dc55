"""Messages by level through `logging`, stages as files in OPKILN_DUMP_DIR.

The ladder: 1 misses and why, 2 also those of new shapes, traces and executors taken, 3 graphs,
4 generated text, 5 compiler commands.
`logging` is imported at the first message, so that a quiet program never pays for it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

from opkiln.runtime.config import config

if TYPE_CHECKING:
    import logging
    from pathlib import Path

NAME = "opkiln"
_lock = threading.Lock()
_handler: logging.Handler | None = None
_complained: set[str] = set()


def enabled(level: int) -> bool:
    """Whether this level is shown: by OPKILN_DEBUG, or by the program's own logging set-up."""
    if config.debug >= level:
        return True
    logging = sys.modules.get("logging")
    if logging is None:
        return False
    logger = logging.getLogger(NAME)
    return bool(logger.level and logger.isEnabledFor(_severity(level)) and logger.hasHandlers())


def _severity(level: int) -> int:
    """INFO for misses, then DEBUG and finer: logging's own numbers."""
    return 20 if level <= 1 else 12 - level


def logger() -> logging.Logger:
    """The logger "opkiln"; with OPKILN_DEBUG above 0 it also writes to standard error."""
    import logging

    global _handler  # noqa: PLW0603
    found = logging.getLogger(NAME)
    if config.debug and _handler is None:
        with _lock:
            if _handler is None:
                _handler = logging.StreamHandler()
                _handler.setFormatter(logging.Formatter("opkiln: %(message)s"))
                found.addHandler(_handler)
                found.propagate = False
    if config.debug:
        found.setLevel(min(found.level or 99, _severity(config.debug)))
    return found


def log(level: int, message: str, *args: Any) -> None:
    """One message of the ladder; `args` are formatted only if it is shown."""
    if enabled(level):
        logger().log(_severity(level), message, *args)


def warn(message: str, *args: Any) -> None:
    """Something that the user should act on: shown whatever the level."""
    logger().warning(message, *args)


def dump(stage: str, name: str, text: str | bytes) -> Path | None:
    """Write one stage of a compilation to OPKILN_DUMP_DIR/<name>/<stage>; None if that is unset.

    A directory that cannot be written is reported once and never stops a compilation.
    """
    root = config.dump_dir
    if root is None:
        return None
    from pathlib import Path

    folder = Path(root) / (re.sub(r"[^\w.+-]+", "_", name).strip("_.")[:100] or "function")
    path = folder / stage
    draft = folder / f".{stage}.{os.getpid()}.{threading.get_ident()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(text.encode() if isinstance(text, str) else text)
        draft.replace(path)
    except OSError as error:
        if str(root) not in _complained:
            _complained.add(str(root))
            warn("OPKILN_DUMP_DIR=%s cannot be written, nothing is dumped there: %s", root, error)
        return None
    return path
