"""Hostile or odd metadata, in every field of every file: it works, or one KvembError of one line tells. No traceback.

Checksums are made right again, so that the check of the field itself is met. More with KVEMB_HOSTILE=all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
from crashes import copy_of_open

import kvemb
from kvemb.durability import layout, manifest
from kvemb.durability.inventory import measure
from kvemb.durability.keyfile import read_keys
from kvemb.errors import Corruption, KvembError, UnsupportedFormat
from kvemb.tools.cli import run

pytestmark = pytest.mark.slow

BUDGET = "4MiB"
ALL = os.environ.get("KVEMB_HOSTILE") == "all"
KEYS = np.arange(0, 600, 3)


def fill(store: kvemb.Store, version: int) -> None:
    users = store.get_variable(
        "users",
        dim=4,
        hot_rows=64,
        optimizer=kvemb.optimizers.Adam(0.5),
        initializer=kvemb.RandomNormal(seed=3),
        restrict_policy=kvemb.FrequencyRestrictPolicy(100.0),
    )
    users.upsert(KEYS, np.full((len(KEYS), 4), version, np.float32))
    items = store.get_variable("items", "int32", "int8", 2, hot_rows=64, initializer=[1, 2])
    items.upsert(KEYS[:50].astype(np.int32), np.full((50, 2), version, np.int8))
    items.remove(np.array([0, 3], np.int32))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """parent and checkpoint: two checkpoints. store: one that was not closed, with a log."""
    place = tmp_path_factory.mktemp("made")
    store = kvemb.open(place / "live", memory_budget=BUDGET, durability="write")
    fill(store, 1)
    store.checkpoint(place / "parent")
    fill(store, 2)
    store.checkpoint(place / "checkpoint")
    fill(store, 3)
    store.variables["items"].clear()
    copy_of_open(place / "live", place / "store")
    store.close()
    return place


def read(path: Path, **arguments: Any) -> None:
    with kvemb.open(path, memory_budget=BUDGET, **arguments) as store:
        for variable in store.variables.values():
            variable.lookup(KEYS.astype(variable.key_dtype), touch=False)
            variable.export(with_slots=True, with_scores=True)


def ways(path: Path, parent: Path, scratch: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads the metadata of a checkpoint or a store."""

    def restore() -> None:
        with kvemb.restore(path, scratch / "restored", memory_budget=BUDGET, warm=True) as store:
            for variable in store.variables.values():
                variable.size()

    found = {
        "read": lambda: read(path, read_only=True),
        "verify": lambda: kvemb.verify(path, deep=True),
        "repair": lambda: kvemb.repair(path, scratch / "repaired"),
    }
    if layout.is_checkpoint(path):
        changes = {"changes": lambda: list(kvemb.Checkpoint(path).changes(parent))}
        return {**found, "restore": restore, **changes}

    def owner() -> None:
        shutil.copytree(path, scratch / "copy")
        read(scratch / "copy")

    return {**found, "owner": owner}


def commands(path: Path, scratch: Path) -> list[list[str]]:
    there = str(path)
    found = [["info", there], ["ls", there, "--files"], ["verify", there, "--deep"]]
    found += [["repair", there, str(scratch / "mended")], ["stats", there, "--variable", "users"]]
    return found + [["restore", there, str(scratch / "again")]] * layout.is_checkpoint(path)


@dataclass
class Told:
    """How the ways of reading a place ended. refused: whether any did not work. wrong: what no user may see."""

    refused: bool = False
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, lines: list[str]) -> None:
        self.wrong += [f"{name}: not one line: {line[:300]!r}" for line in lines if "\n" in line or len(line) > 1500]


def check(path: Path, parent: Path, scratch: Path, capsys: Any, *, typed: bool) -> Told:
    """Read a place in every way. typed: by the command line too."""
    told = Told()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, way in ways(path, parent, scratch).items():
        try:
            result = way()
            told.add(name, result.findings if isinstance(result, kvemb.Verification) else [])
        except KvembError as error:
            told.refused = True
            told.add(name, [str(error)])
        except Exception as error:
            told.wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    capsys.readouterr()
    for command in commands(path, scratch) if typed else []:
        try:
            code = run(command)
        except Exception as error:
            told.wrong.append(f"kvemb {command[0]}: {type(error).__name__}: {str(error)[:300]}")
            continue
        shown = capsys.readouterr()
        if code not in (0, 1) or len(shown.err.splitlines()) > (code == 1):
            told.wrong.append(f"kvemb {command[0]}: exit code {code}: {shown.err[:300]!r}")
    return told


def resigned(checkpoint: Path) -> None:
    """Make sizes and checksums of a checkpoint's manifest right."""
    path = checkpoint / manifest.NAME
    data = json.loads(path.read_text())
    data["files"] = {name: vars(measure(checkpoint / name)) for name in data["files"]}
    path.write_text(hostile.signed(data))


