"""Calls that write files, each as it is repeated after it failed or its process was killed (tests/trials.py).

`ready` makes what all of them begin with, in one folder; each takes a copy of what it needs into a root of its own.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from faults import Disk

import kvemb
import kvemb.cluster
from kvemb import bulk
from kvemb.errors import ColdStoreError, KvembError, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.tools import migrate
from kvemb.tools.failures import BadInput

BUDGET = "4MiB"
# Several table files in a merge and in a point, from few rows.
LIMITS = Limits(table_file_bytes=60_000, snapshot_part_bytes=60_000)
DIM, ROWS = 8, 1200
State = dict[str, list[bytes]]


def table_of(store: Any) -> Any:
    """The variable that all calls use."""
    return store.get_variable("table", dim=DIM, optimizer=kvemb.optimizers.Adagrad(0.5))


def change(store: Any, number: int) -> None:
    """Train some rows, add one and drop one; another number gives other rows."""
    chance, table = np.random.default_rng(number), table_of(store)
    keys = chance.choice(ROWS, 40, replace=False)
    table.apply_gradients(keys, chance.standard_normal((40, DIM)).astype(np.float32))
    table.upsert([ROWS + number], np.full((1, DIM), number, np.float32))
    table.remove(keys[:1])


def state(path: Path) -> State:
    """The rows of a checkpoint or a store, whole, and nothing but they."""
    with kvemb.open(path, read_only=True, memory_budget=BUDGET, limits=LIMITS) as store:
        found = store.variables["table"].export(with_slots=True, with_scores=True)
        assert list(store.variables) == ["table"]
    keys, values, slots, scores = found
    order = np.argsort(keys)
    return {name: [row.tobytes() for row in column[order]] for name, column in
            {"keys": keys, "values": values, "scores": scores, **slots}.items()}  # fmt: skip


def ready(folder: Path) -> None:
    """Make a store, a series of three checkpoints of it, the same pushed, a replica, and a cluster's series."""
    made = folder / "ready"
    made.mkdir()
    (folder / "dense").write_bytes(bytes(5000))
    states: dict[str, State] = {}
    with kvemb.open(made / "store", memory_budget=BUDGET, limits=LIMITS) as store, manager(made / "series") as series:
        values = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
        table_of(store).upsert(np.arange(ROWS), values)
        for number in (1, 2, 3):
            change(store, number)
            saved = series.save(store, files={"dense": folder / "dense"}, extra={"number": number})
            states[f"series-{number}"] = state(saved.path)
            series.push(made / f"far-{min(number, 2)}")
            if number == 1:
                shutil.copytree(made / "far-1", made / "far-2")
        change(store, 4)
    states["store"] = state(made / "store")
    shutil.copytree(made / "series" / "00000001", made / "near" / "00000001")
    kvemb.restore(made / "near" / "00000001", made / "replica", memory_budget=BUDGET).close()
    how: Any = {"scratch": folder, "transport": "local", "memory_budget": BUDGET}
    with kvemb.cluster.open(made / "shards", shards=2, **how) as cluster, manager(made / "gathered") as gathered:
        table_of(cluster).upsert(np.arange(ROWS), values)
        for number in (1, 2):
            change(cluster, number)
            cluster.checkpoint()
            with manager(folder / f"whole-{number}") as whole:
                states[f"shards-{number}"] = state(whole.pull(made / "shards").path)
            if number == 1:
                gathered.pull(made / "shards")
    (folder / "states").write_bytes(pickle.dumps(states))


def manager(root: Path) -> kvemb.CheckpointManager:
    """The series at a path."""
    return kvemb.CheckpointManager(root)


@contextmanager
def opened(path: Path) -> Iterator[kvemb.Store]:
    """A store, with changes that are not durable yet; it is closed, even if it is poisoned."""
    store = kvemb.open(path, memory_budget=BUDGET, limits=LIMITS)
    try:
        yield store
    finally:
        store.close()


Calling = Callable[[Path], Any]  # of the root: a context manager, of a function without arguments


class Call(NamedTuple):
    """One call. needs: what of `ready` it needs. made: what it makes, which then has the rows of a state.

    columns: those that are then the state's; none: all.
    """

    calling: Calling
    needs: str
    made: str
    state: str
    columns: tuple[str, ...] = ()


def simple(call: Callable[[Path], object]) -> Calling:
    """A call that needs nothing open."""

    @contextmanager
    def calling(root: Path) -> Iterator[Callable[[], object]]:
        yield lambda: call(root)

    return calling


def of_series(name: str, call: Callable[[kvemb.CheckpointManager, Path], object]) -> Calling:
    """A call on a series."""

    @contextmanager
    def calling(root: Path) -> Iterator[Callable[[], object]]:
        with manager(root / name) as series:
            yield lambda: call(series, root)

    return calling


