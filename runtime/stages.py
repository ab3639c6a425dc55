"""What one call becomes at each stage: a trace and its program in, readable texts out."""

from __future__ import annotations

from collections.abc import Iterator

from opkiln.ops.primitives import Dim, HostArg
from opkiln.ops.record import record
from opkiln.runtime import jit
from opkiln.runtime.graph import Graph, Names, Node, topological
from opkiln.runtime.kernel import Kernel, Lowered
from opkiln.runtime.picture import to_dot

_LETTERS = "nmklpqrstuv"


@record
class Lowering:
    """What one call becomes at each stage; `str()` of it tells the whole story."""

    traced: Graph  #: as the function was written; printed as one line per node, with that line
    graph: Graph  #: rewritten
    lowered: Lowered  #: loop nests in the order they run, and the memory that they share
    source: str  #: the C++ text of these layouts; empty where no element is computed
    arrays: tuple[str, ...] = ()  #: what the user calls the graph's inputs: x, pair[0], ...
    scalars: tuple[str, ...] = ()  #: the same of the Python numbers
    shapes: tuple[tuple[int, ...], ...] = ()  #: of the arrays

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The loop nests, in the order of their launches."""
        return tuple(launch.kernel for launch in self.lowered.launches)

    @property
    def asm(self) -> str:
        """The compiler's assembly of the source, with the flags of a build.

        Raises:
            ToolchainNotFound: there is no compiler.
        """
        return jit.assembly(self.source)

    def to_dot(self) -> str:
        """The rewritten graph in Graphviz's language."""
        return to_dot(self.graph, self.names)

    @property
    def names(self) -> Names:
        """What to call inputs, scalars and sizes in print."""
        called: dict[Node, str] = dict(zip(self.traced.inputs, self.arrays, strict=False))
        called.update((node, letter) for letter, node, _ in self._sizes())
        roots = [*self.traced.outputs, *(dim for n in self.traced.nodes for dim in n.shape)]
        for node in topological(roots):
            if isinstance(node.op, HostArg) and node.op.index < len(self.scalars):
                called[node] = self.scalars[node.op.index]
        return called

    @property
    def sizes(self) -> tuple[str, ...]:
        """The letters of the extents: `n = x.shape[0] = 64` and so on."""
        return tuple(f"{letter} = {text}" for letter, _, text in self._sizes())

    def _sizes(self) -> Iterator[tuple[str, Node, str]]:
        dims = [
            (dim, name, axis, shape[axis])
            for node, name, shape in zip(self.traced.inputs, self.arrays, self.shapes, strict=False)
            for axis, dim in enumerate(node.shape)
            if isinstance(dim.op, Dim)
        ]
        for i, (dim, name, axis, extent) in enumerate(dims):
            letter = _LETTERS[i] if len(dims) <= len(_LETTERS) else f"n{i}"
            yield letter, dim, f"{name}.shape[{axis}] = {extent}"

    @property
    def own_source(self) -> str:
        """The source without what every kernel begins with."""
        at = self.source.find("\n// ok_k0 ")
        return self.source[at + 1 :]

    def __str__(self) -> str:
        parts = [
            ("sizes", "\n".join(self.sizes)),
            ("traced graph", self.traced.text(self.names)),
            ("rewritten graph", self.graph.text(self.names)),
            ("kernels", self.lowered.text(self.names, self.arrays)),
            ("C++", self.own_source),
        ]
        return "\n\n".join(f"{title}\n{text}" for title, text in parts if text)
