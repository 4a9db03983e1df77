"""Random histories of a store with marks, beside models: whatever the store goes back to, every row is the model's.

Checkpoints are made on the way, and what they record as changed is compared with all rows of both. Readers follow, and
copies of the open store stand for a process that was killed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open
from deltas import told
from histories import change, checker_of
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb
from kvemb import bulk
from kvemb.errors import CheckpointNotFound, Closed
from kvemb.handle import inside

NAMES = ["table", "other", "late"]
State = dict[str, Model]


@dataclass
class Kept:
    """A mark or a checkpoint, the state then, and the checkpoints before it."""

    what: Any
    state: State
    before: list[str]


class MarkedHistory:
    """One store, its models, its marks and its checkpoints. open_store: the fixture. how: arguments of kvemb.open."""

    def __init__(self, folder: Path, open_store: Any, chance: np.random.Generator, devices: Any, **how: Any) -> None:
        self.folder, self.chance, self.devices, self.how = folder, chance, devices, how
        self._open = open_store
        self.store = open_store(folder / "store", **how)
        self.logged = how.get("durability") == "write"
        self.twins: dict[str, LockstepChecker] = {}
        self.marks: list[Kept] = []
        self.checkpoints: list[Kept] = []
        self.before: list[str] = []
        self.durable: State = {}
        self.follower: kvemb.Store | None = None
        self.copies = 0
        for name in NAMES[:2]:
            self._create(name)

    def state(self) -> State:
        """Copies of all models."""
        return {name: twin.model.copy() for name, twin in self.twins.items()}

    def _create(self, name: str) -> None:
        self.twins[name] = checker_of(self.store, int(self.chance.integers(16, 200)), self.devices, name)
        if self.logged:
            self.durable = self.state()

    def run(self, steps: int) -> None:
        """Make random calls, and compare everything at the end."""
        weights = {
            "change": 0.5,
            "mark": 0.1,
            "rollback": 0.1,
            "flush": 0.06,
            "checkpoint": 0.08,
            "variable": 0.06,
            "kill": 0.03,
            "reopen": 0.03,
            "follow": 0.02,
            "drop_mark": 0.02,
        }
        names, each = list(weights), list(weights.values())
        for _ in range(steps):
            what = self.chance.choice(names, p=np.array(each) / sum(each))
            getattr(self, what)()
        for kept in self.marks:
            self._go_back(kept)
        self.follow()

    def change(self) -> None:
        """A few calls on a variable."""
        if self.twins:
            twin = self.twins[self.chance.choice(list(self.twins))]
            for _ in range(int(self.chance.integers(1, 6))):
                if self.chance.random() < 0.2:
                    twin.variable.prefetch(self.chance.integers(0, 900, 50))
                # Uses that lookups record are in no log.
                change(twin, self.chance, touching=not self.logged)
            if self.logged:
                self.durable = self.state()

    def mark(self) -> None:
        """Keep the state; sometimes it changes while it is written."""
        name = str(self.chance.choice(["best", "last"])) if self.chance.random() < 0.4 else None
        mark = self.store.mark(name)
        self.marks = [kept for kept in self.marks if name is None or kept.what.name != name]
        self.marks.append(Kept(mark, self.state(), list(self.before)))
        self.durable = self.state()
        if self.chance.random() < 0.5:
            self.change()

    def rollback(self) -> None:
        """Go back to one of the marks."""
        if self.marks:
            self._go_back(self.marks[int(self.chance.integers(len(self.marks)))])

    def _go_back(self, kept: Kept) -> None:
        for twin in self.twins.values():
            twin.variable.prefetch(self.chance.integers(0, 900, 50))
        named = kept.what.name is not None and self.chance.random() < 0.5
        self.store.rollback(kept.what.name if named else kept.what)
        self.before, self.durable = list(kept.before), {name: model.copy() for name, model in kept.state.items()}
        before, self.twins = self.twins, {}
        for name, model in kept.state.items():
            # Whoever had the variable still has it; one that was dropped since is opened again.
            stayed = name in before and not before[name].variable.resource_handle[0].state.gone
            variable = before[name].variable if stayed else self.store.variables[name]
            self.twins[name] = LockstepChecker(variable, model.copy())
        for name in before.keys() - self.twins.keys():
            with pytest.raises(Closed):
                before[name].variable.lookup([1])
        if self.chance.random() < 0.5:
            self.compare()

    def compare(self) -> None:
        """Every row is the model's, also those that are hot."""
        assert sorted(self.store.variables) == sorted(self.twins)
        for twin in self.twins.values():
            twin.lookup(twin.model.universe, touch=False)
            if self.chance.random() < 0.5:
                twin.check_export()
            twin.check_size()
        self.store.check()

    def flush(self) -> None:
        """A durable point without a mark."""
        self.store.flush()
        self.durable = self.state()

    def checkpoint(self) -> None:
        """A checkpoint records exactly what changed since each that it follows, and does not follow the others."""
        made = self.store.checkpoint(self.folder / f"checkpoint-{len(self.checkpoints)}")
        self.durable = self.state()
        for kept in self.checkpoints[-4:]:
            if made.id != kept.what.id:
                compare_delta(made, kept.what, kept.what.id in self.before)
        self.before.append(made.id)
        self.checkpoints.append(Kept(made, self.state(), list(self.before)))

    def variable(self) -> None:
        """Drop a variable, or make one."""
        name = str(self.chance.choice(NAMES))
        if name in self.twins:
            self.store.drop_variable(name)
            del self.twins[name]
            self.durable = {other: model for other, model in self.durable.items() if other != name}
            if not self.logged:
                self.durable = self.state()  # dropping makes a durable point
        else:
            self._create(name)

    def kill(self) -> None:
        """A copy of the open store has what was durable, and can go back to each mark."""
        self._settle()
        self.copies += 1
        path = copy_of_open(self.folder / "store", self.folder / f"copy-{self.copies}")
        with kvemb.open(path, memory_budget="8MiB", durability=self.how.get("durability", "checkpoint")) as copy:
            expect(copy, self.durable)
            for kept in self.marks:
                copy.rollback(next(each for each in copy.marks if each == kept.what))
                expect(copy, kept.state)
        shutil.rmtree(path)

    def _settle(self) -> None:
        """Wait for the mark that is being written, without another durable point, and for what a rollback deletes."""
        with pytest.raises(kvemb.errors.MarkNotFound):
            self.store.drop_mark("none has this name")
        inside(self.store).writer.submit(lambda: None).result()

    def reopen(self) -> None:
        """Close it, with or without a last durable point."""
        whole = bool(self.chance.integers(2))
        self._settle()
        self.store.close(flush=whole)
        expected = self.state() if whole else self.durable
        self.store = self._open(self.folder / "store", **self.how)
        assert {each.id for each in self.store.marks} == {kept.what.id for kept in self.marks}
        self.twins = {
            name: LockstepChecker(self.store.variables[name], model.copy()) for name, model in expected.items()
        }
        self.durable = self.state()
        self.compare()

    def follow(self) -> None:
        """A reader moves to the last durable point, wherever it was."""
        self._settle()
        if self.follower is None:
            self.follower = self._open(self.folder / "store", follow=True)
        self.follower.refresh()
        point = self.store.point
        assert self.follower.point == point
        if not self.logged:
            expect(self.follower, self.durable)

    def drop_mark(self) -> None:
        """Give up a mark."""
        if self.marks:
            kept = self.marks.pop(int(self.chance.integers(len(self.marks))))
            self.store.drop_mark(kept.what)
            assert kept.what not in self.store.marks


