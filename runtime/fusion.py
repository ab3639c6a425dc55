"""The fusion switch, per thread and async context; and whether a graph can be one fused kernel."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.runtime.errors import FusionUnsupported
from opkiln.runtime.graph import Graph

_ENABLED: ContextVar[bool] = ContextVar("opkiln_fusion_enabled", default=True)

# What a fused kernel is made of: elementwise rows, casts, constants, index maps, reductions.
_FUSIBLE: tuple[type[OpDef], ...] = (
    p.Input, p.Constant, p.FromHost, p.Elementwise, p.Cast, p.Reinterpret, p.Reduce, *p.VIEWS,
)  # fmt: skip


class FusionSwitch:
    """Whether `JITFusionOp` fuses, in this thread and async context; on by default.

    `fallbacks` counts, per op, how often a `CompiledOp` ran unfused what cannot be fused, and why.
    """

    def __init__(self) -> None:
        self.fallbacks: dict[str, tuple[int, str]] = {}

    def __bool__(self) -> bool:
        """Whether it is on."""
        return _ENABLED.get()

    def set(self, enabled: bool) -> bool:
        """Switch, and return what it was."""
        before = _ENABLED.get()
        _ENABLED.set(bool(enabled))
        return before

    @contextmanager
    def scope(self, enabled: bool) -> Generator[None]:
        """Switch for a `with` block; what it was comes back also after an error."""
        token = _ENABLED.set(bool(enabled))
        try:
            yield
        finally:
            _ENABLED.reset(token)

    def fell_back(self, name: str, why: str) -> bool:
        """Count a fallback; whether it is the op's first."""
        count, _ = self.fallbacks.get(name, (0, ""))
        self.fallbacks[name] = count + 1, why
        return count == 0

    def __repr__(self) -> str:
        return f"<fusion {'on' if self else 'off'}>"


fusion_enabled = FusionSwitch()


def require_fusible(name: str, graph: Graph) -> None:
    """Refuse what cannot be part of a fused kernel.

    Raises:
        FusionUnsupported: names the ops.
    """
    found = [n.op.name for n in graph.nodes if not n.is_host and not isinstance(n.op, _FUSIBLE)]
    if found:
        raise FusionUnsupported(
            f"{name}: {', '.join(dict.fromkeys(found))} cannot be part of a fused kernel",
            fix="use CompiledOp of the op inside, which makes several kernels",
        )
