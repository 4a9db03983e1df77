"""EmbeddingBag: pooled rows of a variable, as tf.nn.embedding_lookup_sparse and keras_rs' EmbeddingReduce give them."""

from __future__ import annotations

from typing import Any

import keras

from kvemb.keras.embedding import Embedding
from kvemb.keras.pooled import EXTREMES, Wanted
from kvemb.keras.requests import Request
from kvemb.keras.shapes import as_ragged, is_ragged, padded
from kvemb.keras.table_layer import TableLayer
from kvemb.pooling.given_bags import check_combiner
from kvemb.shared_docs import described_as
from kvemb.store import Store
from kvemb.variable import Variable


@described_as(Embedding)
class EmbeddingBag(TableLayer):
    """Pool bags of rows: the last axis of the ids is a bag.

    A bag without weights, of a sum or a mean, is pooled in the store's memory, and only the result becomes a tensor;
    otherwise the backend pools the rows of all ids. ``predict``,
    ``evaluate`` and calls without ``training=True`` insert nothing and record no use.

    A backward pass takes one step of the variable's own optimizer. Gradients of a key that occurs several times, or in
    several layers on the variable, are summed first. The optimizer of ``compile`` trains the dense part.

    Args:
        combiner: How the rows of a bag are pooled. ``"sum"``: the sum of weight * row. ``"mean"``: that sum divided by
            the sum of the weights. ``"sqrtn"``: that sum divided by the square root of the sum of the squared weights.
            ``"max"``, ``"min"``: the largest and the smallest elements of weight * row.
        mask_zero: Whether key 0 is left out of bags: it is neither looked up nor trained.
        padding_idx: A key that is left out of bags.

    Raises:
        TypeError: For an argument of the wrong type, or one of Keras' that does not exist here.
        ValueError: For an unknown combiner, ``mask_zero`` beside another ``padding_idx``, a variable of integers,
            arguments beside a Variable, which exists already, or an unsupported backend.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, numpy as np
        >>> import kvemb.keras as kk
        >>> adagrad = kvemb.optimizers.Adagrad(0.05)
        >>> tags = kk.EmbeddingBag("tags", 16, combiner="mean", mask_zero=True, key_dtype="int32", optimizer=adagrad)
        >>> tuple(tags(np.array([[5, 17], [42, 0]], np.int32)).shape)
        (2, 16)
    """

    _pools = True
    _options = ("combiner", "mask_zero", "padding_idx", "max_norm", "split_keys")

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        combiner: str = "mean",
        *,
        store: Store | None = None,
        mask_zero: bool = False,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        split_keys: bool = False,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **arguments: Any,
    ) -> None:
        how = check_combiner(combiner, EXTREMES)
        if mask_zero is True and padding_idx not in (None, 0):
            raise ValueError(f"mask_zero leaves key 0 out of bags, padding_idx={padding_idx}, too; give one of them")
        super().__init__(
            variable,
            dim,
            store=store,
            mask_zero=mask_zero,
            padding_idx=padding_idx,
            max_norm=max_norm,
            split_keys=split_keys,
            name=name,
            dtype=dtype,
            trainable=trainable,
            **arguments,
        )
        self.combiner: str = how

    def call(self, ids: Any, weights: Any = None, mask: Any = None, training: bool | None = None) -> Any:
        """Return the pooled bags. An empty bag gives zeros.

        Args:
            ids: Keys, integers of shape (..., n): each of the last axis is a bag. With TensorFlow also a RaggedTensor
                (bags, None), or a SparseTensor (bags, n) whose indices are in order.
            weights: Floats of the shape of ``ids``, and ragged or sparse as they are, by which the rows are multiplied.
                They may have a gradient. None: 1.
            mask: Which ids count, bools of the shape of ``ids``. Keras passes the mask of an earlier layer. None: all.
            training: Whether uses of rows are recorded for the variable's policy. ``fit`` passes True.

        Returns:
            Bags of shape ``ids.shape[:-1] + (dim,)``, in the layer's compute dtype.

        Raises:
            TypeError: If ``ids`` are not integers.
            ValueError: For a wrong shape, or if the rows are to be trained and the variable has no optimizer.
            KvembError: What ``kvemb.embedding_lookup_sparse`` raises.
        """
        ids, weights = as_ragged(ids, weights)
        if mask is not None and is_ragged(ids):
            raise ValueError("ragged ids have no mask: leave out the ids that do not count")
        self._check(ids)
        padding = 0 if self.mask_zero else self.padding_idx
        request = Request(self.variable, self.combiner, padding, self.split_keys, self._dtype_for(self.variable))
        wanted = Wanted(request, ids, weights, mask, self.max_norm)
        if wanted.from_rows:
            ids, weights, there = padded(ids, weights)
            wanted = wanted._replace(ids=ids, weights=weights, mask=mask if there is None else there)
        (bags,) = self._found([wanted], training)
        return bags

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> None:
        """Return None: the axis of bags is gone.

        Args:
            ids: Not used.
            previous_mask: Not used.

        Raises:
            TypeError: If ``ids`` are not integers.
        """
        self._check(ids)


keras.saving.register_keras_serializable(package="kvemb")(EmbeddingBag)
