"""Checkpoints in the background, and files beside the rows: as a single store's, for every client of a cluster."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from quick import quick

import kvemb
import kvemb.cluster
from kvemb.errors import ShardLost, TransferError
from kvemb.handle import inside
from kvemb.offline.transfer import Remote

ONES = np.ones((3, 1), np.float32)


@pytest.fixture
def cluster(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    cluster.get_variable("table", dim=1).upsert([1, 2, 3], ONES)
    return cluster


@contextmanager
def held(monkeypatch, error=None):
    """Let the shards' pushes wait until the end of the block, or until the yielded event is set; then fail."""
    push, release, entered = Remote.push, threading.Event(), threading.Event()

    def waits(*given, **named):
        entered.set()
        assert release.wait(60)
        if error is not None:
            raise error
        return push(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Remote, "push", waits)
        try:
            yield release, entered
        finally:
            release.set()
            assert entered.wait(60)


def values_at(tmp_path, number):
    with kvemb.restore(tmp_path / "series" / f"{number:08d}", tmp_path / f"at-{number}") as store:
        return store.variables["table"].lookup([1, 2, 3])[:, 0].tolist()


def test_it_has_the_state_of_its_call_and_others_go_on(cluster, tmp_path, monkeypatch):
    with held(monkeypatch) as (release, _):
        pending = cluster.checkpoint(block=False, extra={"step": 1})
        cluster.variables["table"].upsert([1, 2, 3], 5 * ONES)
        assert cluster.variables["table"].lookup([1]).tolist() == [[5]]
        assert not pending.done()
        assert repr(pending) == "<kvemb.PendingCheckpoint being written>"
        with pytest.raises(TimeoutError):
            pending.result(timeout=0.01)
        assert cluster.last_checkpoint is None
        release.set()
        done = pending.result()
    assert pending.result() is done
    assert (done.number, done.extra, done.variables["table"].rows) == (1, {"step": 1}, 3)
    assert repr(pending).startswith("<kvemb.PendingCheckpoint complete: <kvemb.cluster.Checkpoint 1,")
    assert cluster.last_checkpoint == 1
    assert values_at(tmp_path, 1) == [1, 1, 1]
    assert kvemb.cluster.latest(tmp_path / "series")[1].extra == {"step": 1}


def test_a_second_one_waits_for_the_first_whoever_began_it(cluster, monkeypatch, connect):
    other, second = connect(), []
    with held(monkeypatch) as (release, _):
        first = cluster.checkpoint(block=False)
        waiting = threading.Thread(target=lambda: second.append(other.checkpoint(block=False)))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        release.set()
        waiting.join()
    assert [first.result().number, second[0].result().number] == [1, 2]


@pytest.mark.parametrize("told_by", ["result", "checkpoint", "flush", "close"])
def test_a_failure_is_told_once(open_cluster, cluster, tmp_path, monkeypatch, told_by):
    with held(monkeypatch, TransferError("unreachable")):
        pending = cluster.checkpoint(block=False)
    with pytest.raises(TransferError, match="unreachable"):
        {"result": pending.result, "checkpoint": cluster.checkpoint, "flush": cluster.flush, "close": cluster.close}[
            told_by
        ]()
    if told_by == "close":
        assert cluster.state.closed, "as a store"
        cluster = open_cluster(url=tmp_path / "series", shards=None)
        assert cluster.variables["table"].size() == 3, "its last checkpoint was written"
    assert pending.reported
    assert repr(pending) == "<kvemb.PendingCheckpoint failed: unreachable>"
    assert cluster.checkpoint().variables["table"].rows == 3


def test_one_that_is_written_while_the_cluster_is_closed_is_complete(cluster, tmp_path, monkeypatch, connect):
    other = connect()
    with held(monkeypatch) as (release, entered):
        pending = other.checkpoint(block=False)
        assert entered.wait(60)
        closing = threading.Thread(target=lambda: cluster.close(flush=False))
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        release.set()
        closing.join()
    assert pending.result().number == 1
    assert kvemb.cluster.latest(tmp_path / "series")[0] == 1


