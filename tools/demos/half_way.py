"""A demo in NumPy: half way a checkpoint is taken, and at the end it is opened as a separate store.

The reopened checkpoint must judge held-out data exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.demos.figures import FIRST_NOTE, Lines, stats_of, tier_figures
from kvemb.tools.memory import anonymous_bytes
from kvemb.tools.screen import Advance, Screen, Summary, size
from kvemb.tools.stopping import check

NOTE_EVERY_SECONDS = 0.25
# Metrics by their names.
Judgement = Mapping[str, float]


class Training:
    """Trains a model, prefetching each next batch, and counts batches, and rows and seconds without the first batch.

    A model has `variables`, whose hits and rows are shown, `row_bytes` of their rows with slots, and two methods that
    get a batch: `prefetch`, and `train`, which takes a step and returns how many rows it looked up and updated.

    The first batch is timed separately, as `first_seconds`: in the first run on a machine it compiles kernels.
    """

    def __init__(self, model: Any, advance: Advance) -> None:
        self._model, self._advance = model, advance
        self._noted = -NOTE_EVERY_SECONDS  # the first note is shown at once
        self.batches = self.rows = 0
        self.seconds = self.first_seconds = 0.0

    def train(self, batches: Iterable[Any]) -> None:
        """Train on all batches in order, and update the progress bar every NOTE_EVERY_SECONDS."""
        coming = iter(batches)
        following = next(coming, None)
        while (batch := following) is not None:
            started = time.perf_counter()
            following = next(coming, None)
            if following is not None:
                self._model.prefetch(following)
            rows, seconds = self._model.train(batch), time.perf_counter() - started
            check()
            self.batches += 1
            if self.batches == 1:
                self.first_seconds = seconds
                continue
            self.rows, self.seconds = self.rows + rows, self.seconds + seconds
            if self.seconds - self._noted >= NOTE_EVERY_SECONDS:
                self._noted = self.seconds
                hit_rate, rate = stats_of(self._model.variables).hit_rate, self.rows / self.seconds
                self._advance(self.batches, f"hit rate {hit_rate:.3f} · {rate:,.0f} rows/s")

    def figures(self, hit_rate: float) -> tuple[Lines, Summary]:
        """Return lines and summary of the speed."""
        rate = self.rows / self.seconds if self.seconds else 0.0
        lines = [
            ("speed", f"{rate:,.0f} rows/s looked up and updated, in {self.seconds:.1f} s"),
            ("first batch", f"{self.first_seconds:.1f} s (compiles kernels in the first run)"),
            ("hit rate", f"{hit_rate:.3f}"),
        ]
        summary: Summary = {"rows_per_second": round(rate), "seconds": round(self.seconds, 2)}
        return lines, {**summary, "first_batch_seconds": round(self.first_seconds, 2), "hit_rate": hit_rate}


def run(
    title: str,
    folder: Path,
    budget: str,
    screen: Screen,
    make: Callable[[kvemb.Store], Any],
    halves: tuple[Iterable[Any], Iterable[Any]],
    steps: int,
    judge: Callable[[Any], Judgement],
    judge_end: Callable[[Any], Mapping[str, Judgement]],
    lines: Lines,
    summary: Summary,
) -> None:
    """Train a model on the batches of both halves, `steps` in all, judge it, and print.

    folder: an empty directory to work in. make: returns the model of a store. lines, summary: what is printed first.
    Raises Corruption if the reopened checkpoint judges differently.
    """
    before = anonymous_bytes()
    with kvemb.open(folder / "store", memory_budget=budget) as store:
        with screen.progress("training", steps, FIRST_NOTE) as advance:
            model = make(store)
            training = Training(model, advance)
            training.train(halves[0])
            taken = judge(model)
            started = time.perf_counter()
            store.checkpoint(folder / "checkpoint")
            seconds = time.perf_counter() - started
            screen.milestone(f"half way: held-out {_text(taken)}; checkpoint taken in {seconds:.2f} s")
            training.train(halves[1])
        check()
        stats = stats_of(model.variables)
        end = judge_end(model)
        sections = [training.figures(stats.hit_rate), tier_figures(stats, model.row_bytes)]
        sections.append(_memory_figures(before, store.budget.total, model.row_bytes * stats.rows))
    check()
    with kvemb.restore(folder / "checkpoint", folder / "restored", memory_budget=budget) as restored:
        again = judge(make(restored))
    shutil.rmtree(folder / "restored")
    same = np.array_equal([*taken.values()], [*again.values()], equal_nan=True)
    for told, figures in sections:
        lines, summary = [*lines, *told], {**summary, **figures}
    lines += [
        ("half way", f"{_text(taken)} when the checkpoint was taken (in {seconds:.2f} s)"),
        ("reopened", f"{_text(again)} from that checkpoint: {'the same' if same else 'DIFFERENT'}"),
        *((f"at the end, {what}", _text(judgement)) for what, judgement in end.items()),
    ]
    summary |= {"checkpoint": taken, "reopened": again, **end, "checkpoint_seconds": round(seconds, 3)}
    screen.close(title, lines, summary)
    if not same:
        raise kvemb.errors.Corruption(f"the reopened checkpoint gives {_text(again)}, but {_text(taken)} before")


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


def _text(judgement: Judgement) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in judgement.items())
