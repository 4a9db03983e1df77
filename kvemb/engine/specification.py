"""The specification of a variable: every argument, checked on its own and against what is stored.

Pure functions. Each check raises one clear error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvemb import registry
from kvemb.checks.brief import brief
from kvemb.checks.names import is_name
from kvemb.checks.numeric import as_bool, as_int
from kvemb.checks.ranges import MAX_DIM, MAX_NAME_BYTES, MAX_ROWS
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.arguments import AnyArguments, GraphKeys, UnsetFlag, UnsetInt, UnsetName, check_given
from kvemb.errors import SchemaMismatch
from kvemb.initializers import Initializer, as_initializer, initializer_from_json
from kvemb.initializers.base import agree
from kvemb.initializers.seeding import seeded, seeded_like
from kvemb.operations.constraining import Constraint
from kvemb.optimizers import Optimizer, as_optimizer, optimizer_from_json
from kvemb.options import Creator, MemoryCreator, RocksDBCreator
from kvemb.restrict import Admission, MissingPolicy, RestrictPolicy, as_policy, policy_class_name, policy_from_json
from kvemb.restrict.bounds import Ages, Bounds
from kvemb.rows.schema import DEFAULT_NAME_BYTES, Schema, is_string, key_dtype, rounded_name_bytes, value_dtype
from kvemb.tiers.partition import Partition, Partitioner, default_partitioner


@dataclass(frozen=True)
class Specification:
    """A variable that can be made, or opened as it is stored.

    policy: not yet bound to a variable. first_rows: the hot tables' first capacity in rows, 0 for a default. hot_rows:
    the number of all their cells; None: they grow. collections: those that the variable joins. stored: its entry in the
    last durable point; None: it is new. dim_left_out: whether dim was not given. constraint: projects rows after an
    optimizer's step. bounds: as of the opening.
    """

    name: str
    schema: Schema
    initializer: Initializer
    optimizer: Optimizer | None
    policy: RestrictPolicy | None
    creator: Creator
    devices: tuple[str, ...]
    partitioner: Partitioner
    first_rows: int
    hot_rows: int | None
    trainable: bool
    checkpointed: bool
    bp_v2: bool
    collections: tuple[str, ...]
    stored: VariableEntry | None
    dim_left_out: bool
    constraint: Constraint | None = None
    admission: Admission | None = None
    regularizer: Callable[[Any], Any] | None = None
    bounds: Bounds = Bounds()  # noqa: RUF009 -- a frozen value

    @property
    def ages(self) -> Ages:
        """The ages that are stored."""
        return () if self.stored is None else self.stored.ages

    @property
    def new_policy(self) -> str | None:
        """What is logged if the policy differs from the stored one; None if it does not."""
        if self.stored is None or self.policy is None or self.policy.to_json() == self.stored.policy:
            return None
        return (
            f"the policy of variable {self.name!r} becomes {self.policy}; it was {policy_from_json(self.stored.policy)}"
        )

    @property
    def is_new(self) -> bool:
        """Whether the variable is not stored yet."""
        return self.stored is None

    @property
    def joins_checkpoints(self) -> bool:
        """Whether the stored variable was left out of checkpoints and is included from now on."""
        return self.stored is not None and self.checkpointed and not self.stored.checkpoint

    @property
    def leaves_checkpoints(self) -> bool:
        """Whether the stored variable was included in checkpoints and is left out from now on."""
        return self.stored is not None and self.stored.checkpoint and not self.checkpointed

    @property
    def persistent(self) -> bool:
        """Whether the rows are still there after the store is closed and opened again."""
        return not isinstance(self.creator, MemoryCreator)

    def entry(
        self,
        optimizer: Optimizer | None,
        policy: RestrictPolicy | None,
        bounds: Bounds,
        *,
        rows: int,
        step: int,
        optimizer_steps: int,
        ages: Ages,
    ) -> VariableEntry:
        """Return the variable's entry in a durable point. The arguments are as of that moment."""
        return VariableEntry(
            key_dtype=self.schema.key_kind,
            value_dtype=self.schema.value_dtype.name,
            dim=self.schema.dim,
            slots=self.schema.slots,
            initializer=self.initializer.to_json(),
            optimizer=optimizer.to_json() if optimizer else None,
            policy=policy.to_json() if policy else None,
            creator=asdict(self.creator),
            trainable=self.trainable,
            checkpoint=self.checkpointed,
            bp_v2=self.bp_v2,
            rows=rows,
            step=step,
            optimizer_steps=optimizer_steps,
            max_rows=bounds.max_rows,
            ttl=bounds.ttl,
            ages=ages,
            name_bytes=self.schema.name_bytes,
        )


