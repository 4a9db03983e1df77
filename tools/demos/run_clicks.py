"""`kvemb demo`: train a table larger than its memory budget on a generated click log, end to end.

Half way a checkpoint is taken, which must rank held-out lines exactly as the model did then (half_way.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from kvemb.tools.demos import half_way
from kvemb.tools.demos.click_log import HELD_OUT, ClickLog, Clicks, auc
from kvemb.tools.demos.factorisation import Factorisation
from kvemb.tools.screen import Screen

HELD_OUT_LINES = 100_000


@dataclass(frozen=True)
class ClickRun:
    """The settings of a run: lines of the log, factors, lines per batch, the store's budget (text), seed."""

    clicks: int
    dim: int
    batch: int
    budget: str
    seed: int

    @property
    def log(self) -> ClickLog:
        """The log: users, of whom there is one for every eight lines, and a tenth as many items."""
        return ClickLog(self.seed, self.clicks, (max(1, self.clicks // 8), max(1, self.clicks // 80)))


def run(settings: ClickRun, folder: Path, screen: Screen, kept: Path | None) -> None:
    """Train, check the checkpoint, and print. folder: an empty directory to work in; kept: the same if it is kept,
    otherwise None. Raises Corruption if the reopened checkpoint gives another AUC.
    """
    log, half = settings.log, settings.clicks // 2
    at_half, best = _held_out(log, half), _held_out(log, settings.clicks)
    limit = auc(log.logits(best.ids, best.numbers), best.clicked)
    half_way.run(
        "kvemb demo",
        folder,
        settings.budget,
        screen,
        lambda store: Factorisation(store, settings.dim, settings.seed),
        (_parts(log, 0, half, settings.batch), _parts(log, half, settings.clicks, settings.batch)),
        ceil(half / settings.batch) + ceil((settings.clicks - half) / settings.batch),
        lambda model: {"AUC": model.auc(at_half)},
        lambda model: {"trained": {"AUC": model.auc(best)}, "hidden model": {"AUC": limit}},
        [("trained on", f"{settings.clicks:,} lines of a click log, dim {settings.dim}, batch {settings.batch:,}")],
        {"demo": "clicks", "kept": kept and str(kept), **vars(settings)},
    )


def _parts(log: ClickLog, start: int, stop: int, batch: int) -> Iterator[Clicks]:
    for at in range(start, stop, batch):
        yield log.part(at, min(batch, stop - at))


def _held_out(log: ClickLog, end: int) -> Clicks:
    """Return held-out lines of the positions just before `end`; they are not trained on."""
    count = min(HELD_OUT_LINES, max(1, log.lines // 10), end)
    return log.part(end - count, count, HELD_OUT)
