"""A copy of a database that is amended, here or in another process, which may fail to start, fail, or be ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvemb.backends import rocks_copy
from kvemb.backends.rocks_amending import MANY, RocksAmendment
from kvemb.errors import ColdStoreError, Corruption
from kvemb.options import RocksDBCreator
from tests.backends.test_cold_store import all_rows, assert_same, database, rows_of, schema_of
from tests.backends.test_rocks_files import sorted_file_of

SCHEMA = schema_of(dim=2)
OLD, NEW = rows_of(SCHEMA, np.arange(20), 0), rows_of(SCHEMA, np.arange(10, 30), 1)


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    processes: list[Any] = []
    start = subprocess.Popen

    def starting(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", starting)
    return processes


def copied(folder: Path, families: int) -> list[Path]:
    """Make a copy of a database, each of whose families has the old rows; returns a file of new rows for each."""
    opened = database(folder / "rows")
    names = [f"t{number}" for number in range(families)]
    for name in names:
        opened.create(name, SCHEMA, RocksDBCreator()).write(OLD)
    opened.checkpoint(folder / "copy")
    files = [sorted_file_of(opened, folder / f"{name}.sst", NEW) for name in names]
    opened.close()
    return files


def rows(folder: Path, families: int) -> Any:
    opened = database(
        folder / "copy", {f"t{number}": RocksDBCreator() for number in range(1, families)}, read_only=True
    )
    found = [all_rows(opened.attach(f"t{number}", SCHEMA)) for number in range(1, families)]
    opened.close()
    return found


def amend(folder: Path, files: list[Path]) -> None:
    """Drop the first family, and ingest into all others but the last."""
    amendment = RocksAmendment(folder / "copy")
    amendment.drop("t0")
    for file in files[1:-1]:
        amendment.ingest(file.stem, file)
    amendment.finish()


def check_amended(folder: Path, files: list[Path]) -> None:
    found = rows(folder, len(files))
    for each in found[:-1]:
        assert_same(each.part(0, 10), OLD.part(0, 10))
        assert_same(each.part(10, 30), NEW)
    assert_same(found[-1], OLD)
    assert [file for file in files if file.exists()] == [files[0], files[-1]], "files are moved"
    assert not [*folder.glob("copy/LOG*"), *folder.glob("copy/LOCK")]


@pytest.mark.parametrize("families", [3, MANY])
def test_a_copy_with_many_families_is_amended_by_another_process(tmp_path, started, families):
    files = copied(tmp_path, families)
    amend(tmp_path, files)
    check_amended(tmp_path, files)
    assert [process.returncode for process in started] == [0] * (families == MANY)


def refuse(monkeypatch, folder: Path, text: str) -> None:
    """Make the interpreter a program that cannot do it."""
    program = folder / "python"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(
    ("program", "reason"),
    [("#!/bin/sh\nexit 3\n", "it ended with status 3"), ("no program", "Exec format error"), (None, None)],
)
def test_where_no_process_can_do_it_this_one_does(monkeypatch, tmp_path, caplog, program, reason):
    files = copied(tmp_path, MANY)
    if program is None:  # an application that embeds Python: its own program is not even tried
        monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    else:
        refuse(monkeypatch, tmp_path, program)
    amend(tmp_path, files)
    check_amended(tmp_path, files)
    assert [reason in record.getMessage() for record in caplog.records] == [True] * (reason is not None)


@pytest.mark.parametrize("families", [2, MANY])
def test_an_error_is_told_once_and_alike(tmp_path, started, families):
    files = copied(tmp_path, families)
    files[1].write_bytes(b"no table" * 100)
    amendment = RocksAmendment(tmp_path / "copy")
    for file in files:
        amendment.ingest(file.stem, file)
    with pytest.raises(Corruption) as caught:
        amendment.finish()
    assert str(caught.value).startswith(f"amend {tmp_path}/copy: Corruption: ")
    assert str(caught.value).count("Corruption") == 1
    amendment.abandon()
    assert [process.returncode for process in started] == [1] * (families == MANY)


@pytest.mark.parametrize("damaged", ["CURRENT", "rocksdict-config.json"])
def test_a_damaged_copy_is_named(tmp_path, damaged):
    files = copied(tmp_path, MANY)
    (tmp_path / "copy" / damaged).write_bytes(b"damage")
    with pytest.raises((Corruption, ColdStoreError), match=f"{tmp_path}/copy"):
        amend(tmp_path, files)


def test_a_process_that_is_killed_is_told(tmp_path, started):
    files = copied(tmp_path, MANY)
    amendment = RocksAmendment(tmp_path / "copy")
    amendment.ingest("t1", files[1])
    assert os.getsid(started[0].pid) != os.getsid(0), "Ctrl-C in a terminal does not reach it"
    while not select.select([started[0].stdout], [], [], 60)[0]:  # until it has opened the copy
        pass
    started[0].kill()
    with pytest.raises(ColdStoreError, match=f"amend {tmp_path}/copy: the process .* ended early, with status -9"):
        amendment.finish()
    amendment.abandon()


def test_a_copy_that_is_abandoned_leaves_no_process(tmp_path, started):
    files = copied(tmp_path, MANY)
    amendment = RocksAmendment(tmp_path / "copy")
    amendment.ingest("t1", files[1])
    amendment.abandon()
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    RocksAmendment(tmp_path / "none").abandon()


def test_the_program_ends_with_the_process_that_started_it(tmp_path):
    """Its input then ends without ["end"]."""
    files = copied(tmp_path, 2)
    packages = Path(sys.modules["rocksdict"].__file__).parent.parent
    command = [sys.executable, "-S", "-P", rocks_copy.__file__, str(tmp_path / "copy"), str(packages)]
    given = f'["ingest", "t1", "{files[1]}"]\n'
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, '{"opened": true}\n', "")
    assert not files[1].exists()