def test_another_client_does_not_hear_of_it(cluster, monkeypatch, connect):
    other = connect()
    with held(monkeypatch, TransferError("unreachable")):
        pending = cluster.checkpoint(block=False)
    number = other.checkpoint().number
    with pytest.raises(TransferError):
        pending.result()
    assert other.last_checkpoint == number


@pytest.mark.parametrize("error", quick([None, TransferError("unreachable")]), ids=["complete", "failed"])
def test_recovery_while_one_is_written_goes_back_to_what_is_complete(cluster, tmp_path, monkeypatch, error):
    first, back = cluster.checkpoint().number, []
    cluster.variables["table"].upsert([1, 2, 3], 5 * ONES)
    with held(monkeypatch, error) as (release, entered):
        pending = cluster.checkpoint(block=False)
        cluster.variables["table"].upsert([1, 2, 3], 7 * ONES)
        assert entered.wait(60)
        recovering = threading.Thread(target=lambda: back.append(cluster.recover()))
        recovering.start()
        recovering.join(0.05)
        release.set()
        recovering.join()
    expected = (first, 1) if error is not None else (first + 1, 5)
    assert back[0].number == expected[0]
    assert cluster.variables["table"].lookup([1, 2, 3])[:, 0].tolist() == [expected[1]] * 3
    with pytest.raises((TransferError, kvemb.errors.ShardLost)) if error else pytest.MonkeyPatch.context():
        assert pending.result().number == first + 1
    later = cluster.checkpoint()  # the failure was told by where the cluster went back to
    assert values_at(tmp_path, later.number) == [expected[1]] * 3


@pytest.mark.slow
def test_files_are_beside_the_rows_of_one_checkpoint(cluster, tmp_path):
    large = np.random.default_rng(0).bytes((8 << 20) + 77)
    (tmp_path / "path").write_bytes(large)
    files = {"bytes": b"dense", "empty": b"", "large": tmp_path / "path", "made": lambda file: file.write(b"written")}
    other = kvemb.cluster.connect(tmp_path / "series", transport="local")
    extra = {"step": 7, "loss": [0.5, None]}
    saved = other.checkpoint(files=files, extra=extra, block=False).result()
    other.close()
    assert saved.extra == extra
    assert sorted(saved.files) == sorted(files)
    later = cluster.checkpoint()
    assert (later.files, later.extra) == ((), {})
    assert not list((tmp_path / "scratch").rglob("attached/*")), "what was received is deleted"
    found = kvemb.cluster.pull_files(tmp_path / "series", tmp_path / "dense", number=1)
    expected = {"bytes": b"dense", "empty": b"", "large": large, "made": b"written"}
    assert {name: path.read_bytes() for name, path in found.items()} == expected
    assert sorted(path.name for path in (tmp_path / "dense").iterdir()) == sorted(files)
    assert kvemb.cluster.pull_files(tmp_path / "series", tmp_path / "none") == {}
    with pytest.raises(FileExistsError):
        kvemb.cluster.pull_files(tmp_path / "series", tmp_path / "none")
    for shards in (1, 2):
        out = tmp_path / f"out-{shards}"
        kvemb.cluster.reshard(tmp_path / "series", out, shards=shards, number=1)
        again = kvemb.cluster.pull_files(out, tmp_path / f"again-{shards}")
        assert kvemb.cluster.latest(out)[1].extra == extra
        assert {name: path.read_bytes() for name, path in again.items()} == expected
    with kvemb.restore(tmp_path / "series" / "00000001", tmp_path / "store"):
        point = kvemb.Checkpoint.at(tmp_path / "store")
        assert {name: path.read_bytes() for name, path in point.files.items()} == expected


