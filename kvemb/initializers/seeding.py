"""Default seeds, derived from the variable's name, so that equal keys of two variables start with different rows.

Pure functions. The seed of a name is part of the format (FORMAT.md, "Manifest"): a variable that is created again under
its name starts with the same rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from kvemb.initializers import GlorotUniform, Initializer, RandomNormal, RandomUniform, TruncatedNormal

_SEEDED = (RandomUniform, RandomNormal, TruncatedNormal, GlorotUniform)


def seed_of(name: str) -> int:
    """Return the seed of a variable of this name: the first 8 bytes of the name's SHA-256, little-endian.

    Args:
        name: The variable's name.

    Returns:
        An int from 0 to 2**64 - 1.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def seeded(initializer: Initializer, name: str) -> Initializer:
    """Return the initializer of a new variable of this name.

    Args:
        initializer: The initializer that was requested.
        name: The variable's name.

    Returns:
        The initializer; a seed of None is replaced by the name's seed.
    """
    if isinstance(initializer, _SEEDED) and initializer.seed is None:
        return replace(initializer, seed=seed_of(name))
    return initializer


def seeded_like(given: Initializer, kept: Initializer) -> Initializer:
    """Return the initializer that was requested for a stored variable.

    Args:
        given: The initializer that was requested.
        kept: The stored initializer.

    Returns:
        given; if its seed is None, with the seed of kept.
    """
    if isinstance(given, _SEEDED) and given.seed is None and isinstance(kept, type(given)):
        return replace(given, seed=kept.seed)
    return given
