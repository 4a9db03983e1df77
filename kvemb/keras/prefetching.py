"""prefetching: reads the rows of a dataset's next batches from disk while the model trains on the current one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.frameworks.reading_ahead import MAX_DEPTH, Lookup, Prefetch, Source, prefetches_of, read_ahead
from kvemb.keras.keys import joined_keys
from kvemb.keras.layer import RowsLayer
from kvemb.variable import Variable


def prefetching(dataset: Any, ids: Mapping[Variable | RowsLayer, Source], depth: int = 1) -> Any:
    """Return a dataset for ``fit`` with the same batches, whose next rows are read from disk ahead of their use.

    A read begins when the lookup of the current batch has ended, and runs while the model computes. Results do not
    change: rows that change meanwhile are read again.

    Args:
        dataset: A ``tf.data.Dataset``, a ``keras.utils.PyDataset``, or another iterable of batches, such as a torch
            DataLoader.
        ids: A dict from each variable, or layer of one, to where a batch has its ids: the name or index of a field
            (``batch[name]``), or a function of the batch. In ``(x, y)``, field 0 is ``x``.
        depth: How many batches ahead of the current one are read, from 1 to 16.

    Returns:
        For a ``tf.data.Dataset`` such a one, for a PyDataset such a one, which reads on a thread, otherwise a generator
        of one pass over the iterable, for one epoch.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For a ``depth`` out of range.

    Example:
        >>> import kvemb, numpy as np, kvemb.keras as kk
        >>> words = kk.Embedding("words", 4, key_dtype="int32", optimizer=kvemb.optimizers.SGD(0.5))
        >>> batches = [(np.array([[1, 2]], np.int32), 1.0), (np.array([[2, 3]], np.int32), 0.0)]
        >>> [x.tolist() for x, y in kk.prefetching(batches, {words: 0})]
        [[[1, 2]], [[2, 3]]]
    """
    prefetches = prefetches_of(ids, _lookup_of)
    ahead = as_int(depth, "depth", 1, MAX_DEPTH)
    if isinstance(dataset, keras.utils.PyDataset):
        return _Reading(dataset, prefetches, ahead)
    if _is_tf_dataset(dataset):
        return _with_map(dataset, prefetches, ahead)
    if not isinstance(dataset, Iterable):
        raise TypeError(f"dataset must be an iterable of batches, got {brief(dataset)}")
    return read_ahead(iter(dataset), prefetches, ahead)


def _lookup_of(given: Any) -> Lookup:
    variable = getattr(given, "variable", None) if isinstance(given, RowsLayer) else given
    if not isinstance(variable, Variable):
        raise TypeError(f"expected a Variable, or a layer of one, got {brief(given)}")
    split = isinstance(given, RowsLayer) and bool(getattr(given, "split_keys", False))

    def keys_in(ids: Any) -> dict[Variable, Any]:
        keys = np.asarray(keras.ops.convert_to_numpy(ids))
        return {variable: joined_keys(keys) if split else keys}

    return [variable], keys_in


class _Reading(keras.utils.PyDataset):
    """A PyDataset whose batches are read ahead, with their rows, by one thread."""

    def __init__(self, inner: Any, prefetches: list[Prefetch], depth: int) -> None:
        super().__init__(workers=1, use_multiprocessing=False, max_queue_size=depth)
        self._inner, self._prefetches = inner, prefetches

    def __getitem__(self, index: int) -> Any:
        batch = self._inner[index]
        for prefetch in self._prefetches:
            prefetch(batch)
        return batch

    @property
    def num_batches(self) -> Any:
        return self._inner.num_batches

    def on_epoch_begin(self) -> None:
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()


def _is_tf_dataset(dataset: Any) -> bool:
    return any(
        kind.__module__.startswith("tensorflow.") and kind.__name__ == "DatasetV2" for kind in type(dataset).mro()
    )


def _with_map(dataset: Any, prefetches: list[Prefetch], depth: int) -> Any:
    """Return a tf.data.Dataset that reads ahead as its elements are made, `depth` ahead of their use."""
    import tensorflow as tf

    def read(*fields: Any) -> Any:
        batch = fields if len(fields) > 1 else fields[0]
        flat = tf.nest.flatten(batch)

        def prefetch(*arrays: Any) -> np.int64:
            whole = tf.nest.pack_sequence_as(batch, list(arrays))
            for each in prefetches:
                each(whole)
            return np.int64(0)

        done = tf.numpy_function(prefetch, flat, tf.int64)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, batch)

    return dataset.map(read, num_parallel_calls=1, deterministic=True).prefetch(depth)
