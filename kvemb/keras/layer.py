"""RowsLayer: the base of layers over variables. It has no weights of its own but the variables' anchors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from kvemb.checks.brief import brief
from kvemb.initializers import RandomUniform
from kvemb.keras.anchors import anchor_of
from kvemb.keras.exporting import refuse
from kvemb.keras.layer_call import Call, check_backend, look_up
from kvemb.keras.pooled import Wanted
from kvemb.keras.requests import Ids, Request
from kvemb.keras.rows_state import check_saved_state, saved_state
from kvemb.keras.static_tables import look_up as look_up_static
from kvemb.keras.static_tables import static_tables
from kvemb.variable import Variable

# Arguments of Keras' layers that are not supported; the message says what to use instead.
REFUSED = {
    "input_dim": "keys are any integers, and a row is made at its first step; give a name and dim",
    "output_dim": "give dim",
    "embeddings_initializer": "give initializer, such as kvemb.RandomUniform(-0.05, 0.05)",
    "embeddings_regularizer": "give the variable's optimizer weight_decay, such as kvemb.optimizers.AdamW()",
    "embeddings_constraint": "give constraint, as for kvemb.Store.get_variable",
    "weights": "write the rows with layer.variable.upsert(keys, rows)",
    "lora_rank": "rows are trained as they are",
    "quantization_config": "give value_dtype, such as 'float16'",
    "mode": "give combiner, such as 'sum'",
    "learning_rate": "give optimizer, such as kvemb.optimizers.Adagrad(0.05)",
}


# The arrays of the state of a table's rows, in saved weights.
_STATE = ("state", "keys", "rows", "mark")
# How keras.layers.Embedding begins: "uniform".
INITIAL = RandomUniform(-0.05, 0.05)


def check_layer(name: Any, dtype: Any) -> None:
    """Raise for a name or a dtype of a layer that Keras refuses, before a variable is made. TypeError, ValueError."""
    if not isinstance(name, str | None):
        raise TypeError(f"name must be a str or None, got {brief(name)}")
    keras.dtype_policies.get(dtype)


class RowsLayer(keras.layers.Layer):
    """The base of the layers over variables, whose rows are trained by the variables' optimizers.

    Args:
        variables: The variables of the rows. One may be there several times.
        name: The layer's name in a model. None: made from the class's name.
        dtype: The dtype, or the policy of mixed precision, of results. None: Keras' default.
        trainable: Whether the rows are trained.
    """

    def __init__(
        self, variables: Sequence[Variable], *, name: str | None = None, dtype: Any = None, trainable: bool = True
    ) -> None:
        backend = check_backend()
        super().__init__(name=None if name is None else name.replace("/", "_"), dtype=dtype, trainable=trainable)
        self.variables_of_rows: tuple[Variable, ...] = tuple(dict.fromkeys(variables))
        for variable in self.variables_of_rows:
            anchor_of(variable)  # now, as Keras lets no call of a layer make weights
        # XLA compiles no calls of Python in TensorFlow's graphs; JAX's callbacks are compiled.
        self.supports_jit: bool = backend == "jax"
        self.built = True
        self._refused: ValueError | None = None
        self._loaded_before_build = False

    # Keras' lists of weights. Anchors are shared by the layers on a variable, so a frozen layer leaves them out, and
    # does not freeze them for the others.

    @property
    def variables(self) -> list[keras.Variable]:
        """The weights of the layer: for each trained variable, one scalar that stands for its rows."""
        return [*super().variables, *self._rows_as_weights()]

    @property
    def weights(self) -> list[keras.Variable]:
        """As ``variables``."""
        return [*super().weights, *self._rows_as_weights()]

    def _rows_as_weights(self) -> list[keras.Variable]:
        """Return the anchors of the variables; in an export, the tables in their place."""
        tables = static_tables()
        if tables is None:
            return list(self._anchors().values())
        return [weight for variable in self.variables_of_rows for weight in tables[variable].weights]

    def _trackable_children(self, save_type: str = "checkpoint", **others: Any) -> Any:
        """Refuse tf.saved_model.save; TensorFlow calls it."""
        if save_type == "savedmodel" and static_tables() is None:
            refuse()
        return super()._trackable_children(save_type, **others)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Return what tf.train.Checkpoint saves: the states of the rows."""
        import tensorflow as tf

        return {
            f"{what}_{number}": tf.constant(array)
            for number, variable in enumerate(self.variables_of_rows)
            for what, array in zip(_STATE, saved_state(variable), strict=True)
        }

    def _restore_from_tensors(self, restored: Any) -> None:
        """Check the states of the rows that tf.train.Checkpoint restores."""
        self._check_states({name: each.numpy() for name, each in restored.items()}, "the checkpoint of TensorFlow")

    def save_own_variables(self, store: Any) -> None:
        """Save which states of the rows the weights belong to.

        Args:
            store: Where Keras saves arrays by name.

        Raises:
            ValueError: A callback of Keras saves the weights to restore them later, and the rows cannot be marked.
        """
        for number, variable in enumerate(self.variables_of_rows):
            for what, array in zip(_STATE, saved_state(variable), strict=True):
                store[f"{what}_{number}"] = array

    def load_own_variables(self, store: Any) -> None:
        """Check that the rows are in the states to which the weights belong, or take them back there.

        Args:
            store: What ``save_own_variables`` filled.

        Raises:
            ValueError: They are in another one.
        """
        # Keras comes to a layer again under its other names, with nothing saved, and would forget the error.
        if self._refused is not None and not len(store):
            raise self._refused
        self._refused = None
        self._loaded_before_build |= bool(len(store)) and not self._called
        try:
            self._check_states(store, "the saved weights")
        except ValueError as error:
            self._refused = error
            raise

    def _check_states(self, saved: Any, what: str) -> None:
        for number, variable in enumerate(self.variables_of_rows):
            if f"{_STATE[0]}_{number}" in saved:  # weights of earlier versions have none
                there = [f"{each}_{number}" for each in _STATE]
                check_saved_state(variable, [saved[each] for each in there if each in saved], what)

    def _check_loaded(self) -> None:
        """Raise ValueError in a model that Keras did not build before it loaded its weights: it skips those of dense
        layers then, with a warning at most, and their new ones would be used with the rows."""
        model = self._get_call_context().entry_layer
        if not self._loaded_before_build or not isinstance(model, keras.Model):
            return
        unbuilt = [each.name for each in model._flatten_layers() if not each.built and _makes_weights(each)]
        if unbuilt:
            raise ValueError(
                f"the weights of {', '.join(unbuilt)} were not loaded, because {model.name!r} was not built: Keras "
                "builds a model that it loads with floats, which operations such as keras.ops.bitwise_and refuse. Let "
                "call begin with ids = keras.ops.cast(ids, 'int64') and load the model again; before load_weights, "
                "call the model on a batch"
            )
        self._loaded_before_build = False

    def _found(self, wanted: Sequence[Wanted], training: bool | None) -> list[Any]:
        """Return a tensor for each, in the layer's compute dtype. A backward pass trains the rows.

        training: whether uses of rows are recorded. Raises ValueError if a variable that is to be trained has no
        optimizer, and what Store.lookup raises.
        """
        self._check_loaded()
        if (tables := static_tables()) is not None:
            return self._results(wanted, look_up_static(tables, *self._asked(wanted)))
        anchors = self._anchors()
        for variable in anchors:
            if training and variable.optimizer is None:
                raise ValueError(
                    f"variable {variable.name!r} has no optimizer, so its rows cannot be trained: make it with "
                    "optimizer=, such as kvemb.optimizers.Adagrad(0.05), or freeze the layer with trainable=False"
                )
        call = Call(
            *self._asked(wanted),
            {variable: anchor for variable, anchor in anchors.items() if variable.optimizer is not None},
            bool(training),
            self._scaling_optimizer(),
            "mixed_float16" in (self.dtype_policy.name, keras.config.dtype_policy().name),
            self.add_loss,
        )
        return self._results(wanted, look_up(call))

    @staticmethod
    def _asked(wanted: Sequence[Wanted]) -> tuple[tuple[Request, ...], tuple[Ids, ...]]:
        requests, batch = zip(*(each.lookup() for each in wanted), strict=True)
        return requests, batch

    def _results(self, wanted: Sequence[Wanted], found: list[Any]) -> list[Any]:
        """Return the layer's results of what was looked up."""
        rows = [keras.ops.cast(each, self.compute_dtype) for each in found]
        return [each.result(of) for each, of in zip(wanted, rows, strict=True)]

    def _dtype_for(self, variable: Variable) -> str:
        """Return the dtype in which the backend gets rows of a variable: float32, or float64."""
        return "float64" if variable.value_dtype.name == self.compute_dtype == "float64" else "float32"

    def _anchors(self) -> dict[Variable, keras.Variable]:
        """Return the anchors of the variables that this layer trains."""
        if not self.trainable:
            return {}
        trained = (each for each in getattr(self, "variables_of_rows", ()) if each.trainable)
        return {variable: anchor_of(variable) for variable in trained}

    def _scaling_optimizer(self) -> Any:
        """Return the optimizer of the model that is called, if it scales the loss."""
        optimizer = getattr(self._get_call_context().entry_layer, "optimizer", None)
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        return optimizer if scales or getattr(optimizer, "loss_scale_factor", None) is not None else None


def _makes_weights(layer: keras.layers.Layer) -> bool:
    """Whether a layer makes weights of its own in build(); a model's are those of its layers."""
    return type(layer).build is not keras.layers.Layer.build and not isinstance(layer, keras.Model)
