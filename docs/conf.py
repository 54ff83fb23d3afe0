"""How Sphinx builds the site: `make site`."""

import os
import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where "edit this page" leads: `make site REPOSITORY=https://…`, or what pyproject.toml names; without, no link.
_REPOSITORY = os.environ.get("REPOSITORY") or _PROJECT.get("urls", {}).get("Repository", "")

project = _PROJECT["name"]
author = "the contributors of flower-unlearning"
version = release = _PROJECT["version"]
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["**/.ipynb_checkpoints"]

# GitHub's anchors, so that a link works in the repository as on the site.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]

# Docstrings are plain text with backticks around code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Types of signatures, most of them of other libraries, have no page here. Links between pages stay strict.
nitpick_ignore_regex = [("py:.*", ".*")]

# Tutorials run when the site is built, once as long as they do not change; an error ends the build.
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
os.environ.pop("MPLBACKEND", None)  # a notebook's own backend shows its pictures

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme_options = (
    {"source_repository": _REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
    if _REPOSITORY
    else {}
)


def _unlink_what_is_no_page(app: Sphinx, doctree: nodes.document) -> None:
    """Turn a link to a folder or page beside docs/, which works in the repository, into text or its address there."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["refdomain"] not in (None, "doc"):
            continue  # of Python's
        target = link.get("reftarget", "").partition("#")[0]
        is_page = link["refdomain"] == "doc"  # MyST found the file and gives its name without the suffix
        place = (
            Path(app.srcdir, f"{target}.md") if is_page else Path(app.srcdir, link["refdoc"]).parent / target
        )
        if place.exists() and not place.resolve().is_relative_to(app.srcdir):
            path = place.resolve().relative_to(_ROOT)
            address = {"refuri": f"{_REPOSITORY}/tree/main/{path}"} if _REPOSITORY else {}
            link.replace_self(
                (nodes.reference if address else nodes.inline)("", "", *link.children, **address)
            )


def _list_fields(
    _app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]
) -> None:
    """Make a list of a docstring's lines "field: meaning", each of which may go on below, indented."""
    blocks = "\n".join(lines).split("\n\n")
    for place, block in enumerate(blocks):
        heads = [line for line in block.splitlines() if not line.startswith(" ")]
        if all(re.match(r"[a-z_][\w, ]*: \S", head) for head in heads):
            rows = [f"- {line}" if line in heads else f"  {line.strip()}" for line in block.splitlines()]
            blocks[place] = "\n".join(rows)
    lines[:] = "\n\n".join(blocks).splitlines()


def setup(app: Sphinx) -> None:
    """Register what the site needs beyond the extensions."""
    app.connect("autodoc-process-docstring", _list_fields)
    app.connect("doctree-read", _unlink_what_is_no_page)
