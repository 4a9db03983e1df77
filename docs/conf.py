"""How Sphinx builds the site: `sphinx-build -W docs OUT`. Nothing is fetched, neither then nor when it is read."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy.typing
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

Shown = TypeVar("Shown")


class NDArray(Generic[Shown]):
    """Stands for NumPy's type, which is shown in full otherwise, over several lines."""

    __module__ = "numpy.typing"


# Before kvemb is imported, whose annotations name them.
numpy.typing.NDArray = NDArray
for _name in ("ArrayLike", "DTypeLike"):
    setattr(numpy.typing, _name, type(_name, (), {"__module__": "numpy.typing"}))

import kvemb  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "kvemb"
author = project_copyright = "The kvemb maintainers"
version = release = kvemb.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "command_line"]
exclude_patterns = ["_build"]
highlight_language = "none"  # of blocks that name none, such as commands

html_theme = "furo"
html_title = f"kvemb {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False

myst_enable_extensions = ["colon_fence", "html_image"]
myst_heading_anchors = 4

autodoc_mock_imports = ["torch", "ray", "cupy", "keras"]


class Missing(MetaPathFinder):
    """Lets these packages be missing where they are not mocked: Sphinx would import all of Keras for its comments."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse them, and leave all others to the other finders."""
        if name.partition(".")[0] in autodoc_mock_imports:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
maximum_signature_line_length = 70
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
    app.connect("autodoc-process-signature", _readable)
    app.connect("doctree-read", _to_public_names)
    app.connect("doctree-read", _result_with_its_type)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)  # before napoleon


def _of_the_root(_: Sphinx, path: object, __: str, content: list[str]) -> None:
    """Make the links of a page of the repository's root those of the site, which includes it."""
    text = content[0].replace("](docs/", "](/").replace('src="docs/', 'src="/')
    for name, page in _AT_THE_ROOT.items():
        text = text.replace(f"]({name}", f"]({page}")
    content[0] = text


def _readable(_: Sphinx, what: str, name: str, value: Any, __: object, given: str | None, result: str | None) -> Any:
    """Return the arguments of a module of PyTorch, whose mock takes any, and numbers for the names of constants."""
    if what == "class" and name.startswith("kvemb.torch."):
        arguments = list(inspect.signature(value.__init__).parameters.values())[1:]
        return stringify_signature(inspect.Signature(arguments), show_annotation=False), None
    if given is None:
        return None
    known = getattr(inspect.unwrap(value), "__globals__", {})

    def number(found: re.Match[str]) -> str:
        constant = known.get(found[1])
        each = getattr(constant, found[2], None) if found[2] else constant
        return repr(each) if isinstance(each, (int, float)) else found[0]

    return re.sub(r"(?<==)([A-Z_]+)(?:\.(\w+))?\b", number, given), result


_PUBLIC = {"Optimizer": "kvemb.optimizers.Optimizer"}
_PUBLIC |= {name: f"kvemb.{name}" for name in kvemb.__all__ if name[0].isupper()}


def _to_public_names(_: Sphinx, page: nodes.document) -> None:
    """Let a link to `Variable` be one to kvemb.Variable, although kvemb.cluster has a class of that name, too."""
    for link in page.findall(addnodes.pending_xref):
        if link.get("refdomain") == "py":
            link["reftarget"] = _PUBLIC.get(link["reftarget"], link["reftarget"])


def _result_with_its_type(_: Sphinx, page: nodes.document) -> None:
    """Put the type of a result behind the result; autodoc puts it last, behind the errors."""
    for fields in page.findall(nodes.field_list):
        named = {each[0].astext(): each for each in fields if isinstance(each, nodes.field)}
        if "Returns" in named and "Return type" in named:
            fields.remove(named["Return type"])
            fields.insert(fields.index(named["Returns"]) + 1, named["Return type"])


# A span of code, which may be broken over lines; in the text beside it, what reStructuredText would take for markup;
# what stays as it is: examples, and what is indented below `::`.
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)\1(?!`)", re.DOTALL)
_MARKUP = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")
_AS_IT_IS = re.compile(r"(^ *>>> .*\n(?:.*\S.*\n)*|(?<=::\n)\n(?: +.*\n|\n)+)", re.MULTILINE)


def _as_restructured_text(_: Sphinx, what: str, __: str, ___: object, ____: object, lines: list[str]) -> None:
    """Make reStructuredText of a docstring, which is plain text with ``code`` and Google's sections.

    A name in code becomes a link where it is one of the reference.
    """
    text = "\n".join([*lines, ""])
    # Otherwise napoleon takes the text before a colon for a type.
    text = f": {text}" if what == "property" else text
    text = re.sub(r"^((?:Returns|Yields):\n +)", r"\g<1>: ", text, flags=re.MULTILINE)
    parts = _AS_IT_IS.split(text)  # in turns: text, and what stays as it is
    parts[::2] = [_escaped(part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")


def _escaped(text: str) -> str:
    parts = _CODE.split(text)  # text, quotes and code in turns
    parts[::3] = [_MARKUP.sub(r"\\\g<0>", part) for part in parts[::3]]
    parts[2::3] = [_linked(code) for code in parts[2::3]]
    del parts[1::3]
    return "".join(parts)


def _linked(code: str) -> str:
    name = re.fullmatch(r"([A-Za-z_][\w.]*)(?:\(\))?", code)
    return f"``{code}``" if name is None else f":py:obj:`{code} <{name[1]}>`"
