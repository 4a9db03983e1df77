"""The reference on the site has an entry for each public name, once, and a way to each page. Sphinx is not needed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kvemb

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "reference"
MODULES = ["kvemb", "kvemb.bulk", "kvemb.cluster", "kvemb.initializers", "kvemb.optimizers"]
MODULES += [name for name in ["kvemb.monitoring"] if find_spec(name) is not None]
ENTRY = re.compile(r"^\.\. (?:auto\w+|py:(?:module|data)):: ([\w.]+)", re.MULTILINE)


def entries() -> list[str]:
    """The names that have an entry, in full."""
    return [name for page in sorted(DOCS.rglob("*.md")) for name in ENTRY.findall(page.read_text(encoding="utf-8"))]


def names_of(framework: str) -> list[str]:
    """The public names of kvemb.torch or kvemb.keras, read from the source, as the framework may not be there."""
    text = (ROOT / "kvemb" / framework / "__init__.py").read_text(encoding="utf-8")
    assigned = {ast.unparse(each.targets[0]): each for each in ast.parse(text).body if isinstance(each, ast.Assign)}
    return [f"kvemb.{framework}.{name}" for name in ast.literal_eval(assigned["__all__"].value)]


OF_FRAMEWORKS = [each for name in ("torch", "keras") for each in (f"kvemb.{name}", *names_of(name))]


def value_of(name: str) -> Any:
    """What a full name means; of kvemb.torch and kvemb.keras, the name. Raises AttributeError, ModuleNotFoundError."""
    if name in OF_FRAMEWORKS:
        return name
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last, None) or importlib.import_module(name)


def identity(name: str) -> object:
    """The same for two names of one thing, such as kvemb.Zeros and kvemb.initializers.zeros."""
    return name if name in OF_FRAMEWORKS else id(value_of(name))


def test_every_public_name_has_one_entry():
    public = [f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__]
    public += ["kvemb.limits.Limits"]
    public += [f"kvemb.errors.{name}" for name, value in vars(kvemb.errors).items() if inspect.isclass(value)]
    counts = Counter(map(identity, entries()))
    assert {
        name: counts[identity(name)] for name in [*public, *MODULES[1:], *OF_FRAMEWORKS] if counts[identity(name)] != 1
    } == {}


def test_every_entry_is_of_a_name_that_exists():
    for name in entries():
        assert value_of(name) is not None, name
        assert not any(part.startswith("_") for part in name.split(".")), name


def test_the_table_of_the_reference_leads_to_every_page():
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    pages = {page.stem for page in (DOCS / "python").glob("*.md")}
    assert set(re.findall(r"\]\(python/(\w+)\.md", text)) == pages
    assert set(re.findall(r"^python/(\w+)$", text, re.MULTILINE)) == pages
