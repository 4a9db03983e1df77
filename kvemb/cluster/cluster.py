"""The inside of a cluster's Store: its shards, its tables, and the calls that go to all shards that have a key.

Thread-safe: `lock` guards tables and collections; `epochs` puts each call on one side of every cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kvemb import registry
from kvemb.cluster.calls import Calls
from kvemb.cluster.epochs import Epochs
from kvemb.cluster.messages import Change, Read
from kvemb.cluster.router import Router, Split
from kvemb.cluster.transport import Transport
from kvemb.contracts import Mask, Values
from kvemb.durability.manifest import VariableEntry
from kvemb.engine.table import Table
from kvemb.moment import Moment
from kvemb.optimizers import Optimizer
from kvemb.restrict import MissingPolicy, RestrictPolicy, ScoreRule
from kvemb.rows.hashing import Keys, Unique
from kvemb.store_state import StoreState

Result = TypeVar("Result")
# Asynchronous calls (lookup_async, apply_gradients_async) under way at the same time; further ones wait.
MOST_STARTED = 8


class Clock:
    """The steps of one variable, which shards are told with each call. Thread-safe."""

    def __init__(self, step: int = 0, optimizer_steps: int = 0) -> None:
        self.step, self.optimizer_steps = step, optimizer_steps
        self._lock = threading.Lock()

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of uses, and of the optimizer."""
        return self.step, self.optimizer_steps

    def now(self, policy: RestrictPolicy | None) -> Moment:
        """Return the moment of a call that records no use and takes no step."""
        return Moment(self.step, time.time(), 0, _epoch(policy))

    def use(self, policy: RestrictPolicy | None) -> Moment:
        """Count a call that records uses; returns its moment."""
        with self._lock:
            self.step += 1
            return Moment(self.step, time.time(), 0, _epoch(policy))

    def train(self, policy: RestrictPolicy | None, counted: bool) -> Moment:
        """Return the moment of an optimizer's step; counted: whether the optimizer numbers it."""
        with self._lock:
            self.optimizer_steps += counted
            return Moment(self.step, time.time(), self.optimizer_steps if counted else 0, _epoch(policy))


def _epoch(policy: RestrictPolicy | None) -> int:
    """Return the epoch of a policy that has epochs, else 0; its copies on the shards do not know the epoch."""
    return int(getattr(policy, "epoch", 0))


class Wanted(NamedTuple):
    """A lookup of one variable: where rows (n, dim) and, unless None, existence (n,) go."""

    table: Table
    keys: Keys
    out: Values
    exists: Mask | None


class Step(NamedTuple):
    """An optimizer's step on one variable."""

    table: Table
    keys: Keys
    grads: Values


