"""A cluster for all ranks of a script: what one rank does alone, and an error that ends all with its message."""

from __future__ import annotations

import os
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

# A rank: the second one fails in its second step, the first one waits for it there.
RANK = """
import sys, torch, kvemb, kvemb.torch as kt
with kt.distributed(sys.argv[1], shards=1, memory_budget="8MiB", scratch=sys.argv[1] + "-scratch") as store:
    rank, model = torch.distributed.get_rank(), kt.Embedding("users", 2, optimizer=kvemb.optimizers.SGD(1.0))
    rows = kt.Optimizer(model, group=torch.distributed.group.WORLD)
    for step in range(3):
        model(torch.tensor([1])).sum().backward()
        if (rank, step) == (1, 1):
            raise ValueError("boom")
        rows.step()
"""


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


@pytest.mark.slow
@pytest.mark.needs("ray")
def test_an_error_of_one_rank_ends_all_with_its_message(tmp_path):
    """Ray is started by rank 0, with its tokens, of which rank 1 knows nothing; rank 1 has imported Ray before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**os.environ, "RAY_ADDRESS": "local", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common.pop("RAY_AUTH_MODE", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", "import ray\n" * rank + RANK, str(tmp_path / "series")],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "RankLost: rank 1 has ended: ValueError: boom; start all ranks again" in told[0]
    assert told[1].rstrip().endswith("ValueError: boom")
    assert not (tmp_path / "series" / "checkpoints").exists()
    assert list((tmp_path / "series-scratch").iterdir()) == []
