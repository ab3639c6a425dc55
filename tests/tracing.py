"""Tracing one call and interpreting its graph, for the tests of the front end."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime.errors import OpkilnError
from opkiln.runtime.reference import interpret
from opkiln.runtime.trace import Out, Traced, trace

A = np.array([[1.5, -2, 3], [4, 5.25, -6]], np.float32)
INT = np.array([[7, -7, 3], [0, 2, -128]], np.int8)
FLAG = np.array([[True, False, True], [False, False, True]])


def leaf_kind(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return "a"
    if type(value) is int:
        return "i" if value < 2**63 else "u"
    return "f" if type(value) is float else "s"


def traced(fn: Callable[..., Any], *args: Any) -> Traced:
    names = [f"p{i}" for i in range(len(args))]
    kinds = "".join(map(leaf_kind, args))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return trace(
            fn, names, bytes([0] * len(args)), tuple(range(len(args))), args, kinds, name="f"
        )


def rebuild(tree: Any, outputs: list[Any]) -> Any:
    if isinstance(tree, Out):
        return outputs[tree.index]
    if isinstance(tree, dict):
        return {k: rebuild(v, outputs) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(rebuild(v, outputs) for v in tree)
    return tree


def run(fn: Callable[..., Any], *args: Any) -> Any:
    """The function through tracing and the interpreter."""
    found = traced(fn, *args)
    arrays = [a for a in args if leaf_kind(a) == "a"] + list(found.captures)
    weak = [a for a in args if leaf_kind(a) in "iuf"]
    return rebuild(found.out_tree, interpret(found.graph, arrays, weak))


def check(fn: Callable[..., Any], *args: Any) -> Any:
    """The same value, dtype and Python type as NumPy itself."""
    with np.errstate(all="ignore"):
        expected = fn(*args)
    found = run(fn, *args)
    same(found, expected)
    return found


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
        return
    assert type(found) is type(expected) or np.ndim(expected) == 0
    if isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected or (found is not None and np.isnan(found))


@contextmanager
def refused(cls: type[BaseException], *words: str) -> Iterator[None]:
    """The block raises our error with file, line and every word."""
    caller = inspect.stack()[2]
    with pytest.raises(cls) as caught:
        yield
    text = str(caught.value)
    assert isinstance(caught.value, OpkilnError)
    lines = re.findall(rf"{re.escape(caller.filename)}:(\d+)", text)
    assert lines and abs(int(lines[-1]) - caller.lineno) <= 4, text
    for word in words:
        assert word in text, text


def refuses(error: type[BaseException], words: str, fn: Callable[..., Any], *args: Any) -> None:
    """The interpreter and the compiled function raise one error of ours, with words and line."""
    kinds = set()
    for way in (run, lambda fn, *args: ok.compile(fn)(*args)):
        with pytest.raises(error, match=rf"{re.escape(fn.__code__.co_filename)}:\d+") as caught:
            way(fn, *args)
        assert isinstance(caught.value, OpkilnError)
        assert words in str(caught.value)
        kinds.add(type(caught.value))
    assert len(kinds) == 1


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """A value, or the builtin error class."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return fn(*args)
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            for builtin in (TypeError, ValueError, OverflowError, IndexError):
                if isinstance(error, builtin):
                    return builtin
    raise AssertionError
