"""Reading and writing whole rows, bypassing the hot tier, for offline tools.

The docstrings describe every argument.

Calls raise Closed, ReadOnly and Poisoned as those of kvemb.Variable do. kvemb.offline.loading loads rows. Place makes
a checkpoint at a URL, or of a cluster, readable. Memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.catalog import open_stored
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_GIVEN_STEPS, MAX_PARTS, MAX_ROWS
from kvemb.durability import layout
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.scratch import scratch
from kvemb.durability.variable_entry import VariableEntry, entry_of
from kvemb.engine.admitting import adopt_counters
from kvemb.engine.dropping import take_out
from kvemb.handle import inside
from kvemb.offline.loading import Loaded, Rows, load
from kvemb.offline.places import Place
from kvemb.progress import Meter, Progress
from kvemb.restrict import MissingPolicy
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import LAST_KEY, key_at, order_key
from kvemb.rows.host_arrays import as_keys, as_values
from kvemb.rows.names import check_names, keys_of, named_keys
from kvemb.store import Store
from kvemb.variable import Variable

__all__ = [
    "Loaded",
    "Place",
    "Rows",
    "bring_sightings",
    "compact",
    "described",
    "load",
    "make",
    "new_slots",
    "point",
    "ranges",
    "read",
    "remake",
    "restrict",
    "scan",
    "scratch",
    "slot_dtype",
]

BATCH_ROWS = 65_536


def described(variable: Variable) -> dict[str, Any]:
    """Describe a variable without its rows, so that ``make`` can make one like it.

    Args:
        variable: The variable.

    Returns:
        A new dict, as plain JSON.
    """
    entry = asdict(inside(variable).entry())
    del entry["ages"]  # of its rows: those of another variable begin anew
    return {"name": variable.name, **entry, "slots": list(entry["slots"])}


def make(store: Store, name: str, like: Mapping[str, Any]) -> Variable:
    """Make a variable that ``described`` has described, or open the existing one.

    Its step counts are those of the description. A user-defined policy is not passed, with the effects that
    ``Store.get_variable`` explains.

    Args:
        store: The store in which to make it.
        name: Its name there.
        like: What ``described`` returned.

    Returns:
        The variable.

    Raises:
        UnsupportedFormat: The description cannot be read.
        SchemaMismatch: The store has another variable of this name.
        ValueError: A count is above 2**61.

    Example:
        >>> with kvemb.open("other") as other:
        ...     copy = kvemb.bulk.make(other, "users", kvemb.bulk.described(users))
        ...     kvemb.bulk.load(copy, kvemb.bulk.scan(users))
        Loaded(added=3, replaced=0, kept=0, duplicates=0)
    """
    entry = _entry_of(name, like)
    as_int(entry.step, "step", 0, MAX_GIVEN_STEPS)
    as_int(entry.optimizer_steps, "optimizer_steps", 0, MAX_GIVEN_STEPS)
    variable = open_stored(store, name, entry)
    inside(variable).storage.advance(entry.step, entry.optimizer_steps)
    return variable


def remake(store: Store, name: str, like: Mapping[str, Any]) -> Variable:
    """Make a stored variable anew, without rows, as ``described`` has described it; ``load`` then gives it its rows.

    The next flush replaces the old variable by the new one at once, with the rows that it has by then; ``load`` ends
    with a flush. All other variables stay as they are, and so does the store's identity: series of checkpoints,
    replicas and readers go on. They see the variable as dropped and made again. An ``Admission`` keeps its counters.

    If anything fails before the flush, call ``store.close(flush=False)``: the store has the old variable when it is
    opened again. Nothing else may use the store, so open it without ``flush_every``. To read the old rows meanwhile,
    open the store a second time with ``read_only=True``.

    Args:
        store: The store. The variable must not be open in it.
        name: The variable's name.
        like: What ``described`` returned, with the changes.

    Returns:
        The new variable.

    Raises:
        KeyError: There is no such variable.
        ValueError: The variable is open, or the store was opened with ``durability="write"``. Or as ``make``.
        UnsupportedFormat: The description cannot be read.

    Example:
        >>> store.close()
        >>> with kvemb.open("store") as again, kvemb.open("store", read_only=True) as before:
        ...     old = before.variables["users"]
        ...     halves = kvemb.bulk.remake(again, "users", {**kvemb.bulk.described(old), "value_dtype": "float16"})
        ...     kvemb.bulk.load(halves, (kvemb.bulk.Rows(rows.keys, rows.values) for rows in kvemb.bulk.scan(old)))
        Loaded(added=3, replaced=0, kept=0, duplicates=0)
    """
    _entry_of(name, like)
    take_out(inside(store), name)
    return make(store, name, like)


def point(variable: Variable) -> str:
    """Return the id of what a read-only store reads: a checkpoint or a durable point.

    Args:
        variable: A variable of the store.

    Returns:
        The id, 32 hexadecimal digits.
    """
    return inside(variable.resource_handle[0]).opened_manifest.id


def slot_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of the optimizer's slots.

    Args:
        variable: The variable.

    Returns:
        float64 for float64 values, otherwise float32.
    """
    return inside(variable).schema.slot_dtype


