"""One HTML page about a checkpoint, a store or a series of checkpoints, for looking rather than reading.

It opens without a network: charts are inline SVG, styles are inline, there is no script.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.errors import CheckpointNotFound
from kvemb.tools.destinations import atomic_directory
from kvemb.tools.diff import Difference, diff
from kvemb.tools.failures import BadInput
from kvemb.tools.inspect import Histogram, TableStats, info, stats
from kvemb.tools.reading import Progress, opened
from kvemb.tools.report import charts
from kvemb.tools.screen import size

# Rows of the highest scores that are projected; checkpoints of a series that are shown, the newest.
PROJECTED, SHOWN = 500, 40
STYLE = """
:root { color-scheme: light dark; --back: #fcfcfb; --text: #1f2328; --faint: #6a737d; --grid: #d8dee4;
  --one: #3366b8; --two: #2a8f6d; --three: #c2543d; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e4e7eb; --faint: #98a2ad; --grid: #343b44;
  --one: #79a7ef; --two: #5cc7a0; --three: #ec8a74; --card: #1c2026; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1080px; padding: 24px 16px 64px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 20px; margin: 40px 0 8px; }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 4px 0; } .sub, .label { color: var(--faint); fill: var(--faint); } .label { font-size: 13px; }
.cards { align-items: start; display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; min-width: 0; padding: 16px; }
svg { display: block; height: auto; width: 100%; } .grid { stroke: var(--grid); }
.bar, .part0, .dot { fill: var(--one); background: var(--one); } .part1 { fill: var(--two); background: var(--two); }
.part2 { fill: var(--three); background: var(--three); } .line { fill: none; stroke: var(--one); stroke-width: 2; }
.faint { fill-opacity: 0.55; } .keys span { color: var(--faint); font-size: 13px; margin-right: 16px; }
.keys i { border-radius: 2px; display: inline-block; height: 10px; margin-right: 6px; width: 10px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
td, th { border-bottom: 1px solid var(--grid); padding: 4px 8px; text-align: right; } th { color: var(--faint);
  font-weight: 500; } td:first-child, th:first-child { text-align: left; }
"""


@dataclass
class _Series:
    """Checkpoints, the oldest first."""

    checkpoints: list[kvemb.Checkpoint]

    @property
    def names(self) -> list[str]:
        return [checkpoint.path.name for checkpoint in self.checkpoints]

    @property
    def ends(self) -> tuple[str, str]:
        return self.names[0], self.names[-1]


def report(path: str | os.PathLike[str], out: str, *, progress: Progress | None = None) -> Path:
    """Write a page about path to out, a new file; returns it.

    path: a checkpoint, a store, or the root of a kvemb.CheckpointManager, whose newest checkpoint is then looked into.
    progress(done, total): rows. Raises BadInput where there is none of these; FileExistsError; Corruption.
    """
    root = Path(path)
    checkpoints = kvemb.CheckpointManager(root).list()[-SHOWN:] if root.is_dir() else []
    subject = checkpoints[-1].path if checkpoints else root
    found = info(subject)
    parts = [_head(root, found)]
    changes: dict[str, Difference] = {}
    if len(checkpoints) > 1:
        section, changes = _growth(_Series(checkpoints))
        parts.append(section)
    done, total = 0, sum(each.rows for each in found.variables)
    for each in found.variables:
        parts.append(_variable(subject, each.name, each.described, changes.get(each.name)))
        done += each.rows
        if progress is not None:
            progress(done, total)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(root.name)} - kvemb report</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )
    with atomic_directory(out, folder=False) as made:
        made.write_text(page, encoding="utf-8")
    return Path(out)


def _head(root: Path, found: Any) -> str:
    rows = sum(each.rows for each in found.variables)
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created))
    return (
        f"<h1>{escape(str(root))}</h1><p class='sub'>{found.kind} of {made}, step {found.step:,}: "
        f"{len(found.variables)} variables, {rows:,} rows, {len(found.files)} files, {size(found.nbytes)}</p>"
    )


def _card(title: str, inside: str, note: str = "") -> str:
    said = f'<p class="sub">{escape(note)}</p>' if note else ""
    return f'<div class="card"><h3>{escape(title)}</h3>{inside}{said}</div>'


def _growth(series: _Series) -> tuple[str, dict[str, Difference]]:
    """Rows, bytes and churn over the series; also how the newest differs from the one before, by variable."""
    checkpoints, names = series.checkpoints, series.names
    rows = [sum(entry.rows for entry in checkpoint.variables.values()) for checkpoint in checkpoints]
    nbytes = [checkpoint.nbytes for checkpoint in checkpoints]
    own = [nbytes[0]]
    for before, after in pairwise(checkpoints):
        known = {entry.sha256 for entry in before.files.values()}
        own.append(sum(entry.bytes for entry in after.files.values() if entry.sha256 not in known))
    churn: list[tuple[str, list[float]]] = [("added", []), ("changed", []), ("removed", [])]
    last: dict[str, Difference] = {}
    for before, after in pairwise(checkpoints):
        counts = {"added": 0, "changed": 0, "removed": 0}
        for name in sorted(set(before.variables) & set(after.variables)):
            try:
                (found,) = diff(before.path, after.path, variable=name, top=10)
            except (BadInput, CheckpointNotFound):
                continue
            counts["added"] += found.added
            counts["changed"] += found.changed
            counts["removed"] += found.removed
            last[name] = found
        for kind, numbers in churn:
            numbers.append(counts[kind])
    ends, later = series.ends, (names[1], names[-1])
    charted = {
        "Rows": (charts.line("rows by checkpoint", rows, names, ends), ""),
        "Bytes": (charts.line("bytes by checkpoint", nbytes, names, ends), "Files shared with others included."),
        "Bytes of its own": (
            charts.bars("new bytes by checkpoint", own, names, ends),
            "In files that the one before lacks.",
        ),
        "Churn": (
            charts.stacked("rows changed by checkpoint", churn, names[1:], later),
            "Rows that came, changed and went since the one before.",
        ),
    }
    cards = [_card(title, chart, note) for title, (chart, note) in charted.items()]
    return f'<h2>The series</h2><div class="cards">{"".join(cards)}</div>', last


def _variable(path: Path, name: str, described: dict[str, Any], moved: Difference | None) -> str:
    found = stats(path, name)
    kind = f"{found.rows:,} rows of {described['dim']} {described['value_dtype']}, keys {described['key_dtype']}"
    cards = [
        _card("Norms", _histogram("norms", found.norms), _told(found)),
        _card("Scores", _histogram("scores", found.scores)),
        _card("Ages", _histogram("ages in steps", found.ages), "Steps since a row last changed."),
    ]
    if moved is not None and moved.most:
        lines = "".join(
            f"<tr><td>{row.key}</td><td>{row.l2:.4g}</td><td>{row.cosine:.4f}</td></tr>" for row in moved.most
        )
        table = f"<table><tr><th>key</th><th>moved by</th><th>cosine</th></tr>{lines}</table>"
        cards.append(_card("Moved most since the checkpoint before", table, f"{moved.moved:,} rows moved."))
    cards.append(
        _card(
            "Highest scores, in two dimensions",
            _projection(path, name),
            "The two directions in which they differ most; larger: higher score.",
        )
    )
    return f'<h2>{escape(name)}</h2><p class="sub">{escape(kind)}</p><div class="cards">{"".join(cards)}</div>'


def _told(found: TableStats) -> str:
    said = [f"{found.dead:,} rows are as they were made", f"{found.duplicates:,} are equal to another"]
    if found.not_finite:
        said.append(f"{found.not_finite:,} hold NaN or infinity, such as key {found.not_finite_keys[0]}")
    return "; ".join(said) + "."


def _histogram(title: str, found: Histogram) -> str:
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(found.edges)]
    return charts.bars(title, found.counts, names, (charts.number(found.edges[0]), charts.number(found.edges[-1])))


def _projection(path: Path, name: str) -> str:
    """The rows of the highest scores on their first two principal components."""
    with opened(path, name) as source:
        keys, values, scores = np.empty(0, source.key_dtype), np.empty((0, source.dim)), np.empty(0)
        for rows in bulk.scan(source):
            wide = rows.values.astype(np.float64)
            finite = np.isfinite(wide).all(axis=1)
            assert rows.scores is not None
            keys = np.concatenate([keys, rows.keys[finite]])
            values = np.concatenate([values, wide[finite]])
            scores = np.concatenate([scores, rows.scores[finite]])
            best = np.argsort(-scores, kind="stable")[:PROJECTED]
            keys, values, scores = keys[best], values[best], scores[best]
    if len(keys) < 2:
        return "<p>Too few rows.</p>"
    centred = values - values.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes[:2].T
    if flat.shape[1] < 2:
        flat = np.column_stack([flat, np.zeros(len(flat))])
    bounded = np.nan_to_num(scores, posinf=np.max(scores[np.isfinite(scores)], initial=0.0), neginf=0.0)
    spread = max(float(np.ptp(bounded)), 1e-12)
    points = [
        (float(x), float(y), float((score - np.min(bounded)) / spread), f"key {key}, score {score:g}")
        for (x, y), score, key in zip(flat, bounded, keys, strict=True)
    ]
    return charts.scatter("rows of the highest scores", points)
