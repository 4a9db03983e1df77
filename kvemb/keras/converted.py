"""Optimizers and initializers of Keras, as those of kvemb that a table can have. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kvemb import optimizers
from kvemb.checks.brief import brief
from kvemb.initializers import Initializer, RandomNormal, RandomUniform, TruncatedNormal
from kvemb.initializers.foreign import converted
from kvemb.optimizers import Optimizer

# What Keras' optimizers have and rows cannot: for each the value that means "not used".
_REFUSED = {"global_clipnorm": None, "use_ema": False, "loss_scale_factor": None, "gradient_accumulation_steps": None}
# By which the variance of a normal distribution shrinks when it is cut at two standard deviations.
_TRUNCATED = 0.87962566103423978


def converted_arguments(arguments: Mapping[str, Any], dim: Any, table: Any) -> dict[str, Any]:
    """Return arguments of get_variable with an optimizer and an initializer of kvemb in place of those of Keras."""
    found = dict(arguments)
    if isinstance(found.get("optimizer"), (str, Mapping, keras.optimizers.Optimizer)):
        found["optimizer"] = kvemb_optimizer(found["optimizer"], str(table))
    if isinstance(found.get("initializer"), (str, Mapping, keras.initializers.Initializer)):
        found["initializer"] = kvemb_initializer(found["initializer"], None, dim, str(table))
    return found


def kvemb_optimizer(given: Any, table: str) -> Optimizer:
    """Return an optimizer of a table: kvemb's as it is; SGD, Adagrad, Adam, AdamW and Ftrl of Keras as kvemb's.

    Raises TypeError, ValueError for what kvemb's does not have.
    """
    if isinstance(given, Optimizer):
        return given
    found = keras.optimizers.get(given)
    config, kind = found.get_config(), type(found).__name__
    for name, unused in _REFUSED.items():
        if config.get(name, unused) not in (unused, False, None):
            raise ValueError(f"the optimizer of table {table!r} has {name}={config[name]}, which rows cannot have")
    rate = config["learning_rate"]
    if not isinstance(rate, (int, float)):
        raise ValueError(
            f"the optimizer of table {table!r} has a schedule as its learning rate; give a number, and pass the "
            "schedule to the callback kvemb.keras.LearningRate"
        )
    limits = {"clip_value": config.get("clipvalue"), "clip_norm": config.get("clipnorm")}
    decay = config.get("weight_decay") or 0.0
    decayed = {"weight_decay": decay, "decoupled": True} if decay else {}
    rate = float(str(np.float32(rate)))  # Keras holds it as float32
    common: dict[str, Any] = {"learning_rate": rate, **limits, **decayed}
    adam = {name: config[name] for name in ("beta_1", "beta_2", "epsilon") if name in config}
    adam |= {"epsilon_hat": True, "bias_correction": "global"}
    if kind == "SGD":
        if not config["momentum"]:
            return optimizers.SGD(**common)
        kept = optimizers.Nesterov if config["nesterov"] else optimizers.Momentum
        return kept(momentum=config["momentum"], **common)
    if kind == "Adagrad":
        start = config["initial_accumulator_value"]
        return optimizers.Adagrad(initial_accumulator_value=start, epsilon=config["epsilon"], **common)
    if kind == "Adam":
        return (optimizers.AMSGrad if config["amsgrad"] else optimizers.Adam)(**adam, **common)
    if kind == "AdamW" and not config["amsgrad"]:
        return optimizers.AdamW(rate, weight_decay=decay, **adam, **limits)
    if kind == "Ftrl" and not (decay or config["l2_shrinkage_regularization_strength"] or config["beta"]):
        names = ["learning_rate_power", "initial_accumulator_value"]
        names += ["l1_regularization_strength", "l2_regularization_strength"]
        return optimizers.Ftrl(rate, **{name: config[name] for name in names}, **limits)
    raise ValueError(
        f"the optimizer of table {table!r}, {kind}, is not one that is converted: SGD, Adagrad, Adam, AdamW, and Ftrl "
        "without shrinkage and beta; give one of kvemb.optimizers"
    )


def kvemb_initializer(given: Any, vocabulary: Any, dim: Any, table: str) -> Initializer:
    """Return an initializer of a table: kvemb's as it is; those of Keras of constants and single distributions.

    vocabulary: the number of rows, which VarianceScaling may need. Raises ValueError for another.
    """
    if isinstance(given, Initializer):
        return given
    found = keras.initializers.get(given)
    if (alike := converted(found)) is not None:
        return alike
    if isinstance(found, keras.initializers.VarianceScaling):
        seed = found.get_config()["seed"]  # found.seed is drawn anew in each process
        return _scaled(found, vocabulary, dim, seed if isinstance(seed, int) else None, table)
    raise ValueError(f"the initializer of table {table!r}, {brief(given)}, is not converted; give one of kvemb")


def _scaled(found: Any, vocabulary: Any, dim: Any, seed: int | None, table: str) -> Initializer:
    """Return the distribution of a VarianceScaling for a weight (vocabulary, dim)."""
    if vocabulary is None and found.mode != "fan_out":
        raise ValueError(f"the initializer of table {table!r} depends on vocabulary_size, which the table lacks")
    fan = {"fan_in": vocabulary, "fan_out": dim, "fan_avg": ((vocabulary or 0) + dim) / 2}[found.mode]
    variance = found.scale / max(1.0, fan)
    if found.distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return RandomUniform(-limit, limit, seed)
    if found.distribution == "untruncated_normal":
        return RandomNormal(0.0, math.sqrt(variance), seed)
    return TruncatedNormal(0.0, math.sqrt(variance) / _TRUNCATED, seed)
