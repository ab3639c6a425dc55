"""`opkiln show`: what one function becomes at each stage, as text, Graphviz or SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opkiln.runtime.cli.command import command

if TYPE_CHECKING:
    import argparse

    from opkiln.runtime.cli.command import Subparsers
    from opkiln.runtime.cli.console import Console
    from opkiln.runtime.stages import Lowering

EXAMPLES = """\
  opkiln show model.py:gelu --shapes 'float32[64,1024]'
  opkiln show model.py:norm --shapes 'float32[64,1024] float32[1024]' --svg norm.svg
  opkiln show model.py:Net.forward --shapes 'float64[8,3][::2].T 0.5 axis=1' --static axis
  opkiln show package.module:step --shapes '(float32[10], float32[10]) 1e-3' --asm"""
TEXT = """\
Compiles a function for arguments of the given shapes, without running it, and shows each stage:
the Python source, the graph as traced, the graph as rewritten, the kernels, their C++ text.

FUNC is a plain function or one that ok.compile has made. The file is imported, so its top level
runs; what stands under `if __name__ == "__main__"` does not."""
SHAPES = """one word per argument, in Python with dtypes as names: float32[64,1024] is an array of
that shape, float32[()] one without axes; .T transposes it and [::2] slices it; numbers,
"texts" in quotes, None, tuples, lists and dicts stand for themselves; name=value is a keyword.
Quote the whole, or the shell takes the brackets"""


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = command(
        subparsers,
        "show",
        run,
        summary="show what a function becomes: graph, kernels, C++, assembly",
        text=TEXT,
        examples=EXAMPLES,
    )
    parser.add_argument("target", metavar="FILE.py:FUNC", help="or package.module:FUNC")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="WORD", help=SHAPES)
    parser.add_argument(
        "--static", nargs="+", default=[], metavar="NAME", help="parameters fixed while tracing"
    )
    parser.add_argument(
        "--opt-level", type=int, choices=(0, 1, 2), help="0 a kernel per op, 1 folding, 2 fusion"
    )
    form = parser.add_argument_group("instead of all stages").add_mutually_exclusive_group()
    form.add_argument("--dot", action="store_true", help="the graph in Graphviz's language")
    form.add_argument("--svg", metavar="FILE", help="write the graph as a drawing; - is the output")
    form.add_argument("--source", action="store_true", help="the whole C++ text")
    form.add_argument("--asm", action="store_true", help="the assembly of that text")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from opkiln.runtime.cli.console import Console
    from opkiln.runtime.cli.shapes import parse
    from opkiln.runtime.cli.target import find, users_code
    from opkiln.runtime.errors import ArgumentError, UsageError

    call = parse(" ".join(arguments.shapes))
    found = find(arguments.target)
    function, bound = _compiled(found, arguments)
    try:
        with users_code(f"{arguments.target} cannot be traced"):
            lowering: Lowering = function.lower(*bound, *call.args, **call.kwargs)
    except ArgumentError as error:
        raise UsageError(
            f"--shapes: {error}", fix=f"describe the arguments of {_signature(function)}"
        ) from None
    title = f"{_name(function)}({', '.join(call.words)})"
    console = Console(plain=arguments.plain)
    if arguments.dot:
        console.code(lowering.to_dot(), "dot")
    elif arguments.svg is not None:
        _draw(lowering, title, arguments.svg, console)
    elif arguments.source:
        console.code(lowering.source, "cpp")
    elif arguments.asm:
        console.code(lowering.asm, "gas")
    else:
        _stages(lowering, function, title, console)
    return 0


def _compiled(found: Any, arguments: argparse.Namespace) -> tuple[Any, tuple[Any, ...]]:
    """The compiled function, and the instance that its method is bound to."""
    from types import MethodType

    import opkiln as ok
    from opkiln.runtime.errors import UsageError

    options: dict[str, Any] = {}
    if arguments.static:
        options["static"] = tuple(arguments.static)
    if arguments.opt_level is not None:
        options["opt_level"] = arguments.opt_level
    inner: Any = found.__func__ if isinstance(found, MethodType) else found
    if isinstance(found, type) or not callable(found):
        what = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        raise UsageError(
            f"{arguments.target} is {what}, not a function", fix="name a function or a method"
        )
    if not hasattr(inner, "lower"):
        return ok.compile(found, **options), ()
    if options:
        raise UsageError(
            f"{arguments.target} is compiled already, with options of its own",
            fix=f"give {', '.join(options)} to its ok.compile, or leave out the option here",
        )
    return inner, (found.__self__,) if isinstance(found, MethodType) else ()


def _signature(function: Any) -> str:
    import inspect

    return f"{_name(function)}{inspect.signature(function)}"


def _name(function: Any) -> str:
    """Callable objects, of functools.partial for one, have no name of their own."""
    return str(getattr(function, "__name__", type(function.__wrapped__).__name__))


def _stages(lowering: Lowering, function: Any, title: str, console: Console) -> None:
    import inspect
    import textwrap
    from pathlib import Path

    names = lowering.names

    try:
        here = f"{Path.cwd()}/"
    except FileNotFoundError:  # the working directory has been removed
        here = ""

    def near(text: str) -> str:
        return text.replace(here, "") if here else text

    console.line(title, "title")
    console.title("1. Python")
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(function))
        console.line(near(f"{inspect.getsourcefile(inspect.unwrap(function))}:{first}"), "dim")
        console.code(textwrap.dedent("".join(lines)), "python")
    except (OSError, TypeError):
        console.line("its source is not in a file", "dim")
    console.title("2. Traced: what the function does, one operation a line")
    for line in lowering.sizes:
        console.line(line, "dim")
    traced, rewritten = near(lowering.traced.text(names)), near(lowering.graph.text(names))
    console.code(traced, "")
    console.title("3. Rewritten: constants folded, equal values shared, dead ones dropped")
    same = traced == rewritten
    console.code("(unchanged)" if same else rewritten, "")
    count = len(lowering.kernels)
    console.title(f"4. Fused: {count} kernel{'s' * (count != 1)}, and the arrays that they use")
    console.code(lowering.lowered.text(names, lowering.arrays), "")
    console.title("5. C++")
    own = lowering.own_source
    begin = lowering.source[: len(lowering.source) - len(own)].count("\n")
    if own:
        console.line(f"after {begin} lines that every kernel begins with (see --source)", "dim")
        console.code(own, "cpp")
    else:
        console.line("nothing to compute, so there is no kernel", "dim")


def _draw(lowering: Lowering, title: str, file: str, console: Console) -> None:
    from opkiln.runtime.cli.command import write
    from opkiln.runtime.cli.svg import to_svg
    from opkiln.runtime.picture import picture

    text = to_svg(picture(lowering.graph, lowering.names), title)
    if file == "-":
        print(text, end="")
    else:
        write(file, text.encode(), "--svg")
        console.line(f"wrote {file}")
