"""Only one coordinator at a time has a URL; the wait for a killed one is bounded."""

from __future__ import annotations

import json
import sys

import fsspec
import pytest
from waiting import wait_until

import kvemb.cluster
from kvemb.cluster.coordination import lease
from kvemb.cluster.coordination.lease import LOST_RENEWALS, RENEW_SECONDS, SETTLE_SECONDS, Lease
from kvemb.errors import Locked
from kvemb.handle import inside

TIMES = {"renew_seconds": 0.1, "settle_seconds": 0.02}


class Clock:
    """A clock that passes when somebody sleeps. meanwhile: what others do then."""

    def __init__(self):
        self.now, self.meanwhile = 0.0, lambda: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


@pytest.fixture
def files(tmp_path):
    """A filesystem in memory, with a folder of the test's own, and its path."""
    made = fsspec.filesystem("memory", skip_instance_cache=True)
    path = f"/{tmp_path.name}"
    made.makedirs(path, exist_ok=True)
    yield made, f"{path}/LEASE"
    made.rm(path, recursive=True)


def test_a_second_one_is_refused_while_the_first_lives_and_not_later(files, clock):
    first = Lease(*files, "memory://here")
    clock.meanwhile = first.check  # which renews it
    with pytest.raises(Locked, match=r"the cluster at memory://here is open elsewhere, by process \d+ on .*; close it"):
        Lease(*files, "memory://here")
    clock.meanwhile = lambda: None
    first.check()
    first.close()
    first.close()
    assert not files[0].exists(files[1])
    begun = clock.now
    Lease(*files, "memory://here").close()
    assert clock.now - begun == SETTLE_SECONDS


def test_a_holder_whose_file_is_read_while_it_is_written_is_named(files, clock):
    files[0].pipe_file(files[1], b'{"owner": "x", "process": 7, "host": "there"}')
    clock.meanwhile = lambda: files[0].pipe_file(files[1], b"")
    with pytest.raises(Locked, match="is open elsewhere, by process 7 on there; close it"):
        Lease(*files, "memory://here")


@pytest.mark.parametrize("left", [b'{"owner": "x", "process": 1, "host": "h", "renewals": 7}', b"no JSON", b"[]", b""])
def test_what_a_killed_one_left_is_taken_over_after_a_while(files, clock, left):
    files[0].pipe_file(files[1], left)
    second = Lease(*files, "memory://here")
    assert clock.now >= LOST_RENEWALS * RENEW_SECONDS
    second.check()
    second.close()


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's /proc says which processes run")


@on_linux
def test_a_holder_of_this_machine_that_does_not_run_any_more_is_not_waited_for(files, clock):
    """Its number may be another process's by now."""
    holder = Lease(*files, "memory://here")
    left = json.loads(files[0].cat_file(files[1]))
    holder.close()
    *here, began = left["running"].split()
    for running, is_waited_for in (
        ([*here, str(int(began) - 1)], False),
        ([*here, began], True),
        (["another-boot", here[1], str(int(began) - 1)], True),
    ):
        files[0].pipe_file(files[1], json.dumps({**left, "running": " ".join(running)}).encode())
        begun = clock.now
        Lease(*files, "memory://here").close()
        assert (clock.now - begun > SETTLE_SECONDS) == is_waited_for


def test_one_whose_file_was_deleted_writes_it_again(files):
    first = Lease(*files, "memory://here", **TIMES)
    files[0].rm_file(files[1])
    first.check()
    assert files[0].exists(files[1])
    files[0].rm_file(files[1])
    wait_until(lambda: files[0].exists(files[1]))
    first.close()


def test_one_whose_lease_was_taken_knows_and_leaves_it(files):
    first = Lease(*files, "memory://here", settle_seconds=0)  # it does not renew the lease before it is asked
    files[0].pipe_file(files[1], b'{"owner": "x", "process": 7, "host": "there"}')
    with pytest.raises(Locked, match="by process 7 on there, which has taken over its lease"):
        first.check()
    first.close()
    assert files[0].exists(files[1])


def test_a_cluster_at_a_url_publishes_only_while_it_has_the_lease(open_cluster, files, tmp_path):
    url = f"memory://{tmp_path.name}"
    cluster = open_cluster(2, url=url)
    cluster.get_variable("table", dim=1).upsert([1], [[1.0]])
    assert cluster.checkpoint().number == 1
    mine = files[0].cat_file(files[1])
    files[0].pipe_file(files[1], b'{"owner": "x", "process": 7, "host": "there"}')
    with pytest.raises(Locked, match="taken over"):
        cluster.checkpoint()
    assert kvemb.cluster.latest(url)[0] == 1
    files[0].pipe_file(files[1], mine)
    assert cluster.checkpoint().number == 3
    assert inside(cluster).session.calls.lost is None
    cluster.close()
    assert not files[0].exists(files[1])
