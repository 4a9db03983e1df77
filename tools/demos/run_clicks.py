"""`kvemb demo`: train a table larger than its memory budget on a generated click log, end to end.

Half way a checkpoint is taken. At the end the checkpoint is opened as a separate store, and must rank held-out lines
exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import kvemb
from kvemb.tools.demos.click_log import HELD_OUT, ClickLog, Clicks, auc
from kvemb.tools.demos.factorisation import Factorisation
from kvemb.tools.demos.figures import memory_figures, speed_figures, tier_figures
from kvemb.tools.demos.training import FIRST_NOTE, Meter, train
from kvemb.tools.demos.workplace import DeferredInterrupts
from kvemb.tools.memory import anonymous_bytes
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


def run(settings: ClickRun, folder: Path, screen: Screen, stop: DeferredInterrupts, kept: Path | None) -> None:
    """Train, check the checkpoint, and print a table. folder: an empty directory to work in; kept: the same if it is
    kept, otherwise None. Raises Corruption if the reopened checkpoint gives another AUC.
    """
    log = ClickLog(settings.seed, settings.clicks)
    half = settings.clicks // 2
    before = anonymous_bytes()
    with kvemb.open(folder / "store", memory_budget=settings.budget) as store:
        steps = ceil(half / settings.batch) + ceil((settings.clicks - half) / settings.batch)
        with screen.progress("training", steps, FIRST_NOTE) as advance:
            model = Factorisation(store, settings.dim, settings.seed)
            meter = Meter(model.variables, advance)
            train(model, _parts(log, 0, half, settings.batch), meter, stop)
            taken = model.auc(_held_out(log, half))
            started = time.perf_counter()
            store.checkpoint(folder / "checkpoint")
            checkpoint_seconds = time.perf_counter() - started
            screen.milestone(f"half way: held-out AUC {taken:.4f}, checkpoint taken in {checkpoint_seconds:.2f} s")
            train(model, _parts(log, half, settings.clicks, settings.batch), meter, stop)
        stop.check()
        sections = [speed_figures(meter), tier_figures(model.variables, model.row_bytes)]
        final = model.auc(_held_out(log, settings.clicks))
        table = model.row_bytes * sum(variable.size() for variable in model.variables)
        sections.append(memory_figures(before, store.budget.total, table))
    stop.check()
    with kvemb.restore(folder / "checkpoint", folder / "restored", memory_budget=settings.budget) as restored:
        again = Factorisation(restored, settings.dim, settings.seed).auc(_held_out(log, half))
    shutil.rmtree(folder / "restored")
    best = _held_out(log, settings.clicks)
    limit = auc(log.logits(best.users, best.items), best.clicked)
    lines = [
        ("trained on", f"{settings.clicks:,} lines of a click log, dim {settings.dim}, batches of {settings.batch:,}"),
        *(line for section, _ in sections for line in section),
        ("AUC half way", f"{taken:.4f} when the checkpoint was taken (in {checkpoint_seconds:.2f} s)"),
        ("AUC reopened", f"{again:.4f} from that checkpoint: {'the same' if again == taken else 'DIFFERENT'}"),
        ("AUC at the end", f"{final:.4f} (chance 0.5; the hidden model that drew the clicks {limit:.4f})"),
    ]
    summary: dict[str, object] = {
        "demo": "clicks",
        "kept": kept and str(kept),
        "clicks": settings.clicks,
        "dim": settings.dim,
        "batch": settings.batch,
    }
    summary |= {name: value for _, section in sections for name, value in section.items()}
    summary |= {"auc_at_checkpoint": taken, "auc_reopened": again, "auc_final": final, "auc_limit": limit}
    screen.close("kvemb demo", lines, summary | {"checkpoint_seconds": round(checkpoint_seconds, 3)})
    if again != taken:
        raise kvemb.errors.Corruption(f"the reopened checkpoint gives AUC {again}, but {taken} when it was taken")


def _parts(log: ClickLog, start: int, stop: int, batch: int) -> Iterator[Clicks]:
    for at in range(start, stop, batch):
        yield log.part(at, min(batch, stop - at))


def _held_out(log: ClickLog, end: int) -> Clicks:
    """Return held-out lines of the positions just before `end`; they are not trained on."""
    count = min(HELD_OUT_LINES, max(1, log.lines // 10), end)
    return log.part(end - count, count, HELD_OUT)