def of_store(name: str, call: Callable[[kvemb.Store, Path], object], *, changed: bool = True) -> Calling:
    """A call on an open store. changed: rows of it are not durable yet."""

    @contextmanager
    def calling(root: Path) -> Iterator[Callable[[], object]]:
        with opened(root / name) as store:
            if changed:
                store.variables["table"].upsert([9999], np.ones((1, DIM), np.float32))
            yield lambda: call(store, root)

    return calling


def resume(series: kvemb.CheckpointManager, root: Path) -> kvemb.Store:
    """Go back to the newest checkpoint."""
    store, newest = series.resume(root / "store", memory_budget=BUDGET, limits=LIMITS)
    assert newest is not None
    assert newest.extra == {"number": 3}
    return store


def save(store: kvemb.Store, root: Path) -> None:
    """Save the next checkpoint."""
    with manager(root / "series") as series:
        series.save(store, files={"dense": lambda file: file.write(bytes(5000))})


@contextmanager
def rolled_back(root: Path) -> Iterator[Callable[[], object]]:
    """Go back to a mark, from a state that is durable, too."""
    with opened(root / "store") as store:
        if not store.marks:
            store.mark("then", block=True)
        store.variables["table"].upsert([9999], np.ones((1, DIM), np.float32))
        store.flush()

        def going_back() -> None:
            store.rollback("then")
            inside(store).writer.submit(lambda: None).result()  # what it leaves is deleted

        yield going_back


def migrated(root: Path) -> None:
    """Copy the table with another policy, into a new store."""
    migrate.migrate(migrate.plan(root / "store", root / "out", policy="frequency"))


def migrated_in_place(root: Path) -> None:
    """Give the table another policy, in its store; if it has it, open the store, which deletes what a killed process
    left."""
    try:
        migrate.migrate(migrate.plan(root / "store", None, policy="frequency"))
    except BadInput:
        kvemb.open(root / "store", **HOW).close()


def load(store: kvemb.Store, root: Path) -> None:
    """Load the rows of a checkpoint."""
    with kvemb.open(root / "near" / "00000001", read_only=True, memory_budget=BUDGET) as source:
        bulk.load(store.variables["table"], list(bulk.scan(source.variables["table"])))


# Of a table that gets a policy.
WITHOUT_SCORES = ("keys", "values", "accumulator")
HOW: dict[str, Any] = {"memory_budget": BUDGET, "limits": LIMITS}


def pull(name: str, url: str) -> Calling:
    """Pull the newest checkpoint into a series."""
    return of_series(name, lambda series, root: series.pull(root / url))


def push(url: str) -> Calling:
    """Push the newest checkpoint of the series."""
    return of_series("series", lambda series, root: series.push(root / url))


def restored(source: str) -> Calling:
    """Make a new store of a checkpoint."""
    return simple(lambda root: kvemb.restore(root / source, root / "out", **HOW))


def repaired(source: str) -> Calling:
    """Write what can be read of a checkpoint to a new store."""
    return simple(lambda root: kvemb.repair(root / source, root / "out"))


def to_third(store: kvemb.Store, root: Path) -> None:
    """Bring a replica to the newest checkpoint."""
    store.apply_delta(root / "series" / "00000003")


CALLS = {
    "open": Call(simple(lambda root: kvemb.open(root / "store", **HOW)), "store", "store", "store"),
    "flush": Call(of_store("store", lambda store, _: store.flush()), "store", "store", "store+"),
    "mark": Call(of_store("store", lambda store, _: store.mark("kept", block=True)), "store", "store", "store+"),
    "rollback": Call(rolled_back, "store", "store", "store"),
    "checkpoint": Call(of_store("store", lambda store, root: store.checkpoint(root / "out")), "store", "out", "store+"),
    "save": Call(of_store("store", save), "store series", "series/00000004", "store+"),
    "compact": Call(of_store("store", lambda store, _: bulk.compact(store)), "store", "store", "store+"),
    "load": Call(of_store("replica", load, changed=False), "replica near", "replica", "series-1"),
    "apply_delta": Call(of_store("replica", to_third, changed=False), "replica series", "replica", "series-3"),
    "push": Call(push("far-1"), "series far-1", "far-1", "series-3"),
    "push_whole": Call(push("far"), "series", "far", "series-3"),
    "pull": Call(pull("near", "far-2"), "near far-2", "near/00000003", "series-3"),
    "pull_whole": Call(pull("new", "far-2"), "far-2", "new/00000003", "series-3"),
    "pull_shards": Call(pull("gathered", "shards"), "gathered shards", "gathered/00000002", "shards-2"),
    "pull_shards_whole": Call(pull("new", "shards"), "shards", "new/00000002", "shards-2"),
    "restore": Call(restored("near/00000001"), "near", "out", "series-1"),
    "restore_far": Call(restored("far-2"), "far-2", "out", "series-3"),
    "resume": Call(of_series("series", resume), "store series", "store", "series-3"),
    "resume_new": Call(of_series("series", resume), "series", "store", "series-3"),
    "migrate": Call(simple(migrated), "store", "out", "store", WITHOUT_SCORES),
    "migrate_in_place": Call(simple(migrated_in_place), "store", "store", "store", WITHOUT_SCORES),
    "repair": Call(repaired("near/00000001"), "near", "out", "series-1"),
    "repair_far": Call(repaired("far-2"), "far-2", "out", "series-3"),
}


