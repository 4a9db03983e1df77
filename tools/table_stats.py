"""Statistics of a variable's rows, in one pass over them. Memory does not grow with the table."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import kvemb
from kvemb import bulk
from kvemb.tools.keys import in_order
from kvemb.tools.numbers import lengths, row_bytes
from kvemb.tools.reading import Progress, all_opened, opened, scores_are_times, with_progress
from kvemb.tools.report.bins import Kind
from kvemb.tools.report.projection import Candidates, Projection
from kvemb.tools.report.spreads import Column, Spread

# How many keys of rows that are not finite are listed.
LISTED_KEYS = 10
PARTS = 64  # a power of two


@dataclass
class TableStats:
    """Statistics of a variable.

    mean, spread (standard deviation): by column, of finite numbers. dead: rows still equal to their initializer's row.
    duplicates: rows with the same values as an earlier one. nan, infinite: rows that hold such a number; slots: rows
    whose optimizer slots hold one; not_finite_keys: the first of these. sizes: norms of finite rows, or their values if
    there is one column. scores: None without a policy. ages: calls that recorded uses since a row's last change, None
    if there were no such calls. recording_calls: the number of such calls so far. scores_are_times: the policy's scores
    are seconds since 1970.
    """

    variable: str
    rows: int
    recording_calls: int
    mean: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    dead: int = 0
    duplicates: int = 0
    nan: int = 0
    infinite: int = 0
    slots: int = 0
    not_finite_keys: list[int | str] = field(default_factory=list)
    sizes: Spread = field(default_factory=Spread)
    scores: Spread | None = None
    ages: Spread | None = None
    scores_are_times: bool = False
    projection: Projection | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all but the projection as plain values."""
        spreads = {name: getattr(self, name) for name in ("sizes", "scores", "ages")}
        plain = {name: value for name, value in vars(self).items() if name not in (*spreads, "projection")}
        return {**plain, **{name: None if each is None else each.as_json() for name, each in spreads.items()}}


def stats(
    path: str | os.PathLike[str],
    variable: str | None = None,
    *,
    projected: bool = False,
    progress: Progress | None = None,
) -> TableStats:
    """Return the statistics of a variable of a checkpoint or a store. projected: also the projection.

    Raises BadInput; Corruption.
    """
    with opened(path, variable, progress=progress, or_all=True) as source:
        return _stats_of(source, projected, progress)


def all_stats(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[TableStats]:
    """Return the statistics of all variables, by name. Raises BadInput; Corruption."""
    with all_opened(path, progress=progress) as sources:
        return [_stats_of(source, False, progress) for source in sources]


def _stats_of(source: kvemb.Variable, projected: bool, progress: Progress | None) -> TableStats:
    with ExitStack() as stack:
        described = bulk.described(source)
        policy, step = described["policy"], int(described["step"])
        found = TableStats(source.name, source.size(), step)
        sizes, scores, ages = (Column(stack.enter_context(tempfile.TemporaryFile()), seed) for seed in range(3))
        distinct = stack.enter_context(_Distinct())
        candidates = Candidates(by_score=policy is not None) if projected and source.dim > 1 else None
        sums = np.zeros((3, source.dim))
        for rows in with_progress(bulk.scan(source), progress, source.size()):
            assert rows.scores is not None
            assert rows.steps is not None
            finite = _count_not_finite(rows, found)
            values = rows.values.astype(np.float64)
            sums += _sums(values)
            found.dead += int(_dead(source, rows).sum())
            distinct.add(_hashes(rows.values))
            values = values[finite]
            sizes.add(lengths(values) if source.dim > 1 else values[:, 0])
            scores.add(rows.scores)
            ages.add((step - rows.steps).astype(np.float64))
            if candidates is not None:
                candidates.add(rows.keys[finite], values, rows.scores[finite])
        found.duplicates = found.rows - distinct.count()
        found.mean, found.spread = _moments(sums)
        found.sizes = sizes.spread(Kind.ANY)
        if policy is not None:
            found.scores, found.scores_are_times = scores.spread(_score_kind(policy)), scores_are_times(policy)
        found.ages = ages.spread(Kind.COUNT) if step else None
        found.projection = candidates.projection() if candidates is not None else None
        return found


def _score_kind(policy: dict[str, Any]) -> Kind:
    if policy["kind"] == "timestamp":
        return Kind.TIME if scores_are_times(policy) else Kind.STEP
    return Kind.COUNT if policy["kind"] == "frequency" and policy["half_life"] is None else Kind.ANY


def _count_not_finite(rows: bulk.Rows, found: TableStats) -> npt.NDArray[np.bool_]:
    """Count rows that hold NaN or infinity; returns which have finite values, (n,) bool."""
    values = rows.values.astype(np.float64)
    nan, infinite = np.isnan(values).any(axis=1), np.isinf(values).any(axis=1)
    slots = np.zeros(len(rows), np.bool_)
    for slot in (rows.slots or {}).values():
        slots |= ~np.isfinite(slot.astype(np.float64)).all(axis=1)
    found.nan += int(nan.sum())
    found.infinite += int(infinite.sum())
    found.slots += int(slots.sum())
    keys = rows.keys[nan | infinite | slots]
    found.not_finite_keys += keys[: LISTED_KEYS - len(found.not_finite_keys)].tolist()
    return np.asarray(~(nan | infinite))


def _sums(values: Any) -> Any:
    """Return counts, sums and sums of squares of the finite numbers of each column, (3, dim)."""
    finite = np.isfinite(values)
    clean = np.where(finite, values, 0.0)
    with np.errstate(over="ignore"):  # squares of numbers above 1e154 are infinite, and so is the spread
        return np.stack([finite.sum(axis=0), clean.sum(axis=0), (clean * clean).sum(axis=0)])


def _moments(sums: Any) -> tuple[list[float], list[float]]:
    """Return means and standard deviations by column."""
    counts = np.maximum(sums[0], 1)
    mean = sums[1] / counts
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.sqrt(np.maximum(sums[2] / counts - mean * mean, 0))
    return mean.tolist(), np.where(np.isinf(sums[2]), np.inf, spread).tolist()


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
    numbers = in_order(rows.keys)
    keys = numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64)
    made = source.initializer.rows(keys, source.dim, source.value_dtype)
    return (row_bytes(made) == row_bytes(rows.values)).all(axis=1)


def _hashes(values: Any) -> Any:
    """Return a 64-bit hash of each row's bytes; two different rows collide with probability 2^-64."""
    raw = row_bytes(values)
    padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    mixed = np.full(len(raw), 0x9E3779B97F4A7C15, np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ words[:, column]) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    return mixed
