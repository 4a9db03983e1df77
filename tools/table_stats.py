"""Statistics of a table: means, spreads, histograms, and counts of rows that are dead, duplicate or not finite.

Rows are streamed twice, so memory does not grow with the table.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.numbers import lengths
from kvemb.tools.reading import Progress, opened, scores_are_times, with_progress

# How many keys of non-finite rows are listed.
LISTED_KEYS = 10
BINS = 20
PARTS = 64  # a power of two


@dataclass
class Histogram:
    """counts[i]: how many numbers are between edges[i] and edges[i + 1]."""

    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass
class TableStats:
    """Statistics of a variable.

    mean, spread (standard deviation): by column, of finite numbers. dead: rows still equal to their initializer's row.
    duplicates: rows with the same values as an earlier one. not_finite: rows with a NaN or an infinity;
    not_finite_keys: some of their keys. norms, scores, ages: distributions; an age is the number of calls that
    recorded uses since the row's last change. recording_calls: the number of such calls so far. scores_are_times: the
    policy's scores are seconds since 1970.
    """

    variable: str
    rows: int
    recording_calls: int
    mean: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    norms: Histogram = field(default_factory=Histogram)
    scores: Histogram = field(default_factory=Histogram)
    ages: Histogram = field(default_factory=Histogram)
    dead: int = 0
    duplicates: int = 0
    not_finite: int = 0
    not_finite_keys: list[int] = field(default_factory=list)
    scores_are_times: bool = False


def stats(path: str | os.PathLike[str], variable: str | None = None, *, progress: Progress | None = None) -> TableStats:
    """Return the statistics of a variable of a checkpoint or a store, in two passes over its rows. Raises BadInput."""
    with opened(path, variable, progress=progress) as source:
        described = bulk.described(source)
        found = TableStats(source.name, source.size(), int(described["step"]))
        found.scores_are_times = scores_are_times(described["policy"])
        edges = _first_pass(source, found, progress)
        found.norms, found.scores, found.ages = _second_pass(source, found, edges, progress)
        return found


def _first_pass(source: kvemb.Variable, found: TableStats, progress: Progress | None) -> list[Any]:
    """Compute all but the histograms; return the edges of these."""
    ranges, sums = _Ranges(), np.zeros((3, source.dim))
    with _Distinct() as distinct:
        for rows in with_progress(bulk.scan(source), progress, 2 * found.rows):
            finite, clean = _finite(rows.values)
            bad = ~finite.all(axis=1)
            found.not_finite += int(bad.sum())
            found.not_finite_keys += [int(key) for key in rows.keys[bad][: LISTED_KEYS - len(found.not_finite_keys)]]
            with np.errstate(over="ignore"):  # squares of numbers above 1e154 are infinite, and so is the spread
                sums += [finite.sum(axis=0), clean.sum(axis=0), (clean * clean).sum(axis=0)]
            found.dead += int(_dead(source, rows).sum())
            distinct.add(_hashes(rows.values))
            ranges.add(*_norms_scores_ages(rows, clean, found.recording_calls))
        found.duplicates = found.rows - distinct.count()
    counts = np.maximum(sums[0], 1)
    mean = sums[1] / counts
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.sqrt(np.maximum(sums[2] / counts - mean * mean, 0))
    found.mean, found.spread = mean.tolist(), np.where(np.isinf(sums[2]), np.inf, spread).tolist()
    return ranges.edges()


def _second_pass(
    source: kvemb.Variable, found: TableStats, edges: list[Any], progress: Progress | None
) -> list[Histogram]:
    """Return histograms of norms, scores and ages."""
    tallies = [np.zeros(BINS, np.int64) for _ in edges]
    for rows in with_progress(bulk.scan(source), progress, 2 * found.rows, done=found.rows):
        _, clean = _finite(rows.values)
        for tally, edge, numbers in zip(
            tallies, edges, _norms_scores_ages(rows, clean, found.recording_calls), strict=True
        ):
            tally += np.histogram(numbers[np.isfinite(numbers)], edge)[0]
    return [Histogram(edge.tolist(), tally.tolist()) for edge, tally in zip(edges, tallies, strict=True)]


def _finite(values: Any) -> tuple[Any, Any]:
    """Return which numbers are finite, and the numbers as float64 with 0 for those that are not."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    return finite, np.where(finite, wide, 0.0)


def _norms_scores_ages(rows: bulk.Rows, clean: Any, step: int) -> tuple[Any, Any, Any]:
    """Return norm, score and age of each row. clean: values with 0 for those that are not finite."""
    assert rows.steps is not None  # scan() gives whole rows
    return lengths(clean), rows.scores, step - rows.steps


class _Ranges:
    """The smallest and the largest finite norm, score and age."""

    def __init__(self) -> None:
        self._least, self._most = [np.inf] * 3, [-np.inf] * 3

    def add(self, *columns: Any) -> None:
        """Include more rows."""
        for at, numbers in enumerate(columns):
            numbers = numbers[np.isfinite(numbers)]
            if len(numbers):
                self._least[at] = min(self._least[at], float(numbers.min()))
                self._most[at] = max(self._most[at], float(numbers.max()))

    def edges(self) -> list[Any]:
        """Return the edges of the histograms."""
        ends = [
            (0.0, 1.0) if least > most else (least, most) for least, most in zip(self._least, self._most, strict=True)
        ]
        return [np.linspace(least, most if most > least else least + 1.0, BINS + 1) for least, most in ends]


class _Distinct:
    """Counts distinct hashes in bounded memory: they are partitioned on disk by their leading bits."""

    def __enter__(self) -> _Distinct:
        self._files = [tempfile.TemporaryFile() for _ in range(PARTS)]  # noqa: SIM115 -- closed on leaving
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def add(self, hashes: Any) -> None:
        """Include more hashes."""
        part = (hashes >> np.uint64(64 - PARTS.bit_length() + 1)).astype(np.int64)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=PARTS))
        for at, piece in enumerate(np.split(hashes[order], ends[:-1])):
            self._files[at].write(piece.tobytes())

    def count(self) -> int:
        """Return how many distinct hashes there are."""
        total = 0
        for file in self._files:
            file.seek(0)
            total += len(np.unique(np.frombuffer(file.read(), np.uint64)))
        return total


def _dead(source: kvemb.Variable, rows: bulk.Rows) -> Any:
    keys = rows.keys.view(np.int64) if rows.keys.dtype == np.uint64 else rows.keys.astype(np.int64)
    made = source.initializer.rows(keys, source.dim, source.value_dtype)
    return (made.view(np.uint8).reshape(len(rows), -1) == rows.values.view(np.uint8).reshape(len(rows), -1)).all(axis=1)


def _hashes(values: Any) -> Any:
    """Return a 64-bit hash of each row's bytes; two different rows collide with probability 2^-64."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    mixed = np.full(len(raw), 0x9E3779B97F4A7C15, np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ words[:, column]) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    return mixed
