"""Where the names of op definitions come from; `opkiln` loads this when the first is used."""

# ruff: noqa: I001, PLC0414 - "X as X" tells type checkers that a name is handed on
from opkiln.ops.definitions import (
    BackwardOpKey as BackwardOpKey,
    CompiledOp as CompiledOp,
    CustomOp as CustomOp,
    FastpathCopy as FastpathCopy,
    GenericPyOp as GenericPyOp,
    Identity as Identity,
    JITFusionOp as JITFusionOp,
    ShapeInfer as ShapeInfer,
    SubgraphOp as SubgraphOp,
    UniqueKey as UniqueKey,
)
from opkiln.ops.subgraph import Subgraph as Subgraph
from opkiln.runtime.encoded import EncodedGraph as EncodedGraph
import opkiln.runtime.backward  # noqa: F401  registers rules
from opkiln.runtime.describe import TensorDesc as TensorDesc
from opkiln.runtime.fusion import FusionSwitch as FusionSwitch, fusion_enabled as fusion_enabled
from opkiln.runtime.custom import subgraph as subgraph
from opkiln.runtime.custom_op import custom_op as custom_op
from opkiln.runtime.subgraph import (
    SubgraphBuilder as SubgraphBuilder,
    Var as Var,
    find_op as find_op,
)
