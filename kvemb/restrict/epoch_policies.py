"""Policies that rank by the epoch of the last use first: rows of earlier epochs are removed before those of later ones.

Like HierarchicalKV's kEpochLru and kEpochLfu (NVIDIA, Apache License 2.0): the epoch is the high bits of a score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.checks.numeric import as_int
from kvemb.handle import inside
from kvemb.restrict.policy import Counts, RestrictPolicy, Scores
from kvemb.timestamp import current_timestamp

# A float64 holds integers of 53 bits: 21 for the epoch, 32 for the rest.
_REST = 2.0**32
MAX_EPOCH = (1 << 21) - 1


class _Epochs(RestrictPolicy):
    """The base of both policies. Each policy that is bound to a variable has an epoch, which is not stored."""

    _epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch of uses from now on; 0 when a variable is opened."""
        timestamp = current_timestamp()
        return self._epoch if timestamp is None else timestamp.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call it on variable.restrict_policy, also after a variable was opened again.

        Args:
            epoch: An int from 0 to 2**21 - 1.

        Raises:
            TypeError: epoch is not an int.
            ValueError: epoch is out of range, or the policy is not bound to a variable.
        """
        inside(self.variable)
        object.__setattr__(self, "_epoch", as_int(epoch, "epoch", 0, MAX_EPOCH))


@dataclass(frozen=True)
class EpochTimestampRestrictPolicy(_Epochs):
    """Rows used in an earlier epoch are removed first; within an epoch, the least recently used.

    The time of a use is the number of calls that recorded uses, which stops increasing at 2**32.
    """

    kind = "epoch_timestamp"

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return epoch * 2**32 + now for every row."""
        return np.full_like(old_score, self.epoch * _REST + min(now, _REST - 1))


@dataclass(frozen=True)
class EpochFrequencyRestrictPolicy(_Epochs):
    """Rows used in an earlier epoch are removed first; within an epoch, those with the fewest uses in all epochs.

    Uses count up to 2**32 - 1. Every occurrence counts.
    """

    kind = "epoch_frequency"

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return epoch * 2**32 + uses."""
        uses: Scores = np.minimum(old_score % _REST + count, _REST - 1)
        return self.epoch * _REST + uses
