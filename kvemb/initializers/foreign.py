"""Initializers of TensorFlow and Keras as kvemb's, by the names of their classes; neither is imported."""

from __future__ import annotations

from typing import Any

from kvemb.checks.numeric import is_number
from kvemb.initializers.base import Initializer
from kvemb.initializers.fixed import Constant, Ones, Row, Zeros
from kvemb.initializers.random import RandomNormal, RandomUniform, TruncatedNormal


def converted(given: Any) -> Initializer | None:
    """Return kvemb's initializer for one of tf.initializers or keras.initializers; None if there is none.

    Those whose numbers depend on a weight's shape, such as GlorotUniform, have none: a table has no number of rows. A
    seed is kept if the user gave one, otherwise the variable's name gives it.
    """
    describe = getattr(given, "get_config", None)
    if isinstance(given, type) or not callable(describe):
        return None
    said = describe()
    seed = said.get("seed")
    seed = seed if isinstance(seed, int) else None
    match type(given).__name__:
        case "Zeros":
            return Zeros()
        case "Ones":
            return Ones()
        case "Constant":
            value = said["value"]
            return Constant(value) if is_number(value) else Row(value)
        case "RandomUniform":
            return RandomUniform(said["minval"], 1.0 if said["maxval"] is None else said["maxval"], seed)
        case "RandomNormal":
            return RandomNormal(said["mean"], said["stddev"], seed)
        case "TruncatedNormal":
            return TruncatedNormal(said["mean"], said["stddev"], seed)
    return None