def new_slots(variable: Variable, values: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
    """Compute the optimizer's slots of new rows with these values.

    Args:
        variable: The variable.
        values: Embeddings (n, dim).

    Returns:
        A dict from slot name to an array (n, width).

    Raises:
        TypeError: As ``kvemb.Variable.upsert``, for values.
        ValueError: As ``kvemb.Variable.upsert``.
    """
    schema = inside(variable).schema
    given = as_values(values, schema.value_dtype, (len(np.asarray(values)), schema.dim))
    return inside(variable).operations.new_rows(np.zeros(len(given), np.int64), given).slots_by_name()


def bring_sightings(variable: Variable, source: Checkpoint) -> None:
    """Take over the ``Admission`` counters that a checkpoint has for the variable of this name.

    They become durable with the next flush. The checkpoint must stay until then.

    Args:
        variable: The variable that gets the counters.
        source: The checkpoint.

    Raises:
        Corruption: The counters are damaged.
    """
    if (counted := inside(source).sightings.get(variable.name)) is not None:
        engine = inside(variable.resource_handle[0])
        adopt_counters(engine, inside(variable), source.path / layout.COUNTERS, counted)


def scan(
    variable: Variable, n: int = BATCH_ROWS, *, first: int | None = None, last: int | None = None
) -> Iterator[Rows]:
    """Iterate over the whole rows of a range of keys as they are at this call, in key order.

    Dirty rows are written first, as by ``Variable.export_batches``.

    Args:
        variable: The variable.
        n: Rows in a batch; the last one may have fewer.
        first: The first key of the range. None: no bound.
        last: The last key of the range, included. None: no bound.

    Yields:
        Batches of whole rows, with slots, scores and steps.

    Raises:
        TypeError, ValueError: ``n`` is not an int above 0, or a bound is not an int.
        Corruption: Bytes on disk differ from what was written.

    Example:
        >>> [batch.keys.tolist() for batch in kvemb.bulk.scan(users, first=2)]
        [[2, 3]]
    """
    schema, size = inside(variable).schema, as_int(n, "n", 1, MAX_ROWS)
    limits = np.iinfo(schema.key_dtype)
    least, most = int(limits.min), int(limits.max)
    low = least if first is None else max(as_int(first, "first"), least)
    high = most if last is None else min(as_int(last, "last"), most)
    if low > high:
        return iter(())
    blocks = inside(variable).storage.scan(size, order_key(low, schema), order_key(high, schema))
    return (_rows_of(block) for block in blocks)


def read(variable: Variable, keys: npt.ArrayLike) -> Rows:
    """Read the whole rows of keys, bypassing the hot tier. It counts as no use.

    Dirty rows are written first.

    Args:
        variable: The variable.
        keys: Distinct keys (n,).

    Returns:
        The rows of the keys that exist, in the order of ``keys``.

    Raises:
        TypeError, ValueError: ``keys`` are not valid.
        Corruption: Bytes on disk differ from what was written.

    Example:
        >>> kvemb.bulk.read(users, [3, 99]).keys.tolist()
        [3]
    """
    table = inside(variable)
    storage, named = table.storage, named_keys(keys, table.schema.name_bytes) if table.schema.name_bytes else None
    wanted = as_keys(keys, table.schema.key_dtype) if named is None else named.keys
    with nullcontext(storage.cold) if variable.resource_handle[0].state.read_only else storage.bypassing() as cold:
        rows, exists = cold.read(wanted)
    if named is not None:
        check_names(wanted[exists], named.names[exists], rows.names())
    return _rows_of(rows)


def ranges(variable: Variable, n: int) -> list[tuple[int, int]]:
    """Divide all possible keys into ranges with about as many rows each, without reading rows.

    Args:
        variable: The variable.
        n: The most ranges.

    Returns:
        Ranges (first, last), ends included, ascending. Together they cover every possible key.

    Raises:
        TypeError, ValueError: ``n`` is not an int above 0.
    """
    schema = inside(variable).schema
    splits = inside(variable).storage.cold.splits(as_int(n, "n", 1, MAX_PARTS))
    firsts, lasts = [0, *splits], [*(split - 1 for split in splits), LAST_KEY]
    return [(key_at(first, schema), key_at(last, schema)) for first, last in zip(firsts, lasts, strict=True)]


def restrict(variable: Variable, num_reserved: int, *, progress: Progress | None = None, dry_run: bool = False) -> int:
    """Do what ``Variable.restrict`` does, and report progress.

    Args:
        variable: The variable.
        num_reserved: How many rows to keep.
        progress: ``fn(done, total)``, called with numbers of rows: first of those scanned, then of those removed.
        dry_run: Whether to remove none, and count those that would be removed now. Read-only stores allow this.

    Returns:
        The number of rows removed.

    Raises:
        ValueError: The variable has no policy, or was opened without its user-defined one; or ``num_reserved`` is
            negative.
        TypeError: ``num_reserved`` is not an int.
        MemoryError: A GPU, or this machine, has too little memory.

    Example:
        >>> kvemb.bulk.restrict(users, 1, dry_run=True), users.size()
        (2, 3)
    """
    if variable.restrict_policy is None:
        raise ValueError(
            f"variable {variable.name!r} has no restrict policy, whose scores say which rows leave; create it with "
            "restrict_policy=, or give it one with kvemb migrate --policy"
        )
    if isinstance(variable.restrict_policy, MissingPolicy):
        raise variable.restrict_policy.error()
    reserved, operations = as_int(num_reserved, "num_reserved", 0, MAX_ROWS), inside(variable).operations
    return operations.count_removals(reserved, progress) if dry_run else operations.restrict(reserved, None, progress)


def compact(store: Store, *, progress: Progress | None = None) -> None:
    """Merge the files of every variable, which frees the disk space of replaced and removed rows; then flush.

    Checkpoints and marks keep their files.

    Args:
        store: The store.
        progress: ``fn(done, total)``, called with rows.

    Raises:
        ColdStoreError: The disk could not be read or written.
    """
    store.flush()
    variables = list(store.variables.values())
    meter = Meter(sum(variable.size() for variable in variables), progress)
    for variable in variables:
        rows, reported = variable.size(), 0

        def report(done: int, total: int, rows: int = rows) -> None:
            nonlocal reported
            meter(rows * done // total - reported)
            reported = rows * done // total

        inside(variable).storage.cold.compact(report)
    inside(store).start().result()  # a flush would find no row changed


def _entry_of(name: str, like: Mapping[str, Any]) -> VariableEntry:
    return entry_of({field: value for field, value in like.items() if field != "name"}, name)


def _rows_of(block: RowBlock) -> Rows:
    return Rows(keys_of(block), block.embeddings(), block.slots_by_name(), block.scores, block.steps)
