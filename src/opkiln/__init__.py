"""NumPy functions in, cached native executors out: the public names of opkiln."""

from opkiln import ops
from opkiln.runtime import errors
from opkiln.runtime.compile import Compiled, Info, Lowering, clear_cache, compile, runtime_info
from opkiln.runtime.config import config

__all__ = [
    "Compiled",
    "Info",
    "Lowering",
    "clear_cache",
    "compile",
    "config",
    "errors",
    "ops",
    "runtime_info",
]
# Names of the design that are not built yet: asking for one says so instead of looking like a typo.
_PLANNED = frozenset({
    "Event", "Stream", "SubgraphBuilder", "TensorSpec", "custom_op", "grad", "load", "load_inline",
    "profile", "subgraph", "synchronize", "value_and_grad", "vjp", "xp",
})  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Refuse names that are planned, and names that are not.

    Raises:
        errors.NotYetName: planned, not built yet; also an AttributeError, so hasattr() works.
        AttributeError: no such name.
    """
    if name in _PLANNED:
        raise errors.NotYetName(f"opkiln.{name} is not built yet", fix="see README, limits")
    raise AttributeError(f"module 'opkiln' has no attribute {name!r}")