def test_every_field_of_a_manifest(made, tmp_path, capsys):
    """Each is read; what is accepted is opened in every way, some of it unless all is asked for."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    path = checkpoint / manifest.NAME
    wrong, counts = [], {True: 0, False: 0}
    for what, text in hostile.manifests(json.loads(path.read_text())):
        try:
            manifest.parse(text, str(path))
            sound = True
        except (Corruption, UnsupportedFormat) as error:
            sound = False
            if not str(error).startswith(str(path)) or "\n" in str(error) or len(str(error)) > 600 + len(str(path)):
                wrong.append(f"{what}: {str(error)[:700]!r}")
        counts[sound] += 1
        if ALL or counts[sound] % (48 if sound else 1200) == 0:
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
            told = check(checkpoint, made / "parent", tmp_path / "scratch", capsys, typed=ALL or counts[sound] % 4 == 0)
            wrong += [f"{what}: {line}" for line in told.wrong]
            assert sound or told.refused
    assert wrong == []
    assert counts[False] > 10 * counts[True] > 1000


@pytest.mark.parametrize("folder", ["changes", "hot"])
def test_every_field_of_a_key_file(made, tmp_path, capsys, folder):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    path = max(checkpoint.glob(f"{folder}/*"), key=lambda path: path.stat().st_size)
    wrong, sound = [], path.read_bytes()
    for at, (what, data) in enumerate(hostile.key_files(sound)):
        if data == sound:
            continue
        path.write_bytes(data)
        try:
            sum(map(len, read_keys(path)))
            assert what.startswith("first"), what  # another number there is another key
        except (Corruption, UnsupportedFormat) as error:
            assert str(error).startswith(str(path))  # noqa: PT017
        if ALL or at % 15 == 0:
            resigned(checkpoint)
            told = check(checkpoint, made / "parent", tmp_path / "scratch", capsys, typed=ALL)
            wrong += [f"{what}: {line}" for line in told.wrong]
    assert wrong == []


def test_every_field_of_a_log(made, tmp_path, capsys):
    store = tmp_path / "store"
    shutil.copytree(made / "store", store)
    path = max(store.glob("log/*"))
    wrong, refused = [], 0
    for at, (what, data) in enumerate(hostile.segments(path.read_bytes())):
        path.write_bytes(data)
        if ALL or at % 11 == 0:
            told = check(store, made / "parent", tmp_path / "scratch", capsys, typed=ALL or at % 55 == 0)
            wrong += [f"{what}: {line}" for line in told.wrong]
            refused += told.refused
    assert wrong == []
    assert refused


@pytest.mark.parametrize("name", ["CURRENT", "LOCK"])
def test_every_text_in_a_file_of_a_store(made, tmp_path, capsys, name):
    store = tmp_path / "store"
    shutil.copytree(made / "store", store)
    wrong = []
    for text in hostile.TEXTS if ALL or name == "CURRENT" else hostile.TEXTS[::8]:
        (store / name).write_bytes(text)
        told = check(store, made / "parent", tmp_path / "scratch", capsys, typed=ALL or text in hostile.TEXTS[::8])
        wrong += [f"{text[:40]!r}: {line}" for line in told.wrong]
        assert told.refused == (name == "CURRENT"), text
    assert wrong == []


@pytest.mark.parametrize("kind", ["CURRENT", "rocksdict-config.json", "OPTIONS-*", "MANIFEST-*"])
def test_every_text_in_a_file_of_rocksdb(made, tmp_path, capsys, kind):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    path = max(checkpoint.glob(f"rows/{kind}"))
    sound = path.read_bytes()
    chance = random.Random(7)
    bent = [bytes(byte ^ (chance.random() < 0.002) for byte in sound) for _ in range(40 if ALL else 3)]
    wrong = []
    for at, text in enumerate([*hostile.TEXTS, sound[: len(sound) // 2], sound * 2, *bent]):
        if ALL or at % 5 == 0 or at >= len(hostile.TEXTS):
            path.write_bytes(text)
            resigned(checkpoint)
            told = check(checkpoint, made / "parent", tmp_path / "scratch", capsys, typed=ALL or at % 10 == 0)
            wrong += [f"{text[:40]!r}: {line}" for line in told.wrong]
    assert wrong == []


@pytest.mark.parametrize("kind", ["CURRENT", "rocksdict-config.json", "OPTIONS-*", "MANIFEST-*", "*.sst"])
def test_a_file_of_rocksdb_that_the_manifest_does_not_know(made, tmp_path, capsys, kind):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    data = json.loads((checkpoint / manifest.NAME).read_text())
    for path in checkpoint.glob(f"rows/{kind}"):
        path.unlink()
        del data["files"][f"rows/{path.name}"]
    (checkpoint / manifest.NAME).write_text(hostile.signed(data))
    told = check(checkpoint, made / "parent", tmp_path / "scratch", capsys, typed=True)
    assert told.wrong == []
