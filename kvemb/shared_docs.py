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
    """Return a decorator that completes the docstring of a function or a class from that of `source`.

    Arguments that it does not describe get the descriptions that they have there, and stay undescribed if they have
    none. Without a `Raises:` of its own it gets that of `source`.
    """

    def decorate(target: Described) -> Described:
        if target.__doc__ and source.__doc__:  # python -OO drops them
            doc = _with_arguments(target.__doc__, [source.__doc__, target.__doc__], target)
            raised = _entries(doc, "Raises") or _entries(source.__doc__, "Raises")
            target.__doc__ = _with_entries(doc, "Raises", raised.values())
        return target

    return decorate


def describe_inherited(kind: type) -> None:
    """Complete the `Args:` and the `Raises:` of a class's docstring with those of its bases' docstrings.

    An entry of the class replaces its bases' entry of the same name. A class without a docstring is left as it is.
    """
    docs = [vars(each).get("__doc__") or "" for each in reversed(kind.__mro__[:-1])]
    if docs[-1]:
        raised: dict[str, str] = {}
        for doc in docs:
            raised |= _entries(doc, "Raises")
        kind.__doc__ = _with_arguments(_with_entries(docs[-1], "Raises", raised.values()), docs, kind)


def _with_arguments(doc: str, docs: Iterable[str], described: Callable[..., Any]) -> str:
    """Return a docstring whose `Args:` are those of the signature that one of docs describes; the last one counts."""
    known: dict[str, str] = {}
    for each in docs:
        known |= _entries(each, "Args")
    return _with_entries(
        doc, "Args", [known[name] for name in inspect.signature(described).parameters if name in known]
    )


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
