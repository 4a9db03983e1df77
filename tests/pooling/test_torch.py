"""Pooled lookups and their gradients are those of torch.nn.functional.embedding_bag, where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_pooled_rows_and_gradients_are_those_of_pytorch(store, mode):
    import torch

    tiered = store.get_variable("words", dim=7, hot_rows=16)
    tiered.upsert(np.arange(-50, 50), np.random.default_rng(6).normal(size=(100, 7)).astype(np.float32))
    draw = np.random.default_rng(5)
    for weighted in (False, True):
        if weighted and mode != "sum":
            continue
        sizes = np.array([0, 3, 20, 1, 0, 6])
        ids, offsets = draw.integers(-50, 50, sizes.sum()), np.cumsum(sizes) - sizes
        ids[5:9] = 7  # the padding of PyTorch, here a weight of 0
        weights = draw.normal(size=len(ids)).astype(np.float32) if weighted else np.ones(len(ids), np.float32)
        weights[ids == 7] = 0
        rows = torch.tensor(tiered.lookup(np.arange(-50, 50), touch=False), requires_grad=True)
        theirs = torch.nn.functional.embedding_bag(
            torch.from_numpy(ids + 50), rows, torch.from_numpy(offsets), mode=mode, padding_idx=57,
            per_sample_weights=torch.from_numpy(weights) if weighted else None,
        )  # fmt: skip
        ours = kvemb.embedding_lookup_sparse(tiered, ids, offsets, weights, mode)
        np.testing.assert_allclose(ours.values, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
        grads = draw.normal(size=ours.shape).astype(np.float32)
        theirs.backward(torch.from_numpy(grads))
        keys, got = ours.row_gradients(grads)
        whole = np.zeros((100, 7), np.float32)
        whole[keys + 50] = got
        np.testing.assert_allclose(whole, rows.grad.numpy(), rtol=1e-5, atol=1e-6)