def test_files_that_cannot_be_written_leave_nothing(cluster, tmp_path):
    def fails(file):
        file.write(b"part")
        raise RuntimeError("out of ideas")

    wrong = [({"a/b": b""}, ValueError), ({"a": tmp_path / "none"}, FileNotFoundError), ({"a": 3}, TypeError)]
    for files, error in [*wrong, ({"fine": b"", "bad": fails}, RuntimeError)]:
        with pytest.raises(error):
            cluster.checkpoint(files=files)
    assert not list((tmp_path / "scratch").rglob("attached/*"))
    assert not Path(tmp_path / "series" / "checkpoints").exists()
    assert cluster.checkpoint(files={"fine": b"1"}).files == ("fine",)


def test_close_saves_the_rows_after_a_checkpoint_with_files_if_asked(open_cluster, cluster, tmp_path, caplog):
    with open_cluster(1) as other, pytest.raises(ValueError, match="opened without a url"):
        other.close(checkpoint=True)
    with kvemb.cluster.connect(tmp_path / "series", transport="local") as client:
        with pytest.raises(ValueError, match="only the client that opened the cluster"):
            client.close(checkpoint=True)
        cluster.checkpoint(files={"model.pt": b"dense"})
        client.variables["table"].lookup([1])
        cluster.variables["table"].lookup([1])
    with pytest.raises(ValueError, match="does not go with flush=False"):
        cluster.close(flush=False, checkpoint=True)
    cluster.close(checkpoint=True)
    number, found = kvemb.cluster.latest(tmp_path / "series")
    assert (number, found.variables["table"].step) == (2, 2)
    cluster = open_cluster(None, url=tmp_path / "series", number=1)
    assert cluster.variables["table"].lookup([1], touch=False).tolist() == [[1.0]]
    cluster.close()
    assert caplog.messages == [], "nothing has changed"
    cluster = open_cluster(None, url=tmp_path / "series", number=1)
    cluster.variables["table"].lookup([1])
    cluster.close()
    assert caplog.messages == [], "uses alone are no training that is lost"
    cluster = open_cluster(None, url=tmp_path / "series", number=1)
    table = cluster.variables["table"]
    for _ in range(3):
        table.lookup([1])
    table.upsert([1], [[2.0]])
    cluster.close()
    (line,) = caplog.messages
    assert (
        "because checkpoint 1 has files or extra, which a newer one would lack; lost since then: 3 steps; end" in line
    )
    assert kvemb.cluster.latest(tmp_path / "series")[0] == 2


def test_checkpoint_at_the_end_of_a_lost_cluster_says_so(open_cluster, cluster):
    inside(cluster).session.calls.lose(ShardLost("gone"))
    with pytest.raises(ShardLost, match="gone"):
        cluster.close(checkpoint=True)
    cluster.close()
    assert cluster.state.closed


@pytest.mark.slow
def test_close_writes_none_after_one_with_files_so_the_newest_can_be_resumed_from(
    open_cluster, cluster, tmp_path, caplog
):
    saved = cluster.checkpoint(files={"model.pt": b"dense"})
    cluster.variables["table"].upsert([1], [[5.0]])
    cluster.close()
    (line,) = caplog.messages
    assert "because checkpoint 1 has files or extra, which a newer one would lack; lost since then: changes;" in line
    caplog.clear()
    again = open_cluster(2, url=tmp_path / "series")
    assert again.last_checkpoint == saved.number
    assert again.variables["table"].lookup([1]).tolist() == [[1.0]], "rows and files are of the same step"
    again.close()
    assert list(kvemb.cluster.pull_files(tmp_path / "series", tmp_path / "dense")) == ["model.pt"]
    with open_cluster(2, url=tmp_path / "series") as last:
        last.checkpoint(extra={"step": 2})
    number, found = kvemb.cluster.latest(tmp_path / "series")
    assert (number, found.extra) == (2, {"step": 2})
    assert repr(found) == f"<checkpoint of a cluster {found.id}, 2 shards, 1 variable, 3 rows>"
    with open_cluster(2, url=tmp_path / "series") as last:
        assert repr(last.checkpoint()) == "<kvemb.cluster.Checkpoint 3, 1 variable, 3 rows>"
        last.variables["table"].remove([1])
    assert kvemb.cluster.latest(tmp_path / "series")[1].variables["table"].rows == 2, "otherwise close() writes one"
