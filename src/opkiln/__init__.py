"""NumPy functions in, cached native executors out: the public names of opkiln.

They are loaded when the first of them is used: `opkiln --version` needs none, and they need NumPy.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opkiln._definitions import *  # noqa: F403
    from opkiln._names import *  # noqa: F403
    from opkiln.native import Event, Future, Stream, synchronize
    from opkiln.runtime.allocator import allocator, set_allocator
    from opkiln.runtime.autograd import torch_function
    from opkiln.runtime.device import Device
    from opkiln.runtime.differentiate import grad, value_and_grad, vjp
    from opkiln.runtime.extension import load, load_inline
    from opkiln.runtime.grad import custom_gradient, stop_gradient
    from opkiln.runtime.threads import get_num_threads, set_num_threads

__all__ = [  # noqa: F405
    "Compiled",
    "Device",
    "Event",
    "Explanation",
    "Future",
    "Info",
    "Lowering",
    "Miss",
    "PoolInfo",
    "RuntimeInfo",
    "Stream",
    "TensorSpec",
    "Warmed",
    "allocator",
    "clear_cache",
    "compile",
    "config",
    "custom_gradient",
    "errors",
    "errstate",
    "get_num_threads",
    "grad",
    "load",
    "load_inline",
    "ops",
    "runtime_info",
    "set_allocator",
    "set_num_threads",
    "stop_gradient",
    "synchronize",
    "torch_function",
    "trim",
    "value_and_grad",
    "vjp",
    "warmup",
]
# Names of op definitions, which most programs never use: they are no part of `import *`.
_DEFINITIONS = frozenset({
    "BackwardOpKey", "CompiledOp", "CustomOp", "EncodedGraph", "FastpathCopy", "FusionSwitch",
    "GenericPyOp", "Identity", "JITFusionOp", "ShapeInfer", "Subgraph", "SubgraphBuilder",
    "SubgraphOp", "TensorDesc", "UniqueKey", "Var", "custom_op", "find_op", "fusion_enabled",
    "subgraph",
})  # fmt: skip
# Names of the design that are not built yet: asking for one says so instead of looking like a typo.
_PLANNED = frozenset({
    "profile", "xp",
})  # fmt: skip
# Loaded apart from the others, for those who take no gradients and use no streams.
_APART: dict[str, str] = {
    **dict.fromkeys(["Event", "Future", "Stream", "synchronize"], "opkiln.native"),
    "Device": "opkiln.runtime.device",
    **dict.fromkeys(["custom_gradient", "stop_gradient"], "opkiln.runtime.grad"),
    "torch_function": "opkiln.runtime.autograd",
    **dict.fromkeys(["get_num_threads", "set_num_threads"], "opkiln.runtime.threads"),
    **dict.fromkeys(["load", "load_inline"], "opkiln.runtime.extension"),
    **dict.fromkeys(["allocator", "set_allocator"], "opkiln.runtime.allocator"),
    **dict.fromkeys(["grad", "value_and_grad", "vjp"], "opkiln.runtime.differentiate"),
}
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a public name; refuse names that are planned, and names that are not.

    Raises:
        errors.NotYetName: planned, not built yet; also an AttributeError, so hasattr() works.
        AttributeError: no such name.
    """
    if name in __all__:
        value = globals()[name] = getattr(_load(_APART.get(name, "opkiln._names")), name)
        return value
    if name in _DEFINITIONS:
        value = globals()[name] = getattr(_load("opkiln._definitions"), name)
        return value
    if name in _PLANNED:
        from opkiln.runtime.errors import NotYetName

        raise NotYetName(f"opkiln.{name} is not built yet", fix="see README, limits")
    raise AttributeError(f"module 'opkiln' has no attribute {name!r}")


def _load(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        from opkiln._subinterpreter import explain

        explain(error)
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_DEFINITIONS})
