"""Clipping of a key's summed gradient, before all other formulas."""

from __future__ import annotations

import numpy as np

from kvemb.optimizers.arithmetic import Elements, Number, larger, rounded, smaller, sqrt, sum_of_squares, where_positive


def clip_values(dim: int, w: Elements, g: Elements, clip_value: Number) -> None:
    """Limit each element to -clip_value to clip_value (Keras' clipvalue); a NaN stays."""
    for j in range(dim):
        g[j] = larger(-clip_value, smaller(clip_value, g[j]))


def clip_to_norm(dim: int, w: Elements, g: Elements, clip_norm: np.float64) -> None:
    """Scale a gradient that is longer than clip_norm to this L2 norm (Keras' clipnorm); others keep their bits."""
    norm = sqrt(sum_of_squares(g))
    scale = rounded(where_positive(norm - clip_norm, clip_norm / norm, 1), g)
    for j in range(dim):
        g[j] = g[j] * scale
