"""README and docs are true: their Python runs and prints what they show, their links, files,
settings and names exist, and the reference has every public name.
"""

import ast
import inspect
import os
import re
import sys
from pathlib import Path

import pytest
from tests.docs_pages import ROOT, Page, renewed, resolve, run, runs

import opkiln as ok
from opkiln.runtime import program
from opkiln.runtime.cli import _parser, main
from opkiln.runtime.config import Config

PATHS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "benchmarks" / "README.md",
]
PAGES = {str(path.relative_to(ROOT)): Page.read(path) for path in PATHS}
RUN = [name for name, page in PAGES.items() if any(map(runs, page.fences))]
# What a page may name besides the settings: read by the build of the native module.
VARIABLES = {"OPKILN_SANITIZE", *(v for row in Config.table() for v in row.variables)}
FOLDERS = ("ops", "runtime", "native", "src", "tests", "docs", "examples", "benchmarks", ".ci")


@pytest.fixture(autouse=True)
def as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pages may set `ok.config`, write files; vectors have 32 bytes, as AVX2's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "vector_bytes", lambda: 32)
    tables = [ok.config.__dict__, os.environ]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.mark.parametrize("name", RUN)
def test_python_runs_and_prints_what_is_shown(name: str, golden) -> None:
    page = PAGES[name]
    steps, missing = run(page)
    assert renewed(page, steps, update=golden.update) == type(golden)(page.path, golden.update)
    if missing:
        pytest.skip(f"{missing} is not installed")
    assert steps


@pytest.mark.parametrize("name", PAGES)
def test_links_and_anchors_exist(name: str) -> None:
    page = PAGES[name]
    bad = []
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        known = PAGES.get(str(file.relative_to(ROOT)))
        if not file.exists():
            bad.append(f"{page.at(line)}: no file {path}")
        elif anchor and (known is None or anchor not in known.anchors):
            bad.append(f"{page.at(line)}: no heading #{anchor} in {path or name}")
    assert not bad


def unknown_in_command(line: str) -> str | None:
    """The first word of a command line `opkiln ...` that the parser does not know."""
    parser = _parser()
    for word in line.split()[1:]:
        deeper = next((a.choices for a in parser._actions if isinstance(a.choices, dict)), None)
        if word.startswith("--"):
            if word.partition("=")[0] not in parser._option_string_actions:
                return word
        elif deeper is not None:
            if word not in deeper:
                return word
            parser = deeper[word]
    return None


@pytest.mark.parametrize("name", PAGES)
def test_commands_exist(name: str) -> None:
    page = PAGES[name]
    lines = [
        (f.line, line) for f in page.fences if f.language == "sh" for line in f.body.split("\n")
    ]
    bad = []
    for line, text in page.code + lines:
        command = re.match(r"(?:\S*/)?(opkiln(?: [a-z-][^&|;#`]*)+)", text.strip())
        word = unknown_in_command(command[1]) if command else None
        if word:
            bad.append(f"{page.at(line)}: {text!r} has no {word!r}")
    assert not bad


def test_unknown_words_of_a_command_are_seen() -> None:
    assert unknown_in_command("opkiln demo --plain") is None
    assert unknown_in_command("opkiln dmo") == "dmo"
    assert unknown_in_command("opkiln demo --plane") == "--plane"


def test_every_page_is_in_the_index() -> None:
    """The site's side bar is made of the index."""
    index = PAGES["docs/index.md"]
    listed = {(index.path.parent / target).resolve() for _, target in index.links}
    assert set(PATHS) - listed == {index.path}


@pytest.mark.parametrize("name", PAGES)
def test_files_settings_and_names_exist(name: str) -> None:
    page = PAGES[name]
    bad = []
    commands = [
        (f.line, word) for f in page.fences if f.language == "sh" for word in f.body.split()
    ]
    for line, text in page.code + commands:
        top, slash, _ = text.partition("/")
        if slash and top in FOLDERS and re.fullmatch(r"[\w./*-]+", text):
            places = [*ROOT.glob(text.rstrip("/")), *page.path.parent.glob(text.rstrip("/"))]
            if not places:
                bad.append(f"{page.at(line)}: no file {text}")
        public = re.match(r"(?:ok|opkiln)(?:\.[A-Za-z_]\w*)+", text)
        if public and not resolve(public[0]):
            bad.append(f"{page.at(line)}: no public name {public[0]}")
    for line, text in enumerate(page.text.splitlines(), 1):
        bad += [
            f"{page.at(line)}: no setting {variable}"
            for variable in re.findall(r"OPKILN_[A-Z_]*[A-Z]", text)
            if variable not in VARIABLES
        ]
    assert not bad


def test_reference_has_every_public_name() -> None:
    """Each name has an entry or a page of its own, and each method a docstring."""
    text = PAGES["docs/reference.md"].text
    entries = re.findall(r"^<!-- api: \w+ (opkiln\S+)(?: .*)?-->$", text, flags=re.M)
    assert not [name for name in entries if not resolve(name)]
    own_page = {"config", "errors", "ops"}
    assert {f"opkiln.{name}" for name in set(ok.__all__) - own_page} <= set(entries)
    for name in ok.__all__:
        public = getattr(ok, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public):
            members = {n: m for n, m in vars(public).items() if not n.startswith("_")}
            bare = [n for n, m in members.items() if not inspect.getdoc(m)]
            assert not bare, f"{name}: {bare} have no docstring"


