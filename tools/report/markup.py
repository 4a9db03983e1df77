"""Pieces of HTML that the report is made of. What is named `text` is escaped here; what is named `inside` is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def name(text: str) -> str:
    """Return a name that somebody gave: it is set apart, so that its letters' direction changes nothing around it."""
    return f"<bdi>{escape(text)}</bdi>"


def card(text: str, inside: str, note: str = "") -> str:
    """Return a card with a title. note: a text below it."""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<div class="card"><h3>{escape(text)}</h3>{inside}{said}</div>'


def cards(inside: Sequence[str]) -> str:
    """Return cards side by side."""
    return f'<div class="cards">{"".join(inside)}</div>' if inside else ""


def facts(told: Sequence[tuple[str, str]], kind: str = "facts") -> str:
    """Return a list of what and its text."""
    lines = "".join(f"<div><dt>{escape(what)}</dt><dd>{name(text)}</dd></div>" for what, text in told)
    return f'<dl class="{kind}">{lines}</dl>'


def heading(text: str, anchor: str) -> str:
    """Return the heading of a section, with a link to the page's beginning."""
    return f'<h2 id="{anchor}"><a class="top" href="#top">to the top</a>{name(text)}</h2>'


def notice(text: str, said: str) -> str:
    """Return what must not be overlooked: in one or two words, then in full."""
    return f'<p class="notice"><b>{escape(text)}</b> {escape(said)}</p>'


def table(names: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "", words: Sequence[int] = ()) -> str:
    """Return a table. rows: HTML. words: the columns that are not numbers, beside the first."""

    def cell(tag: str, at: int, inside: str) -> str:
        kind = "words" if at == 0 or at in words else "count"
        label = f' data-name="{escape(names[at])}"' if at and tag == "td" else ""
        return f'<{tag} class="{kind}"{label}>{inside}</{tag}>'

    head = "".join(cell("th", at, escape(each)) for at, each in enumerate(names))
    lines = ["".join(cell("td", at, inside) for at, inside in enumerate(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
