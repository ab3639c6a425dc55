"""README, tables of the docs, scripts and .ci/run agree with each other and with the code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests import ops_page
from tests.conftest import PEERS, WHEELS

import opkiln
from opkiln.runtime.config import Config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_command_two() -> None:
    commands = [
        text.strip() for text in blocks("sh") if text.startswith("python3 -m venv .venv &&")
    ]
    demo, tests = commands[:2]
    assert demo.endswith("opkiln demo")
    assert tests.endswith("pytest -q -n auto")
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(tests) for line in lines)


def test_ci_installs_peers_before_the_tests() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\.venv/bin/pip install -q (torch==2\.13\.0 .*)$", text, flags=re.M)
    assert {name.partition("==")[0] for name in line.split()} == {*PEERS, *WHEELS}
    assert text.index(line) < text.index("-m pytest")


def test_dependencies_are_used_and_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=!~ ]", text)[0] for text in project["dependencies"]]
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("ops", "runtime", "native")
        for path in (ROOT / folder).rglob("*.py")
    )
    for name in names:
        assert re.search(rf"^\s*(import|from) {name}\b", sources, flags=re.MULTILINE), name
        assert re.search(rf"^\| {name}\b", README, flags=re.MULTILINE), name


def test_settings_page_is_current(golden: str) -> None:
    lines = [
        "# Settings",
        "",
        "Each is a variable of the environment and a field of `ok.config`. The innermost",
        "`with ok.config.scope(name=value):` wins, then an assignment `ok.config.debug = 1`,",
        "then the environment (read once, when first needed), then the default.",
        "",
        "| variable | field | accepts | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for row in Config.table():
        variables = ", ".join(f"`{name}`" for name in row.variables)
        default = "-" if row.default is None else f"`{row.default}`"
        lines.append(f"| {variables} | `{row.name}` | {row.accepts} | {default} | {row.doc} |")
    page = type(golden)(ROOT / "docs" / "config.md", golden.update)
    assert "\n".join(lines) + "\n" == page


def test_page_of_ops_is_current(golden: str) -> None:
    current = type(golden)(ROOT / "docs" / "ops.md", golden.update)
    assert ops_page.page() == current


def test_version_is_said_once() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.*)"$', text, flags=re.MULTILINE)
    assert opkiln.__version__ == version


SCRIPTS = sorted(p.name for p in (ROOT / "benchmarks").glob("[!_]*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_benchmark_is_documented_and_starts(name: str) -> None:
    assert f"`{name}`" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
