"""A variable's entry in a manifest (FORMAT.md, "Manifest"): its schema, its kinds, its rows and steps. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from kvemb.checks.brief import brief
from kvemb.checks.fields import OMITTED, above, integer, one_of, read
from kvemb.checks.ranges import MAX_DIM, MAX_ROWS, MAX_STEPS, MAX_STRING_BYTES
from kvemb.errors import BackendUnavailable, UnsupportedFormat
from kvemb.initializers import initializer_from_json
from kvemb.optimizers import optimizer_from_json
from kvemb.options import RocksDBCreator
from kvemb.restrict import policy_from_json
from kvemb.restrict.bounds import Ages, Bounds
from kvemb.rows.schema import KEY_DTYPES, STRING, VALUE_DTYPES, WORD_BYTES, Schema, SlotShape, dtype_of, key_dtype


@dataclass(frozen=True)
class VariableEntry:
    """One variable, as stored. Dtypes by name; initializer, optimizer, policy and creator as JSON, from to_json()."""

    key_dtype: Annotated[str, one_of((*KEY_DTYPES, STRING))]
    value_dtype: Annotated[str, one_of(VALUE_DTYPES)]
    dim: Annotated[int, integer(1, MAX_DIM)]
    slots: tuple[SlotShape, ...]
    initializer: dict[str, Any]
    optimizer: dict[str, Any] | None
    policy: dict[str, Any] | None
    creator: dict[str, Any]
    trainable: bool
    checkpoint: bool
    bp_v2: bool
    rows: Annotated[int, integer(0, MAX_ROWS)]
    step: Annotated[int, integer(0, MAX_STEPS - 1)]
    optimizer_steps: Annotated[int, integer(0, MAX_STEPS - 1), OMITTED] = 0
    max_rows: Annotated[Annotated[int, integer(1, MAX_ROWS)] | None, OMITTED] = None
    ttl: Annotated[Annotated[float, above(0)] | None, OMITTED] = None
    ages: Annotated[Ages, OMITTED] = ()
    name_bytes: Annotated[int, integer(0, MAX_STRING_BYTES), OMITTED] = 0

    @property
    def bounds(self) -> Bounds:
        """What its table is restricted to."""
        return Bounds(self.max_rows, self.ttl)

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""
        return Schema(
            key_dtype(self.key_dtype), dtype_of(self.value_dtype), self.dim, self.slots, name_bytes=self.name_bytes
        )


def rows_in_words(variables: Mapping[str, VariableEntry]) -> str:
    """Return how many variables and rows there are, for messages."""
    rows = sum(entry.rows for entry in variables.values())
    return f"{len(variables)} variable{'s' * (len(variables) != 1)}, {rows:,} row{'s' * (rows != 1)}"


def with_widths(entry: Any) -> Any:
    """Return a variable's entry of format 2, in which a slot is a name, as one of a later format.

    If it has no dim or no array of slots, it is returned as it is, which read() refuses.
    """
    if not isinstance(entry, dict) or "dim" not in entry or not isinstance(entry.get("slots"), list):
        return entry
    return {**entry, "slots": [{"name": slot, "width": entry["dim"]} for slot in entry["slots"]]}


def entry_of(data: Any, what: str) -> VariableEntry:
    """Parse a variable's entry, of a manifest of any readable format. Raises UnsupportedFormat."""
    try:
        slots = data.get("slots") if isinstance(data, dict) else None
        named = isinstance(slots, list) and slots and all(isinstance(slot, str) for slot in slots)
        entry = read(VariableEntry, with_widths(data) if named else data)
        check_variable(entry)
        return entry
    except (ValueError, RecursionError) as error:
        raise UnsupportedFormat(f"{what!r} is described in a way this kvemb cannot read: {error}") from error


def check_variable(entry: VariableEntry, where: str = "") -> None:
    """Raise ValueError if the fields do not fit each other, or UnsupportedFormat for a kind that is not known.

    where: the path of the entry and a dot, for messages.
    """

    def made(name: str, make: Callable[[Any], Any]) -> Any:
        described = getattr(entry, name)
        try:
            return None if described is None else make(described)
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{where}{name}: {error}") from error

    initializer = made("initializer", initializer_from_json)
    optimizer = made("optimizer", optimizer_from_json)
    made("policy", policy_from_json)
    made("creator", RocksDBCreator.from_json)
    expected = () if optimizer is None else tuple(optimizer.shapes(entry.dim))
    if entry.slots != expected:
        slots = [asdict(slot) for slot in expected]
        raise ValueError(f"{where}slots must be those of the optimizer, {slots}, got {brief(entry.slots)}")
    if (entry.key_dtype == STRING) != (entry.name_bytes > 0) or entry.name_bytes % WORD_BYTES:
        what = f"a multiple of {WORD_BYTES}, and 0 unless key_dtype is {STRING!r}"
        raise ValueError(f"{where}name_bytes must be {what}, got {entry.name_bytes} for keys of {entry.key_dtype}")
    if optimizer is not None and entry.value_dtype in ("int8", "int32", "int64"):
        raise ValueError(f"{where}optimizer must be null for values of {entry.value_dtype}, got {brief(optimizer)}")
    try:
        initializer.check(entry.dim, dtype_of(entry.value_dtype))
    except BackendUnavailable:
        pass  # opening the variable raises it
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}initializer: {error}") from error
