"""Shared by the tests of other libraries' arrays: two compiled functions, and what a refusal is."""

from __future__ import annotations

from typing import Any

import pytest

import opkiln as ok
from opkiln.runtime import errors


@ok.compile
def double(x):
    return x + x


@ok.compile
def total(x, y):
    return x + y


def refused(x: Any, kind: type[Exception], *words: str, **keywords: Any) -> None:
    """double(x) is an error of this kind that names the argument and holds a fix and the words."""
    with pytest.raises(kind) as caught:
        double(x, **keywords)
    assert isinstance(caught.value, errors.OpkilnError)
    text = str(caught.value)
    assert text.startswith("out: " if keywords else "double(): argument 'x': ")
    for word in ("how to fix: ", *words):
        assert word in text