def retried(folder: Path, disk: Disk, *, ready: str, call: str, at: int = 0, error: int = 0) -> None:
    """Make a call whose at-th operation on the disk fails, make it again, and check what it has made.

    If the root was left by a process that was killed in this call, it is made again only.
    """
    root, known, killed = folder / "root", CALLS[call], (folder / "begun").exists()
    if not killed:
        for needed in known.needs.split():
            shutil.copytree(Path(ready) / "ready" / needed, root / needed)
        (root / "tmp").mkdir()
        (folder / "begun").touch()
    tempfile.tempdir = str(root / "tmp")
    outcome = "killed" if killed else _fails(known, root, folder, disk, at, error)
    if outcome in ("killed", "poisoned"):
        _age(root)
        with known.calling(root) as repeated:
            outcome = _again(repeated)
    _check(known, root, Path(ready), tidy=outcome != "done")


def _fails(call: Call, root: Path, folder: Path, disk: Disk, at: int, error: int) -> str:
    """Make the call twice; "done" if the first was complete, "poisoned" if the second is refused, else "again"."""
    with call.calling(root) as calling:
        disk.fail(at or 1 << 40, error, removals=True)
        outcome = "done"
        try:
            made = calling()
        except (KvembError, OSError):
            outcome = "failed"
        (folder / "seen").write_text(f"{disk.seen} {disk.hits}")
        disk.fail(0)
        if outcome == "done" and isinstance(made, kvemb.Store):
            made.close()
        _age(root)
        try:
            again = _again(calling)
        except Poisoned:
            return "poisoned"
    return "done" if outcome == "done" else again


def _again(calling: Callable[[], object]) -> str:
    """Make a call again; "done" if that is refused because what it makes is there: it was complete."""
    try:
        made = calling()
    except FileExistsError:
        return "done"
    if isinstance(made, kvemb.Store):
        made.close()
    return "again"


def _age(root: Path) -> None:
    """Let what is left be a minute old, as it is deleted only then."""
    for path in root.rglob("*kvemb-*"):
        with suppress(FileNotFoundError):
            os.utime(path, (time.time() - 120, time.time() - 120))


def _check(call: Call, root: Path, ready: Path, *, tidy: bool) -> None:
    """Whether what was made is whole, with the right rows, and nothing else is left. tidy: nor a temporary directory,
    which stays if it alone could not be deleted.
    """
    states, made = pickle.loads((ready / "states").read_bytes()), root / call.made
    if call.made.startswith("far"):
        with manager(root / "pulled") as series:
            made = series.pull(made).path
    else:
        assert kvemb.verify(made, deep=True)
    found, wanted = state(made), states[call.state.removesuffix("+")]
    if call.state.endswith("+"):
        assert found["keys"][-1] == np.int64(9999).tobytes()
        found = {name: column[:-1] for name, column in found.items()}
    for name in call.columns or wanted:
        assert found[name] == wanted[name], name
    marks = [".", "kvemb-"] if tidy else ["."]
    left = [path for path in root.rglob("*") if path.name.startswith(tuple(marks)) or path.suffix in (".tmp", ".part")]
    assert [path for path in left if tidy or not path.name.startswith(".kvemb-")] == []


def without_links(folder: Path, disk: Disk, *, ready: str, error: int) -> None:
    """On a filesystem without hard links a store says so when it is opened or made; a series has copies."""
    root = folder / "root"
    shutil.copytree(Path(ready) / "ready", root, dirs_exist_ok=True)
    disk.refuse_links(error)
    told = rf"hard links \({re.escape(os.strerror(error))}\)"
    for call in (
        lambda: kvemb.open(root / "new" / "store", **HOW),
        lambda: kvemb.open(root / "store", **HOW),
        lambda: kvemb.restore(root / "near" / "00000001", root / "restored", **HOW),
        lambda: kvemb.repair(root / "near" / "00000001", root / "repaired"),
    ):
        with pytest.raises(ColdStoreError, match=told):
            call()
    assert not (root / "restored").exists()
    assert not (root / "repaired").exists()
    for name in ("pull", "pull_whole", "pull_shards", "pull_shards_whole", "push"):
        with CALLS[name].calling(root) as calling:
            calling()
        _check(CALLS[name], root, Path(ready), tidy=True)
        shutil.rmtree(root / "new", ignore_errors=True)
    with kvemb.open(folder / "elsewhere", **HOW) as store, manager(root / "saved") as series:
        table_of(store).upsert([1], np.ones((1, DIM), np.float32))
        assert kvemb.verify(series.save(store), deep=True)
    disk.refuse_links(0)
    kvemb.open(root / "store", **HOW).close()
