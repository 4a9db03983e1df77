"""Embedding: keras.layers.Embedding over a variable."""

from __future__ import annotations

from typing import Any

import keras

from kvemb.keras.pooled import Wanted
from kvemb.keras.requests import Request
from kvemb.keras.shapes import check_sparse, is_ragged
from kvemb.keras.table_layer import TableLayer


class Embedding(TableLayer):
    """Look up rows by key, as keras.layers.Embedding does by index.

    Keys are any integers of the variable's key dtype, so the layer takes no number of rows. A key without a row reads
    as its initial row. The first step on a key creates its row. ``predict``, ``evaluate`` and calls without
    ``training=True`` insert nothing and record no use.

    A backward pass takes one step of the variable's own optimizer. Gradients of a key that occurs several times, or in
    several layers on the variable, are summed first. The optimizer of ``compile`` trains the dense part.

    Args:
        variable: A Variable, or the name of one, which is opened or made with the other arguments.
        dim: The number of values in a row. A new variable needs it; otherwise it may be left out.
        store: The store of a variable that is given by name. None: the default store.
        mask_zero: Whether later layers mask the places of key 0, as after keras.layers.Embedding.
        padding_idx: A key whose row is zeros. It is not looked up, created or trained.
        max_norm: The L2 norm to which longer rows are scaled down; the table does not change. None: no bound.
        split_keys: Whether keys are pairs of int32, as ``kvemb.keras.split_keys`` makes them.
        name: The layer's name in a model, which is also the variable's if ``variable`` is not given. None: made from
            the class's name.
        dtype: The dtype, or the policy of mixed precision, of results. None: Keras' default. The dtype of the rows in
            the store is ``value_dtype``.
        trainable: Whether the rows are trained.
        **arguments: Other arguments of ``kvemb.Store.get_variable``, such as ``optimizer`` and ``initializer``, also
            those of Keras: SGD, Adagrad, Adam, AdamW and Ftrl, and initializers of a constant or of one distribution.
            Without an initializer, new rows are uniform in ±0.05, as those of keras.layers.Embedding are.

    Raises:
        TypeError: For an argument of the wrong type, or one of Keras' that does not exist here.
        ValueError: For a variable of integers, arguments beside a Variable, which exists already, or an unsupported
            backend.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, numpy as np
        >>> import kvemb.keras as kk
        >>> words = kk.Embedding("words", 16, key_dtype="int32", optimizer=kvemb.optimizers.Adagrad(0.05))
        >>> tuple(words(np.array([[5, 17], [5, -3]], np.int32)).shape)
        (2, 2, 16)
    """

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Return the rows of keys.

        Args:
            ids: Keys, integers of any shape. With TensorFlow also a RaggedTensor.
            training: Whether uses of rows are recorded for the variable's policy. ``fit`` passes True.

        Returns:
            Rows of shape ``ids.shape + (dim,)``, in the layer's compute dtype; a RaggedTensor of them for such ids.

        Raises:
            TypeError: If ``ids`` are not integers.
            ValueError: If the rows are to be trained and the variable has no optimizer.
            KvembError: What ``kvemb.Variable.lookup`` raises.
        """
        check_sparse(ids, "ids")
        self._check(ids)
        request = Request(self.variable, None, self.padding_idx, self.split_keys, self._dtype_for(self.variable))
        flat = ids.flat_values if is_ragged(ids) else ids
        (rows,) = self._found([Wanted(request, flat, max_norm=self.max_norm)], training)
        return ids.with_flat_values(rows) if is_ragged(ids) else rows

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Return which ids are not 0, if ``mask_zero``.

        Args:
            ids: As for ``call``.
            mask: Not used.

        Returns:
            Bools of the shape of ``ids``, or None.

        Raises:
            TypeError: If ``ids`` are not integers.
        """
        self._check(ids)
        if not self.mask_zero:
            return None
        zeros = keras.ops.equal(ids, 0)
        return keras.ops.logical_not(keras.ops.all(zeros, axis=-1) if self.split_keys else zeros)


keras.saving.register_keras_serializable(package="kvemb")(Embedding)
