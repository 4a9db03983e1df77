"""Ids of bags of any lengths: TensorFlow's RaggedTensor and SparseTensor, NumPy's arrays of rows. Pure functions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def is_ragged(ids: Any) -> bool:
    """Whether ids are a RaggedTensor."""
    return hasattr(ids, "row_splits") and hasattr(ids, "flat_values")


def is_sparse(ids: Any) -> bool:
    """Whether ids are a sparse tensor of the backend."""
    return bool(getattr(ids, "is_sparse", False)) or hasattr(ids, "dense_shape") or type(ids).__name__ == "BCOO"


def check_sparse(ids: Any, what: str) -> None:
    """Raise TypeError for sparse ids that a layer cannot take."""
    if is_sparse(ids):
        raise TypeError(
            f"{what} must be dense, got a sparse {type(ids).__name__}: pad them and give padding_idx, or with "
            "TensorFlow give an EmbeddingBag a SparseTensor of two dimensions, or tf.RaggedTensor.from_sparse(ids)"
        )


def as_ragged(ids: Any, weights: Any) -> tuple[Any, Any]:
    """Return ids, and weights, of which a SparseTensor (bags, n) is now a RaggedTensor.

    Its indices are in order, as tf.nn.embedding_lookup_sparse wants them. Raises TypeError for other sparse tensors.
    """
    if not is_sparse(ids):
        return ids, weights
    if keras.backend.backend() != "tensorflow" or len(ids.shape) != 2:
        check_sparse(ids, "ids")
    return _ragged(ids), _ragged(weights) if is_sparse(weights) else weights


def _ragged(given: Any) -> Any:
    import tensorflow as tf

    return tf.RaggedTensor.from_value_rowids(given.values, given.indices[:, 0], given.dense_shape[0])


def padded(ids: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return ragged ids and weights as dense tensors, and which of them there are, bools; others as they are, and
    None."""
    if not is_ragged(ids):
        return ids, weights, None
    import tensorflow as tf

    return ids.to_tensor(), weights.to_tensor() if is_ragged(weights) else weights, tf.sequence_mask(ids.row_lengths())


def from_rows(ids: Any, weights: Any, width: int, what: str) -> tuple[Any, Any, Any]:
    """Return NumPy's arrays of rows of ids and weights as arrays (bags, n), n at least width, and which ids there are.

    Others are returned as they are, and None. what: the feature's name in errors. Raises TypeError, ValueError.
    """
    if keras.backend.backend() != "tensorflow":
        ids, weights = (each.numpy() if is_ragged(each) else each for each in (ids, weights))
    if not (isinstance(ids, np.ndarray) and ids.dtype == object):
        return ids, weights, None
    lengths = [len(row) for row in ids]
    there = np.arange(max([width, *lengths])) < np.reshape(lengths, (-1, 1))
    keys = _in_place([np.asarray(row) for row in ids], there)
    if keys.dtype.kind not in "iu":
        raise TypeError(f"ids of {what!r} must be integers, got {keys.dtype.name}")
    if weights is None:
        return keys, None, there
    if [len(row) for row in weights] != lengths:
        raise ValueError(f"the rows of weights of {what!r} must have the lengths of those of its ids")
    return keys, _in_place([np.asarray(row, np.float32) for row in weights], there), there


def _in_place(rows: list[Any], there: Any) -> Any:
    """Return rows as an array of the shape of there, zeros where there is nothing."""
    filled = [row for row in rows if len(row)] or [np.empty(0, np.int64)]  # of an empty one the dtype says nothing
    out = np.zeros(there.shape, np.result_type(*filled))
    out[there] = np.concatenate(filled)
    return out