class Cluster:
    """Shards that are one table. path: what messages call it. release: called at the end. tables: the open ones.

    stored: the variables of the checkpoint that it was opened with, by name.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        release: Callable[[], None],
        stored: Mapping[str, VariableEntry] | None = None,
    ) -> None:
        self.path, self._release, self.stored = path, release, dict(stored or {})
        self.state = StoreState(path)
        self.lock = threading.RLock()
        self.tables: dict[str, Table] = {}
        self.clocks: dict[str, Clock] = {}
        self.collections: dict[str, list[Any]] = {}
        self.router, self.calls, self.epochs = Router(transport.shards), Calls(transport), Epochs()
        self._started = ThreadPoolExecutor(MOST_STARTED, thread_name_prefix="kvemb-started")

    def names(self) -> list[str]:
        """Return the names of all variables. Raises Closed."""
        self.state.check_open()
        return sorted({*self.stored, *self.tables})

    def add(self, table: Table) -> None:
        """Add the table of a variable that every shard has. REQUIRES: lock, alone()."""
        self.tables[table.name] = table

    def drop(self, name: str) -> None:
        """Drop a variable on every shard. REQUIRES: lock."""
        with self.alone():  # until nothing here says that it is there: a checkpoint would ask the shards for it
            self.calls.all_once("drop_variable", name)
            table = self.tables.pop(name)
            self.stored.pop(name, None)
            table.forget(f"variable {name!r} was dropped")
        for collection, items in self.collections.items():
            self.collections[collection] = [each for each in items if each is not table.variable]

    def collect(self, collection: str, item: Any) -> None:
        """Add to a collection. REQUIRES: lock."""
        self.collections.setdefault(collection, []).append(item)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Be one of many calls. Raises Closed."""
        self.state.check_open()
        with self.epochs.call():
            self.state.check_open()
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other call be under way. Raises Closed."""
        self.state.check_open()
        with self.epochs.cut():
            self.state.check_open()
            yield

    # Rows of several variables, in one call of each shard.

    def lookup(self, wanted: list[Wanted], *, touch: bool) -> None:
        """Fill in rows and existence. A repeated key is sent once, with the number of its uses."""
        with self.calling():
            parts = [(part, Unique(part.keys)) for part in wanted]
            splits = [self.router.split(distinct.keys) for _, distinct in parts]
            reads: dict[int, list[Read]] = {}
            asked: dict[int, list[int]] = {}
            for at, ((part, distinct), split) in enumerate(zip(parts, splits, strict=True)):
                part.table.storage.state.check_open()  # of a dropped variable, too
                moment, counts = self._used(part.table, distinct, touch)
                for shard, positions in split.positions():
                    some = None if counts is None else counts[positions]
                    reads.setdefault(shard, []).append(Read(part.table.name, distinct.keys[positions], some, moment))
                    asked.setdefault(shard, []).append(at)
            exists = any(part.exists is not None for part in wanted)
            with self.calls.stamped() as stamp:
                given = stamp if touch else None
                found = self.calls.each("lookup", {shard: (given, each, exists) for shard, each in reads.items()})
            answers: list[dict[int, Any]] = [{} for _ in wanted]
            for shard, results in found.items():
                for at, result in zip(asked[shard], results, strict=True):
                    answers[at][shard] = result
            for (part, distinct), split, answer in zip(parts, splits, answers, strict=True):
                _fill(part, distinct, split, answer)

    def _used(self, table: Table, distinct: Unique, touch: bool) -> tuple[Moment, Any]:
        """Return the moment of a lookup, and the uses of each distinct key; None: one of each, or they do not count."""
        clock = self.clocks[table.name]
        if not touch or isinstance(table.policy, MissingPolicy):
            return clock.now(table.policy), None
        counts = distinct.repeated and (table.policy is None or table.policy.rule is not ScoreRule.LAST_USE)
        return clock.use(table.policy), distinct.counts if counts else None

    def train(self, steps: list[Step]) -> list[Exception | None]:
        """Take an optimizer's step on each variable; returns what each failed with."""
        with self.calling():
            changes: dict[int, list[Change]] = {}
            for table, keys, grads in steps:
                optimizer = table.operations.optimizer  # raises Closed of a dropped variable
                assert optimizer is not None
                counted = optimizer.counts_steps and len(keys) > 0
                moment = self.clocks[table.name].train(table.policy, counted)
                if table.specification.admission is None:  # which counts each occurrence
                    keys, grads = summed(keys, grads)
                for shard, positions in self.router.split(keys).positions():
                    change = Change(table.name, "apply_gradients", (keys[positions], grads[positions]), moment)
                    changes.setdefault(shard, []).append(change)
            return self._made(changes, [table.name for table, _, _ in steps])

    def change(self, table: Table, method: str, keys: Keys, *columns: Any, use: bool = False) -> None:
        """Call a method that changes rows, on the shards of keys (n,); columns (n, ...) are divided as the keys are.

        use: whether it is a call that records uses.
        """
        with self.calling():
            table.storage.state.check_open()  # of a dropped variable, too
            clock = self.clocks[table.name]
            moment = clock.use(table.policy) if use else clock.now(table.policy)
            changes = {
                shard: [Change(table.name, method, tuple(each[positions] for each in (keys, *columns)), moment)]
                for shard, positions in self.router.split(keys).positions()
            }
            for failure in self._made(changes, [table.name]):
                if failure is not None:
                    raise failure

    def _made(self, changes: dict[int, list[Change]], names: list[str]) -> list[Exception | None]:
        """Make changes; returns what each variable's first failed with."""
        with self.calls.stamped() as stamp:
            found = self.calls.each("change", {shard: (stamp, each) for shard, each in changes.items()})
        failures: dict[str, Exception] = {}
        for shard, results in found.items():
            for change, failure in zip(changes[shard], results or [], strict=bool(results)):
                if failure is not None:
                    failures.setdefault(change.variable, failure)
        return [failures.get(name) for name in names]

    def set_optimizer(self, table: Table, optimizer: Optimizer, *, writable: bool) -> None:
        """Go on with an optimizer on every shard."""
        with self.alone():
            table.storage.state.check_open()
            self.calls.all_once("set_optimizer", table.name, optimizer, writable)

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a function on another thread, and return a future of its result. Raises Closed."""
        self.state.check_open()
        return self._started.submit(call)

    def end(self) -> None:
        """Close every shard, once no call is under way. Idempotent."""
        if self.state.gone:
            return
        self._started.shutdown(wait=True)
        with self.epochs.cut():
            self.state.close()
            try:
                self.calls.transport.close()
            finally:
                self._release()


def _fill(part: Wanted, distinct: Unique, split: Split, answers: dict[int, Any]) -> None:
    """Write the shards' answers for the distinct keys to the caller's arrays."""
    rows, there = part.out, part.exists
    if distinct.repeated:
        rows = np.empty((len(distinct.keys), rows.shape[1]), rows.dtype)
        there = None if there is None else np.empty(len(distinct.keys), np.bool_)
    for shard, positions in split.positions():
        found, exists = answers[shard]
        rows[positions] = found
        if there is not None:
            there[positions] = exists
    if distinct.repeated:
        np.take(rows, distinct.inverse, axis=0, out=part.out, mode="clip")  # no copy between
        if part.exists is not None and there is not None:
            part.exists[:] = there[distinct.inverse]


def summed(keys: Keys, grads: Values) -> tuple[Keys, Values]:
    """Return distinct keys, and the sum of each one's gradients, in order: as the optimizer's step sums them."""
    distinct = Unique(keys)
    if not distinct.repeated:
        return keys, grads
    out = np.empty((len(distinct.keys), grads.shape[1]), grads.dtype)
    registry.row_kernels().row_gradients(distinct.sums, np.arange(len(keys)), np.empty(0, grads.dtype), grads, out)
    return distinct.keys, out
