"""Locks are taken in the order of the table in ARCHITECTURE.md, whatever the calls."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.backends.table_files.reader import TableReader
from kvemb.durability.changes import ChangeLog
from kvemb.engine.engine import Engine
from kvemb.journal.journal import Journal
from kvemb.memory.budget import Budget, GrowingPart
from kvemb.memory.memtables import Memtables
from kvemb.threads.pool import Threads
from kvemb.tiers.access import TableAccess
from tests.histories import small_spill

PAGE = Path(kvemb.__file__).parents[1] / "ARCHITECTURE.md"
ORDER = re.findall(r"^\| `(\w+\.\w*lock|\w+\._\w+ing)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
OF_SEVERAL = {"TableAccess._lock", "Memtables._writing"}  # a thread may have those of several variables
OWNERS = Engine, TableAccess, Memtables, GrowingPart, Budget, Threads, TableReader, Journal, ChangeLog


class Watch:
    """What threads do with locks. taken: the names of those that were taken. wrong: what was taken out of order."""

    def __init__(self) -> None:
        self.taken, self.wrong = set[str](), set[str]()
        self._of_thread = threading.local()

    @property
    def held(self) -> list[Watched]:
        """The locks that this thread has."""
        return self._of_thread.__dict__.setdefault("held", [])

    def takes(self, lock: Watched) -> None:
        """Note that this thread is about to wait for a lock."""
        self.taken.add(lock.name)
        for other in self.held:
            order = ORDER.index(other.name), ORDER.index(lock.name)
            if order[0] > order[1] or (order[0] == order[1] and other is not lock and lock.name not in OF_SEVERAL):
                self.wrong.add(f"{lock.name} while it had {other.name}")


class Watched:
    """A lock that tells a watch when it is taken."""

    def __init__(self, lock: Any, name: str, watch: Watch) -> None:
        self._lock, self.name, self._watch = lock, name, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, *args: Any, **named: Any) -> bool:
        self._watch.takes(self)
        taken = self._lock.acquire(*args, **named)
        if taken:
            self._watch.held.append(self)
        return taken

    def release(self) -> None:
        self._watch.held.remove(self)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *failure: object) -> None:
        self.release()


def watching(owner: type[Any], watch: Watch, original: Callable[..., None]) -> Callable[..., None]:
    """Return an owner's __init__ that has its locks watched."""

    def init(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        for name in ORDER:
            kind, attribute = name.split(".")
            if kind == owner.__name__ and not isinstance(vars(self)[attribute], Watched):
                setattr(self, attribute, Watched(vars(self)[attribute], name, watch))

    return init


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch on every lock of the table."""
    watch = Watch()
    for owner in OWNERS:
        monkeypatch.setattr(owner, "__init__", watching(owner, watch, owner.__init__))
    return watch


def test_what_is_taken_out_of_order_is_noticed(watch):
    part, budget = GrowingPart(8), Budget(8)
    with part.lock, budget._lock:
        assert not watch.wrong
    with budget._lock, part.lock:
        assert watch.wrong == {"GrowingPart.lock while it had Budget._lock"}


@pytest.mark.limits(**small_spill(16))
def test_calls_of_every_kind_take_locks_in_the_order_of_the_page(open_store, tmp_path, watch):
    store = open_store(tmp_path / "store", durability="write", memory_budget="4MiB")
    tables = [
        store.get_variable(
            name,
            dim=8,
            hot_rows=size,
            optimizer=kvemb.optimizers.Adagrad(0.1),
            restrict_policy=kvemb.FrequencyRestrictPolicy,
            max_rows=bound,
        )
        for name, size, bound in (("a", 32, None), ("b", None, None), ("c", None, 3000))
    ]
    failures: list[BaseException] = []

    def calls(seed: int) -> None:
        chance = np.random.default_rng(seed)
        try:
            for turn in range(12):
                table, keys = tables[(turn + seed) % 3], chance.integers(0, 4000, 400)
                table.prefetch(keys)
                table.lookup(keys)
                table.apply_gradients(keys, np.ones((400, 8), np.float32))
                table.upsert(keys[:100], np.ones((100, 8), np.float32))
                table.remove(keys[:10])
                store.lookup({table.name: keys for table in tables})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    mark = store.mark()
    store.checkpoint(tmp_path / "checkpoint")
    tables[1].restrict(500)
    for thread in threads:
        thread.join()
    assert not failures
    tables[0].clear()
    store.rollback(mark)
    store.drop_variable("b")
    store.close()
    assert watch.wrong == set()
    assert watch.taken == set(ORDER)
    assert {name.split(".")[0] for name in ORDER} == {owner.__name__ for owner in OWNERS}
