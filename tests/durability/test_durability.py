"""The guarantees of a store on disks that lose unsynced data, fail, or are full: tests/faults.c simulates the disk.

A history (tests/history.py) is stopped at some of its operations on the disk, or one of them fails. KVEMB_FAULTS says
at how many, evenly spread, operations fail, for each error; crashes are tried at three times as many. 0: at every one.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from history import BUDGET, held

import kvemb
from kvemb.durability import layout, manifest
from kvemb.errors import CheckpointNotFound, StoreNotFound

pytestmark = pytest.mark.slow

FAULTS = int(os.environ.get("KVEMB_FAULTS", "2"))
DURABILITIES = ["checkpoint", "write"]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Laboratory]:
    folder = tmp_path_factory.mktemp("faults")
    running = faults.Laboratory(faults.compiled(folder), folder)
    yield running
    running.close()


@pytest.fixture(scope="module")
def operations(laboratory: faults.Laboratory) -> dict[str, int]:
    """How many operations that may fail a history has, by its durability."""
    counts = {}
    for durability in DURABILITIES:
        whole = laboratory.run(error=errno.EIO, durability=durability)
        check_all(whole)
        assert whole.seen is not None
        counts[durability] = whole.seen
    return counts


def check(trial: faults.Trial, left: Path) -> None:
    """Every place holds what it promised, in the directory that is left of the disk."""
    for place, promise in {"store": faults.Promise(), **trial.places()}.items():
        path = left / place
        told = f"{path}: of {len(promise.allowed)} states it may hold it holds none; failed: {trial.what_failed}"
        if place == "store":
            with kvemb.open(path, memory_budget=BUDGET) as store:
                assert held(store, promise) is not None, told
        else:
            try:
                with kvemb.open(path, memory_budget=BUDGET, read_only=True) as store:
                    assert promise.allowed, told
                    assert held(store, promise) is not None, told
            except (StoreNotFound, CheckpointNotFound):
                assert promise.kept is None, told


def check_all(trial: faults.Trial) -> None:
    """Whatever the crash spared."""
    assert not trial.hung, trial.error
    assert trial.error == "", f"{trial.error}\nfailed: {trial.what_failed}"
    for crash in [*trial.crashes(), trial]:
        for names in ("synced", "all"):
            check(crash, crash.survivors(names))
        check(crash, crash.root)
    shutil.rmtree(trial.folder)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_crash_at_any_moment_leaves_what_was_acknowledged(
    laboratory: Any, operations: dict[str, int], durability: str
) -> None:
    """The first operations are the store's making; the last, its closing."""
    every = operations[durability] // (3 * FAULTS) if FAULTS else 50
    for first in [every // 2] if FAULTS else range(1, every + 1):
        trial = laboratory.run("crashes", first=first, every=every, durability=durability)
        assert len(trial.crashes()) >= (3 * FAULTS or operations[durability] // every)
        check_all(trial)


def test_a_store_follows_every_checkpoint_whenever_it_crashed(laboratory: Any) -> None:
    """Resuming completes a checkpoint that lacks only its name."""
    trial = laboratory.run("saving")
    assert not trial.hung, trial.error
    assert trial.error == ""
    found = set()
    for crash in trial.crashes():
        for root in (crash.root, crash.survivors("synced")):
            manager = kvemb.CheckpointManager(root / "series")
            point = manifest.read(layout.current_point(root / "store"))
            followed = {epoch.since for epoch in point.changes}
            assert {saved.id for saved in manager.list()} <= followed
            found.add((len(point.variables), len(manager.numbers())))
            with manager:
                store, newest = manager.resume(root / "store", memory_budget=BUDGET)
            with store:
                assert (newest is not None, list(store.variables)) == (bool(point.variables), [*point.variables])
    assert found == {(0, 0), (1, 0), (1, 1)}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_operation_that_fails_loses_nothing_that_was_acknowledged(
    laboratory: Any, operations: dict[str, int], error: int, durability: str
) -> None:
    """It may be the n-th write, sync, creation, link, rename or mkdir, alone or with all that follow.

    The store is used again in the same process.
    """
    last = operations[durability]
    for at, forever in places(last, error, durability):
        trial = laboratory.run(at=at, error=error, forever=forever, durability=durability)
        assert trial.hits, trial.error
        check_all(trial)


def test_a_call_that_the_log_has_in_part_was_made_for_some_keys(laboratory: Any) -> None:
    """A call of many rows writes several entries. The log fails at one of those after the first durable point."""
    for at in (5, 6, 7):
        trial = laboratory.run(at=at, error=errno.ENOSPC, forever=True, only="/log/000003.log", durability="write")
        assert trial.hits, trial.error
        check_all(trial)


def places(last: int, error: int, durability: str) -> list[tuple[int, bool]]:
    """Which operations, from 1 to last, fail: alone, or with all that follow. Others for each test."""
    if not FAULTS:
        return [(at, forever) for at in range(1, last + 1) for forever in (False, True)]
    turn = [errno.ENOSPC, errno.EIO].index(error) + 2 * DURABILITIES.index(durability)
    return [(1 + (4 * part + turn) * last // (4 * FAULTS), (part + turn) % 2 == 0) for part in range(FAULTS)]


def test_a_disk_that_fills_up_loses_nothing_that_was_acknowledged(laboratory: Any) -> None:
    for nbytes in (0, 30_000, 1_000_000):
        trial = laboratory.run("full_disk", nbytes=nbytes)
        check_all(trial)


def test_a_real_full_disk(laboratory: Any, tmp_path: Path) -> None:
    place, folder = tmp_path / "disk", tmp_path / "trial"
    place.mkdir()
    folder.mkdir()
    (folder / "root").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs takes a privilege that is not there")
    try:
        (place / "ballast").write_bytes(bytes(1 << 20))
        trial = laboratory.run("full_disk", place=str(place), folder=folder)
        assert not trial.hung, trial.error
        assert trial.error == ""
        check(trial, place)
    finally:
        subprocess.run(["umount", str(place)], check=True)
