"""Ctrl-C, SIGTERM and SIGKILL at any time leave no half-written file, process or folder; and the messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import KVEMB
from waiting import wait_until

import kvemb
from kvemb import bulk
from kvemb.threads.interrupts import uninterrupted
from kvemb.tools import stopping
from kvemb.tools.ahead import ahead
from kvemb.tools.cli import run
from kvemb.tools.export import export
from kvemb.tools.exported_rows import RowWriter
from kvemb.tools.failures import BadInput
from kvemb.tools.formats import known
from kvemb.tools.importing import import_table

pytestmark = pytest.mark.slow

pytest.importorskip("pyarrow")
PATIENCE = 300.0
SLOW_READS = Path(__file__).parents[1] / "slow_reads"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a dozen batches of rows."""
    path = tmp_path_factory.mktemp("stopping") / "store"
    with kvemb.open(path, memory_budget="32MiB") as store:
        table = store.get_variable("table", dim=4)
        chance = np.random.default_rng(0)
        batches = (np.arange(at, at + 50_000) for at in range(0, 400_000, 50_000))
        bulk.load(table, (bulk.Rows(keys, chance.random((len(keys), 4), np.float32)) for keys in batches))
    return path


def begin(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Begin a command that reads slowly: it has not ended when it is interrupted."""
    (tmp_path / "tmp").mkdir()
    # As a shell in the foreground starts it: SIGINT is not ignored.
    return subprocess.Popen(
        [*KVEMB, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(SLOW_READS)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def session(number: int) -> list[int]:
    """Processes of a session that live."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = place.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == number and state not in "ZX":
            found.append(int(place.parent.name))
    return found


def left(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_of_an_export_end_with_it(store, tmp_path, number):
    arguments = ["export", str(store), "out", "--format", "csv", "--partitions", "6", "--jobs", "2"]
    process = begin(tmp_path, *arguments)
    wait_until(lambda: list(tmp_path.glob(".kvemb-new-*/out/*")))
    assert len(session(process.pid)) >= 3
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == {15: 143, 9: -9}[number]
    wait_until(lambda: not session(process.pid))
    if number != signal.SIGKILL:
        assert left(tmp_path) == ["tmp"]
        return
    folders = [tmp_path / name for name in left(tmp_path) if "kvemb-" in Path(name).name]
    assert len(folders) == 2  # of its own only: the processes it began have cleaned up
    for folder in folders:
        os.utime(folder, (time.time() - 3600,) * 2)
    again = ["export", str(store), "out.csv", "--where", "key < 3"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([*KVEMB, *again], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE)
    assert left(tmp_path) == ["out.csv", "tmp"]


@pytest.mark.parametrize("name", ["csv", "word2vec"])
def test_a_part_that_is_told_to_end_reads_no_more_rows(store, tmp_path, monkeypatch, name):
    """It raises by itself: an exception from outside would be swallowed, as by pandas, which pyarrow imports."""
    from kvemb.tools import export_parts

    told, read, real = threading.Event(), [], bulk.scan

    def scan(*arguments: Any, **options: Any) -> Iterator[bulk.Rows]:
        for rows in real(*arguments, **options):
            read.append(len(rows))
            told.set()
            yield rows

    monkeypatch.setattr(bulk, "scan", scan)
    monkeypatch.setattr(export_parts, "_told_to_end", told)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer = RowWriter(known.FORMATS[name], batch_rows=1000)
    with kvemb.open(store, read_only=True) as opened:
        point = bulk.point(opened.variables["table"])
    parts = [(tmp_path / name, (0, 200_000)) for name in ("first", "next")]
    for file, key_range in parts:
        with pytest.raises(SystemExit):
            export_parts._write_part(store, point, "table", file, writer, key_range)
    assert read == [1000]
    assert set(left(tmp_path)) <= {"first"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(store, tmp_path, number):
    process = begin(tmp_path, "export", str(store), "out.csv")
    wait_until(lambda: list(tmp_path.glob(".kvemb-new-*/*")) and list((tmp_path / "tmp").iterdir()))
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE)
    code, word = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}[number]
    assert (process.returncode, told) == (code, f"kvemb: {word}\n")
    assert left(tmp_path) == ["tmp"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.savetxt(tmp_path / "in.csv", np.ones((1, 2)), "%d", ",", header="key,value_0", comments="")
    return tmp_path / "in.csv"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_that_somebody_swallows_is_not_lost(table, tmp_path, monkeypatch, number, code):
    """As pandas does, which pyarrow imports."""
    real = known.Format.read

    def swallow(self: Any, *arguments: Any) -> Any:
        try:
            os.kill(os.getpid(), number)
            time.sleep(1)
            raise AssertionError("no signal came")
        except KeyboardInterrupt:
            return real(self, *arguments)

    monkeypatch.setattr(known.Format, "read", swallow)
    assert run(["import", str(table), str(tmp_path / "new")]) == code
    assert left(tmp_path) == ["in.csv"]


def test_an_import_that_is_interrupted_while_the_store_is_made_leaves_none(table, tmp_path, monkeypatch):
    real = kvemb.open

    def interrupted(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options).close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kvemb, "open", interrupted)
        assert run(["import", str(table), str(tmp_path / "new")]) == 130
        assert left(tmp_path) == ["in.csv"]
    (tmp_path / "empty").mkdir()
    assert import_table(table, tmp_path / "new").rows == import_table(table, tmp_path / "empty").rows == 1
    with real(tmp_path / "new", memory_budget="8MiB") as store:
        assert store.variables["in"].lookup([1]).tolist() == [[1]]


def test_sigterm_waits_as_ctrl_c_does():
    reached = []

    def work() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            reached.append(True)

    with stopping.signals_handled(), pytest.raises(stopping.Terminated):
        work()
    assert reached


def test_what_was_ignored_stays_ignored_and_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping.signals_handled():
            os.kill(os.getpid(), signal.SIGINT)
            stopping.check()
            with pytest.raises(stopping.Terminated):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
    assert {number: signal.getsignal(number) for number in stopping.SIGNALS} == before
    stopping.check()


def test_reading_ahead_ends_with_whoever_reads():
    def count() -> Iterator[int]:
        at = 0
        while True:
            at += 1
            yield at

    numbers = ahead(count())
    assert [next(numbers) for _ in range(5)] == [1, 2, 3, 4, 5]
    numbers.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "kvemb-ahead"]
    assert list(ahead(iter(range(9)))) == list(range(9))

    def fail() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    given = ahead(fail())
    assert next(given) == 1
    with pytest.raises(KeyError, match="gone"):
        next(given)


def test_a_process_that_is_killed_is_told_of(store, tmp_path, monkeypatch):
    def died(*_: Any) -> Any:
        raise BrokenProcessPool("a child process terminated abruptly")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor.submit", died)
    with pytest.raises(BadInput, match="a process of --jobs was killed, perhaps for lack of memory; use fewer --jobs"):
        export(store, tmp_path / "out", format="csv", partitions=2, jobs=2)
    assert left(tmp_path) == []
