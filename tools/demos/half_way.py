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
from kvemb.tools.demos.figures import Lines, memory_figures, speed_figures, tier_figures
from kvemb.tools.demos.training import FIRST_NOTE, Meter, train
from kvemb.tools.memory import anonymous_bytes
from kvemb.tools.screen import Screen, Summary
from kvemb.tools.stopping import check

# Metrics by their names.
Judgement = Mapping[str, float]


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
            meter = Meter(model.variables, advance)
            train(model, halves[0], meter)
            taken = judge(model)
            started = time.perf_counter()
            store.checkpoint(folder / "checkpoint")
            seconds = time.perf_counter() - started
            screen.milestone(f"half way: held-out {_text(taken)}; checkpoint taken in {seconds:.2f} s")
            train(model, halves[1], meter)
        check()
        sections = [speed_figures(meter), tier_figures(model.variables, model.row_bytes)]
        end = judge_end(model)
        table = model.row_bytes * sum(variable.size() for variable in model.variables)
        sections.append(memory_figures(before, store.budget.total, table))
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


def _text(judgement: Judgement) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in judgement.items())
