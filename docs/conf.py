"""How Sphinx builds the site: `sphinx-build -W docs OUT`. Nothing is fetched, neither then nor when it is read."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import kvemb

project = "kvemb"
author = "The kvemb maintainers"
version = release = kvemb.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "api.md"]

html_theme = "furo"
html_title = f"kvemb {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False

myst_enable_extensions = ["colon_fence", "html_image"]
myst_heading_anchors = 4

autodoc_mock_imports = ["torch", "ray", "cupy"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False

# Pages of the repository's root, which the site includes, and what else they link to there.
_AT_THE_ROOT = {
    "README.md": "/index.md",
    "ARCHITECTURE.md": "/inside/architecture.md",
    "FORMAT.md": "/reference/format.md",
    "CONTRIBUTING.md": "/inside/contributing.md",
    "CHANGELOG.md": "/inside/changelog.md",
    "SECURITY.md": "/operate/security.md",
}


def setup(app: Sphinx) -> None:
    """Register what this site does of its own."""
    app.connect("include-read", _of_the_root)


def _of_the_root(_: Sphinx, path: object, __: str, content: list[str]) -> None:
    """Make the links of a page of the repository's root those of the site, which includes it."""
    text = re.sub(r"\]\(docs/", "](/", content[0])
    for name, page in _AT_THE_ROOT.items():
        text = text.replace(f"]({name}", f"]({page}")
    content[0] = text
