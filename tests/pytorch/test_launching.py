"""A cluster for all ranks of a script: what one rank does alone. Examples of several are in tests/test_examples.py."""

from __future__ import annotations

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
