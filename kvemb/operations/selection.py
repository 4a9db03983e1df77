"""Selecting the rows that a restriction removes: finds the exact limit among (score, key) pairs in bounded memory.

The pairs are spooled to a temporary file, 16 bytes each. Radix selection finds the limit digit by digit: it makes a
histogram of the next 16 bits of the pairs that begin with the digits found so far. Typical tables need two or three
passes over the spool. Histograms can be added, so the limit over several spools is found in the same way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.errors import ColdStoreError
from kvemb.rows.codec import Ordered

Pairs = npt.NDArray[Any]  # of _PAIR
_PAIR = np.dtype([("score", "<u8"), ("key", "<u8")])  # an ordered score, and an ordered key
BLOCK_PAIRS = 1 << 18
_DIGIT_BITS = 16
_DIGITS = 8
_SIGN = np.uint64(1 << 63)


def order_scores(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Map scores (n,), without NaN, to uint64 in the same order; -0.0 and 0.0 are equal."""
    bits = (scores + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


class ScoreLimit(NamedTuple):
    """The lowest pair that is kept: an ordered score, and an ordered key."""

    score: int
    key: int

    def exceeds(self, scores: npt.NDArray[np.uint64], keys: Ordered) -> npt.NDArray[np.bool_]:
        """Return which pairs of an ordered score and an ordered key are below the limit (n,)."""
        score, key = np.uint64(self.score), np.uint64(self.key)
        below: npt.NDArray[np.bool_] = (scores < score) | ((scores == score) & (keys < key))
        return below


def lowest_kept(
    counts: Callable[[list[int]], npt.NDArray[np.int64]],
    matching: Callable[[list[int]], Pairs],
    keep: int,
    *,
    max_pairs: int = BLOCK_PAIRS,
) -> ScoreLimit:
    """Return the keep-th highest pair over one or several spools; of equal scores, the larger key is higher.

    counts, matching: those of ScoreSpool, summed and concatenated over the spools. max_pairs: how many pairs may be
    sorted in memory. REQUIRES: keep is at least 1 and at most the number of pairs.
    """
    prefix: list[int] = []
    while len(prefix) < _DIGITS:
        found = counts(prefix)
        from_top = np.cumsum(found[::-1])
        place = int(np.searchsorted(from_top, keep))
        keep -= int(from_top[place - 1]) if place else 0
        prefix.append(len(found) - 1 - place)
        if found[prefix[-1]] <= max_pairs:
            break
    left = matching(prefix)
    left.sort(order=("score", "key"))
    return ScoreLimit(int(left["score"][-keep]), int(left["key"][-keep]))


class ScoreSpool:
    """Pairs of a score and a distinct key (codec.order_keys), on disk until close().

    directory: where the temporary file goes; it has no name there, so a crash leaves nothing. block_pairs: pairs that
    are read back and sorted at a time. between: called before each such block; what it raises ends the method. Where
    the disk fails, methods raise ColdStoreError.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        block_pairs: int = BLOCK_PAIRS,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory, self._count, self._block_pairs, self._between = directory, 0, block_pairs, between
        with self._on_disk():
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 -- closed by close()

    def close(self) -> None:
        """Delete the file."""
        with suppress(OSError):  # closing writes what a full disk did not take, which is no longer needed
            self._file.close()

    def __len__(self) -> int:
        return self._count

    def append(self, scores: npt.NDArray[np.float64], keys: Ordered) -> None:
        """Add pairs: scores (n,) and ordered keys (n,)."""
        pairs = np.empty(len(keys), _PAIR)
        pairs["score"], pairs["key"] = order_scores(scores), keys
        with self._on_disk():
            self._file.write(pairs.tobytes())
        self._count += len(keys)

    def below(self, limit: ScoreLimit | None) -> Iterator[Ordered]:
        """Yield, in batches, the ordered keys of the pairs below the limit; None: of all pairs."""
        for pairs in self._blocks():
            if limit is None:
                yield pairs["key"].copy()
                continue
            if (below := limit.exceeds(pairs["score"], pairs["key"])).any():
                yield pairs["key"][below]

    def counts(self, prefix: list[int]) -> npt.NDArray[np.int64]:
        """Return a histogram (65536,) of the next digit of the pairs that begin with these digits."""
        counts = np.zeros(1 << _DIGIT_BITS, np.int64)
        for pairs in self._blocks():
            counts += np.bincount(_digit(_matching(pairs, prefix), len(prefix)), minlength=len(counts))
        return counts

    def matching(self, prefix: list[int]) -> Pairs:
        """Return a copy of the pairs that begin with these digits."""
        return np.concatenate([np.empty(0, _PAIR), *(_matching(pairs, prefix) for pairs in self._blocks())])

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        with self._on_disk():
            self._file.seek(0)
        while True:
            self._between()
            with self._on_disk():
                data = self._file.read(self._block_pairs * _PAIR.itemsize)
            if not data:
                return
            yield np.frombuffer(data, _PAIR)

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self._directory or tempfile.gettempdir()
            raise ColdStoreError(
                f"cannot write the scores of all rows to a temporary file in {place}: {error}; it takes "
                f"{_PAIR.itemsize} bytes for each row"
            ) from error


def _digit(pairs: npt.NDArray[Any], digit: int) -> npt.NDArray[np.int64]:
    """Return 16 bits of each 128-bit pair; digit 0 is the most significant."""
    half, place = divmod(digit, _DIGITS // 2)
    shift = np.uint64(64 - _DIGIT_BITS * (place + 1))
    field = pairs["key" if half else "score"]
    return ((field >> shift) & np.uint64((1 << _DIGIT_BITS) - 1)).astype(np.int64)


def _matching(pairs: npt.NDArray[Any], prefix: list[int]) -> npt.NDArray[Any]:
    for digit, value in enumerate(prefix):
        pairs = pairs[_digit(pairs, digit) == value]
    return pairs
