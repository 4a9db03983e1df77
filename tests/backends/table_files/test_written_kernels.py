"""The hash table of written keys against a dict, also when it is nearly full."""

from __future__ import annotations

import numpy as np

from kvemb.backends.table_files.written_kernels import mark_later, put, put_later


def test_cells_are_a_dict_of_the_last_counts():
    random, cells, model = np.random.default_rng(3), np.zeros((256, 2), np.uint64), dict[int, int]()
    used = 0
    for count in range(1, 60):
        keys = random.choice(240, 20, replace=False).astype(np.uint64) * np.uint64(2**56)
        used += put(cells, keys, count)
        model.update(dict.fromkeys(keys.tolist(), count))
        assert used == len(model)
    every = np.arange(256, dtype=np.uint64) * np.uint64(2**56)
    for floor in (0, 30, 58, 59):
        states = np.zeros(256, np.uint8)
        mark_later(cells, every, floor, states, 1)
        assert (states == 1).tolist() == [model.get(key, 0) > floor for key in every.tolist()]
    later = np.zeros((512, 2), np.uint64)
    assert put_later(later, cells, 50) == sum(count > 50 for count in model.values())
    states = np.zeros(256, np.uint8)
    mark_later(later, every, 0, states, 1)
    assert (states == 1).tolist() == [model.get(key, 0) > 50 for key in every.tolist()]
