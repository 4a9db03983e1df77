"""A demo in NumPy: half way a checkpoint is taken, and at the end it is opened as a separate store.

The reopened checkpoint must judge held-out data exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import kvemb
from kvemb.tools.demos.figures import Lines, memory_figures, speed_figures, tier_figures
from kvemb.tools.demos.training import FIRST_NOTE, Meter, train
from kvemb.tools.memory import anonymous_bytes
from kvemb.tools.screen import Screen, Summary
from kvemb.tools.stopping import check

Judgement = TypeVar("Judgement")
Final = TypeVar("Final")


@dataclass
class Outcome(Generic[Judgement, Final]):
    """The judgements when the checkpoint was taken, of the reopened one, and of the trained model.

    lines, summary: speed, tiers and memory, for the closing lines. checkpoint_seconds: how long the checkpoint took.
    """

    taken: Judgement
    again: Judgement
    final: Final
    checkpoint_seconds: float
    lines: Lines
    summary: Summary


def run(
    folder: Path,
    budget: str,
    screen: Screen,
    make: Callable[[kvemb.Store], Any],
    halves: tuple[Iterable[Any], Iterable[Any]],
    steps: int,
    judge: Callable[[Any], Judgement],
    judge_final: Callable[[Any], Final],
    text: Callable[[Judgement], str],
) -> Outcome[Judgement, Final]:
    """Train a model on the batches of both halves, `steps` in all, and judge it. folder: an empty directory to work in.

    make: returns the model of a store. text: a judgement in words.
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
            screen.milestone(f"half way: {text(taken)}; checkpoint taken in {seconds:.2f} s")
            train(model, halves[1], meter)
        check()
        sections = [speed_figures(meter), tier_figures(model.variables, model.row_bytes)]
        final = judge_final(model)
        table = model.row_bytes * sum(variable.size() for variable in model.variables)
        sections.append(memory_figures(before, store.budget.total, table))
    check()
    with kvemb.restore(folder / "checkpoint", folder / "restored", memory_budget=budget) as restored:
        again = judge(make(restored))
    shutil.rmtree(folder / "restored")
    lines = [line for section, _ in sections for line in section]
    summary = {name: value for _, section in sections for name, value in section.items()}
    return Outcome(taken, again, final, seconds, lines, summary)
