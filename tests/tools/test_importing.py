"""Hostile descriptions in files to import: each field replaced in turn; the import works, or one line says why not."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.export import export

pa = pytest.importorskip("pyarrow")
pytest.importorskip("safetensors")

# All of them with KVEMB_HOSTILE=all.
ALL = os.environ.get("KVEMB_HOSTILE") == "all"
STRIDE = 1 if ALL else 31
MAX_SECONDS, MAX_CHARACTERS = 60, 1500
ROWS = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store whose exports describe an optimizer, a policy and an initializer, exported to in.FORMAT."""
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
    for format in DESCRIBED:
        export(place / "store", place / f"in.{format}", format=format, with_slots=True, with_scores=True)
    return place


def bend_npy(source: Path, text: bytes) -> None:
    (source / "about.json").write_bytes(text)


def bend_safetensors(source: Path, text: bytes) -> None:
    data = source.read_bytes()
    stop = 8 + struct.unpack_from("<Q", data)[0]
    head = json.loads(data[8:stop])
    head["__metadata__"]["kvemb"] = text.decode(errors="surrogateescape")
    packed = json.dumps(head).encode()
    source.write_bytes(struct.pack("<Q", len(packed)) + packed + data[stop:])


def bend_parquet(source: Path, text: bytes) -> None:
    from pyarrow import parquet

    table = parquet.read_table(source)
    parquet.write_table(table.replace_schema_metadata({b"kvemb": text}), source)


def bend_arrow(source: Path, text: bytes) -> None:
    with pa.OSFile(str(source)) as file:
        table = pa.ipc.open_file(file).read_all().replace_schema_metadata({b"kvemb": text})
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


DESCRIBED: dict[str, Callable[[Path, bytes], None]] = {
    "npy": bend_npy,
    "safetensors": bend_safetensors,
    "parquet": bend_parquet,
    "arrow": bend_arrow,
}


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


def copied(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


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
@pytest.mark.parametrize("format", DESCRIBED)
def test_every_field_of_a_description(made, tmp_path, capsys, format):
    source, new = tmp_path / f"in.{format}", tmp_path / "new"
    copied(made / source.name, source)
    sound = json.loads((made / "in.npy" / "about.json").read_text())
    assert set(sound) >= {"optimizer", "policy", "initializer", "slots", "name", "dim"}
    wrong, codes = [], []
    for what, text in descriptions(sound)[list(DESCRIBED).index(format) :: STRIDE]:
        copied(made / source.name, source)
        DESCRIBED[format](source, text)
        code, fault = outcome(["import", str(source), str(new)], new, capsys)
        wrong += [f"{what}: {fault}"] * (fault is not None)
        codes.append(code)
        shutil.rmtree(new, ignore_errors=True)
    assert not wrong, "\n".join(wrong)
    assert set(codes) == {0, 1}


@pytest.mark.parametrize("text", [b'{"name":' * 100_000, b" " * ((64 << 20) + 1)], ids=["nested", "long"])
def test_a_description_without_end_is_refused(made, tmp_path, capsys, text):
    source, new = tmp_path / "in.npy", tmp_path / "new"
    copied(made / source.name, source)
    bend_npy(source, text)
    assert outcome(["import", str(source), str(new)], new, capsys) == (1, None)