def test_every_count_is_explained() -> None:
    source = inspect.getsource(ok.Info)
    assert not [n for n in ok.Info.__match_args__ if not re.search(rf" {n}: int  #: \w", source)]


def test_excerpts_stand_in_their_files() -> None:
    excerpts = [
        (page.at(f.line), f) for page in PAGES.values() for f in page.fences
        if f.comment.startswith("from ")
    ]  # fmt: skip
    assert excerpts
    for place, fence in excerpts:
        text = (ROOT / fence.comment.removeprefix("from ")).read_text(encoding="utf-8")
        assert fence.body in text, place


ERRORS = [
    e
    for e in vars(ok.errors).values()
    if inspect.isclass(e) and issubclass(e, (ok.errors.OpkilnError, ok.errors.OpkilnWarning))
]


def test_every_error_is_a_name_of_ok_errors() -> None:
    """No module but errors.py makes an error class; where it did, none could catch it by name."""
    defined = {
        f"{path.name}:{node.name}"
        for path in (ROOT / "runtime").rglob("*.py")
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and {getattr(b, "id", "") for b in node.bases} & {e.__name__ for e in ERRORS}
    }
    assert not defined


def test_page_of_errors_is_current(golden) -> None:
    """What stands below its mark is the docstrings: when, and after "Fix:" what to do."""
    page = Page.read(ROOT / "docs" / "errors.md")  # as an update has left it
    mark = "<!-- from the docstrings -->\n"
    caught: dict[str, list[str]] = {}
    sections: list[str] = []
    for error in ERRORS:
        when, _, fix = inspect.cleandoc(error.__doc__ or "").partition("\n\nFix: ")
        assert fix or error in ERRORS[:2], f"{error.__name__}: its docstring says no fix"
        base = next(b for b in error.__mro__ if b.__module__ == "builtins")
        caught.setdefault(base.__name__, []).append(
            f"[`{error.__name__}`](#{error.__name__.lower()})"
        )
        bases = " and ".join(f"`{b.__name__}`" for b in error.__bases__).replace(
            "`AxisError`", "`np.exceptions.AxisError`"
        )
        sections += ["", f"### {error.__name__}", ""]
        sections += [f"{' '.join(when.split())} *Subclass of {bases}.*"]
        sections += ["", f"**Fix:** {' '.join(fix.split())}"] if fix else []
    lines = ["", "| `except` | catches |", "|---|---|"]
    lines += [f"| `{base}` | {', '.join(links)} |" for base, links in caught.items()]
    text = page.text.partition(mark)[0] + mark + "\n".join([*lines, *sections]) + "\n"
    assert text == type(golden)(page.path, golden.update)


def test_tour_of_the_readme() -> None:
    (step,), _ = run(PAGES["README.md"])
    assert len(step.fence.body.splitlines()) <= 24
    assert 'extern "C"' in step.printed
    info = step.names["gelu"].info()
    assert (info.calls, info.traces) == (4, 2)


def test_picture_of_the_stages_is_current(golden, tmp_path: Path) -> None:
    source = next(f.body for f in PAGES["docs/stages.md"].fences if runs(f))
    (tmp_path / "stages.py").write_text(source, encoding="utf-8")
    command = ["show", "stages.py:bump", "--shapes", "float32[1000] 2.0", "--svg", "bump.svg"]
    assert main(command) == 0
    drawn = (tmp_path / "bump.svg").read_text(encoding="utf-8")
    assert drawn == type(golden)(ROOT / "docs" / "figures" / "bump.svg", golden.update)


# *** the checks see what is wrong ***


def page_of(text: str) -> Page:
    return Page(ROOT / "docs" / "planted.md", text)


def test_a_wrong_output_is_seen(golden) -> None:
    page = page_of("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert renewed(page, run(page)[0], update=False) == page.text.replace("3", "2")
    right = page_of("```python\nprint([1, 2])\n```\n\n```text\n[1, ...]\n```\n")
    assert renewed(right, run(right)[0], update=False) == right.text


def test_an_error_that_is_not_shown_is_seen() -> None:
    fence = "```python\nx = 1\nraise ValueError('no')\n```\n"
    with pytest.raises(AssertionError, match=r"docs/planted.md:2: ValueError"):
        run(page_of(fence))
    shown = page_of(fence + "\n```text\nValueError: yes\n```\n")
    assert "ValueError: no" in renewed(shown, run(shown)[0], update=False)


def test_a_page_ends_at_a_missing_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    page = page_of("```python\nprint(1)\n```\n\n```python\nimport torch\n```\n")
    steps, missing = run(page)
    assert (len(steps), missing) == (1, "torch")


def test_names_that_do_not_exist_are_seen() -> None:
    assert resolve("ok.config.scope")
    assert resolve("ok.Info.builds")
    assert resolve("ok.ops.erf")
    assert not resolve("ok.config.cache_dri")
    assert not resolve("ok.Info.bulids")
    assert not resolve("ok.ops.nothing")


def test_anchors_are_githubs() -> None:
    page = page_of("# `out=`, and more!\n\n## A b_c\n\n```sh\n# no heading\n```\n\n## A b_c\n")
    assert page.anchors == ["out-and-more", "a-b_c", "a-b_c-1"]


def test_links_in_code_are_none() -> None:
    page = page_of("[a](b.md#c) `[x](y.md)` ![p](d/e.svg)\n\n```md\n[x](z.md)\n```\n")
    assert page.links == [(1, "b.md#c"), (1, "d/e.svg")]
