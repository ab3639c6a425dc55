"""Why an import failed: in a sub-interpreter NumPy and opkiln's native module cannot be loaded."""

from importlib import import_module


def in_subinterpreter() -> bool:
    """Whether this code runs in another interpreter than the process's first."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def explain(error: ImportError) -> None:
    """Raise in place of `error` what says so, if that is the reason.

    Raises:
        SubInterpreterError: this is a sub-interpreter.
    """
    if not in_subinterpreter():
        return
    from opkiln.runtime.errors import SubInterpreterError

    raise SubInterpreterError(
        f"opkiln cannot be used in a sub-interpreter ({error})",
        fix="use threads or processes (concurrent.futures) in place of sub-interpreters",
    ) from error
