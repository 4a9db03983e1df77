"""Docstrings of optimizers: what a class takes from its bases is described once, in the class that defines it.

help(Adam) describes every argument: first those in Adam's own docstring, then those in its bases' docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

# The sections that a class takes from its bases, and what begins an entry in them.
_INHERITED = ("Args", "Raises")
_ENTRY = re.compile(r"    (\w+): ")


def complete(kind: type) -> None:
    """Add to a class's docstring the entries of `Args:` and `Raises:` that only its bases' docstrings have.

    The entries of the class come first, then those of its bases, in the order of the constructor's arguments. An entry
    in the class replaces its bases' entry of the same name. A class without a docstring is left as it is.
    """
    own = kind.__dict__.get("__doc__")
    if not own:
        return
    text = inspect.cleandoc(own)
    for title in _INHERITED:
        entries = dict(_entries(text, title))
        for base in reversed(kind.__mro__[1:-1]):
            for name, told in _entries(inspect.cleandoc(base.__doc__ or ""), title):
                entries.setdefault(name, told)
        text = _with_section(text, title, "".join(entries.values()))
    kind.__doc__ = text


def _section(text: str, title: str) -> re.Match[str] | None:
    """Return a section's match: its title, and as group 1 its lines."""
    return re.search(rf"^{title}:\n((?:    .*\n?)+)", text, re.MULTILINE)


def _entries(text: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a section's entries, and their lines."""
    found = _section(text, title)
    for entry in re.split(r"(?m)^(?=    \w+: )", found[1] if found else ""):
        if named := _ENTRY.match(entry):
            yield named[1], entry if entry.endswith("\n") else f"{entry}\n"


def _with_section(text: str, title: str, lines: str) -> str:
    """Return the docstring with these lines in a section, which is added at the end if it is not there."""
    if not lines:
        return text
    found = _section(text, title)
    if found is None:
        return f"{text}\n\n{title}:\n{lines.rstrip()}"
    after = text[found.end() :]
    return f"{text[: found.start()]}{title}:\n{lines.rstrip()}" + (f"\n{after}" if after else "")
