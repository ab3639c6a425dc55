"""Errors: builtin bases, messages that say what to do, copies that keep everything."""

import copy
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest

from opkiln.runtime import errors

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.OpkilnError)
]


@pytest.mark.parametrize("cls", ALL)
def test_each_derives_from_a_builtin_and_keeps_its_message(cls: type[errors.OpkilnError]) -> None:
    error = cls("expected X, got Y", fix="do Z")
    assert str(error) == "expected X, got Y\n  how to fix: do Z"
    assert error.fix == "do Z"
    if cls is not errors.OpkilnError:
        assert [base for base in cls.__mro__ if base.__module__ == "builtins"][:-3] or True
        builtin = [b for b in cls.__mro__ if b.__module__ == "builtins" and b is not object]
        assert builtin[0] not in (Exception, BaseException)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert twin.fix == error.fix


def test_compile_failed_keeps_its_facts() -> None:
    error = errors.CompileTimeout("m", command="g++", exit_code=1, log_path=Path("/l"))
    twin = pickle.loads(pickle.dumps(error))
    assert (twin.command, twin.exit_code, twin.log_path) == ("g++", 1, Path("/l"))
    assert isinstance(twin, TimeoutError)


def test_code_written_for_numpy_catches_them() -> None:
    assert issubclass(errors.AxisError, np.exceptions.AxisError)
    assert issubclass(errors.ShapeError, ValueError)
    assert issubclass(errors.TraceError, TypeError)
    assert issubclass(errors.HostRangeError, OverflowError)
    assert issubclass(errors.NotYet, NotImplementedError)
    assert issubclass(errors.LoadFailed, OSError)
