"""What a variable may be asked to be: checks of constructor arguments, alone and against what is stored.

Pure functions but for tell_if_default(); each raises one clear error and changes nothing.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import numpy as np

from kvemb import registry
from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MOST_DIM, MOST_NAME_BYTES
from kvemb.durability.manifest import VariableEntry
from kvemb.durability.manifest_fields import is_name
from kvemb.errors import SchemaMismatch
from kvemb.initializers import Initializer, initializer_from_json
from kvemb.optimizers import Optimizer, optimizer_from_json
from kvemb.options import Creator, MemoryCreator, RocksDBCreator
from kvemb.restrict import RestrictPolicy, policy_class_name, policy_from_json
from kvemb.rows.schema import key_dtype, value_dtype
from kvemb.seeding import seeded_like

_logger = logging.getLogger("kvemb")

Kind = TypeVar("Kind")


class LeftOut(int):
    """A number that stands for an argument that was not given."""


class LeftOutName(str):
    """The name of a dtype that stands for an argument that was not given."""


# The reference's defaults. Of a variable that is stored they ask for nothing.
KEY_DTYPE, VALUE_DTYPE, DIM = LeftOutName("int64"), LeftOutName("float32"), LeftOut(1)


def asked_shape(
    stored: VariableEntry | None, keys: Any, values: Any, dim: Any
) -> tuple[np.dtype[Any], np.dtype[Any], int]:
    """Return key dtype, value dtype and dim as they are asked for: as stored where they are left out.

    Raises TypeError or ValueError.
    """
    if stored is not None:
        keys = stored.key_dtype if isinstance(keys, LeftOutName) else keys
        values = stored.value_dtype if isinstance(values, LeftOutName) else values
        dim = stored.dim if isinstance(dim, LeftOut) else dim
    return key_dtype(keys), value_dtype(values), as_int(dim, "dim", 1, MOST_DIM)


def tell_if_default(name: str, dim: int) -> None:
    """Log a warning where a new variable has one number a row because nobody said how many."""
    if isinstance(dim, LeftOut):
        _logger.warning(
            "variable %r is made with one number a row: no dim was given; dim=1 says that it is meant", name
        )


def check_stored(
    name: str,
    stored: VariableEntry,
    keys: np.dtype[Any],
    values: np.dtype[Any],
    dim: int,
    initializer: Initializer | None,
    optimizer: Optimizer | None,
    policy: RestrictPolicy | None,
) -> None:
    """Raise SchemaMismatch where what is asked for is not what is stored; None asks for nothing."""
    if stored.dim != dim:
        raise SchemaMismatch(name, "dim", stored.dim, dim)
    if stored.key_dtype != keys.name:
        raise SchemaMismatch(name, "key_dtype", stored.key_dtype, keys.name)
    if stored.value_dtype != values.name:
        raise SchemaMismatch(name, "value_dtype", stored.value_dtype, values.name)
    if initializer is not None:
        kept = initializer_from_json(stored.initializer)
        if not kept.agrees_with(seeded_like(initializer, kept), dim, values):
            raise SchemaMismatch(name, "initializer", kept, initializer)
    if optimizer is not None:
        check_optimizer(name, stored_optimizer(stored), optimizer)
    if policy is not None:
        _check_policy(name, stored.policy, policy)


def _check_policy(name: str, stored: dict[str, Any] | None, asked: RestrictPolicy) -> None:
    """Raise SchemaMismatch where stored scores are of another scale than the scores to come."""
    kept, wanted = policy_class_name(stored), policy_class_name(asked)
    stay = "leave restrict_policy out to go on with the stored one"
    advice = f"{stay}, or see kvemb migrate --policy"
    if kept != wanted:
        raise SchemaMismatch(name, "restrict_policy", kept, wanted, advice)
    if stored != asked.to_json():
        raise SchemaMismatch(name, "restrict_policy", policy_from_json(stored), asked, advice)


def check_optimizer(name: str, kept: Optimizer | None, asked: Optimizer) -> None:
    """Raise SchemaMismatch unless rows trained with `kept` can go on with `asked`: its numbers may be others."""
    if kept is None or not asked.fits(kept):
        advice = "its numbers may change, its class may not, as rows carry its slots; see kvemb migrate --optimizer"
        raise SchemaMismatch(name, "optimizer", kept, asked, advice)


def stored_optimizer(stored: VariableEntry) -> Optimizer | None:
    """Return the optimizer a variable is stored with, None for none."""
    return None if stored.optimizer is None else optimizer_from_json(stored.optimizer)


def creator_for(asked: Any, stored: VariableEntry | None) -> Creator:
    """Return where cold rows live: as asked, else as stored, else in RocksDB. Raises TypeError or ValueError."""
    if asked is None:
        return RocksDBCreator() if stored is None else RocksDBCreator.from_json(stored.creator)
    if not isinstance(asked, (RocksDBCreator, MemoryCreator)):
        raise TypeError(f"kv_creator must be a RocksDBCreator or a MemoryCreator, got {asked!r}")
    if stored is not None and isinstance(asked, MemoryCreator):
        raise ValueError("kv_creator must be a RocksDBCreator for a variable stored in RocksDB, got a MemoryCreator")
    return asked


def parse_devices(spec: Any) -> tuple[str, ...]:
    """Return one device for each hot table. Raises TypeError or ValueError."""
    if spec is not None and not isinstance(spec, (str, list, tuple)):
        raise TypeError(f"devices must be None, a device such as 'cpu', or a list of devices, got {spec!r}")
    given = ["cpu"] if spec is None else [spec] if isinstance(spec, str) else list(spec)
    if not given:
        raise ValueError("devices must name at least one device, got an empty list; use None for the CPU")
    return tuple(registry.parse_device(device) for device in given)


def check_name(name: Any) -> None:
    """Raise TypeError or ValueError unless name is a path of plain names; it never leaves its store."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {brief(name)}")
    if not name.isprintable() or not is_name(name):
        raise ValueError(
            "name must be printable, without empty, '.' or '..' parts between slashes, at most "
            f"{MOST_NAME_BYTES:,} bytes in UTF-8, and not 'default', got {brief(name)}"
        )


def checked(value: Any, kind: type[Kind], what: str, advice: str) -> Kind:
    """Return value if it is a `kind`, or raise TypeError with advice."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, got {value!r}; use {advice}")
    return value
