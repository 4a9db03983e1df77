"""Ranks of a DDP training that are clients of one cluster on Ray: the table and the dense layer of one process."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import kvemb
import kvemb.torch as kt

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]  # Ray's own warnings; and it takes seconds to start

TRAINER = Path(__file__).parents[1] / "ddp_trainer.py"


@pytest.fixture
def ray():
    """Ray on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvemb[cluster]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


def test_two_ranks_train_what_one_process_does(ray, store, tmp_path):
    """Dense gradients are averaged over the ranks; each rank's rows take a step of their own."""
    address = ray.get_runtime_context().gcs_address
    ranks = [subprocess.Popen([sys.executable, TRAINER, str(rank), address, tmp_path]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=600) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()

    from ddp_trainer import RANKS, Model, batches, result

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    models = [Model(store) for _ in range(RANKS)]
    for model in models[1:]:
        model.dense = models[0].dense
    dense, optimizers = torch.optim.SGD(models[0].dense.parameters(), 0.1), [kt.Optimizer(model) for model in models]
    for each in zip(*map(batches, range(RANKS)), strict=True):
        losses = [model(ids).square().mean() for model, ids in zip(models, each, strict=True)]
        for loss in losses:
            loss.backward()
        for parameter in models[0].dense.parameters():
            parameter.grad /= RANKS
        dense.step()
        dense.zero_grad()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.set_num_threads(before)
    expected = result(models[0])
    with np.load(tmp_path / "result.npz") as found:
        assert sorted(found) == sorted(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    saved = kvemb.restore(tmp_path / "series", tmp_path / "saved")
    np.testing.assert_array_equal(saved.variables["users"].export()[1], expected["rows"])
    saved.close()
