"""`FILE.py:FUNC` or `package.module:FUNC` in, the object of that name out.

The user's code runs while it is imported; what it raises is shown by its own lines, and what it
prints goes to standard error, so that standard output stays what was asked for.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from opkiln.runtime.errors import OpkilnError, UsageError, UserCodeError

_OURS = str(Path(__file__).parents[1])
FIX = "write FILE.py:FUNC, FILE.py:Class.method or package.module:FUNC"


def find(target: str) -> Any:
    """The object that the target names; a method of a class comes bound to `Class()`.

    Raises:
        UsageError: there is no such file, module or name.
        UserCodeError: the user's code raised.
    """
    where, colon, path = target.rpartition(":")
    if not colon:
        where, path = target, ""
    with users_code(f"{where} cannot be imported"):
        module = _from_file(Path(where)) if _is_file(where) else _from_name(where)
    if not path:
        raise UsageError(f"{target!r} names no function", fix=_choice(module, where))
    found: Any = module
    names = path.split(".")
    for depth, name in enumerate(names):
        owner = found
        try:
            found = getattr(owner, name)
        except AttributeError:
            what = f"{where}:{'.'.join(names[:depth])}" if depth else where
            raise UsageError(f"{what} has no {name!r}", fix=_choice(owner, what, name)) from None
        if inspect.isclass(owner) and _needs_instance(owner, name):
            made = owner
            with users_code(
                f"{target}: {made.__name__}() cannot be made without arguments, and its method "
                "needs an instance",
                fix=f"make one in the file, as `model = {made.__name__}(...)`, and name its "
                f"method: model.{name}",
            ):
                found = getattr(made(), name)
    return found


@contextlib.contextmanager
def users_code(what: str, fix: str | None = None) -> Generator[None]:
    """Run the user's code: what it raises becomes an error that shows their part of the traceback.

    Raises:
        UserCodeError: the code raised something that is not ours, or left by SystemExit.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (OpkilnError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((_OURS, "<frozen "))
        ]
        lines = traceback.format_list(frames) + traceback.format_exception_only(error)
        text = "".join(lines).rstrip()
        raise UserCodeError(f"{what}:\n{text}", fix=fix) from error


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or Path(where).is_file()


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        if path.exists():
            raise UsageError(f"{str(path)!r} is not a regular file", fix=FIX)
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else FIX
        raise UsageError(f"{str(path)!r}: no such file", fix=hint)
    # As `python FILE` does; but not as __main__, so that what stands under that test does not run.
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}-shown"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r}: not a Python file", fix=FIX)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    with contextlib.suppress(FileNotFoundError):  # the working directory has been removed
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses one that it needs
        raise UsageError(f"no module and no file {name!r}", fix=FIX) from None
    except (ValueError, TypeError):
        _no_name(name)


def _no_name(name: str) -> NoReturn:
    raise UsageError(f"{name!r} is neither a file nor a module", fix=FIX)


def _needs_instance(owner: type, name: str) -> bool:
    plain = inspect.getattr_static(owner, name, None)
    return callable(plain) and not isinstance(plain, type)


def _choice(owner: Any, where: str, wanted: str = "") -> str:
    """What there is to choose from, as the fix of an error."""
    inside = (
        [
            name
            for name, value in vars(owner).items()
            if not name.startswith("_")
            and callable(value)
            and getattr(value, "__module__", None) == getattr(owner, "__name__", None)
        ]
        if isinstance(owner, ModuleType)
        else [n for n in dir(owner) if not n.startswith("_")]
    )
    near = difflib.get_close_matches(wanted, inside, n=1)
    if near:
        return f"did you mean {near[0]}?"
    separator = ":" if isinstance(owner, ModuleType) else "."
    shown = ", ".join(f"{where}{separator}{name}" for name in inside[:8])
    return f"name one of {shown}" if shown else FIX
