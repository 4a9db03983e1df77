"""Docstrings of optimizers: what a class takes from its bases is described once, in the class that defines it.

help(Adam) describes every argument: first those in Adam's own docstring, then those in its bases' docstrings.
"""

from __future__ import annotations

import inspect
import re

# The sections of a class's docstring, in their order. A class takes entries of two of them from its bases.
_SECTIONS = ("Args", "Attributes", "Raises", "Example")
_INHERITED = ("Args", "Raises")


def complete(kind: type) -> None:
    """Add to a class's docstring the entries of `Args:` and `Raises:` that only its bases' docstrings have.

    The entries of the class come first, then those of its bases, the farthest base first. An entry of the class
    replaces its bases' entry of the same name. A class without a docstring is left as it is.
    """
    own = kind.__dict__.get("__doc__")
    if not own:
        return
    text, sections = _split(own)
    for title in _INHERITED:
        entries = _entries(sections.get(title, ""))
        for base in reversed(kind.__mro__[1:-1]):
            for name, told in _entries(_split(base.__doc__ or "")[1].get(title, "")).items():
                entries.setdefault(name, told)
        sections |= {title: "\n".join(entries.values())} if entries else {}
    kind.__doc__ = "\n\n".join([text, *(f"{title}:\n{sections[title]}" for title in _SECTIONS if title in sections)])


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """Return what stands before the first section, and the lines of each section by its title."""
    text, *parts = re.split(rf"^({'|'.join(_SECTIONS)}):\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    return text.rstrip(), dict(zip(parts[::2], [part.rstrip() for part in parts[1::2]], strict=True))


def _entries(section: str) -> dict[str, str]:
    """Return the lines of each entry of a section by its name."""
    parts = re.split(r"^(?=    \w+: )", section, flags=re.MULTILINE)[1:]
    return {part.partition(":")[0].strip(): part.rstrip() for part in parts}
