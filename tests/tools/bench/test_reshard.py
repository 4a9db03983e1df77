"""The benchmark of resharding compares all rows before and after, and tells of speed and of memory."""

from __future__ import annotations

import pytest

import kvemb.cluster
from kvemb.tools.bench.cluster import reshard


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reshard, "result_of", lambda _, function, **work: getattr(reshard, function)(**work))


@pytest.mark.slow
def test_rows_are_compared_and_each_hop_is_told_beside_each_peer(tmp_path):
    report = reshard.run(400, 2, 1, tmp_path)
    names = [f"from {before} shards to {after}" for before, after in ((4, 7), (7, 3), (3, 1))]
    assert [line.name for line in report.lines[:6]] == [f"rows {name}" for name in names] * 2
    assert [line.peer_name for line in report.lines[::3][:2]] == list(reshard.PEERS)
    assert [line.name for line in report.lines[6:]] == [
        f"anonymous memory, {each}" for each in [*names, *reshard.PEERS]
    ]
    assert report.facts == {"rows_compared": 400}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_rows_that_differ_are_an_error(tmp_path, monkeypatch):
    actual = kvemb.cluster.reshard

    def wrong(url, out, *, shards, scratch):
        with kvemb.cluster.open(url, transport="local", scratch=scratch, memory_budget="4MiB") as cluster:
            cluster.variables["table"].upsert([5], [[0.25, 0.5]])
        return actual(url, out, shards=shards, scratch=scratch)

    monkeypatch.setattr(kvemb.cluster, "reshard", wrong)
    with pytest.raises(AssertionError, match="differ"):
        reshard.run(40, 2, 1, tmp_path)