def expect(store: kvemb.Store, state: State) -> None:
    """A store has these rows, and nothing else."""
    assert sorted(store.variables) == sorted(state)
    for name, model in state.items():
        twin = LockstepChecker(store.variables[name], model)
        if store.state.read_only:
            twin.lookup(model.universe, touch=False)
        twin.check_export()


def rows_of(checkpoint: kvemb.Checkpoint) -> dict[str, dict[int, tuple[bytes, ...]]]:
    """Every row of a checkpoint, by variable and key, with the step of its last change."""
    found: dict[str, dict[int, tuple[bytes, ...]]] = {}
    with kvemb.open(checkpoint.path, read_only=True, memory_budget="8MiB") as store:
        for name, variable in store.variables.items():
            rows = found[name] = {}
            for part in bulk.scan(variable):
                for at, key in enumerate(part.keys.tolist()):
                    slots = [slot[at].tobytes() for slot in part.slots.values()]
                    rows[key] = (part.values[at].tobytes(), *slots, part.scores[at].tobytes(), bytes(part.steps[at]))
    return found


def compare_delta(later: kvemb.Checkpoint, earlier: kvemb.Checkpoint, follows: bool) -> None:
    """The recorded changes are all rows that differ, and no others."""
    if not follows:
        with pytest.raises(CheckpointNotFound):
            list(later.changes(earlier))
        return
    old, new = rows_of(earlier), rows_of(later)
    for name in new:
        rows, removed = told(later, earlier, name)
        was = old.get(name, {})
        assert rows == {key: row[:-1] for key, row in new[name].items() if was.get(key) != row}, name
        assert removed == sorted(was.keys() - new[name].keys()), name