def specify(arguments: AnyArguments, stored: VariableEntry | None) -> Specification:
    """Return the requested specification; what was left out is as stored.

    Raises SchemaMismatch naming the field; TypeError, ValueError; UnsupportedFormat, BackendUnavailable.
    """
    name = check_name(arguments.name)
    check_given(arguments)
    key_type, value_type, width, name_bytes = _given_shape(stored, arguments)
    first_rows = as_int(arguments.init_size, "init_size", 0, MAX_ROWS)
    hot_rows = None if arguments.hot_rows is None else as_int(arguments.hot_rows, "hot_rows", 1, MAX_ROWS)
    if hot_rows is not None and first_rows > hot_rows:
        raise ValueError(f"init_size={first_rows:,} rows do not fit in hot_rows={hot_rows:,}; leave one of them out")
    trainable = _flag(arguments, stored, "trainable")
    optimizer, policy = as_optimizer(arguments.optimizer), as_policy(arguments.restrict_policy)
    initializer = as_initializer(arguments.initializer, width, value_type)
    if stored is None:
        initializer = seeded(initializer, name)
    else:
        kept = initializer_from_json(stored.initializer)
        left_out = arguments.initializer is None
        if not left_out and not agree(kept, seeded_like(initializer, kept), width, value_type):
            raise SchemaMismatch(name, "initializer", kept, initializer)
        if optimizer is not None:
            check_optimizer(name, stored_optimizer(stored), optimizer)
        if policy is not None:
            policy = _continuing(name, stored, policy)
        initializer, optimizer = kept, optimizer or stored_optimizer(stored)
        policy = policy or policy_from_json(stored.policy)
    if optimizer is not None and value_type.kind in "iu":
        raise ValueError(
            f"optimizer must be None for value_dtype {value_type.name}, got {optimizer!r}; use a float value_dtype"
        )
    devices = _devices(arguments.devices)
    if name_bytes and (gpus := [device for device in devices if device != "cpu"]):
        raise ValueError(
            f"devices must be 'cpu' for key_dtype='string', whose hot rows are in the host's memory, got {gpus[0]!r}; "
            "or use key_dtype='int64', with keys from kvemb.hash_strings"
        )
    _check_partitioner(arguments.partitioner, key_type, len(devices))
    return Specification(
        name=name,
        schema=Schema(key_type, value_type, width, optimizer.shapes(width) if optimizer else (), name_bytes),
        initializer=initializer,
        optimizer=optimizer,
        policy=policy,
        creator=_creator(arguments.kv_creator, stored),
        devices=devices,
        partitioner=arguments.partitioner,
        first_rows=first_rows,
        hot_rows=hot_rows,
        trainable=trainable,
        checkpointed=_flag(arguments, stored, "checkpoint"),
        bp_v2=_flag(arguments, stored, "bp_v2"),
        collections=_collections(arguments.collections, trainable=trainable),
        stored=stored,
        dim_left_out=isinstance(arguments.dim, UnsetInt),
        constraint=arguments.constraint,
        admission=arguments.admission,
        regularizer=arguments.regularizer,
        bounds=wanted_bounds(arguments, Bounds() if stored is None else stored.bounds),
    )


def wanted_bounds(arguments: AnyArguments, present: Bounds) -> Bounds:
    """Return the bounds as requested; one that was left out is the present one. Raises TypeError, ValueError."""
    given = Bounds.given(arguments.max_rows, arguments.ttl)
    return Bounds(given.max_rows or present.max_rows, given.ttl or present.ttl)


def _given_shape(
    stored: VariableEntry | None, arguments: AnyArguments
) -> tuple[np.dtype[Any], np.dtype[Any], int, int]:
    """Return key dtype, value dtype, dim and name_bytes as requested; what was left out is as stored.

    Raises TypeError, ValueError; SchemaMismatch if they are not as stored.
    """
    keys: Any = arguments.key_dtype
    values: Any = arguments.value_dtype
    dim: Any = arguments.dim
    if stored is not None:
        keys = stored.key_dtype if isinstance(keys, UnsetName) else keys
        values = stored.value_dtype if isinstance(values, UnsetName) else values
        dim = stored.dim if isinstance(dim, UnsetInt) else dim
    values, dim, name_bytes = value_dtype(values), as_int(dim, "dim", 1, MAX_DIM), _name_bytes(stored, arguments, keys)
    schema = Schema(key_dtype(keys), values, dim, (), name_bytes)
    wanted = {"dim": dim, "key_dtype": schema.key_kind, "value_dtype": values.name, "name_bytes": name_bytes}
    for field, asked in wanted.items():
        if stored is not None and (kept := getattr(stored, field)) != asked:
            raise SchemaMismatch(arguments.name, field, kept, asked)
    return schema.key_dtype, values, dim, name_bytes


def _name_bytes(stored: VariableEntry | None, arguments: AnyArguments, keys: Any) -> int:
    """Return the bytes of a row's name as requested, a multiple of 8; 0 unless keys are strings."""
    given = arguments.name_bytes
    if not is_string(keys):
        if given is not None:
            raise ValueError(f"name_bytes is for key_dtype='string', got name_bytes={brief(given)} for {brief(keys)}")
        return 0
    if given is None:
        return stored.name_bytes if stored is not None and stored.name_bytes else DEFAULT_NAME_BYTES
    return rounded_name_bytes(given)


