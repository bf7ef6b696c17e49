"""The documentation as a site: ``make docs`` builds it, offline, and warnings are errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import locus_store

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "locus-store"
version = release = locus_store.__version__
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"),
    *("sphinx_copybutton", "sphinx_design"),  # their scripts and styles are part of the site
]

exclude_patterns = ["decisions/*"]  # for those who change the code

suppress_warnings = ["misc.highlighting_failure"]  # an excerpt with … is not JSON

myst_enable_extensions = ["attrs_block", "colon_fence"]  # the cards and the toctrees of index.md
myst_heading_anchors = 3  # the anchors that Git hosts make, so that a link works on both

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
autoclass_content = "class"
add_module_names = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["cards.css"]
html_title = f"locus-store {release}"
copybutton_selector = "div:not(.highlight-text):not(.highlight-none) > div.highlight > pre"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def changelog(app: Sphinx, page: str, source: list[str]) -> None:
    """The page that links to the changelog becomes the changelog."""
    del app
    if page == "changelog":
        source[0] = (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")


def tables(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to records of decisions and to the tables beside the benchmarks become downloads."""
    del app, page
    for folder in ("../benchmarks/", "decisions/"):
        source[0] = source[0].replace(f"]({folder}", f"](path:{folder}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", changelog)
    app.connect("source-read", tables)
