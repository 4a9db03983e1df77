"""`kvemb demo`: train a table larger than its memory budget on a generated click log, end to end.

Half way a checkpoint is taken. At the end the checkpoint is opened as a separate store, and must rank held-out lines
exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import kvemb
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


def run(settings: ClickRun, folder: Path, screen: Screen, kept: Path | None) -> None:
    """Train, check the checkpoint, and print a table. folder: an empty directory to work in; kept: the same if it is
    kept, otherwise None. Raises Corruption if the reopened checkpoint gives another AUC.
    """
    log = ClickLog(settings.seed, settings.clicks)
    half = settings.clicks // 2
    at_half, best = _held_out(log, half), _held_out(log, settings.clicks)
    done = half_way.run(
        folder,
        settings.budget,
        screen,
        lambda store: Factorisation(store, settings.dim, settings.seed),
        (_parts(log, 0, half, settings.batch), _parts(log, half, settings.clicks, settings.batch)),
        ceil(half / settings.batch) + ceil((settings.clicks - half) / settings.batch),
        lambda model: float(model.auc(at_half)),
        lambda model: float(model.auc(best)),
        lambda taken: f"held-out AUC {taken:.4f}",
    )
    taken, again, final = done.taken, done.again, done.final
    limit = auc(log.logits(best.users, best.items), best.clicked)
    lines = [
        ("trained on", f"{settings.clicks:,} lines of a click log, dim {settings.dim}, batches of {settings.batch:,}"),
        *done.lines,
        ("AUC half way", f"{taken:.4f} when the checkpoint was taken (in {done.checkpoint_seconds:.2f} s)"),
        ("AUC reopened", f"{again:.4f} from that checkpoint: {'the same' if again == taken else 'DIFFERENT'}"),
        ("AUC at the end", f"{final:.4f} (chance 0.5; the hidden model that drew the clicks {limit:.4f})"),
    ]
    summary: dict[str, object] = {"demo": "clicks", "kept": kept and str(kept), "clicks": settings.clicks}
    summary |= {"dim": settings.dim, "batch": settings.batch, **done.summary}
    summary |= {"auc_at_checkpoint": taken, "auc_reopened": again, "auc_final": final, "auc_limit": limit}
    screen.close("kvemb demo", lines, summary | {"checkpoint_seconds": round(done.checkpoint_seconds, 3)})
    if again != taken:
        raise kvemb.errors.Corruption(f"the reopened checkpoint gives AUC {again}, but {taken} when it was taken")


def _parts(log: ClickLog, start: int, stop: int, batch: int) -> Iterator[Clicks]:
    for at in range(start, stop, batch):
        yield log.part(at, min(batch, stop - at))


def _held_out(log: ClickLog, end: int) -> Clicks:
    """Return held-out lines of the positions just before `end`; they are not trained on."""
    count = min(HELD_OUT_LINES, max(1, log.lines // 10), end)
    return log.part(end - count, count, HELD_OUT)
