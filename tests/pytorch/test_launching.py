"""A cluster for all ranks of a script: what one rank does alone. Examples of several are in tests/test_examples.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest
import torch

import kvemb
import kvemb.cluster
import kvemb.torch as kt
from kvemb.cluster import ray_here
from kvemb.cluster.ray_here import RayAddress
from kvemb.errors import RankLost


@pytest.fixture
def here(monkeypatch):
    """Shards in this process instead of on Ray; what was joined and left."""
    done = []
    address = RayAddress("127.0.0.1:1", "here", "", True)
    monkeypatch.setattr(ray_here, "connect_or_start", lambda: done.append("joined") or (address, True))
    monkeypatch.setattr(ray_here, "leave", lambda: done.append("left"))
    monkeypatch.setattr(kvemb.cluster, "open", partial(kvemb.cluster.open, transport="local", memory_budget="4MiB"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return done


def test_without_torchrun_it_is_one_rank_whose_end_is_saved(here, tmp_path, no_default):
    with kt.distributed(tmp_path / "series", shards=2) as store:
        assert (torch.distributed.get_rank(), torch.distributed.get_world_size(), store.shards) == (0, 1, 2)
        module = kt.Embedding("users", 2, optimizer=kvemb.optimizers.SGD(1.0))
        rows = kt.Optimizer(module, group=torch.distributed.group.WORLD)
        module(torch.tensor([1])).sum().backward()
        rows.step()
    assert here == ["joined", "left"]
    assert not torch.distributed.is_initialized()
    assert kvemb.cluster.latest(tmp_path / "series")[1].variables["users"].rows == 1


def test_an_error_closes_the_cluster_without_a_checkpoint(here, tmp_path, no_default):
    for failure in (ValueError("boom"), RankLost("rank 7 has ended")):
        with (  # noqa: PT012
            pytest.raises(type(failure), match=str(failure)),
            kt.distributed(tmp_path / "series", shards=2) as store,
        ):
            store.get_variable("users", dim=2).upsert([1], [[1.0, 1]])
            raise failure
        assert store.state.closed
    assert not (tmp_path / "series" / "checkpoints").exists()
    assert here == ["joined", "left"] * 2
    with pytest.raises(ValueError, match="shards must be"):
        kt.distributed(tmp_path / "series", shards=0).__enter__()
    assert here == ["joined", "left"] * 3
    assert not torch.distributed.is_initialized()
    with pytest.raises(ValueError, match="leave transport out"):
        kt.distributed(tmp_path / "series", transport="local").__enter__()


_RANK = """
import os, signal, sys
import torch
from kvemb.torch.launching import _begin_group

_begin_group(3.0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
torch.distributed.barrier()
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    model(torch.ones(1, 1)).sum().backward()
except RuntimeError as error:
    assert "3000ms" in str(error), error
    sys.exit(7)
"""


@pytest.mark.slow
def test_a_rank_that_hangs_is_not_waited_for_in_backward_longer_than_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    how = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen([sys.executable, "-c", _RANK], env={**how, "RANK": rank}) for rank in "01"]
    try:
        assert ranks[0].wait(120) == 7, "torch waits for half an hour by default"
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
