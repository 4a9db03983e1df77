"""Docstrings: what several functions or classes have in common is described once.

help() then shows it for each of them. The sections of a docstring have the titles of Google's style, and an entry of a
section begins with its name and a colon.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Described = TypeVar("Described", bound=Callable[..., Any])

# In the order in which a docstring has them.
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Warns", "Example")


def described_as(source: Callable[..., Any]) -> Callable[[Described], Described]:
    """Return a decorator that completes the `Args:` of a function or a class.

    Arguments that its docstring does not describe get the descriptions that they have in the docstring of `source`.
    Arguments that `source` does not describe either stay undescribed.
    """

    def decorate(target: Described) -> Described:
        if target.__doc__ and source.__doc__:  # python -OO drops them
            known = {**_entries(source.__doc__, "Args"), **_entries(target.__doc__, "Args")}
            described = [known[name] for name in inspect.signature(target).parameters if name in known]
            target.__doc__ = _with_entries(target.__doc__, "Args", described)
        return target

    return decorate


def describe_inherited(kind: type) -> None:
    """Add to a class's docstring the entries of `Args:` and `Raises:` that only its bases' docstrings have.

    The entries of the class come first, then those of its bases, the farthest base first. An entry of the class
    replaces its bases' entry of the same name. A class without a docstring is left as it is.
    """
    own = kind.__dict__.get("__doc__")
    if not own:
        return
    for title in ("Args", "Raises"):
        entries = _entries(own, title)
        for base in reversed(kind.__mro__[1:-1]):
            for name, told in _entries(base.__doc__ or "", title).items():
                entries.setdefault(name, told)
        own = _with_entries(own, title, entries.values())
    kind.__doc__ = own


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """Return what stands before the first section, and the lines of each section by its title."""
    text, *parts = re.split(rf"^({'|'.join(_SECTIONS)}):\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    return text.rstrip(), dict(zip(parts[::2], [part.rstrip() for part in parts[1::2]], strict=True))


def _entries(doc: str, title: str) -> dict[str, str]:
    """Return the lines of each entry of a section by its name."""
    parts = re.split(r"^(?=    \S)", _split(doc)[1].get(title, ""), flags=re.MULTILINE)[1:]
    return {part.partition(":")[0].strip(" *"): part.rstrip() for part in parts}


def _with_entries(doc: str, title: str, entries: Iterable[str]) -> str:
    """Return a docstring with these entries in a section."""
    text, sections = _split(doc)
    if section := "\n".join(entries):
        sections[title] = section
    return "\n\n".join([text, *(f"{title}:\n{sections[title]}" for title in _SECTIONS if title in sections)])
