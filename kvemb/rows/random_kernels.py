"""Random draws that are a pure function of seed, key and column.

The same on every machine, in every batch, shard and order, forever: an integer hash, then IEEE `+ - * /` and `sqrt` in
float64 alone. Their results are part of the format: never change a draw; add another one instead. Safe from any thread.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvemb.kernels.compiling import inlined, kernel

# The golden ratio times 2**64: the step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). On disk; do not change.
STEP = np.uint64(0x9E3779B97F4A7C15)
MULTIPLY_1, MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11), np.uint64(12)
LN2 = 0.6931471805599453


@inlined
def _mix(h: Any) -> Any:
    """SplitMix64's finaliser: a bijection of uint64."""
    h = (h ^ (h >> _S30)) * MULTIPLY_1
    h = (h ^ (h >> _S27)) * MULTIPLY_2
    return h ^ (h >> _S31)


@kernel
def log(x: float) -> Any:
    """Return ln(x) of a normal x > 0, by 2 artanh((m - 1) / (m + 1)); error below 2 ulp, and no libm."""
    bits: Any = np.float64(x).view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # counted from sqrt(1/2), so that mantissas lie about 1
    mantissa = np.int64(bits - (exponent << 52)).view(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    tail = 1.0 / 19.0 + z * (1.0 / 21.0)
    tail = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * tail)))
    tail = z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * tail))))
    return exponent * LN2 + (2.0 * s + 2.0 * s * tail)


# Numerators and denominators of AS 241, highest power first: the centre, the tails, the far tails.
CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


@inlined
def _ratio(polynomials: Any, x: float) -> Any:
    above, below = polynomials
    n, d = above[0], below[0]
    for k in range(1, 8):
        n = n * x + above[k]
        d = d * x + below[k]
    return n / d


@kernel
def _central_quantile(q: float) -> Any:
    """Return z with Phi(z) = q + 1/2, |q| <= 0.425: PPND16 of AS 241 (Wichura, Appl. Statist. 37, 1988, 477-484)."""
    return q * _ratio(CENTRE, 0.180625 - q * q)


@kernel
def tail_quantile(q: float) -> Any:
    """Do what _central_quantile does, for 0.425 < |q| < 1/2."""
    r = math.sqrt(-log(0.5 - abs(q)))
    z = _ratio(TAIL, r - 1.6) if r <= 5.0 else _ratio(FAR_TAIL, r - 5.0)
    return -z if q < 0.0 else z


@inlined
def _draw(state: Any) -> Any:
    """Return an odd multiple of 2**-53 in (-1/2, 1/2): exact, symmetric about 0, and never at either end."""
    return (np.float64(_mix(state) >> _S12) + 0.5) * 2.220446049250313e-16 - 0.5


@inlined
def _row_state(seed: Any, key: int) -> Any:
    """Return the initial state of a row's columns. It is mixed twice, so that close keys share no run of columns."""
    start = _mix(seed + STEP)
    return _mix(_mix(start ^ np.uint64(key)) + start)


@kernel
def fill_uniform(out: Any, keys: Any, seed: Any, minval: float, width: float) -> None:
    """Write uniform draws from [minval, minval + width) to out (n, dim), float32 or float64, a row per key."""
    for i in range(len(keys)):
        state = _row_state(seed, keys[i])
        for j in range(out.shape[1]):
            state += STEP
            out[i, j] = minval + width * (np.float64(_mix(state) >> _S11) * 1.1102230246251565e-16)


@kernel
def fill_normal(
    out: Any, keys: Any, seed: Any, mean: float, stddev: float, mass: float, cut: float, tails: Any
) -> None:
    """Write normal draws, conditioned on the central probability `mass` (|z| <= cut), to out as fill_uniform does.

    Three passes over a row: the first two have no branch to mispredict; the third corrects the 15% in the tails.
    tails: scratch (dim,), int64.
    """
    for i in range(len(keys)):
        first = _row_state(seed, keys[i])
        state = first
        for j in range(out.shape[1]):
            state += STEP
            out[i, j] = mean + stddev * _central_quantile(_draw(state) * mass)
        state, found = first, 0
        for j in range(out.shape[1]):
            state += STEP
            tails[found] = j
            found += abs(_draw(state) * mass) > 0.425
        for k in range(found):
            j = tails[k]
            q = _draw(first + STEP * np.uint64(j + 1)) * mass
            out[i, j] = mean + stddev * min(max(tail_quantile(q), -cut), cut)
