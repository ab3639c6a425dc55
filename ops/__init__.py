"""What ops are: frozen descriptions that every later stage reads.

`ops.erf` and the like are the rows as functions, `ops.Identity` and the like the op definitions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
    """A row of the elementwise table as a function of arrays or traced values.

    Raises:
        AttributeError: the table has no such row.
    """
    # While the table itself is being imported, this is asked for the names of its submodules.
    table = sys.modules.get("opkiln.ops.table")
    row = getattr(table, "ELEMENTWISE", {}).get(name)
    if row is None and name[:1].isupper() and table is not None:
        from opkiln.ops import definitions

        if name in definitions.__all__:
            return getattr(definitions, name)  # type: ignore[no-any-return]
    if row is None:
        raise AttributeError(f"opkiln.ops has no op {name!r}")

    def function(*args: object) -> Any:
        for arg in args:
            hook = getattr(type(arg), "__opkiln_apply__", None)
            if hook is not None:
                return hook(name, args)
        return row.numpy(*args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = row.doc or f"The op {name!r}, elementwise."
    return function
