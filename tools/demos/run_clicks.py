"""`kvemb demo`: train a table larger than its memory budget on a generated click log, end to end.

Half way a checkpoint is taken, from which a reopened model must rank held-out lines exactly as the model did then.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.demos.click_log import HELD_OUT, ClickLog, Clicks, auc
from kvemb.tools.demos.factorisation import Factorisation
from kvemb.tools.demos.figures import FIRST_NOTE, Lines, stats_of, tier_figures
from kvemb.tools.process_memory import anonymous_bytes
from kvemb.tools.screen import Advance, Screen, Summary, size
from kvemb.tools.stopping import check

HELD_OUT_LINES = 100_000
NOTE_EVERY_SECONDS = 0.25


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


class Training:
    """Trains a model, prefetching each next batch, and counts batches, and rows and seconds without the first batch.

    The first batch is timed separately, as `first_seconds`: in the first run on a machine it compiles kernels.
    """

    def __init__(self, model: Factorisation, advance: Advance) -> None:
        self._model, self._advance = model, advance
        self._noted = -NOTE_EVERY_SECONDS  # the first note is shown at once
        self._batches = self._rows = 0
        self._seconds = self._first_seconds = 0.0

    def train(self, batches: Iterator[Clicks]) -> None:
        """Train on all batches in order, and update the progress bar every NOTE_EVERY_SECONDS."""
        following = next(batches, None)
        while (batch := following) is not None:
            started = time.perf_counter()
            following = next(batches, None)
            if following is not None:
                self._model.prefetch(following)
            rows, seconds = self._model.train(batch), time.perf_counter() - started
            check()
            self._batches += 1
            if self._batches == 1:
                self._first_seconds = seconds
                continue
            self._rows, self._seconds = self._rows + rows, self._seconds + seconds
            if self._seconds - self._noted >= NOTE_EVERY_SECONDS:
                self._noted = self._seconds
                hit_rate, rate = stats_of(self._model.variables).hit_rate, self._rows / self._seconds
                self._advance(self._batches, f"hit rate {hit_rate:.3f} · {rate:,.0f} rows/s")

    def figures(self, stats: kvemb.Stats) -> tuple[Lines, Summary]:
        """Return lines and summary of the speed and of the table. stats: those of its large variables."""
        rate = self._rows / self._seconds if self._seconds else 0.0
        lines = [
            ("speed", f"{rate:,.0f} rows/s looked up and updated, in {self._seconds:.1f} s"),
            ("first batch", f"{self._first_seconds:.1f} s (compiles kernels in the first run)"),
            ("hit rate", f"{stats.hit_rate:.3f}"),
        ]
        summary: Summary = {"rows_per_second": round(rate), "seconds": round(self._seconds, 2)}
        summary |= {"first_batch_seconds": round(self._first_seconds, 2), "hit_rate": stats.hit_rate}
        of_tiers, more = tier_figures(stats, self._model.row_bytes)
        return lines + of_tiers, {**summary, **more}


def run(settings: ClickRun, folder: Path, screen: Screen, kept: Path | None) -> None:
    """Train, check the checkpoint, and print. folder: an empty directory to work in; kept: the same if it is kept,
    otherwise None. Raises Corruption if the reopened checkpoint gives another AUC.
    """
    log, half, batch = settings.log, settings.clicks // 2, settings.batch
    at_half, best = _held_out(log, half), _held_out(log, settings.clicks)
    steps = ceil(half / batch) + ceil((settings.clicks - half) / batch)
    before = anonymous_bytes()
    with kvemb.open(folder / "store", memory_budget=settings.budget) as store:
        with screen.progress("training", steps, FIRST_NOTE) as advance:
            model = Factorisation(store, settings.dim, settings.seed)
            training = Training(model, advance)
            training.train(_parts(log, 0, half, batch))
            taken = model.auc(at_half)
            started = time.perf_counter()
            store.checkpoint(folder / "checkpoint")
            seconds = time.perf_counter() - started
            screen.milestone(f"half way: held-out AUC {taken:.4f}; checkpoint taken in {seconds:.2f} s")
            training.train(_parts(log, half, settings.clicks, batch))
        check()
        stats, trained = stats_of(model.variables), model.auc(best)
        told, figures = training.figures(stats)
        of_memory, more = _memory_figures(before, store.budget.total, model.row_bytes * stats.rows)
    check()
    with kvemb.restore(folder / "checkpoint", folder / "restored", memory_budget=settings.budget) as restored:
        again = Factorisation(restored, settings.dim, settings.seed).auc(at_half)
    shutil.rmtree(folder / "restored")
    hidden = auc(log.logits(best.ids, best.numbers), best.clicked)
    same = np.array_equal(again, taken, equal_nan=True)  # so few lines may be of one kind alone
    lines = [
        ("trained on", f"{settings.clicks:,} lines of a click log, dim {settings.dim}, batch {batch:,}"),
        *told,
        *of_memory,
        ("half way", f"AUC {taken:.4f} when the checkpoint was taken (in {seconds:.2f} s)"),
        ("reopened", f"AUC {again:.4f} from that checkpoint: {'the same' if same else 'DIFFERENT'}"),
        ("at the end, trained", f"AUC {trained:.4f}"),
        ("at the end, hidden model", f"AUC {hidden:.4f}"),
    ]
    aucs = {"checkpoint": taken, "reopened": again, "trained": trained, "hidden model": hidden}
    summary = {"demo": "clicks", "kept": kept and str(kept), **vars(settings), **figures, **more}
    summary |= {name: {"AUC": value} for name, value in aucs.items()}
    screen.close("kvemb demo", lines, {**summary, "checkpoint_seconds": round(seconds, 3)})
    if not same:
        raise kvemb.errors.Corruption(f"the reopened checkpoint gives AUC {again:.4f}, but {taken:.4f} before")


def _parts(log: ClickLog, start: int, stop: int, batch: int) -> Iterator[Clicks]:
    for at in range(start, stop, batch):
        yield log.part(at, min(batch, stop - at))


def _held_out(log: ClickLog, end: int) -> Clicks:
    """Return held-out lines of the positions just before `end`; they are not trained on."""
    count = min(HELD_OUT_LINES, max(1, log.lines // 10), end)
    return log.part(end - count, count, HELD_OUT)


def _memory_figures(before: int, budget: int, table: int) -> tuple[Lines, Summary]:
    """Return lines and summary that compare anonymous memory, the store's budget and the table's size; all in bytes.

    before: the anonymous memory just before the store was opened. Pages of mapped files belong to the page cache.
    """
    used = anonymous_bytes()
    above = used - before
    since = f"{size(above)} since, with numba and RocksDB"
    lines = [
        ("memory budget", f"{size(budget)}; the table is {table / budget:.1f} times that"),
        ("memory in use", f"{size(used)}; {size(before)} before the store was opened, {since}"),
    ]
    return lines, {"budget_bytes": budget, "anonymous_bytes": used, "before_bytes": before, "above_bytes": above}
