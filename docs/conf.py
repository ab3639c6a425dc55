"""How Sphinx builds the site: the repository's Markdown as it stands, plus docstrings.

The pages are plain Markdown, so that GitHub shows them too. What only the site has is put in here:
the side bar comes from the links of docs/index.md, and a comment such as
`<!-- api: function opkiln.compile -->` of docs/reference.md stands for autodoc's directive.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

import opkiln as ok

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "opkiln"
release = version = PROJECT["version"]
author = copyright = "the opkiln authors"

root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
include_patterns = [
    "README.md", "CHANGELOG.md", "docs/**.md", "*/README.md", "examples/*/README.md",
    "benchmarks/results/*.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "**/.*", "examples/data", "**/node_modules"]
nitpicky = True
# Names of other projects, whose inventories are not here offline.
nitpick_ignore_regex = [("py:.*", r"(numpy|np|npt|collections|typing|types|contextlib)\..*")]

myst_heading_anchors = 4
default_role = "code"  # docstrings mark code as Markdown does

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"opkiln {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]


def _source_read(app: Sphinx, name: str, content: list[str]) -> None:
    text = content[0]
    if name == root_doc:
        text += "".join(_contents(text))
    content[0] = re.sub(r"^<!-- api: (\w+) (.*) -->$", _api, text, flags=re.M)


def _contents(text: str) -> list[str]:
    """The side bar: a part for each heading of the index, an entry for each item's first link."""
    parts: list[str] = []
    for title, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", text, flags=re.M):
        pages = re.findall(r"^- \[([^]]*)\]\(([^)#]*)\.md\)", body, flags=re.M)
        if pages:
            entries = "\n".join(f"{name} <{page}>" for name, page in pages)
            parts.append(f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n")
    return parts


def _api(match: re.Match[str]) -> str:
    """A comment of the reference as autodoc's directive."""
    kind, rest = match.groups()
    name, *options = rest.split()
    lines = "".join("\n   :{}: {}".format(*option.partition("=")[::2]) for option in options)
    return f"```{{eval-rst}}\n.. auto{kind}:: {name}{lines}\n```"


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Code such as `ok.compile(...)` links to its entry in the reference."""
    for literal in list(doctree.findall(nodes.literal)):
        found = re.match(r"ok((?:\.\w+)+)(?:\(.*\))?$", literal.astext())
        if found is None or isinstance(literal.parent, (nodes.reference, addnodes.pending_xref)):
            continue
        target = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=f"opkiln{found[1]}",
            refexplicit=True, refdoc=app.env.current_document.docname,
        )  # fmt: skip
        literal.replace_self(target)
        target += literal


# Names that a page describes in prose instead of an entry.
_PAGES = {
    "opkiln.errors": "docs/errors",
    "opkiln.ops": "docs/ops",
    "opkiln.config": "docs/config",
    "opkiln.fusion_enabled": "docs/op-definitions",
}


def _missing(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    target, last = node["reftarget"], node["reftarget"].rpartition(".")[2]
    if last in vars(ok.errors):
        return make_refnode(app.builder, node["refdoc"], "docs/errors", last.lower(), content)
    for name, page in _PAGES.items():
        if target == name or target.startswith(f"{name}."):
            return make_refnode(app.builder, node["refdoc"], page, "", content)
    return None


def _signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, args: str | None, returned: Any
) -> tuple[str, None] | None:
    """Classes without one: records and protocols are not made by users."""
    return ("", None) if what == "class" and args is not None else None


def _for_rst(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written as Markdown: what reStructuredText would take in another way."""
    lines[:] = [re.sub(r"(?<!`)(`[^`]+`)(?=\w)", r"\1\\ ", line) for line in lines]  # `x`s
    if what in {"attribute", "property"} and lines:
        # Napoleon takes what stands before a colon for a type: end the line there.
        head, colon, rest = lines[0].partition(": ")
        lines[:1] = [head + ":", rest] if colon else [head]


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("source-read", _source_read)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _missing)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _for_rst, priority=400)  # before Napoleon
    return {"parallel_read_safe": True}
