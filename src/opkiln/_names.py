"""Where the public names come from; `opkiln` loads this when the first of them is used."""

# ruff: noqa: I001, PLC0414 - "X as X" tells type checkers that a name is handed on
from importlib import import_module

from opkiln import ops as ops
from opkiln.ops.rules import RULES
from opkiln.runtime import errors as errors
from opkiln.runtime.compile import (
    Compiled as Compiled,
    clear_cache as clear_cache,
    compile as compile,
    runtime_info as runtime_info,
    warmup as warmup,
)
from opkiln.runtime.config import config as config
from opkiln.runtime.executor import Info as Info
from opkiln.runtime.executor import PoolInfo as PoolInfo
from opkiln.runtime.executor import RuntimeInfo as RuntimeInfo
from opkiln.runtime.executor import trim as trim
from opkiln.runtime.stages import Lowering as Lowering
from opkiln.runtime.errstate import errstate as errstate
from opkiln.runtime.explain import Explanation as Explanation, Miss as Miss
from opkiln.runtime.spec import TensorSpec as TensorSpec, Warmed as Warmed

# What op definitions do is registered when it is first asked for.
RULES.late = lambda: import_module("opkiln._definitions")
