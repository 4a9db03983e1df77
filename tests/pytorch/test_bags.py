"""Ids in bags: what tensors give which arrays. What is refused is in test_embedding_bag."""

from __future__ import annotations

import numpy as np
import torch

from kvemb.torch.bags import Ids, bags_of, keys_of


def given(ids: torch.Tensor) -> Ids:
    return Ids(keys_of(ids).reshape(-1), tuple(ids.shape), ids.device)


def test_keys_share_the_memory_of_a_tensor():
    ids = torch.arange(4)
    keys = keys_of(ids)
    ids[0] = 9
    assert keys.tolist() == [9, 1, 2, 3]
    assert keys_of(torch.tensor([1, 2], dtype=torch.int32)).dtype == np.int32


def test_bags_know_whether_each_has_one_id():
    ids = torch.arange(4)
    assert bags_of(given(ids), torch.arange(4)).one_each
    assert bags_of(given(ids[:, None])).one_each
    for offsets in ([0, 1, 2], [0, 1, 1, 3], [0, 0, 1, 2]):
        assert not bags_of(given(ids), torch.tensor(offsets)).one_each
    assert not bags_of(given(ids.view(2, 2))).one_each
    found = bags_of(given(ids.view(2, 2)))
    assert (found.offsets.tolist(), found.count, found.keys.tolist()) == ([0, 2], 2, [0, 1, 2, 3])


def test_offsets_are_copied_and_the_last_is_left_off():
    offsets = torch.tensor([0, 1, 4])
    found = bags_of(given(torch.arange(4)), offsets, include_last_offset=True)
    offsets[1] = 3
    assert (found.offsets.tolist(), found.count) == ([0, 1], 2)
