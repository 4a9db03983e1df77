"""Writes checkpoints whose tensors have the names that TFRA gives them: python tfra_checkpoints.py DIR.

The classes stand for TFRA's Variable and CuckooHashTable, of which TensorFlow sees what it is to save and to track.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

KEYS = np.arange(11, dtype=np.int64) * 7 - 20
VALUES = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
NAME, STEPS = "tower/words", 17


def shards(values: Any, count: int, seed: int) -> list[tuple[Any, Any]]:
    """Rows in shards by key, in an order of their own."""
    order = np.random.default_rng(seed).permutation(len(KEYS))
    return [(KEYS[at], values[at]) for at in (order[KEYS[order] % count == shard] for shard in range(count))]


def main(folder: Path) -> None:
    """Write the folders objects, names, some_shards, strings and of_files."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    from tensorflow.python.trackable import base, data_structures
    from tensorflow.python.training.saver import BaseSaverBuilder

    class Saveable(BaseSaverBuilder.SaveableObject):
        def __init__(self, table, name, full_name=""):
            pairs = zip(("keys", "values"), (table.keys, table.values), strict=True)
            specs = [BaseSaverBuilder.SaveSpec(tf.constant(array), "", f"{name}-{what}") for what, array in pairs]
            super().__init__(table, specs, name)

        def restore(self, tensors, shapes, name=None):
            return tf.no_op()

    class Table(base.Trackable):
        def __init__(self, keys, values):
            self.keys, self.values = keys, values

        def _gather_saveables_for_checkpoint(self):
            return {"table": partial(Saveable, table=self, name="not used")}

    class Variable(base.Trackable):
        def __init__(self, name, parts):
            tables = data_structures.ListWrapper([])
            self._track_trackable(tables, f"tables_of_{name}", overwrite=True)
            for keys, values in parts:
                tables.append(Table(keys, values))

    def saved(place, **children):
        root = tf.Module()
        for name, child in children.items():
            setattr(root, name, child)
        tf.train.Checkpoint(model=root).save(str(folder / place / "ckpt"))

    slots = {"m": VALUES * 10, "v": VALUES * 100}
    optimizer = tf.Module()
    optimizer.iter = tf.Variable(STEPS, dtype=tf.int64)
    for seed, (slot, values) in enumerate(slots.items()):
        parts = shards(values, 2, seed)
        if slot == "v":  # a row that took no step
            parts = [(keys[keys != 8], rows[keys != 8]) for keys, rows in parts]
        setattr(optimizer, slot, Variable(f"{NAME}/Adam/{slot}", parts))
    saved("objects", words=Variable(NAME, shards(VALUES, 2, 7)), optimizer=optimizer)
    words = np.array([b"one", "zw\u00f6lf".encode(), b""], object)
    saved("strings", words=Variable("texts", [(words, VALUES[:3])]))

    def saved_by_name(place, numbers):
        tables = {NAME: VALUES, f"{NAME}/Adagrad/accumulator": VALUES * 5}
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            saveables = [
                Saveable(Table(*part), f"{name.rpartition('/')[2]}/{name.replace('/', '_')}_mht_{number}of3")
                for name, values in tables.items()
                for number, part in enumerate(shards(values, 3, len(name)), 1)
                if number in numbers
            ]
            saver = tf.compat.v1.train.Saver(saveables)
            saver.save(session, str(folder / place / "model.ckpt"), global_step=5, write_meta_graph=False)

    saved_by_name("names", (1, 2, 3))
    saved_by_name("some_shards", (1, 3))
    module = tf.Module()
    module.count = tf.Variable(1)
    tf.train.Checkpoint(**{"words-prev_global_shard_num": module.count}).save(str(folder / "of_files" / "ckpt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
