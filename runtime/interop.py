"""Arrays of other libraries: in goes an object, out comes the way to its memory, or a refusal.

The native side asks once per type and remembers the answer; it reads the memory itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

from opkiln import native
from opkiln.runtime.errors import ArgumentError, DeviceMismatch

if TYPE_CHECKING:
    import numpy as np

EXCHANGE = "__dlpack_c_exchange_api__"
# How a library makes its array of an ndarray, where that is not `from_dlpack`.
IMPORTS = {"jax.numpy": "asarray"}  # keeps to jax_enable_x64, and from_dlpack takes 10 us more


def door(o: Any, has_buffer: bool) -> tuple[str, str | None]:
    """The way into objects of this type, and the module whose arrays results become.

    Ways: "exchange" (DLPack's C functions), "buffer", "dlpack", "interface"; first come, first
    tried, so that of several the one is taken that is cheap and says what is read-only.

    Raises:
        ArgumentError, DeviceMismatch: nothing of this type can be used.
    """
    cls = _class_of(o)
    _refuse_views(o, cls)
    if _is_torch(cls):
        return _torch_door(cls), "torch"
    if has_buffer:
        return "buffer", _library(o, cls)
    if hasattr(cls, "__dlpack__"):
        own = EXCHANGE in vars(cls)  # a subclass may mean another __dlpack__
        return "exchange" if own else "dlpack", _library(o, cls)
    if hasattr(o, "__array_interface__") or hasattr(o, "__array_struct__"):
        return "interface", None
    _refuse_stranger(o, cls)


def export(library: str, array: Any) -> Any:
    """The array as one of the library; both may share the memory."""
    if library == "torch" and array.dtype.kind == "V":  # NumPy exports no bfloat16
        return _importer(library)(array.view("i2")).view(_torch().bfloat16)
    return _importer(library)(array)


@cache
def _importer(library: str) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = getattr(
        import_module(library), IMPORTS.get(library, "from_dlpack")
    )
    return made


def offers_memory(o: Any) -> bool:
    """Whether the object is meant to be read as an array; bytes are a value, a class is none."""
    if isinstance(o, (bytes, type)):
        return False
    names = ("__dlpack__", "__array_interface__", "__array_struct__", "__array__")
    if any(hasattr(o, name) for name in names):
        return True
    try:
        memoryview(o).release()
    except TypeError:
        return False
    return True


def captured(o: Any) -> np.ndarray[Any, Any]:
    """The memory of an array which a traced function holds; later changes of it are seen.

    Raises:
        OpkilnError: the array is refused, as it would be as an argument.
    """
    # Refused under no_grad() too: later calls may be outside of it.
    if _is_torch(_class_of(o)) and o.requires_grad:
        raise ArgumentError(
            f"a {type(o).__name__} with requires_grad cannot be used: a constant gets no gradient",
            fix="pass it as an argument of ok.torch_function(f), or use w.detach() in the function",
        )
    return native.foreign_array(o)


def check_tensor(tensor: Any, written: bool) -> None:
    """Called for a torch tensor which is not plain, or while torch records what happens.

    Raises:
        ArgumentError: the values that a kernel reads, or the record, would be wrong.
    """
    torch = _torch()
    forward_ad = torch.autograd.forward_ad
    name = type(tensor).__name__
    _refuse_transformed(tensor, name)
    _refuse_recording()
    if forward_ad.unpack_dual(tensor).tangent is not None:
        raise ArgumentError(
            f"expected a tensor without tangent, got a {name} of forward-mode autograd",
            fix="pass forward_ad.unpack_dual(x).primal: there are no forward-mode gradients",
        )
    if tensor.is_neg():
        raise ArgumentError(
            f"expected plain values, got a {name} with its negative bit set",
            fix="pass x.resolve_neg()",
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        what = "written in place" if written else "used"
        raise ArgumentError(
            f"a {name} with requires_grad cannot be {what}: compiled functions record no gradient",
            fix="wrap the function in ok.torch_function, pass x.detach(), or call inside "
            "torch.no_grad()",
        )


def refuse_memory(o: Any, reason: str) -> NoReturn:
    """Say why an object of an accepted type has no memory that can be read; it just refused.

    Raises:
        ArgumentError, DeviceMismatch: always.
    """
    cls = _class_of(o)
    if _is_torch(cls):
        _refuse_torch_memory(o, cls)
    raise ArgumentError(
        f"the memory of a {cls.__name__} cannot be used: {reason}",
        fix="pass a dense array on the CPU, for example np.asarray(x)",
    )


# ---- who it comes from ----


def _class_of(o: object) -> type[Any]:
    return type(o)  # of Any, type checkers would rather not know it


def _torch() -> Any:
    """The module, or None: who has a tensor has imported it."""
    return sys.modules.get("torch")


def _is_torch(cls: type[Any]) -> bool:
    return issubclass(cls, getattr(_torch(), "Tensor", ()))


def _library(o: Any, cls: type[Any]) -> str | None:
    """The module that makes arrays like this one, by the array-API standard or by its name."""
    namespace = getattr(o, "__array_namespace__", None)
    if namespace is not None:
        name = str(namespace().__name__)
    else:
        owners = [c for c in cls.__mro__ if "__dlpack__" in vars(c)]
        name = owners[0].__module__.partition(".")[0] if owners else ""
    module = sys.modules.get(name)
    known = module is not None and hasattr(module, "from_dlpack")
    return name if known and name != "numpy" else None


def _torch_door(cls: type[Any]) -> str:
    torch = _torch()
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return "exchange" if hasattr(cls, EXCHANGE) else "dlpack"
    wraps = getattr(cls, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__
    raise ArgumentError(
        f"expected a plain torch.Tensor, got the subclass {cls.__name__}",
        fix="call the function outside of the mode or transform that makes such tensors, or pass "
        "an ordinary tensor made of its values"
        if wraps
        else "pass x.as_subclass(torch.Tensor)",
    )


# ---- refusals ----


def _refuse_views(o: Any, cls: type[Any]) -> None:
    """Refuse what offers its values in a way that hides what it is."""
    if hasattr(cls, "to_numpy"):
        raise ArgumentError(f"expected an array, got {cls.__name__}", fix="pass x.to_numpy()")
    if any(c.__name__ == "Tracer" and c.__module__.startswith("jax.") for c in cls.__mro__):
        raise ArgumentError(
            f"expected an array, got a {cls.__name__}: jax.jit, grad or vmap is tracing",
            fix="call the function outside, or by jax.pure_callback",
        )
    if not hasattr(cls, "__dlpack__") and hasattr(o, "__cuda_array_interface__"):
        raise DeviceMismatch(
            f"expected memory on the CPU, got a {cls.__name__} on a GPU",
            fix="move it to the CPU first, for example x.cpu() or x.get()",
        )


def _refuse_stranger(o: Any, cls: type[Any]) -> NoReturn:
    """Refuse an object that offers no memory."""
    fix = "pass an array or a number, or name the parameter in compile(static=...)"
    if hasattr(cls, "__array__"):
        fix = "pass np.asarray(x), which may copy"
    elif isinstance(o, Number):
        fix = "pass float(x)"
    elif isinstance(o, Iterable):
        fix = "pass np.array(list(x))"
    raise ArgumentError(f"cannot use an object of type {cls.__module__}.{cls.__name__}", fix=fix)


def _refuse_transformed(tensor: Any, name: str) -> None:
    """Refuse what torch.func puts in the place of a tensor."""
    torch = _torch()
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if wrapped or torch._is_functional_tensor(tensor):
        raise ArgumentError(
            f"expected an ordinary tensor, got a {name} inside torch.func (vmap, grad, ...)",
            fix="call the function outside of the transform; it takes whole batches itself",
        )


def _refuse_recording() -> None:
    """Refuse while torch writes down operations: it would take our result for a constant."""
    torch = _torch()
    modes = torch._C._TorchDispatchModeKey
    kinds = (modes.PROXY, modes.FAKE, modes.FUNCTIONAL)
    if torch.jit.is_tracing() or any(torch._C._get_dispatch_mode(k) is not None for k in kinds):
        raise ArgumentError(
            "torch is tracing, and cannot see into a compiled function",
            fix="call the function outside of the traced code, or wrap it in torch.library"
            ".custom_op",
        )


def _refuse_torch_memory(tensor: Any, cls: type[Any]) -> None:
    """Refuse a torch tensor whose values do not lie in CPU memory in plain strides."""
    torch = _torch()
    name = cls.__name__
    _refuse_transformed(tensor, name)
    if tensor.is_nested:
        raise ArgumentError(
            f"expected a {name} of one shape, got a nested one",
            fix="pass x.to_padded_tensor(0.0), or its parts one by one",
        )
    if tensor.is_quantized:
        raise ArgumentError(
            f"expected plain values, got a quantized {name}", fix="pass x.dequantize()"
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            f"expected a dense {name}, got layout {tensor.layout}", fix="pass x.to_dense()"
        )
    if tensor.device.type != "cpu":
        raise DeviceMismatch(
            f"expected memory on the CPU, got a {name} on device {tensor.device}",
            fix="pass a tensor with values"
            if tensor.device.type == "meta"
            else "move it to the CPU first: x.cpu()",
        )
