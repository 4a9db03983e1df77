"""Models of tests, on layers of kvemb or of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def pooled(model_input: Any, layer: Any, how: str) -> Any:
    """The rows of a layer, pooled unless they are already."""
    rows = layer(model_input)
    return getattr(keras.ops, how)(rows, axis=1) if len(rows.shape) == 3 else rows


def classifier(*layers: Any, how: str = "sum", ids: int = 3, **compiled: Any) -> keras.Model:
    """A functional model of ids (n, ids), which every layer looks up, and of one output."""
    keras.utils.set_random_seed(1)
    given = keras.Input((ids,), dtype="int32")
    parts = [pooled(given, layer, how) for layer in layers]
    hidden = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    model = keras.Model(given, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(hidden)))
    model.compile(
        **{"optimizer": keras.optimizers.SGD(0.5), "loss": keras.losses.BinaryCrossentropy(from_logits=True)} | compiled
    )
    return model


def losses(model: keras.Model, data: tuple[Any, ...], epochs: int = 3, **arguments: Any) -> list[float]:
    """The losses of fit, in the order of the data."""
    fitted = model.fit(*data, **{"batch_size": 64, "epochs": epochs, "shuffle": False, "verbose": 0} | arguments)
    return [float(loss) for loss in fitted.history["loss"]]


def dense_embedding(variable: Any, count: int = 100) -> keras.layers.Embedding:
    """keras.layers.Embedding with the rows of keys 0 to count - 1."""
    layer = keras.layers.Embedding(count, variable.dim)
    layer.build(None)
    layer.set_weights([variable.lookup(np.arange(count, dtype=np.int32))])
    return layer


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A subclassed model of a layer of rows."""

    def __init__(self, rows: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rows, self.out = rows, keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.out(pooled(ids, self.rows, "sum"))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rows": keras.saving.serialize_keras_object(self.rows)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Subclassed:
        return cls(**{**config, "rows": keras.saving.deserialize_keras_object(config["rows"])})


def subclassed(layer: Any) -> Subclassed:
    """A compiled Subclassed, not built yet."""
    keras.utils.set_random_seed(1)
    model = Subclassed(layer)
    model.compile(keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
    return model
