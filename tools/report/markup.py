"""Pieces of the report's HTML. Arguments named `text` are escaped here; arguments named `content` are HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# The length from which a fact would take three lines of its column.
LONG = 48


def name(text: str) -> str:
    """Return a user's name for something, isolated so that right-to-left letters do not affect the text around it."""
    return f"<bdi>{escape(text)}</bdi>"


def card(text: str, content: str, note: str = "") -> str:
    """Return a card with the title text. note: a text below the content."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<div class="card"><h3>{escape(text)}</h3>{content}{below}</div>'


def cards(content: Sequence[str]) -> str:
    """Return cards side by side."""
    return f'<div class="cards">{"".join(content)}</div>' if content else ""


def facts(pairs: Sequence[tuple[str, str]], kind: str = "facts") -> str:
    """Return a description list of (label, text) pairs; a long text has a line of its own. kind: its CSS class."""
    long = ["", ' class="long"']
    lines = "".join(
        f"<div{long[len(text) > LONG]}><dt>{escape(what)}</dt><dd>{name(text)}</dd></div>" for what, text in pairs
    )
    return f'<dl class="{kind}">{lines}</dl>'


def heading(text: str, anchor: str) -> str:
    """Return the heading of a section, with a link to the top of the page."""
    return f'<h2 id="{anchor}"><a class="top" href="#top">to the top</a>{name(text)}</h2>'


def notice(text: str, detail: str) -> str:
    """Return a highlighted warning: a few words, then the details."""
    return f'<p class="notice"><b>{escape(text)}</b> {escape(detail)}</p>'


def table(names: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "", words: Sequence[int] = ()) -> str:
    """Return a table. rows: HTML. kind: its CSS class. words: columns besides the first that are not numbers."""

    def cell(tag: str, at: int, content: str) -> str:
        kind = "words" if at == 0 or at in words else "count"
        label = f' data-name="{escape(names[at])}"' if at and tag == "td" else ""
        return f'<{tag} class="{kind}"{label}>{content}</{tag}>'

    head = "".join(cell("th", at, escape(each)) for at, each in enumerate(names))
    lines = ["".join(cell("td", at, content) for at, content in enumerate(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
