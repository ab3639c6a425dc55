"""The import directions of the design, read with ast; sizes of files; what an import loads."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A stage of runtime/ may import the stages above it in this list, never one below or beside it.
# Stages on one line know nothing of each other.
STAGES: list[set[str]] = [
    {"errors", "locks", "tree", "scoped"},
    {"allocator", "device", "encoded", "errstate", "memo"},
    {"options", "interop"},
    {"config"},
    {"key", "graph", "spec", "blas", "describe", "threads"},
    {"infer"},
    {"debug", "picture"},
    {"reference"},
    {"reshapes", "partial", "fusion"},
    {"trace", "rewrite", "jit"},
    {"grad", "toolchains"},
    {"extension", "indexmap", "lift"},
    {"opgraph", "segments"},
    {"inference"},
    {"kernel", "stores"},
    {"fuse"},
    {"lower"},
    {"bodies"},
    {"folds"},
    {"plan", "emit_cpp", "emit_cuda"},
    {"program", "stages"},
    {"blame", "batch", "parts"},
    {"explain"},
    {"executor"},
    {"warmup"},
    {"plain", "awaiting"},
    {"compile"},
    {"differentiate", "traits"},
    {"autograd", "subgraph"},
    {"backward", "custom", "custom_op"},
    {"cli"},
]
RANK = {stage: rank for rank, stages in enumerate(STAGES) for stage in stages}

# Files and processes are runtime's; an op is a description.
NOT_IN_OPS = {
    "asyncio",
    "ctypes",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
}


def sources(folder: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*.py*") if p.suffix in {".py", ".pyi"})


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Every module that the file imports, anywhere in it, with relative names made absolute.

    `from a import b` yields `a.b`, which names the module when b is one and its content otherwise.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def package_of(path: Path) -> str:
    return ".".join(("opkiln", *path.relative_to(ROOT).parent.parts))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def stage_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["opkiln", "runtime"] and len(parts) > 2 else None


def ops_violations(path: Path) -> list[str]:
    bad = []
    for line, module in imports(path, package_of(path)):
        top = module.split(".")[0]
        inside = module.startswith("opkiln.ops")
        known = top in sys.stdlib_module_names and top not in NOT_IN_OPS
        if not (inside or top in ("numpy", "ml_dtypes") or known):  # dtypes, the latter when met
            bad.append(f"{where(path, line)} imports {module}: ops may import numpy only")
    return bad


def runtime_violations(path: Path) -> list[str]:
    relative = path.relative_to(ROOT / "runtime")
    own = relative.parts[0].removesuffix(".py")
    if own == "__init__":
        return [
            f"{where(path, line)} imports {module}: runtime/__init__ imports no stage"
            for line, module in imports(path, package_of(path))
            if module.startswith("opkiln")
        ]
    if own not in RANK:
        return [f"{path.relative_to(ROOT)} is no known stage: give it a place in STAGES"]
    bad = []
    for line, module in imports(path, package_of(path)):
        stage = stage_of(module)
        if stage is not None and stage != own and RANK.get(stage, 99) >= RANK[own]:
            bad.append(f"{where(path, line)} {own} imports {stage}, which is not before it")
        public = module.split(".")[0] == "opkiln" and module.count(".") <= 1
        folder = module.split(".")[-1] in {"ops", "native", "runtime"}
        if public and not folder and own != "cli":
            bad.append(f"{where(path, line)} imports the public names ({module})")
    return bad


def native_violations(path: Path) -> list[str]:
    return [
        f"{where(path, line)} imports {module}: native imports nothing of ours"
        for line, module in imports(path, package_of(path))
        if module.startswith("opkiln") and not module.startswith("opkiln.native")
    ]


def all_violations() -> list[str]:
    rules = {"ops": ops_violations, "runtime": runtime_violations, "native": native_violations}
    return [
        text for folder, rule in rules.items() for path in sources(folder) for text in rule(path)
    ]


def test_import_directions() -> None:
    assert not all_violations()


@pytest.mark.parametrize(
    ("folder", "rule", "text"),
    [
        ("ops", ops_violations, "import os"),
        ("ops", ops_violations, "from opkiln.runtime import graph"),
        ("ops", ops_violations, "from ..runtime.graph import Node"),
        ("runtime", runtime_violations, "def f():\n    from opkiln.runtime.compile import compile"),
        ("runtime", runtime_violations, "from . import compile"),
        ("runtime", runtime_violations, "import opkiln as ok"),
        ("native", native_violations, "from opkiln.runtime import errors"),
    ],
)
def test_rules_see_a_violation(
    folder: str, rule, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / folder / "graph.py"
    path.parent.mkdir()
    path.write_text(text)
    assert rule(path)


def test_no_bare_import_of_our_folders() -> None:
    ours = {"runtime", "ops", "native"}
    bad = [
        f"{where(path, line)} imports {module}"
        for folder in ("ops", "runtime", "native", "src", "tests", "benchmarks", "examples")
        for path in sources(folder)
        for line, module in imports(path, "")
        if module.split(".")[0] in ours
    ]
    assert not bad


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="a source archive has no links")
def test_links_of_the_type_checkers() -> None:
    for name in ("runtime", "ops", "native"):
        link = ROOT / "src" / "opkiln" / name
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / name


def cpp_text(path: Path) -> str:
    """The file without its comments."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def op_names_in(text: str, names: set[str]) -> set[str]:
    words = set(re.findall(r'"(\w+)"|\bok_(\w+)\b', text))
    return {name for pair in words for name in pair if name in names}


def test_no_native_source_names_an_op() -> None:
    table = importlib.import_module("opkiln.ops.table")  # here, so that the other tests need no op
    names = {*table.ELEMENTWISE, *table.REDUCTIONS}
    assert {"tanh", "add"} <= names
    assert op_names_in('call("tanh")', names) == {"tanh"}
    assert op_names_in("ok_tanh(x)", names) == {"tanh"}
    bad = {
        str(path.relative_to(ROOT)): found
        for folder in ("core", "face")
        for path in sorted((ROOT / "native" / folder).rglob("*.cpp"))
        if (found := op_names_in(cpp_text(path), names))
    }
    assert not bad


def test_sizes() -> None:
    """Files stay within 600 lines and functions within 70, to be read at one sitting."""
    bad = []
    for folder in ("ops", "runtime", "native", "src", "tests", "benchmarks", "examples"):
        for path in sources(folder):
            text = path.read_text(encoding="utf-8")
            if text.count("\n") > 600:
                bad.append(f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    if length > 70 and folder != "tests":
                        bad.append(f"{where(path, node.lineno)} {node.name} has {length} lines")
    for suffix in (".cpp", ".h"):
        for path in sorted((ROOT / "native").rglob(f"*{suffix}")):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > 600:
                bad.append(f"{path.relative_to(ROOT)} has {lines} lines")
    assert not bad


PROBE = """
import sys, threading
import numpy
before = set(sys.modules)
from opkiln import *
print(threading.active_count(), *sorted(set(sys.modules) - before))
"""
HEAVY = {
    "asyncio",
    "cachetools",
    "concurrent",
    "filelock",
    "json",
    "logging",
    "multiprocessing",
    "platformdirs",
    "rich",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "torch",
}


def test_import_is_light() -> None:
    """Importing opkiln starts no thread and loads nothing that only a build needs."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    threads, *modules = done.stdout.split()
    assert threads == "1"
    assert not {module.split(".")[0] for module in modules} & HEAVY
