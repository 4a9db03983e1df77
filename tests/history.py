"""A fixed history of a store, beside the model of its variables; what it must survive is written down as it goes.

Runs on a disk that may fail under it (tests/trials.py), and checks at once what a failure must not touch: reads.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from faults import Promise, Trial
from histories import small_spill
from stress.lockstep import Difference, LockstepChecker
from stress.model import Model

import kvemb
from kvemb.errors import KvembError, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits

BUDGET = "4MiB"
LIMITS = Limits(**small_spill(32))
KEYS = np.arange(200)
# Every call that changes a store, and everything that makes a durable point, in most orders that differ.
STEPS = " ".join(
    [
        "table upsert upsert flush upsert train lookup checkpoint side train remove flush restrict upsert",
        "restore flush train reopen lookup upsert checkpoint remove train flush upsert lookup flush upsert",
    ]
).split()


class Ended(Exception):
    """The store cannot go on: it is poisoned, or could not be opened."""


def same(store: kvemb.Store, state: dict[str, Model]) -> bool:
    """Whether a store holds a state, every row, slot and score of it, and nothing else."""
    if sorted(store.variables) != sorted(state):
        return False
    try:
        for name, model in state.items():
            LockstepChecker(store.variables[name], model).check_export()
    except Difference:
        return False
    return True


def held(store: kvemb.Store, promise: Promise) -> dict[str, Model] | None:
    """The state that a store holds, of those it may hold; None if it is none of them."""
    for state in promise.allowed or [{}]:
        if same(store, state):
            return state
    if not promise.by_key:
        return None
    before, after = promise.kept or {}, promise.pending[-1]
    state = {name: mixed(variable, before.get(name), after[name]) for name, variable in store.variables.items()}
    return state if same(store, state) else None


def mixed(variable: kvemb.Variable, before: Model | None, after: Model) -> Model:
    """The rows of `after` that a variable has, and for all other keys the rows of `before`; None: it has none."""
    keys, values, slots, scores = variable.export(with_slots=True, with_scores=True)
    found, state = after.copy(), after.copy()
    found.present = np.isin(KEYS, keys)
    for column, rows in (
        (found.values, values),
        (found.scores, scores),
        *((found.slots[at], slots[at]) for at in slots),
    ):
        column[found.present] = rows
    old = [at for at in range(len(KEYS)) if _row(found, at) != _row(after, at)]
    if before is None:
        state.present[old] = False
        return state
    assert inside(variable).storage.optimizer_steps in (before.optimizer_steps, after.optimizer_steps)
    state.optimizer_steps = inside(variable).storage.optimizer_steps
    for new, column in zip(_columns(state), _columns(before), strict=True):
        new[old] = column[old]
    return state


def _columns(model: Model) -> list[Any]:
    return [model.present, model.values, model.scores, *model.slots.values()]


def _row(model: Model, at: int) -> list[bytes]:
    return [column[at].tobytes() for column in _columns(model)] if model.present[at] else []


def rows_that_differ(variable: kvemb.Variable, *models: Model) -> list[int]:
    """Keys that read as none of the models has them."""
    got, exists = variable.lookup(KEYS, return_exists=True, touch=False)
    right = np.zeros(len(KEYS), np.bool_)
    for model in models:
        wanted, present = model.lookup(KEYS, touch=False)
        right |= (got == wanted).all(axis=1) & (exists == present)
    return KEYS[~right].tolist()


class History:
    """A store at folder/root/store, or place/store. durability: as for kvemb.open."""

    def __init__(self, folder: Path, *, durability: str = "checkpoint", place: str | None = None) -> None:
        self.folder = folder
        self.root = Path(place) if place else folder / "root"
        self.path = self.root / "store"
        self.durability = durability
        self.twins: dict[str, LockstepChecker] = {}
        self.after: dict[str, Model] = {}  # what each variable holds if its last change was made
        self.checkpoints: list[tuple[Path, dict[str, Model]]] = []
        self.step = 0

    def run(self) -> None:
        """Do every step, or as many as the disk allows; checks that no other error than kvemb's comes of it."""
        try:
            self.open()
            for name in STEPS:
                self.step += 1
                self.attempt(getattr(self, name))
            self.attempt(self.close)
        except Ended:
            pass

    def fill(self) -> None:
        """Write until the disk is full, making a durable point now and then."""
        try:
            self.open()
            self.attempt(self.table)
        except Ended:
            return
        for _ in range(100_000):
            self.step += 1
            for call in (self.upsert, self.train, self.lookup, self.flush):
                try:
                    self.attempt(call)
                except Ended:
                    return
        raise AssertionError("the disk was never full")

    def attempt(self, call: Callable[[], None]) -> None:
        """Make a call; if it fails, check what still must hold. Raises Ended where the store cannot go on."""
        try:
            call()
        except KvembError as error:
            if self.store.state.closed:
                raise Ended from error
            if self.store.state.cause is not None:
                self.check_poisoned()
                raise Ended from error
            for twin in self.twins.values():
                assert rows_that_differ(twin.variable, twin.model) == []

    def check_poisoned(self) -> None:
        """Writes are refused, reads go on and are right; the store can be closed."""
        for twin in self.twins.values():
            after = self.after.get(twin.variable.name, twin.model)
            for _ in range(2):
                assert rows_that_differ(twin.variable, twin.model, after) == []
            for write in (lambda twin=twin: twin.variable.remove(KEYS), self.store.flush):
                try:
                    write()
                except Poisoned:
                    continue
                raise AssertionError("a poisoned store took a write")
        self.store.close()

    def check_reopening(self) -> None:
        """The same process can open the store again, which holds what it must, and use it."""
        self.open()
        self.table()
        self.upsert()
        self.flush()
        self.close()

    # Writing down.

    def state(self, *, checkpoint: bool = False) -> dict[str, Model]:
        """What the store holds now; checkpoint: what a checkpoint of it does."""
        kept = {name: twin for name, twin in self.twins.items() if not (checkpoint and name == "side")}
        return {name: twin.model.copy() for name, twin in kept.items()}

    @contextmanager
    def promising(self, place: str, state: dict[str, Model], event: str = "begin") -> Iterator[None]:
        """Write down that a place may hold a state from now on, and holds it when the block has ended.

        event "change": until then some keys may have their rows of before.
        """
        number = len(list(self.folder.glob("state-*")))
        (self.folder / f"state-{number}").write_bytes(pickle.dumps(state))
        self._tell(f"{event} {place} {number}")
        yield
        self._tell(f"done {place} {number}")

    def _tell(self, line: str) -> None:
        with open(self.folder / "events", "a") as file:
            file.write(line + "\n")

    # Steps.

    def open(self) -> None:
        """Open the store. A history may go on with a store that another process left."""
        how: dict[str, Any] = {"durability": self.durability}
        fresh = not (self.folder / "events").exists()
        try:
            if fresh:
                with self.promising("store", {}):
                    self.store = kvemb.open(self.path, memory_budget=BUDGET, limits=LIMITS, **how)
            else:
                self.store = kvemb.open(self.path, memory_budget=BUDGET, limits=LIMITS, **how)
        except KvembError as error:
            raise Ended from error
        if not fresh:
            state = held(self.store, Trial(self.folder, False, "").places()["store"])
            assert state is not None, f"{self.store!r} holds none of the states it may"
            with self.promising("store", state):
                pass
            self.twins = {name: LockstepChecker(self.store.variables[name], model) for name, model in state.items()}
            self.after = {}

    def table(self) -> None:
        """Make the variable that most steps use: rows with slots and scores, few of them hot."""
        self._variable("table", dim=4, optimizer=kvemb.optimizers.Adam(0.5), hot_rows=32, checkpoint=True)

    def side(self) -> None:
        """Make one that is not in checkpoints."""
        self._variable("side", dim=2, optimizer=kvemb.optimizers.RowWiseAdagrad(0.5), hot_rows=32, checkpoint=False)

    def _variable(self, name: str, **how: Any) -> None:
        policy = kvemb.FrequencyRestrictPolicy()
        if name in inside(self.store).tables:  # opened to compare its rows, without hot_rows, which it keeps
            del how["hot_rows"]
        if name in self.twins:
            self.store.get_variable(name, restrict_policy=policy, **how)
            return
        model = Model(
            KEYS, np.dtype(np.float32), how["dim"], initializer=kvemb.Constant(0), optimizer=how["optimizer"],
            policy=kvemb.FrequencyRestrictPolicy(),
        )  # fmt: skip
        # Each write of this durability is on disk when its call returns, so the variable is there before.
        logged = self.durability == "write"
        with self.promising("store", {**self.state(), name: model}) if logged else nullcontext():
            variable = self.store.get_variable(name, restrict_policy=policy, **how)
        self.twins[name] = LockstepChecker(variable, model)

    def _change(self, call: str, draw: Callable[[Any, Model], tuple[Any, ...]]) -> None:
        for number, (name, twin) in enumerate(self.twins.items()):
            arguments = draw(np.random.default_rng([self.step, number]), twin.model)
            after = self.after[name] = twin.model.copy()
            getattr(after, call)(*arguments)
            if self.durability == "write":
                with self.promising("store", {**self.state(), name: after}, "change"):
                    getattr(twin.variable, call)(*arguments)
            else:
                getattr(twin.variable, call)(*arguments)
            twin.model = after

    def upsert(self) -> None:
        """Set rows."""
        self._change("upsert", lambda chance, model: (_some(chance, 60), _values(chance, 60, model)))

    def train(self) -> None:
        """Take a training step."""
        self._change("apply_gradients", lambda chance, model: (_some(chance, 60), _values(chance, 60, model)))

    def remove(self) -> None:
        """Drop rows."""
        self._change("remove", lambda chance, model: (_some(chance, 20),))

    def restrict(self) -> None:
        """Drop the lowest scores."""
        self._change("restrict", lambda chance, model: (int(model.size * 0.8),))

    def lookup(self) -> None:
        """Read rows, which counts as a use, where that is as durable as what is written."""
        for twin in self.twins.values():
            twin.lookup(_some(np.random.default_rng(self.step), 60), touch=self.durability != "write")

    def flush(self) -> None:
        """Make a durable point."""
        with self.promising("store", self.state()):
            self.store.flush()

    def checkpoint(self) -> None:
        """Write a checkpoint, in a folder that is made for it."""
        path = self.root / f"checkpoints-{self.step}" / "deep" / "here"
        kept = self.state(checkpoint=True)
        try:
            with self.promising("store", self.state()), self.promising(str(path.relative_to(self.root)), kept):
                self.store.checkpoint(path)
        except Poisoned:
            raise
        except KvembError:
            assert not path.exists(), "a checkpoint that failed is there"
            raise
        self.checkpoints.append((path, kept))

    def restore(self) -> None:
        """Make another store from the last checkpoint."""
        path = self.root / f"restored-{self.step}" / "store"
        if not self.checkpoints:
            return
        source, state = self.checkpoints[-1]
        try:
            with self.promising(str(path.relative_to(self.root)), state):
                restored = kvemb.restore(source, path, memory_budget=BUDGET, limits=LIMITS)
        except KvembError:
            assert not path.exists(), "a store that could not be restored is there"
            raise
        with suppress(Poisoned):
            assert same(restored, state)
        with self.promising(str(path.relative_to(self.root)), state):
            restored.close()

    def close(self) -> None:
        """Close the store, which flushes it."""
        with self.promising("store", self.state()):
            self.store.close()

    def reopen(self) -> None:
        """Close the store, and go on with it."""
        self.close()
        self.open()


def _some(chance: Any, count: int) -> Any:
    return chance.choice(KEYS, count)


def _values(chance: Any, count: int, model: Model) -> Any:
    return chance.standard_normal((count, model.dim)).astype(model.dtype)
