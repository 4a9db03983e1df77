"""`kvemb demo --dlrm`: a DLRM of 26 tables in a fifth of their memory, compared with the same model in PyTorch.

Three processes train one after the other, on the same batches: PyTorch with tables of one row each, to measure the
memory of PyTorch itself; PyTorch with all tables in memory; and kvemb, which saves checkpoints. Their losses must be
equal up to rounding. With `kill_at` a fourth process is killed (SIGKILL) at that step and started again: it continues
from its newest checkpoint, and must end in the same state as the undisturbed one, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import kvemb
from kvemb.installed import pip_install
from kvemb.tools.demos.click_log import HELD_OUT, auc
from kvemb.tools.demos.figures import FIRST_NOTE
from kvemb.tools.demos.sides import Outcome, Settings, run_side
from kvemb.tools.failures import BadInput
from kvemb.tools.screen import Screen, size

# The budget as a share of the tables, and the least budget of a store.
BUDGET_SHARE, MIN_BUDGET = 5, 16 << 20
CHECKPOINTS = 10
ALONE_STEPS = 20
# The largest relative difference of losses in so many steps: the two sides sum in different orders.
MAX_DIFFERENCE, COMPARED_STEPS = 1e-4, 500
OVERHEAD_BYTES = 300_000_000


@dataclass(frozen=True)
class DlrmRun:
    """The settings of a run: steps, lines per step, dim, the store's budget (text, None: a fifth of the tables), seed.

    kill_at: the step at which a process is killed, or None.
    """

    steps: int
    batch: int
    dim: int
    budget: str | None
    seed: int
    kill_at: int | None


def run(settings: DlrmRun, folder: Path, screen: Screen, kept: Path | None) -> Path:
    """Train all sides, compare them, and print a table. folder: an empty directory to work in; kept: the same if it is
    kept, otherwise None. Returns the oldest existing checkpoint. Raises BadInput without PyTorch; Corruption if the
    losses differ by more than rounding, or the process that was killed ends in another state.
    """
    if find_spec("torch") is None:
        raise BadInput(f"kvemb demo --dlrm needs PyTorch; install it: {pip_install('torch')}")
    plain = Settings(settings.steps, settings.batch, settings.dim, settings.seed)
    rows = sum(plain.log.sizes)
    tables = rows * plain.row_bytes
    share = max(tables // BUDGET_SHARE, MIN_BUDGET)
    with kvemb.open(folder / "store", memory_budget=settings.budget or share) as store:
        budget = store.budget.total  # refuses an invalid budget before anything is trained
    stored = replace(plain, folder=str(folder), budget=budget, every=max(1, settings.steps // CHECKPOINTS))
    alone, peer, ours, again = _train(settings, plain, stored, screen)
    held_out = plain.log.part(plain.lines - plain.held_out, plain.held_out, HELD_OUT)
    teacher = auc(plain.log.logits(held_out.ids, held_out.numbers), held_out.clicked)
    difference = _difference(ours.losses, peer.losses)
    same = again is None or _same(again, ours)
    limit = budget + OVERHEAD_BYTES + alone.anonymous
    lines = [
        ("trained on", f"{plain.lines:,} lines in {settings.steps:,} steps of {settings.batch:,}"),
        ("tables", f"{len(plain.log.sizes)} of dim {settings.dim}, {rows:,} ids: {size(tables)} with their slots"),
        ("memory budget", f"{size(budget)}; the tables are {tables / budget:.1f} times that"),
        *ours.lines,
        ("steps/s", f"kvemb {ours.steps_per_second:.1f}, PyTorch {peer.steps_per_second:.1f}"),
        ("anonymous memory", f"at its peak: kvemb {size(ours.anonymous)}, PyTorch {size(peer.anonymous)}"),
        (
            "budget + 300 MB + PyTorch",
            f"{size(limit)}, since PyTorch takes {size(alone.anonymous)} with tables of one row: "
            f"{'kept' if ours.anonymous <= limit else 'EXCEEDED'}",
        ),
        (
            "losses",
            f"{ours.losses[0]:.4f} at first, {np.mean(ours.losses[-20:]):.4f} at the end; kvemb and PyTorch differ by "
            f"{difference:.1e} at most",
        ),
        ("AUC", f"kvemb {ours.auc:.4f}, PyTorch {peer.auc:.4f} (chance 0.5; the hidden teacher {teacher:.4f})"),
    ]
    summary: dict[str, object] = {
        "demo": "dlrm",
        "kept": kept and str(kept),
        "steps": settings.steps,
        "batch": settings.batch,
        "dim": settings.dim,
        "ids": rows,
        "budget_bytes": budget,
        **ours.summary,
        "losses": ours.losses,
        "loss_difference": difference,
        "auc_teacher": teacher,
        "anonymous_limit": limit,
        "alone_anonymous_bytes": alone.anonymous,
    }
    for name, outcome in (("kvemb", ours), ("torch", peer)):
        summary |= {f"{name}_auc": outcome.auc, f"{name}_anonymous_bytes": outcome.anonymous}
        summary |= {f"{name}_steps_per_second": outcome.steps_per_second}
    if again is not None:
        end = "the same in every bit" if same else "DIFFERENT"
        lines.append(
            ("killed", f"after {settings.kill_at} steps, resumed at {again.first}: losses, AUC, rows and slots {end}")
        )
        summary |= {"killed_at": settings.kill_at, "resumed_at": again.first, "resumed_the_same": same}
    screen.close("kvemb demo --dlrm", lines, summary)
    if not difference <= MAX_DIFFERENCE:
        raise kvemb.errors.Corruption(
            f"the losses of kvemb and PyTorch differ by {difference:.1e}, more than {MAX_DIFFERENCE:g}, relatively"
        )
    if again is not None and not same:
        raise kvemb.errors.Corruption(
            f"the resumed training ended with AUC {again.auc}, the uninterrupted one with {ours.auc}"
        )
    return next(path for path in sorted((folder / "checkpoints").iterdir()) if path.is_dir())


def _train(
    settings: DlrmRun, plain: Settings, stored: Settings, screen: Screen
) -> tuple[Outcome, Outcome, Outcome, Outcome | None]:
    """Train all sides. plain: settings of PyTorch's sides; stored: settings of kvemb's side, with a budget.

    Returns the outcomes of PyTorch with tables of one row each, of PyTorch, of kvemb, and of the process that was
    killed and resumed, None if none was.
    """

    def side(what: str, each: Settings, kill_at: int | None = None) -> Outcome:
        with screen.progress(what, each.steps, FIRST_NOTE) as advance:
            return run_side(each, lambda steps, loss: advance(steps, f"loss {loss:.4f}"), kill_at)

    alone = side("PyTorch alone", replace(plain, steps=min(settings.steps, ALONE_STEPS), alone=True))
    screen.milestone(f"PyTorch, and tables of one row each: {size(alone.anonymous)} of anonymous memory")
    peer = side("PyTorch", plain)
    screen.milestone(
        f"PyTorch, all {sum(plain.log.sizes):,} rows in memory: {peer.steps_per_second:.1f} steps/s, AUC {peer.auc:.4f}"
    )
    ours = side("kvemb", stored)
    screen.milestone(f"kvemb, in {size(stored.budget)}: {ours.steps_per_second:.1f} steps/s, AUC {ours.auc:.4f}")
    if settings.kill_at is None:
        return alone, peer, ours, None
    second = Path(stored.folder) / "killed"
    second.mkdir()
    cut = replace(stored, folder=str(second))
    side("kvemb, killed", cut, settings.kill_at)
    screen.milestone(f"kill -9 after {settings.kill_at} steps")
    again = side("kvemb, resumed", cut)
    screen.milestone(f"resumed at step {again.first}")
    return alone, peer, ours, again


def _difference(ours: list[float], theirs: list[float]) -> float:
    """Return the largest relative difference of losses in the first COMPARED_STEPS steps."""
    one, other = np.array(ours[:COMPARED_STEPS]), np.array(theirs[:COMPARED_STEPS])
    return float((np.abs(one - other) / np.abs(other)).max())


def _same(again: Outcome, whole: Outcome) -> bool:
    """Whether a resumed process ended in the same state as an undisturbed one, in every bit."""
    return again.digest == whole.digest and again.auc == whole.auc and again.losses == whole.losses[again.first :]
