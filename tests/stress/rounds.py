"""A run of `python tests/stress`: rounds in each mode until one finds a difference, and the closing lines."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Protocol

from kvemb.tools.screen import Screen
from stress.lockstep import Difference


class Rounds(Protocol):
    """Rounds of one mode. about: what the current one tests. totals: counts over all of them, also rounds and calls."""

    about: str
    totals: Counter[str]

    def round(self) -> None:
        """Run a round. Raises Difference."""


class Run:
    """A run of a command. replay: the command. agreed: the outcome in words if there is no difference."""

    def __init__(self, replay: str, agreed: str, *, quiet: bool, as_json: bool) -> None:
        self.replay, self.screen = replay, Screen(quiet, as_json)
        self._agreed, self._as_json, self._started = agreed, as_json, time.perf_counter()

    def rounds(
        self, count: int, modes: list[str], opened: Callable[[Path], AbstractContextManager[Rounds]]
    ) -> tuple[Counter[str], str | None]:
        """Run rounds, divided evenly over the modes, until a difference; returns the totals, and the difference.

        opened: opens the rounds of a mode in an empty folder of that name.
        """
        totals: Counter[str] = Counter()
        done, logger = 0, logging.getLogger("kvemb")
        level = logger.level
        logger.setLevel(logging.ERROR)  # each recovery logs a warning
        try:
            with (
                tempfile.TemporaryDirectory(prefix="kvemb-stress-") as folder,
                self.screen.progress("stress", count) as advance,
                redirect_stdout(sys.stderr) if self._as_json else nullcontext(),  # Ray prints the losses that it finds
            ):
                for turn, mode in enumerate(modes):
                    place = Path(folder) / mode
                    place.mkdir()
                    with opened(place) as rounds:
                        try:
                            for _ in range(turn, count, len(modes)):
                                rounds.round()
                                done += 1
                                advance(done, f"{rounds.about}: {rounds.totals['calls']:,} calls")
                        except Difference as error:
                            return totals + rounds.totals, f"{rounds.about}, round {rounds.totals['rounds']}: {error}"
                    totals += rounds.totals
        finally:
            logger.setLevel(level)
        return totals, None

    def close(self, difference: str | None, lines: list[tuple[str, str]], summary: Mapping[str, object]) -> bool:
        """Print the outcome, with more lines and figures. Returns whether there was no difference."""
        seconds = time.perf_counter() - self._started
        outcome = self._agreed if difference is None else f"a difference: {difference}"
        lines = [("outcome", outcome), ("replay", self.replay), *lines, ("seconds", f"{seconds:.0f}")]
        told = {"agreed": difference is None, "difference": difference, "replay": self.replay}
        self.screen.close(" ".join(self.replay.split()[:3]), lines, {**told, **summary, "seconds": seconds})
        return difference is None


def counts(totals: Counter[str]) -> list[tuple[str, str]]:
    """Return a line for each count."""
    return [(name, f"{count:,}") for name, count in totals.items()]
