"""Optimizers as in their sources, in NumPy and float64, over a whole array of rows with one count of steps.

Written from their sources, and not from kvemb: torch/optim/*.py (single tensor variants), keras/src/optimizers/*.py
of Keras 3, tensorflow/core/kernels/training_ops.cc, and FBGEMM's codegen/genscript/optimizers.py.

A step is a function of an optimizer o, rows w and gradients g (n, dim), the state s, which it changes, and the number
t of the step, from 1; it returns the new rows. s: arrays (n, dim), or (n, 1) where a row has one number, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Step = Callable[[Any, Array, Array, dict[str, Array], int], Array]


def torch_sgd(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    return w - o.learning_rate * g


def torch_momentum(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["velocity"] = o.momentum * s["velocity"] + g if t > 1 else g.copy()
    return w - o.learning_rate * s["velocity"]


def torch_nesterov(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["velocity"] = o.momentum * s["velocity"] + g if t > 1 else g.copy()
    return w - o.learning_rate * (g + o.momentum * s["velocity"])


def torch_adagrad(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["accumulator"] = s["accumulator"] + g * g
    return w - o.learning_rate * (g / (np.sqrt(s["accumulator"]) + o.epsilon))


def fbgemm_row_wise_adagrad(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["accumulator"] = s["accumulator"] + np.mean(g**2, axis=1, keepdims=True)
    return w - o.learning_rate / (np.sqrt(s["accumulator"]) + o.epsilon) * g


def torch_adadelta(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["v"] = s["v"] * o.rho + (1 - o.rho) * g * g
    delta = np.sqrt(s["u"] + o.epsilon) / np.sqrt(s["v"] + o.epsilon) * g
    s["u"] = s["u"] * o.rho + (1 - o.rho) * delta * delta
    return w - o.learning_rate * delta


def torch_rmsprop(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["v"] = o.rho * s["v"] + (1 - o.rho) * g * g
    average = s["v"]
    if o.centered:
        s["mean"] = s["mean"] + (g - s["mean"]) * (1 - o.rho)
        average = np.maximum(s["v"] - s["mean"] ** 2, 0)
    step = g / (np.sqrt(average) + o.epsilon)
    if o.momentum > 0:
        s["velocity"] = o.momentum * s["velocity"] + step
        step = s["velocity"]
    return w - o.learning_rate * step


def _averages(o: Any, g: Array, s: dict[str, Array]) -> None:
    s["m"] = s["m"] + (g - s["m"]) * (1 - o.beta_1)
    s["v"] = o.beta_2 * s["v"] + (1 - o.beta_2) * g * g


def torch_adam(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    _averages(o, g, s)
    return _adam_step(o, w, s["m"], s["v"], t)


def _adam_step(o: Any, w: Array, m: Array, v: Array, t: int) -> Array:
    if o.epsilon_hat:  # torch.optim.SparseAdam, Keras
        return w - o.learning_rate * np.sqrt(1 - o.beta_2**t) / (1 - o.beta_1**t) * m / (np.sqrt(v) + o.epsilon)
    return w - o.learning_rate / (1 - o.beta_1**t) * m / (np.sqrt(v) / np.sqrt(1 - o.beta_2**t) + o.epsilon)


def torch_adamw(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    return torch_adam(o, w * (1 - o.learning_rate * o.weight_decay), g, s, t)


def torch_amsgrad(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    _averages(o, g, s)
    s["v_max"] = np.maximum(s["v_max"], s["v"])
    return _adam_step(o, w, s["m"], s["v_max"], t)


def torch_adamax(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["m"] = s["m"] + (g - s["m"]) * (1 - o.beta_1)
    s["u"] = np.maximum(s["u"] * o.beta_2, np.abs(g) + o.epsilon)
    return w - o.learning_rate / (1 - o.beta_1**t) * s["m"] / s["u"]


def torch_nadam(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    def mu(step: int) -> float:
        return float(o.beta_1 * (1 - 0.5 * 0.96 ** (step * o.momentum_decay)))

    product = np.prod([mu(step) for step in range(1, t + 1)])
    _averages(o, g, s)
    root = np.sqrt(s["v"] / (1 - o.beta_2**t)) + o.epsilon
    w = w - o.learning_rate * (1 - mu(t)) / (1 - product) * g / root
    return w - o.learning_rate * mu(t + 1) / (1 - product * mu(t + 1)) * s["m"] / root


def keras_lamb_of_each_row(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    _averages(o, g, s)
    r = s["m"] / (1 - o.beta_1**t) / (np.sqrt(s["v"] / (1 - o.beta_2**t)) + o.epsilon) + o.weight_decay * w
    of_w, of_r = (np.linalg.norm(each, axis=1, keepdims=True) for each in (w, r))
    with np.errstate(all="ignore"):
        ratio = np.where((of_w > 0) & (of_r > 0), of_w / of_r, 1.0)
    return w - o.learning_rate * ratio * r


def fbgemm_partial_row_wise_adam(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["v"] = o.beta_2 * s["v"] + (1 - o.beta_2) * np.mean(g**2, axis=1, keepdims=True)
    s["m"] = o.beta_1 * s["m"] + (1 - o.beta_1) * g
    m_hat, v_hat = s["m"] / (1 - o.beta_1**t), s["v"] / (1 - o.beta_2**t)
    return w - o.learning_rate * (m_hat / (np.sqrt(v_hat) + o.epsilon) + o.weight_decay * w)


def keras_ftrl(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    if t == 1:  # added by kvemb: the initial z keeps w
        scale = s["accumulator"] ** -o.learning_rate_power / o.learning_rate + 2 * o.l2_regularization_strength
        s["linear"] = -(scale * w) - np.sign(w) * o.l1_regularization_strength
    new = s["accumulator"] + g**2
    sigma = (new**-o.learning_rate_power - s["accumulator"] ** -o.learning_rate_power) / o.learning_rate
    s["linear"] = s["linear"] + g - sigma * w
    quadratic = new**-o.learning_rate_power / o.learning_rate + 2 * o.l2_regularization_strength
    clipped = np.clip(s["linear"], -o.l1_regularization_strength, o.l1_regularization_strength)
    s["accumulator"] = new
    return (clipped - s["linear"]) / quadratic


def _proximal(w: Array, g: Array, rate: Array, l1: float, l2: float) -> Array:
    prox = w - g * rate
    if l1 > 0:
        return np.sign(prox) * np.maximum(np.abs(prox) - rate * l1, 0) / (1 + l2 * rate)
    return prox / (1 + l2 * rate)


def tensorflow_proximal_sgd(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    return _proximal(w, g, o.learning_rate, o.l1_regularization_strength, o.l2_regularization_strength)


def tensorflow_proximal_adagrad(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    s["accumulator"] = s["accumulator"] + g * g
    rate = o.learning_rate / np.sqrt(s["accumulator"])
    return _proximal(w, g, rate, o.l1_regularization_strength, o.l2_regularization_strength)


def keras_lion(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    update = np.sign(s["m"] * o.beta_1 + g * (1 - o.beta_1))
    s["m"] = s["m"] * o.beta_2 + g * (1 - o.beta_2)
    return w - o.learning_rate * (update + o.weight_decay * w)


ORACLES: dict[str, Step] = {
    "sgd": torch_sgd,
    "momentum": torch_momentum,
    "nesterov": torch_nesterov,
    "adagrad": torch_adagrad,
    "row_wise_adagrad": fbgemm_row_wise_adagrad,
    "adadelta": torch_adadelta,
    "rmsprop": torch_rmsprop,
    "adam": torch_adam,
    "adamw": torch_adamw,
    "amsgrad": torch_amsgrad,
    "adamax": torch_adamax,
    "nadam": torch_nadam,
    "lamb": keras_lamb_of_each_row,
    "partial_row_wise_adam": fbgemm_partial_row_wise_adam,
    "ftrl": keras_ftrl,
    "proximal_adagrad": tensorflow_proximal_adagrad,
    "proximal_sgd": tensorflow_proximal_sgd,
    "lion": keras_lion,
}


def clipped(o: Any, g: Array) -> Array:
    """Keras' clipvalue, then clipnorm, of each row."""
    if o.clip_value is not None:
        g = np.clip(g, -o.clip_value, o.clip_value)
    if o.clip_norm is not None:
        norm = np.linalg.norm(g, axis=1, keepdims=True)
        g = g * o.clip_norm / np.maximum(norm, o.clip_norm)
    return g


def stepped(o: Any, w: Array, g: Array, s: dict[str, Array], t: int) -> Array:
    """Return rows w (n, dim) after step t with gradients g; changes the state s."""
    g = clipped(o, g)
    decay = getattr(o, "weight_decay", 0.0)
    if hasattr(o, "decoupled") and decay:
        if o.decoupled:
            w = w * (1 - o.learning_rate * decay)
        else:
            g = g + decay * w
    return ORACLES[o.name](o, w, g, s, t)


def started(o: Any, shape: tuple[int, int]) -> dict[str, Array]:
    """The state of rows (n, dim) before their first step."""
    wide = {slot.name: slot for slot in o.slots if slot.name != "steps"}
    return {
        name: np.full((shape[0], shape[1] if slot.width is None else slot.width), slot.initial)
        for name, slot in wide.items()
    }
