"""NumPy functions in, cached native executors out: the public names of opkiln.

They are loaded when the first of them is used: `opkiln --version` needs none, and they need NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opkiln._names import *  # noqa: F403

__all__ = [  # noqa: F405
    "Compiled",
    "Explanation",
    "Info",
    "Lowering",
    "Miss",
    "TensorSpec",
    "Warmed",
    "clear_cache",
    "compile",
    "config",
    "errors",
    "errstate",
    "ops",
    "runtime_info",
    "warmup",
]
# Names of the design that are not built yet: asking for one says so instead of looking like a typo.
_PLANNED = frozenset({
    "Event", "Stream", "SubgraphBuilder", "custom_op", "grad", "load", "load_inline",
    "profile", "subgraph", "synchronize", "value_and_grad", "vjp", "xp",
})  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a public name; refuse names that are planned, and names that are not.

    Raises:
        errors.NotYetName: planned, not built yet; also an AttributeError, so hasattr() works.
        AttributeError: no such name.
    """
    if name in __all__:
        value = globals()[name] = getattr(import_module("opkiln._names"), name)
        return value
    if name in _PLANNED:
        from opkiln.runtime.errors import NotYetName

        raise NotYetName(f"opkiln.{name} is not built yet", fix="see README, limits")
    raise AttributeError(f"module 'opkiln' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
