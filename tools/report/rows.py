"""What the report shows of a variable's rows, computed in one pass over them.

Norms, scores and ages are kept in temporary files until their range is known; percentiles come from a sample of rows
that is the same in every run. Memory does not grow with the table.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kvemb import bulk
from kvemb.tools.numbers import lengths
from kvemb.tools.reading import Progress, opened, scores_are_times, with_progress
from kvemb.tools.report.bins import Bins, Kind, Numbers, bins, percentiles
from kvemb.tools.report.projection import Candidates, Projection

SAMPLE = 131_072
# How many keys of rows that are not finite are listed.
LISTED_KEYS = 10
_CHUNK = 1 << 20


@dataclass
class Spread:
    """How numbers are distributed. infinite: how many are infinite and so in no bin. sampled: whether percentiles come
    from a sample of the numbers.
    """

    bins: Bins | None = None
    percentiles: list[tuple[str, float]] = field(default_factory=list)
    infinite: int = 0
    sampled: bool = False


@dataclass
class Survey:
    """Statistics of a variable's rows.

    nan, infinite: rows that hold such a number; slots: rows whose optimizer slots hold one; keys: the first of these.
    sizes: norms of finite rows, or their values if there is one column. scores: None without a policy. ages: calls
    that recorded uses since a row's last change, None if there were no such calls.
    """

    rows: int = 0
    nan: int = 0
    infinite: int = 0
    slots: int = 0
    keys: list[int] = field(default_factory=list)
    sizes: Spread = field(default_factory=Spread)
    scores: Spread | None = None
    ages: Spread | None = None
    projection: Projection | None = None


def survey(path: Path, name: str, progress: Progress | None = None) -> Survey:
    """Read all rows of a variable once. progress(done, total): rows. Raises Corruption."""
    with opened(path, name) as source, ExitStack() as stack:
        described = bulk.described(source)
        found = Survey()
        has_policy, step = described["policy"] is not None, int(described["step"])
        sizes, scores, ages = (_Column(stack.enter_context(tempfile.TemporaryFile()), seed) for seed in range(3))
        candidates = Candidates(by_score=has_policy) if source.dim > 1 else None
        for rows in with_progress(bulk.scan(source), progress, source.size()):
            assert rows.scores is not None
            assert rows.steps is not None
            finite = _count_not_finite(rows, found)
            values = rows.values[finite].astype(np.float64)
            sizes.add(lengths(values) if source.dim > 1 else values[:, 0])
            if has_policy:
                scores.add(rows.scores)
            if step:
                ages.add((step - rows.steps).astype(np.float64))
            if candidates is not None:
                candidates.add(rows.keys[finite], values, rows.scores[finite])
        found.sizes = sizes.spread(Kind.ANY)
        found.scores = scores.spread(_score_kind(described["policy"])) if has_policy else None
        found.ages = ages.spread(Kind.COUNT) if step else None
        found.projection = candidates.projection() if candidates is not None else None
        return found


def _score_kind(policy: dict[str, Any]) -> Kind:
    if policy["kind"] == "timestamp":
        return Kind.TIME if scores_are_times(policy) else Kind.STEP
    return Kind.COUNT if policy["kind"] == "frequency" and policy["half_life"] is None else Kind.ANY


def _count_not_finite(rows: bulk.Rows, found: Survey) -> npt.NDArray[np.bool_]:
    """Count rows that hold NaN or infinity; returns which have finite values, (n,) bool."""
    values = rows.values.astype(np.float64)
    nan, infinite = np.isnan(values).any(axis=1), np.isinf(values).any(axis=1)
    slots = np.zeros(len(rows), np.bool_)
    for slot in (rows.slots or {}).values():
        slots |= ~np.isfinite(slot.astype(np.float64)).all(axis=1)
    found.rows += len(rows)
    found.nan += int(nan.sum())
    found.infinite += int(infinite.sum())
    found.slots += int(slots.sum())
    keys = rows.keys[nan | infinite | slots]
    found.keys += [int(key) for key in keys[: LISTED_KEYS - len(found.keys)]]
    return np.asarray(~(nan | infinite))


class _Column:
    """One number of each row, on disk; with a sample, the smallest and the largest of the finite ones."""

    def __init__(self, file: IO[bytes], seed: int) -> None:
        self._file, self._chance = file, np.random.default_rng(seed)
        self._sample, self._order = np.empty(0), np.empty(0)
        self._count, self._infinite = 0, 0
        self._least, self._most = np.inf, -np.inf

    def add(self, numbers: Numbers) -> None:
        """Add more numbers. Each gets a random number; those with the smallest ones are the sample."""
        finite: Any = numbers[np.isfinite(numbers)]
        self._infinite += len(numbers) - len(finite)
        if len(finite) == 0:
            return
        self._file.write(finite.tobytes())
        self._count += len(finite)
        self._least, self._most = min(self._least, float(finite.min())), max(self._most, float(finite.max()))
        sample = np.concatenate([self._sample, finite])
        order = np.concatenate([self._order, self._chance.random(len(finite))])
        if len(sample) > SAMPLE:
            kept = np.argpartition(order, SAMPLE)[:SAMPLE]
            sample, order = sample[kept], order[kept]
        self._sample, self._order = sample, order

    def spread(self, kind: Kind) -> Spread:
        """Return how the numbers are distributed."""
        if self._count == 0:
            return Spread(infinite=self._infinite)
        found = bins(self._sample, self._least, self._most, kind)
        self._file.seek(0)
        while part := self._file.read(8 * _CHUNK):
            found.add(np.frombuffer(part, np.float64))
        between = percentiles(self._sample, self._least, self._most)
        return Spread(found, between, self._infinite, self._count > SAMPLE)
