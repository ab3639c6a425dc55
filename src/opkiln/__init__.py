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
__version__ = "0.1.0"
