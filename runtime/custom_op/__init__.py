"""`ok.custom_op`: native code of the user's in, an op out that works wherever ops do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opkiln.ops.definitions import CustomOp
from opkiln.runtime.custom_op import rules
from opkiln.runtime.custom_op.registry import Definition, find_code, register, registered
from opkiln.runtime.custom_op.schema import Schema, parse
from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.trace.session import failure

__all__ = ["custom_op", "registered", "rules"]


def custom_op(
    schema: str,
    *,
    library: Any = None,
    cpu: str | int | None = None,
    cuda: str | int | None = None,
    infer: Callable[..., Any] | None = None,
    backward: str | CustomOp | Callable[..., Any] | None = None,
    layout: str = "contiguous",
) -> CustomOp:
    """Make an op of native code, and register it under the name in its schema.

    The code is what `opkiln/op.h` describes, exported by `OK_OP` or `OK_CPP_OP`. It runs without
    Python's lock and must not call Python.

    Args:
        schema: such as `"ns::f(Tensor a, Tensor? b, float k=1.0) -> (Tensor, Tensor)"`.
        library: what `ok.load` gave, or the path of a shared library.
        cpu: the symbol of the descriptor for arrays in CPU memory, or its address.
        cuda: the same for arrays on a GPU.
        infer: gives the description of the result, or a tuple of several, by those parameters of
            the schema that it names: a `TensorDesc` per tensor (whose sizes may be symbols), and
            the scalars. Without it the code's own inference counts; without that, results have
            dtype and shape of the first tensor.
        backward: gives a gradient per tensor, by what it names of the tensors, the scalars, the
            results (`out`, or `out0`, `out1`) and their gradients (`grad`, or `grad_out0`): another
            op or its name, or a function over arrays and traced values.
        layout: "contiguous": the code is given C order, by a copy where arrays lie otherwise;
            "any": it reads the strides.

    Returns:
        The op, which is a value, to call, or to use in `ok.compile`, `ok.grad`, `SubgraphBuilder`.

    Raises:
        SchemaError: the schema cannot be read.
        ArgumentError: an option has a wrong value.
        LoadFailed, SymbolMissing, AbiMismatch: the library, or the op in it, cannot be used.
        RegistrationError: another op has the name.
    """
    parsed = parse(schema)
    _check(parsed, infer, backward, layout)
    wanted = {"cpu": cpu, "cuda": cuda}
    if cpu is None and cuda is None:
        raise failure(
            ArgumentError,
            f"{parsed.name}: expected cpu= or cuda=, got neither",
            fix="name the symbol that OK_OP or OK_CPP_OP exports",
        )
    code = {
        device: find_code(parsed.name, device, given, library)
        for device, given in wanted.items()
        if given is not None
    }
    return register(Definition(parsed, code, infer, backward, layout == "any"), library)


def _check(schema: Schema, infer: Any, backward: Any, layout: Any) -> None:
    if layout not in ("contiguous", "any"):
        raise failure(
            ArgumentError,
            f"{schema.name}: layout: expected 'contiguous' or 'any', got {layout!r}",
        )
    if infer is not None and not callable(infer):
        raise failure(ArgumentError, f"{schema.name}: infer: expected a function, got {infer!r}")
    if backward is not None and not isinstance(backward, str) and not callable(backward):
        raise failure(
            ArgumentError,
            f"{schema.name}: backward: expected an op, its name or a function, got {backward!r}",
        )
    own = {p.name for p in schema.params}
    for name in (*schema.results, *schema.gradients):
        if backward is not None and name in own:
            raise failure(
                ArgumentError,
                f"{schema.name}: backward: {name!r} would be a parameter and a result, or the "
                f"gradient of one",
                fix="name the result in the schema, as in -> Tensor y",
            )
