"""Calls on a GPU that does its work late. Callers' arrays change when a call has ended: on their stream, or at once if
their library does not know on which stream they were used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arrays_on_device import there
from blocks import Later
from late_device import LateDevice
from quick import quick

from kvemb.rows.bags import Bags
from kvemb.threads.pool import Here
from tests.tiers.test_gpu_storage import ROWS, Place

STREAMS = [5, 6, 7]


class Late:
    """Arrays in a late GPU's memory. kept: all that were made, as streams still use them."""

    def __init__(self, device: LateDevice, place: Place, chance: np.random.Generator) -> None:
        self.device, self.place, self.chance, self.kept = device, place, chance, list[Any]()

    def made(self, array: Any) -> Any:
        """An array that gets its contents when its stream comes there."""
        array, stream = np.array(array), int(self.chance.choice(STREAMS))
        place = np.full_like(array, 3)
        self.kept.append(place)
        self.device.later(stream, lambda: np.copyto(place, array))
        given = self.place.operations.device_rows.given(there_at(place, stream))
        return replace(given, borrowed=bool(self.chance.random() < 0.2))

    def write(self, array: Any, contents: Any) -> None:
        """Change an array in place."""
        self.device.later(array.stream, lambda: np.copyto(array.owner.array, contents))

    def spoil(self, *arrays: Any) -> None:
        """Their owner uses their memory for something else."""
        for array in arrays:
            if array.borrowed:
                array.owner.array.fill(2)
            else:
                self.device.later(array.stream, lambda array=array: array.owner.array.fill(2))

    def read(self, array: Any) -> Any:
        event = self.device.event()
        self.device.record(event, array.stream)
        self.device.finish(event)
        return array.owner.array.copy()


def there_at(array: Any, stream: int) -> Any:
    found = there(array, stream=stream)
    found.array = array
    return found


@pytest.mark.independent
@pytest.mark.parametrize("seed", quick(range(4), 2))
@pytest.mark.parametrize("below", [64, 0], ids=["three tiers", "two tiers"])
def test_callers_arrays_on_any_streams_are_theirs_when_a_call_ends(seed: int, below: int) -> None:
    chance, readers, device = np.random.default_rng(seed), Later() if seed % 2 else Here(), LateDevice(seed)
    place, model = Place(readers, below, device), np.ones(ROWS)
    late, rows, held = Late(device, place, chance), place.operations, None
    for _ in range(80):
        keys = chance.integers(0, chance.choice([40, ROWS]), chance.integers(1, 60))  # most of the first 40 are hot
        act = chance.integers(10)
        if held is not None and chance.random() < 0.3:  # a step with the keys of a lookup, changed in place or not
            if chance.random() < 0.3:
                keys = np.resize(keys, held.shape)
                late.write(held, keys)
                held = replace(held, version=(held.version or 0) + 1)
            keys = late.read(held)
            grads = late.made(np.ones((len(keys), 2), np.float32))
            rows.apply_gradients_on_device(held, grads)
            np.subtract.at(model, keys, 1)
            late.spoil(grads)
            continue
        given, one = late.made(keys), np.ones((len(keys), 2), np.float32)
        if act == 0:
            ours = keys.copy(), one * 9
            rows.upsert(*ours)
            model[keys] = 9
            ours[0].fill(1), ours[1].fill(1)  # memory that may be pinned
        elif act == 1:
            values = late.made(one * 4)
            rows.upsert_on_device(given, values)
            model[keys] = 4
            late.spoil(given, values)
        elif act == 2:
            ours = keys.copy(), one.copy()
            rows.apply_gradients(*ours)
            np.subtract.at(model, keys, 1)
            ours[0].fill(1), ours[1].fill(1)
        elif act == 3:
            grads = late.made(one)
            rows.apply_gradients_on_device(given, grads)
            np.subtract.at(model, keys, 1)
            late.spoil(given, grads)
        elif act == 4:
            rows.prefetch_on_device(given, after_lookup=bool(chance.integers(2)))
            late.spoil(given)
        elif act == 5:
            changes = late.made(one), late.made(one * 4), late.made(np.ones(len(keys), bool))
            rows.accum_on_device(given, *changes)
            np.add.at(model, keys, 3)
            late.spoil(given, *changes)
        elif act == 6:
            offsets, none = np.sort([0, *chance.integers(0, len(keys) + 1, 4), len(keys)]), np.empty(0, np.float32)
            sums = [model[part].sum() for part in np.split(keys, offsets[1:-1])]
            bags, out, mine = Bags(offsets, none, none, np.inf), late.made(np.zeros((5, 2), np.float32)), keys.copy()
            rows.pool_on_device(mine, bags, out, touch=bool(chance.integers(2)))
            mine.fill(1), offsets.fill(0)
            assert (late.read(out) == np.array(sums)[:, None]).all()
        elif act == 7:
            rows.remove(keys)
            rows.upsert(keys, one * 5)
            model[keys] = 5
        else:
            if act == 8:
                copied = rows.copy(given)
                late.spoil(given)
                given = copied
            out, exists = late.made(one * 0), late.made(np.zeros(len(keys), bool))
            held = replace(given, version=0)  # as PyTorch's
            rows.lookup_on_device(held, out, exists, touch=bool(chance.integers(2)))
            place.storage.ahead.looked_up()
            assert (late.read(out) == model[keys, None]).all()
            assert late.read(exists).all()
        if isinstance(readers, Later) and chance.integers(2):
            readers.go()
    found = np.empty((ROWS, 2), np.float32)
    rows.lookup(np.arange(ROWS), found, None, touch=False)
    assert (found == model[:, None]).all()
    assert place.storage.check() == []
    device.finish_all()
