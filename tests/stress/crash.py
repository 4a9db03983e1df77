"""`python tests/stress crash`: kill -9 a process at a random instant, open the store, compare every row, repeat.

After each kill the store must hold what it promised. With durability="checkpoint" this is exactly the state of the last
acknowledged flush or checkpoint, or of one that was in progress. With "write" it is every acknowledged call; for the
call in progress, each row is either as before or as after it. Acknowledged checkpoints must exist and be correct; other
checkpoints must be absent or correct.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from stress.load import (
    BUDGET,
    DURABLE,
    LIMITS,
    UNIVERSE,
    apply,
    calls,
    check_equal,
    checkpoint_of,
    model_of,
    open_variables,
    work,
)
from stress.lockstep import Difference
from stress.model import Model
from stress.rounds import Run, counts

Models = dict[str, Model]
# A process is killed at most MAX_SECONDS after it reported a random number of steps, up to MAX_STEPS, so that a busy
# machine makes as many calls as an idle one; with probability EARLY_SHARE, at most EARLY_SECONDS after its start.
MAX_STEPS, MAX_SECONDS = 150, 0.03
EARLY_SHARE, EARLY_SECONDS = 0.15, 1.0


class Progress:
    """The calls that a process reported before it was killed, by number (see load.work)."""

    def __init__(self, lines: list[str]) -> None:
        reports = [line.split() for line in lines]
        self.begun, self.done, self.written = ({int(n) for what, n in reports if what == kind} for kind in "bdp")

    def acknowledged(self, name: str, number: int) -> bool:
        """Whether the call with this name and number was acknowledged."""
        return number in (self.written if name == "checkpoint behind" else self.done)


class CrashRounds:
    """Rounds on one store in a folder. models: the known state of the store. about, totals: see Rounds."""

    def __init__(self, folder: Path, durability: Any, seed: int) -> None:
        self.folder, self.durability, self.about = folder, durability, f"durability={durability!r}"
        self._chance = random.Random(seed)
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["stress.load", "stress.warm"])
        self.totals: Counter[str] = Counter()
        with kvemb.open(folder / "store", memory_budget=BUDGET, limits=LIMITS) as store:
            self.models: Models = {name: model_of(variable) for name, variable in open_variables(store).items()}

    def round(self) -> None:
        """Run, kill, compare. Raises Difference."""
        seed = self._chance.getrandbits(40)
        progress = self._run_and_kill(seed)
        before, after, points = self._replay(seed, progress)
        with kvemb.open(self.folder / "store", memory_budget=BUDGET, limits=LIMITS) as store:
            variables = open_variables(store)
            if self.durability == "write":
                self.models = {name: _mixture(variables[name], before[name], after[name]) for name in before}
            else:
                self.models = _first_equal(variables, points)
            for name, variable in variables.items():
                check_equal(variable, self.models[name])
        self.totals["rounds"] += 1
        self.totals["rows compared"] += sum(model.size for model in self.models.values())

    def _run_and_kill(self, seed: int) -> Progress:
        reading, writing = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=work, args=(self.folder, seed, self.durability, writing), daemon=True)
        process.start()
        writing.close()
        with os.fdopen(os.dup(reading.fileno()), encoding="ascii") as pipe:
            reading.close()
            early = self._chance.random() < EARLY_SHARE
            lines = [] if early else [pipe.readline() for _ in range(self._chance.randint(1, MAX_STEPS))]
            time.sleep(self._chance.random() * (EARLY_SECONDS if early else MAX_SECONDS))
            process.kill()
            lines += pipe.readlines()
        process.join()
        if process.exitcode != -9:
            raise Difference(
                f"the process ended before it was killed, with exit code {process.exitcode}; its error is above"
            )
        return Progress([line for line in lines if line.endswith("\n")])

    def _replay(self, seed: int, progress: Progress) -> tuple[Models, Models, list[Models]]:
        """Apply the calls to the models, and compare each checkpoint with the state at its call.

        Returns the states before and after the call in progress, and the possible states of the store's durable point.
        """
        models, points = _copied(self.models), [_copied(self.models)]
        before = _copied(models)
        for number, call in enumerate(islice(calls(seed), len(progress.begun))):
            acknowledged = progress.acknowledged(call.name, number)
            if number not in progress.done:
                before = _copied(models)
            if call.name not in DURABLE:
                apply(call, models[call.variable], touching=self.durability == "checkpoint")
            else:
                if call.name != "flush":
                    self._check_checkpoint(checkpoint_of(self.folder, seed, number), models, acknowledged)
                points = [*([] if acknowledged else points), _copied(models)]
            self.totals["calls"] += 1
            self.totals["durable points"] += acknowledged and call.name in DURABLE
        if len(progress.done - {-1}) == len(progress.begun):
            before = models
        return before, models, points

    def _check_checkpoint(self, path: Path, models: Models, acknowledged: bool) -> None:
        if not path.exists():
            if acknowledged:
                raise Difference(f"{path} is missing, but it was acknowledged")
            return
        with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
            for name, variable in store.variables.items():
                check_equal(variable, models[name])
        shutil.rmtree(path)
        self.totals["checkpoints"] += 1


def _copied(models: Models) -> Models:
    return {name: model.copy() for name, model in models.items()}


def _first_equal(variables: dict[str, kvemb.Variable], candidates: list[Models]) -> Models:
    """Return the first candidate that all variables equal. Raises the Difference of the last one if none does."""
    failure = Difference("there is no durable point to compare with")
    for models in candidates:
        try:
            for name, variable in variables.items():
                check_equal(variable, models[name])
        except Difference as difference:
            failure = difference
        else:
            return models
    raise failure


def _mixture(variable: kvemb.Variable, before: Model, after: Model) -> Model:
    """Return the state of a variable. Raises Difference if a row is as in neither of the two models."""
    found = before.copy()
    found.clear()
    exported: tuple[Any, ...] = variable.export(with_slots=True, with_scores=True)
    keys, values, slots, scores = exported
    at = np.searchsorted(UNIVERSE, keys)
    found.present[at], found.values[at], found.scores[at] = True, values, scores
    for name, slot in slots.items():
        found.slots[name][at] = slot
    wrong = np.flatnonzero(~(_same(found, before) | _same(found, after)))
    if len(wrong):
        raise Difference(f"{len(wrong)} rows are neither as before the last call nor as after it: {UNIVERSE[wrong]}")
    return found


def _same(one: Model, other: Model) -> Any:
    """Return which keys have the same row in both models, or none in both, (n,) bool."""
    same = (one.values == other.values).all(axis=1) & (one.scores == other.scores)
    for name, slot in one.slots.items():
        same &= (slot == other.slots[name]).all(axis=1)
    return (one.present == other.present) & (~one.present | same)


def run(rounds: int, seed: int, durability: str | None, *, quiet: bool, as_json: bool) -> bool:
    """Run `rounds` rounds, half in each mode unless one is given, and print. Returns whether nothing was lost."""
    modes = ["checkpoint", "write"] if durability is None else [durability]
    replay = f"python tests/stress crash --rounds {rounds} --seed {seed}"
    replay += "" if durability is None else f" --durability {durability}"
    made = Run(replay, "every row as promised, after every kill", quiet=quiet, as_json=as_json)
    totals, difference = made.rounds(rounds, modes, lambda at: nullcontext(CrashRounds(at, at.name, seed)))
    return made.close(difference, counts(totals), totals)
