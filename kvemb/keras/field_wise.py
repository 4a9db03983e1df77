"""FieldWiseEmbedding: bags of the ids of each field, as TFRA's layer of that name gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import keras

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.keras.embedding_bag import EmbeddingBag
from kvemb.keras.keys import is_placeholder
from kvemb.keras.shapes import check_sparse, is_ragged
from kvemb.shared_docs import described_as
from kvemb.store import Store
from kvemb.variable import Variable

MAX_FIELDS = 1 << 16


@described_as(EmbeddingBag)
class FieldWiseEmbedding(EmbeddingBag):
    """Pool the ids of each field of an example: a function says to which field an id belongs.

    Otherwise as EmbeddingBag. All ids of a batch are passed to the store once for each field, with a mask, so give
    fields that have ids of their own to a DistributedEmbedding.

    Args:
        nslots: The number of fields.
        slot_map_fn: A function from ids to the numbers of their fields, integers from 0 to ``nslots`` - 1 of the same
            shape, of operations of the backend or ``keras.ops``. Ids with other numbers are left out. To save and load
            a model, register it with ``keras.saving.register_keras_serializable``.

    Raises:
        TypeError: For an argument of the wrong type, or one of Keras' that does not exist here.
        ValueError: For an unknown combiner, ``nslots`` below 1, a variable of integers, arguments beside a Variable,
            which exists already, or an unsupported backend.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, numpy as np
        >>> import kvemb.keras as kk
        >>> def field_of(ids):
        ...     return ids % 3
        >>> rule = kvemb.optimizers.Adagrad(0.05)
        >>> fields = kk.FieldWiseEmbedding("fields", 2, 3, field_of, key_dtype="int32", optimizer=rule)
        >>> tuple(fields(np.array([[23, 12, 0], [9, 13, 10]], np.int32)).shape)
        (2, 3, 2)
    """

    _options = ("nslots", "combiner", "mask_zero", "padding_idx", "max_norm")

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        nslots: int = 1,
        slot_map_fn: Callable[[Any], Any] | None = None,
        combiner: str = "sum",
        *,
        store: Store | None = None,
        mask_zero: bool = False,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **arguments: Any,
    ) -> None:
        count = as_int(nslots, "nslots", 1, MAX_FIELDS)
        if not callable(slot_map_fn):
            raise TypeError(f"slot_map_fn must be a function from ids to numbers of fields, got {brief(slot_map_fn)}")
        super().__init__(
            variable,
            dim,
            combiner,
            store=store,
            mask_zero=mask_zero,
            padding_idx=padding_idx,
            max_norm=max_norm,
            name=name,
            dtype=dtype,
            trainable=trainable,
            **arguments,
        )
        self.nslots: int = count
        self.slot_map_fn: Callable[[Any], Any] = slot_map_fn

    def call(self, ids: Any, weights: Any = None, mask: Any = None, training: bool | None = None) -> Any:
        """Return the pooled rows of each field.

        Args:
            ids: Keys, integers of shape (..., n).
            weights: Floats of the shape of ``ids``. None: 1.
            mask: Which ids count, bools of the shape of ``ids``. None: all.
            training: Whether uses of rows are recorded for the variable's policy. ``fit`` passes True.

        Returns:
            Bags of shape ``ids.shape[:-1] + (nslots, dim)``, in the layer's compute dtype. A field without ids gives
            zeros.

        Raises:
            TypeError: If ``ids`` are not integers, or are ragged or sparse.
            ValueError: For a wrong shape, or if the rows are to be trained and the variable has no optimizer.
            KvembError: What ``kvemb.embedding_lookup_sparse`` raises.
        """
        check_sparse(ids, "ids")
        if is_ragged(ids):
            raise TypeError("ids of a FieldWiseEmbedding must be dense, got a RaggedTensor: pad them with padding_idx")
        self._check(ids)
        ops = keras.ops
        ids = ops.convert_to_tensor(ids)
        if is_placeholder(ids):  # of floats, of which the function may compute no field
            ids = ops.cast(ids, "int32" if self.variable.key_dtype.itemsize <= 4 else "int64")
        numbers = ops.expand_dims(ops.cast(self.slot_map_fn(ids), "int32"), -2)
        here = ops.equal(numbers, ops.reshape(ops.arange(self.nslots, dtype="int32"), (self.nslots, 1)))
        if mask is not None:
            here = ops.logical_and(here, ops.expand_dims(ops.cast(mask, "bool"), -2))
        ids = ops.repeat(ops.expand_dims(ids, -2), self.nslots, axis=-2)
        if weights is not None:
            weights = ops.repeat(ops.expand_dims(ops.convert_to_tensor(weights), -2), self.nslots, axis=-2)
        return super().call(ids, weights, here, training)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the result for ids of a shape.

        Args:
            input_shape: The shape of the ids.

        Returns:
            The shape.
        """
        return (*tuple(input_shape)[:-1], self.nslots, self.variable.dim)

    def get_config(self) -> dict[str, Any]:
        """Return what ``from_config`` takes.

        Returns:
            The layer's arguments, and which variable of which store has the rows, as JSON values.
        """
        return {**super().get_config(), "slot_map_fn": keras.saving.serialize_keras_object(self.slot_map_fn)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer on the variable of a config, which is found in the innermost default store.

        Args:
            config: What ``get_config`` returned.

        Returns:
            The layer.

        Raises:
            StoreNotFound: If no store is open that has the variable; the message says what to open.
        """
        slot_map_fn = keras.saving.deserialize_keras_object(config["slot_map_fn"])
        return super().from_config({**config, "slot_map_fn": slot_map_fn})


keras.saving.register_keras_serializable(package="kvemb")(FieldWiseEmbedding)
