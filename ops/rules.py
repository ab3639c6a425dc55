"""The rule table: (method, op type) in, the registered function out, along the type's MRO."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from opkiln.ops.defs import OpDef

F = TypeVar("F", bound=Callable[..., Any])


class NoRule(LookupError):
    """No rule of this method is registered for the op's type or any of its fallbacks."""


class RuleTable:
    """One dict of rules; it starts empty and never freezes, since custom ops register late.

    Source: SEMANTICS 3; the seed's lazily installed, unlocked fallbacks are K27.
    """

    def __init__(self) -> None:
        self._rules: dict[tuple[str, type], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self.late: Callable[[], object] | None = None  # registers more, when the first is missing

    def register(self, method: str, op_type: type[OpDef]) -> Callable[[F], F]:
        """Decorator that adds a rule.

        Raises:
            ValueError: a rule for this method and type exists already.
        """

        def add(rule: F) -> F:
            with self._lock:
                if (method, op_type) in self._rules:
                    raise ValueError(
                        f"rule {method!r} for {op_type.__name__} is registered already; "
                        f"a second one would silently replace it"
                    )
                self._rules[method, op_type] = rule
            return rule

        return add

    def find(self, method: str, op: OpDef) -> Callable[..., Any]:
        """The rule nearest in the op type's MRO; the rules of OpDef itself are fallback chains.

        Raises:
            NoRule: nothing matches; the text names op and method.
        """
        rule = self.get(method, op)
        if rule is None:
            raise NoRule(f"op {op.name} has no rule for {method!r}")
        return rule

    def get(self, method: str, op: OpDef) -> Callable[..., Any] | None:
        """As `find`, or None where nothing matches."""
        for cls in type(op).__mro__:
            rule = self._rules.get((method, cls))
            if rule is not None:
                return rule
        if self.late is None:
            return None
        load, self.late = self.late, None
        load()
        return self.get(method, op)


RULES = RuleTable()
