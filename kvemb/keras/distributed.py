"""DistributedEmbedding: many features over many tables, as keras_rs.layers.DistributedEmbedding takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kvemb.checks.brief import brief
from kvemb.keras.configs import config_of, find
from kvemb.keras.keys import check_ids, warn_of_narrow_input, warn_of_short_ids
from kvemb.keras.layer import RowsLayer, check_layer
from kvemb.keras.pooled import Wanted
from kvemb.keras.requests import Request
from kvemb.keras.shapes import as_ragged, from_rows, padded
from kvemb.keras.tables import Feature, at, features_of, with_leaves
from kvemb.shared_docs import described_as
from kvemb.store import Store
from kvemb.variable import Variable

# As keras-rs marks inputs that were preprocessed.
_PREPROCESSED = "preprocessed_inputs_per_placement"
_LONG = 2**31


@described_as(RowsLayer)
class DistributedEmbedding(RowsLayer):
    """Look up and pool many features with one call, as keras_rs.layers.DistributedEmbedding does.

    It takes keras-rs' FeatureConfig and TableConfig objects, or dicts with the same fields. Tables are variables of a
    store, and features may share a table. ``predict`` and ``evaluate`` insert nothing and record no use. A backward
    pass takes one step of each table's own optimizer.

    Of a table's fields, ``name``, ``embedding_dim`` and ``combiner`` are used as they are. ``vocabulary_size`` bounds
    nothing: keys are any integers. SGD, Adagrad, Adam, AdamW and Ftrl of Keras become kvemb's, where Adagrad's epsilon
    is outside of the root; another optimizer is one of kvemb.optimizers. ``placement``, ``max_ids_per_partition`` and
    ``max_unique_ids_per_partition`` are of TPUs, and have no effect; a warning is logged for the placement sparsecore.

    Args:
        feature_configs: Nested dicts, lists and tuples of FeatureConfig objects, or of dicts such as ``{"table":
            {"name": "ads", "embedding_dim": 16, "optimizer": kvemb.optimizers.Adagrad(0.05)}}``. The dict of a table
            may also have other arguments of ``kvemb.Store.get_variable``, or only a name and a ``variable``. That of a
            feature may have ``padding_idx``, a key that is left out of its bags and is neither read nor trained; where
            there are no bags its row is zeros. Without an
            ``initializer`` a table begins as keras-rs' do: a truncated normal distribution with standard deviation
            1/sqrt(embedding_dim).
        store: The store of the tables. None: the default store.
        table_stacking: Only "auto" or None: there is nothing to stack.
        update_stats: Only False: there are no buffers to size.

    Raises:
        TypeError: For a config of another kind.
        ValueError: For an option of TPUs, two tables of one name, or an optimizer or initializer that is not converted.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, numpy as np
        >>> import kvemb.keras as kk
        >>> ads = {"name": "ads", "embedding_dim": 16, "key_dtype": "int32"}
        >>> ads["optimizer"] = kvemb.optimizers.Adagrad(0.05)
        >>> rows = kk.DistributedEmbedding({"clicked": {"table": ads}, "shown": {"table": ads}})
        >>> ids = np.array([[5, 17], [42, 5]], np.int32)
        >>> tuple(rows({"clicked": ids, "shown": ids})["shown"].shape)
        (2, 16)
    """

    def __init__(
        self,
        feature_configs: Any,
        *,
        store: Store | None = None,
        table_stacking: Any = "auto",
        update_stats: bool = False,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        if table_stacking not in ("auto", None) or update_stats:
            raise ValueError(
                f"table_stacking={brief(table_stacking)}, update_stats={brief(update_stats)}: these are of TPUs, and "
                "there is nothing to stack or to size here; leave them out"
            )
        check_layer(name, dtype)
        features = features_of(feature_configs, store)
        super().__init__([each.variable for each in features], name=name, dtype=dtype, trainable=trainable)
        self.features: tuple[Feature, ...] = tuple(features)
        self.structure: Any = with_leaves(feature_configs, {each.path: each.name for each in features})
        # Ids of keras-rs are below vocabulary_size.
        for variable in {each.variable: 0 for each in features if (each.vocabulary or _LONG) >= _LONG}:
            warn_of_short_ids(variable, 3)

    @property
    def tables(self) -> dict[str, Variable]:
        """The tables' variables by name."""
        return {each.variable.name: each.variable for each in self.features}

    def get_embedding_tables(self) -> dict[str, Any]:
        """Return the rows of the tables, as keras-rs' layer does. They are read into memory.

        Returns:
            A dict from a table's name to an array (vocabulary_size, dim): the rows of keys from 0, of which some may
            have only their initial row.

        Raises:
            ValueError: A table has no ``vocabulary_size``; read its rows with ``tables[name].export()``.
            KvembError: What ``kvemb.Variable.lookup`` raises.
        """
        sizes = {each.variable: each.vocabulary for each in self.features}
        found = {}
        for variable, size in sizes.items():
            if size is None:
                raise ValueError(
                    f"the table {variable.name!r} has no vocabulary_size, which says which rows to return; read those "
                    f"that it has with layer.tables[{variable.name!r}].export()"
                )
            found[variable.name] = variable.lookup(np.arange(size).astype(variable.key_dtype), touch=False)
        return found

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Look up the features and pool them, with one call of the store.

        Args:
            inputs: Ids in the structure of ``feature_configs``: integers (batch, n), pooled over n, or (batch,). With
                TensorFlow also a RaggedTensor or a SparseTensor of bags. Or what ``preprocess`` returned.
            weights: Floats in the same structure and of the same shapes. None: 1.
            training: Whether uses of rows are recorded. ``fit`` passes True.

        Returns:
            Tensors (batch, dim) in the structure of ``feature_configs``.

        Raises:
            TypeError: If ids are not integers.
            ValueError: For another structure or shape, or if a table that is to be trained has no optimizer.
            KvembError: What ``kvemb.Store.lookup`` raises.
        """
        inputs, weights, masks = _unpacked(inputs, weights)
        wanted = []
        for number, (feature, given, weight) in enumerate(self._given(inputs, weights)):
            ids, weight = as_ragged(given, weight)
            shape = check_ids(ids, f"ids of {feature.name!r}", split=False, least_rank=1)
            combiner = feature.combiner if len(shape) > 1 else None
            if combiner is None and feature.combiner != "sum":
                weight = None  # a mean of one row is that row
            request = Request(feature.variable, combiner, feature.padding, dtype=self._dtype_for(feature.variable))
            there = masks.get(str(number))
            if weight is not None and there is None:
                ids, weight, there = padded(ids, weight)
            wanted.append(Wanted(request, ids, weight, there))
        found = self._found(wanted, training)
        return with_leaves(self.structure, dict(zip([each.path for each in self.features], found, strict=True)))

    def preprocess(self, inputs: Any, weights: Any = None, training: bool = False) -> Any:
        """Put inputs and weights together, as one argument of a model, and pad bags of any lengths.

        Args:
            inputs: Ids in the structure of ``feature_configs``. Also, with each backend, NumPy arrays of rows: objects
                that are arrays of any lengths. They are padded, at least to ``input_shape[1]`` of the feature, and what
                is padded does not count.
            weights: Weights in the same structure, or None.
            training: Ignored. It is here because keras-rs has it.

        Returns:
            What ``call`` takes as ``inputs``.

        Raises:
            TypeError: If the ids of rows are not integers.
            ValueError: If inputs or weights lack a feature, or if rows of weights have other lengths than those of ids.
        """
        ids: dict[tuple[Any, ...], Any] = {}
        factors: dict[tuple[Any, ...], Any] = {}
        masks: dict[str, Any] = {}
        for number, (feature, given, weight) in enumerate(self._given(inputs, weights)):
            ids[feature.path], factors[feature.path], mask = from_rows(given, weight, feature.width, feature.name)
            if mask is not None:
                masks[str(number)] = mask
        packed = {"inputs": with_leaves(self.structure, ids)}
        if weights is not None:
            packed["weights"] = with_leaves(self.structure, factors)
        if masks:
            packed["masks"] = masks
        return {_PREPROCESSED: {"default_device": packed}}

    def compute_output_shape(self, input_shapes: Any) -> Any:
        """Return the shapes of the results.

        Args:
            input_shapes: The shapes of ids, in the structure of ``feature_configs``.

        Returns:
            The shapes in the same structure.
        """
        shapes, _, _ = _unpacked(input_shapes, None)
        out = {each.path: (at(shapes, each.path, "shapes")[0], each.variable.dim) for each in self.features}
        return with_leaves(self.structure, out)

    def compute_output_spec(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Return the shapes and dtypes of results. Nothing is looked up.

        Args:
            inputs: As for ``call``.
            weights: Not used.
            training: Not used.

        Returns:
            KerasTensors in the structure of ``feature_configs``.

        Raises:
            TypeError: If ids are not integers.
            ValueError: For another structure or shape.
        """
        ids, _, _ = _unpacked(inputs, weights)
        out = {}
        for each in self.features:
            given = at(ids, each.path, "inputs")
            shape = check_ids(given, f"ids of {each.name!r}", split=False, least_rank=1)
            warn_of_narrow_input(given, each.variable)
            leading = shape[:-1] if len(shape) > 1 else shape
            out[each.path] = keras.KerasTensor((*leading, each.variable.dim), dtype=self.compute_dtype)
        return with_leaves(self.structure, out)

    def get_config(self) -> dict[str, Any]:
        """Return what ``from_config`` takes.

        Returns:
            The layer's arguments, and which variables of which store have the rows, as JSON values.
        """
        features = {}
        for each in self.features:
            table = {**config_of(each.variable), "combiner": each.combiner, "vocabulary_size": each.vocabulary}
            features[each.path] = {"name": each.name, "table": table, "padding_idx": each.padding}
        return {**super().get_config(), "feature_configs": with_leaves(self.structure, features)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """Return a layer on the variables of a config, which are found in the innermost default store.

        Args:
            config: What ``get_config`` returned.

        Returns:
            The layer.

        Raises:
            StoreNotFound: If no store is open that has the variables; the message says what to open.
        """
        return cls(**{**config, "feature_configs": _opened(config["feature_configs"], cls.__name__)})

    def _given(self, inputs: Any, weights: Any) -> list[tuple[Feature, Any, Any]]:
        """Return each feature with its ids and weights. Raises ValueError if one lacks them."""
        return [
            (each, at(inputs, each.path, "inputs"), None if weights is None else at(weights, each.path, "weights"))
            for each in self.features
        ]


keras.saving.register_keras_serializable(package="kvemb")(DistributedEmbedding)


def _unpacked(inputs: Any, weights: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return inputs and weights of what preprocess() returned, or as they are, and masks by the features' numbers."""
    if isinstance(inputs, Mapping) and _PREPROCESSED in inputs:
        packed = inputs[_PREPROCESSED]["default_device"]
        return packed["inputs"], packed.get("weights"), packed.get("masks", {})
    return inputs, weights, {}


def _opened(configs: Any, what: str) -> Any:
    """Return the features of a config with Variables in place of their names."""
    if isinstance(configs, Mapping) and "table" in configs:
        table = configs["table"]
        kept = {name: table[name] for name in ("combiner", "vocabulary_size")}
        return {**configs, "table": {"name": table["variable"], "variable": find(table, what), **kept}}
    if isinstance(configs, Mapping):
        return {key: _opened(each, what) for key, each in configs.items()}
    return [_opened(each, what) for each in configs]
