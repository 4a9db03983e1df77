"""Hostile descriptions in files to import: each field replaced in turn; the import works, or one line says why not."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.export import export

# All of them with KVEMB_HOSTILE=all.
ALL = os.environ.get("KVEMB_HOSTILE") == "all"
STRIDE = 1 if ALL else 13
MAX_SECONDS, MAX_CHARACTERS = 60, 1500
ROWS = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store whose exports describe an optimizer, a policy and an initializer, exported to in.npy."""
    place = tmp_path_factory.mktemp("made")
    with kvemb.open(place / "store", memory_budget="4MiB") as store:
        table = store.get_variable(
            "users",
            dim=2,
            optimizer=kvemb.optimizers.Adagrad(0.5),
            initializer=kvemb.RandomNormal(seed=3),
            restrict_policy=kvemb.FrequencyRestrictPolicy(100.0),
        )
        table.upsert(np.arange(ROWS), np.ones((ROWS, 2), np.float32))
    export(place / "store", place / "in.npy", with_slots=True, with_scores=True)
    return place


def descriptions(sound: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Return (what, text) for every description with one hostile value in it, and for texts that are none."""
    found = [(repr(text[:40]), text) for text in hostile.TEXTS]
    for path in hostile.places(sound):
        for value in (*hostile.VALUES, hostile.MISSING, hostile.EXTRA):
            found.append((f"{path} = {value!r:.60}", json.dumps(hostile.changed(sound, path, value)).encode()))
        for name, text in hostile.RAW.items():
            marked = json.dumps(hostile.changed(sound, path, "the place of raw JSON"))
            found.append((f"{path} = {name}", marked.replace('"the place of raw JSON"', text).encode()))
    return found


def outcome(command: list[str], new: Path, capsys: Any) -> tuple[int | None, str | None]:
    """Type a command that makes a store; returns the exit code, and what is wrong with how it ended."""
    began = time.process_time()
    try:
        code = run(command)
    except BaseException as error:
        return None, f"{type(error).__name__}: {str(error)[:300]}"
    shown = capsys.readouterr().err
    if time.process_time() - began > MAX_SECONDS:
        return code, f"took {time.process_time() - began:.0f} s"
    if code not in (0, 1) or len(shown.splitlines()) != code or len(shown) > MAX_CHARACTERS:
        return code, f"exit code {code}: {shown[:400]!r}"
    if new.exists() == bool(code):
        return code, f"exit code {code}, and there is {'a' if code else 'no'} store"
    return code, None


@pytest.mark.slow
def test_every_field_of_a_description(made, tmp_path, capsys):
    source, new = shutil.copytree(made / "in.npy", tmp_path / "in.npy"), tmp_path / "new"
    sound = json.loads((source / "about.json").read_text())
    assert set(sound) >= {"optimizer", "policy", "initializer", "slots", "name", "dim"}
    wrong, codes = [], []
    for what, text in descriptions(sound)[::STRIDE]:
        (source / "about.json").write_bytes(text)
        code, fault = outcome(["import", str(source), str(new)], new, capsys)
        wrong += [f"{what}: {fault}"] * (fault is not None)
        codes.append(code)
        shutil.rmtree(new, ignore_errors=True)
    assert not wrong, "\n".join(wrong)
    assert set(codes) == {0, 1}


WRONG = [b'{"name":' * 100_000, b" " * ((64 << 20) + 1), b"[]", b'{"name": 5}', b'{"whole": true}', b"\xff\xfe{"]


@pytest.mark.parametrize("text", WRONG, ids=len)
def test_a_description_that_cannot_be_is_refused(made, tmp_path, capsys, text):
    source, new = shutil.copytree(made / "in.npy", tmp_path / "in.npy"), tmp_path / "new"
    (source / "about.json").write_bytes(text)
    assert outcome(["import", str(source), str(new)], new, capsys) == (1, None)