def _flag(arguments: AnyArguments, stored: VariableEntry | None, name: str) -> bool:
    """Return a flag as requested; one that was left out, or is None, is as stored. Raises TypeError."""
    given = getattr(arguments, name)
    if given is not None and not isinstance(given, UnsetFlag):
        return as_bool(given, name)
    return bool(getattr(type(arguments), name) if stored is None else getattr(stored, name))


def _check_partitioner(given: Any, keys: np.dtype[Any], devices: int) -> None:
    """Raise TypeError, ValueError unless a partitioner works for two keys, instead of at the first write."""
    if given is default_partitioner:
        return
    if not callable(given):
        raise TypeError(f"partitioner must be callable as fn(keys, shard_num), got {brief(given)}")
    try:
        Partition(given, keys, devices).devices_of(np.arange(2))
    except Exception as error:
        what = f"partitioner must be fn(keys, shard_num), with an array of keys: {brief(given)} does not take them"
        raise (ValueError if isinstance(error, ValueError) else TypeError)(f"{what}: {error}") from error


def _continuing(name: str, stored: VariableEntry, given: RestrictPolicy) -> RestrictPolicy:
    """Return the policy such that it goes on with the stored scores. Raises SchemaMismatch for another scale."""
    kept, wanted = policy_class_name(stored.policy), policy_class_name(given)
    stay = "its scores are on that policy's scale; leave restrict_policy out to keep it"
    if stored.policy is None:
        stay = "it was made without a policy; leave restrict_policy out"
    advice = f"{stay}, or change the stored variable: kvemb migrate STORE --variable {name} --policy NAME"
    if kept != wanted:
        raise SchemaMismatch(name, "restrict_policy", kept, wanted, advice)
    before = policy_from_json(stored.policy)
    assert before is not None
    if (policy := given if isinstance(before, MissingPolicy) else given.continuing(before, stored.step)) is None:
        raise SchemaMismatch(name, "restrict_policy", before, given, advice)
    return policy


def check_optimizer(name: str, kept: Optimizer | None, given: Optimizer) -> None:
    """Raise SchemaMismatch unless rows trained with `kept` can be trained with `given`; hyperparameters may differ."""
    if kept is None or not given.fits(kept):
        advice = "its numbers may change, but not its class, as rows have its slots; see kvemb migrate --optimizer"
        raise SchemaMismatch(name, "optimizer", kept, given, advice)


def stored_optimizer(stored: VariableEntry) -> Optimizer | None:
    """Return the optimizer a variable is stored with, None for none."""
    return None if stored.optimizer is None else optimizer_from_json(stored.optimizer)


def _creator(given: Any, stored: VariableEntry | None) -> Creator:
    """Return where cold rows live: as requested, else as stored, else in RocksDB. Raises TypeError or ValueError."""
    if given is None:
        if stored is None:
            return RocksDBCreator()
        return RocksDBCreator.from_json(stored.creator) if stored.creator else MemoryCreator()
    # Not isinstance, because the additions of a subclass could not be stored.
    if type(given) is not RocksDBCreator and type(given) is not MemoryCreator:
        raise TypeError(f"kv_creator must be a RocksDBCreator or a MemoryCreator, got {brief(given)}")
    if stored is not None and stored.creator and isinstance(given, MemoryCreator):
        raise ValueError("kv_creator must be a RocksDBCreator for a variable stored in RocksDB, got a MemoryCreator")
    return given


def _collections(given: Sequence[str] | None, *, trainable: bool) -> tuple[str, ...]:
    """Return the names of the collections that a variable joins, each once, in an order that is always the same."""
    names = {GraphKeys.GLOBAL_VARIABLES} if given is None else {*given}
    return tuple(sorted(names | {GraphKeys.TRAINABLE_VARIABLES} if trainable else names))


def _devices(spec: Any) -> tuple[str, ...]:
    """Return one device for each hot table. Raises TypeError or ValueError."""
    if spec is not None and not isinstance(spec, (str, list, tuple)):
        raise TypeError(f"devices must be None, a device such as 'cpu', or a list of devices, got {brief(spec)}")
    given = ["cpu"] if spec is None else [spec] if isinstance(spec, str) else list(spec)
    if not given:
        raise ValueError("devices must name at least one device, got an empty list; use None for the CPU")
    return tuple(registry.parse_device(device) for device in given)


def check_name(name: Any) -> str:
    """Return a name if it is a path of plain names, which cannot leave its store. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {brief(name)}")
    if not name.isprintable() or not is_name(name):
        raise ValueError(
            "name must be printable, without empty, '.' or '..' parts between slashes, at most "
            f"{MAX_NAME_BYTES:,} bytes in UTF-8, and not 'default', got {brief(name)}"
        )
    return name
