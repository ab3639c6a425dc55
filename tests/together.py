"""Compiled calls whose kernels are built many to a translation unit, as a compiler run is dear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from tests.tracing import same

import opkiln as ok
from opkiln import native
from opkiln.runtime import batch
from opkiln.runtime.errors import OpkilnError

PER_UNIT = 32


class Case(NamedTuple):
    """One call: a function, compiled or to be compiled, and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    name: str = ""

    @contextmanager
    def named(self, at: int) -> Iterator[None]:
        """Errors of the block say which case they are of."""
        try:
            yield
        except Exception as error:
            error.add_note(f"case {at}: {self.name or getattr(self.fn, '__name__', self.fn)}")
            raise


def case(fn: Callable[..., Any], *args: Any, name: str = "") -> Case:
    return Case(fn, args, name)


def together(cases: Sequence[Case], **options: Any) -> list[Any]:
    """The results of all cases; they are traced first, then built in few units, then run."""
    made: dict[Callable[..., Any], Any] = {}
    for c in cases:
        if c.fn not in made:
            is_made = isinstance(c.fn, native.Compiled)
            made[c.fn] = c.fn if is_made else ok.compile(c.fn, **options)
    functions = [made[c.fn] for c in cases]
    wanted: list[batch.Want] = []
    for at, (c, f) in enumerate(zip(cases, functions, strict=True)):
        with c.named(at):
            record, requests = f._missing(*c.args)
            wanted.append(batch.Want(record.program, tuple(requests)))
    for at, (c, outcome) in enumerate(zip(cases, batch.build(wanted, pack=PER_UNIT), strict=True)):
        with c.named(at):
            if isinstance(outcome, OpkilnError):
                raise outcome
    results: list[Any] = []
    for at, (c, f) in enumerate(zip(cases, functions, strict=True)):
        with c.named(at):
            results.append(f(*c.args))
    return results


def like_numpy(cases: Sequence[Case], **options: Any) -> list[Any]:
    """The results of all cases, which have the values and dtypes of the functions themselves."""
    results = together(cases, **options)
    for at, (c, got) in enumerate(zip(cases, results, strict=True)):
        with np.errstate(all="ignore"):
            want = c.fn(*c.args)
        with c.named(at):
            same(got, want)
    return results
