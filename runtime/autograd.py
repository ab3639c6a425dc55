"""Compiled functions that torch differentiates: a function in, one over tensors out.

Its forward and backward are compiled programs. Of inputs and results torch keeps those alone whose
elements the backward reads. The backward is such a function too, so torch differentiates it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

from opkiln import native
from opkiln.ops import primitives as p
from opkiln.runtime.compile import compile
from opkiln.runtime.differentiate import pulled_back
from opkiln.runtime.executor import Info, info_of
from opkiln.runtime.explain import Explanation
from opkiln.runtime.grad import leaves
from opkiln.runtime.program import Program
from opkiln.runtime.tree import mapped


def torch_function(fn: Callable[..., Any], /) -> _Differentiable:
    """A function over torch tensors that takes part in torch's autograd.

    Args:
        fn: a plain or compiled function. Its tensors may be nested in tuples, lists and dicts.

    Returns:
        A function with the same arguments, from tensors to tensors; as others it may be a method.
        Where none of them requires a gradient it is the compiled function itself. The backward is
        compiled when first needed, and can be differentiated again (`create_graph=True`). `info()`
        counts forward and backward; `explain()` gives a tuple with an explanation of each.

    Raises:
        GradientError: in the backward: as `ok.grad`.
    """
    made = _Differentiable(fn)
    functools.update_wrapper(made, fn)
    return made


class _Differentiable:
    """The two programs of a function, and what its backward reads per kind of arguments."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn: Any = fn
        self.forward: Any = fn if isinstance(fn, native.Compiled) else compile(fn)
        self._backward: _Differentiable | None = None
        self._fixed: dict[Any, _Differentiable] = {}  # by the values of static parameters
        self._class: type | None = None  # whose method it is
        self._methods: WeakKeyDictionary[Any, _Differentiable] = WeakKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._class and args and isinstance(args[0], self._class):
            return self._of(args[0]).run(args[1:], kwargs, args[0])
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], receiver: Any = None) -> Any:
        """The call; torch's graph keeps the receiver of a method alive."""
        import torch

        if self.forward is self.fn and self.fn._frontend.options.static:
            return self._with_static(args, kwargs)
        tensors = [v for v in leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return self.forward(*args, **kwargs)
        call = _Call(self, args, kwargs, receiver)
        with _INLINE:
            found = _autograd().apply(call, *tensors)
        return _filled(call.result, found)

    def __set_name__(self, owner: type, name: str) -> None:
        self._class = owner

    def __get__(self, receiver: Any, owner: Any = None) -> Any:
        return self if receiver is None else MethodType(self, receiver)

    def _of(self, receiver: Any) -> _Differentiable:
        """The function of one receiver, which it does not keep alive."""
        found = self._methods.get(receiver)
        if found is None:
            held = ref(receiver)

            def method(*args: Any, **kwargs: Any) -> Any:
                return self.fn(held(), *args, **kwargs)

            method.__qualname__ = self.forward.name
            found = self._methods.setdefault(receiver, _Differentiable(method))
        return found

    def info(self) -> Info:
        """Counters of the forward and of what was needed of the backward, added up."""
        return info_of(part.native for part in self._parts())

    def explain(self) -> tuple[Explanation, ...]:
        """Why calls of the forward missed, then those of each derivative; print them."""
        return tuple(part.explain() for part in self._parts())

    def _parts(self) -> list[Any]:
        """The compiled functions: its own, those of each static value, those of the backward."""
        own = [self._backward] if self._backward else []
        others = (*self._fixed.values(), *self._methods.values(), *own)
        return [self.forward, *(part for other in others for part in other._parts())]

    def _with_static(self, args: Any, kwargs: Any) -> Any:
        """The call of the function whose static parameters have their values already."""
        frontend = self.fn._frontend
        bound = frontend.signature.bind(*args, **kwargs).arguments
        static = {n: bound.pop(n) for n in frontend.options.static if n in bound}
        key = tuple((n, self.forward._static_id(v)) for n, v in static.items())
        if key not in self._fixed:

            def fixed(**others: Any) -> Any:
                return self.fn(**others, **static)

            fixed.__qualname__ = self.forward.name
            self._fixed[key] = _Differentiable(fixed)
        return self._fixed[key].run((), bound)

    @property
    def backward(self) -> _Differentiable:
        """From (arguments, result, cotangents) to the cotangents of the tensors in `need`."""
        if self._backward is None:

            def backward(args: Any, kwargs: Any, result: Any, cotangents: Any, *, need: Any) -> Any:
                whole = _flattened(self.fn, args, kwargs)
                return pulled_back(whole, leaves((args, kwargs)), {}, result, cotangents, need)

            name = f"backward({getattr(self.fn, '__qualname__', type(self.fn).__name__)})"
            self._backward = _Differentiable(compile(backward, name=name, static="need"))
        return self._backward


def _flattened(fn: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    """The function of the leaves of its arguments."""

    def flat(*values: Any) -> Any:
        new = iter(values)
        own_args, own_kwargs = mapped((args, kwargs), lambda _: next(new))
        return fn(*own_args, **own_kwargs)

    return flat


class _Call:
    """One call on its way through torch: arguments and result as trees."""

    def __init__(self, owner: _Differentiable, args: Any, kwargs: Any, receiver: Any) -> None:
        self.owner = owner
        self.args = args
        self.kwargs = kwargs
        self.receiver = receiver
        self.result: Any = None
        self.need: tuple[bool, ...] = ()
        self.read: list[bool] = []

    def reads(self) -> list[bool]:
        """Which tensors of arguments and result the backward reads elements of."""
        import torch

        record, _ = self.owner.backward.forward._missing(
            self.args, self.kwargs, self.result, self.result, need=self.need
        )
        arrays = iter(_inputs_read(record.program))
        flat = leaves((self.args, self.kwargs, self.result))
        return [next(arrays) for v in flat if isinstance(v, torch.Tensor)]


@lru_cache(maxsize=1024)
def _inputs_read(program: Program) -> tuple[bool, ...]:
    """Per input of a program, whether it reads elements of it, and not just its sizes."""
    graph = program.graph
    read = {s for n in graph.nodes if not isinstance(n.op, p.Dim) for s in n.src}
    read.update(graph.outputs)
    return tuple(node in read for node in graph.inputs)


def _filled(tree: Any, tensors: Sequence[Any]) -> Any:
    """A tree with other tensors in the place of its own."""
    import torch

    new = iter(tensors)
    return mapped(tree, lambda v: next(new) if isinstance(v, torch.Tensor) else v)


_INLINE = native.Stream.inline()  # torch's graph is made of tensors, not of futures


def _stand_in(tensor: Any) -> Any:
    """A tensor of the same shape without memory, of which only the sizes are read."""
    return tensor.new_empty(()).expand(tensor.shape)


@cache
def _autograd() -> Any:
    """The torch.autograd.Function of all calls."""
    import torch

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[Any, ...]:
            call.args, call.kwargs = _filled((call.args, call.kwargs), tensors)
            call.result = call.owner.forward(*call.args, **call.kwargs)
            needed = iter(ctx.needs_input_grad[1:])
            call.need = tuple(
                next(needed) if isinstance(v, torch.Tensor) else False
                for v in leaves((call.args, call.kwargs))
            )
            results = [v for v in leaves(call.result) if isinstance(v, torch.Tensor)]
            call.read = call.reads()
            kept = zip((*tensors, *results), call.read, strict=True)
            ctx.save_for_backward(*(v for v, read in kept if read))
            ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
            ctx.set_materialize_grads(False)
            # Not the call itself, which holds the tensors.
            ctx.owner, ctx.need, ctx.read = call.owner, call.need, call.read
            ctx.receiver = call.receiver
            every = (call.args, call.kwargs, call.result)
            ctx.trees = mapped(every, lambda v: _stand_in(v) if isinstance(v, torch.Tensor) else v)
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            saved = iter(ctx.saved_tensors)
            stand = [v for v in leaves(ctx.trees) if isinstance(v, torch.Tensor)]
            have = [next(saved) if read else v for v, read in zip(stand, ctx.read, strict=True)]
            args, kwargs, result = _filled(ctx.trees, have)
            given = _filled(result, cotangents)
            every = (args, kwargs, result, given)
            with _INLINE:  # the context is that of whoever asks for gradients
                found = iter(ctx.owner.backward.run(every, {"need": ctx.need}, ctx.receiver))
            flat = zip(leaves((args, kwargs)), ctx.need, strict=True)
            return (
                None,
                *(next(found) if need else None for v, need in flat if isinstance(v, torch.Tensor)),
            )

    return Compiled
