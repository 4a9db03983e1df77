"""Import a table in any of the formats into a new or an existing variable of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.ahead import ahead
from kvemb.tools.destinations import PIPE, atomic_output, fetched, is_compressed
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    ROW,
    SCALE,
    SCORE,
    SLOTLESS,
    STEP,
    VALUE,
    Batch,
    PathOrFile,
    SourceOptions,
    Table,
)
from kvemb.tools.formats.known import Format, format_of
from kvemb.tools.keys import integers, read_keys
from kvemb.tools.named import named
from kvemb.tools.numbers import narrow, rounded
from kvemb.tools.reading import WRITE_BUDGET, Progress, kind_name

Conflict = Literal["replace", "keep", "error"]
STRING = "string"
VALUE_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64")
# Metadata that an export adds to the description of a variable.
_ADDED = ("format", "whole", "bfloat16")


@dataclass(frozen=True)
class Imported:
    """What was loaded: how many rows were added, replaced, and kept as they were; rows: the variable's size now.

    duplicates: rows of the source that were left out because another one has the same key. made: the names of
    optimizer, policy and initializer if the variable is new, otherwise None. slots: those that the source has; the
    variable's others are those of new rows.
    """

    variable: str
    added: int
    replaced: int
    kept: int
    rows: int
    duplicates: int = 0
    made: dict[str, str] | None = None
    slots: tuple[str, ...] = ()


def import_table(
    source: str | os.PathLike[str] | IO[bytes],
    path: str | os.PathLike[str],
    *,
    variable: str | None = None,
    format: str | None = None,
    on_conflict: Conflict = "error",
    key_column: str | None = None,
    value_column: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    optimizer: str | None = None,
    hash_keys: bool = False,
    name_bytes: int | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Load a file, a folder, a URL or an open binary file into a variable of the store at path.

    The store and the variable are created if they do not exist; a file that kvemb exported with slots and scores
    creates the variable as it was. variable: its name; None: the name in the file, or that of the file. format: a name
    in formats.known.FORMATS; None: by the ending of source. on_conflict: what happens if a key has a row already, also
    in source, as for kvemb.bulk.load. key_column, value_column: of a Parquet, Arrow, CSV, npy, safetensors or PyTorch
    source. keys: a file of the keys of a matrix's rows, .npy or one a line; None: their numbers. key_dtype,
    value_dtype: of a new variable, and of formats that do not say; None: those of the source. optimizer: of a new
    variable, as for `kvemb migrate`: "adagrad:0.1". hash_keys: keys are the hashes of words (kvemb.hash_strings).
    name_bytes: of a new variable with the key_dtype "string". progress(done, total): rows; total is 0 if it is not
    known.

    Raises BadInput, FileNotFoundError, and what kvemb.open and kvemb.bulk.load raise; then the store is unchanged.
    """
    origin = source if not isinstance(source, (str, os.PathLike)) else os.fspath(source)
    kind = format_of(format, origin if isinstance(origin, str) else PIPE)
    check_dtype(value_dtype)
    keys_given = None if keys is None else read_keys(Path(keys))
    if hash_keys and key_dtype not in (None, "int64"):
        raise WrongUsage(f"--hash-keys makes int64 keys; leave out --key-dtype {key_dtype}")
    if name_bytes is not None and key_dtype != STRING:
        raise WrongUsage("--name-bytes is for a new variable with --key-dtype string")
    words = hash_keys or key_dtype == STRING
    given = SourceOptions(
        variable, key_column, value_column, keys_given, words, key_dtype, value_dtype, hash_keys, name_bytes
    )
    optimizing = None if optimizer is None else named("optimizer", optimizer)[0]
    if not isinstance(origin, str):
        if not kind.pipe:
            raise BadInput(f"{kind.name} cannot be read from a pipe; name a file")
        return _import(origin, "table", kind, path, given, optimizing, on_conflict, progress)
    with fetched(origin) as here:
        if not kind.is_at(here):
            raise FileNotFoundError(f"{origin} does not exist")
        if is_compressed(here) and not kind.pipe:
            raise BadInput(f"{here} is compressed; {kind.name} is read from its place in a file: decompress it first")
        return _import(here, here.name.split(".")[0], kind, path, given, optimizing, on_conflict, progress)


def _import(
    origin: PathOrFile,
    stem: str,
    kind: Format,
    path: str | os.PathLike[str],
    given: SourceOptions,
    optimizer: dict[str, Any] | None,
    on_conflict: Conflict,
    progress: Progress | None,
) -> Imported:
    table, read = kind.read(origin, given)
    name = given.variable or table.metadata.get("name") or stem
    with ExitStack() as stack:
        where = Path(path)
        if not where.exists() or (where.is_dir() and not any(where.iterdir()) and not where.is_mount()):
            where = stack.enter_context(atomic_output(os.fspath(path), folder=True))
        store = stack.enter_context(filled(where))
        known = name in store.variables
        if optimizer is not None and (known or table.metadata.get("whole")):
            has = f"variable {name!r} exists" if known else f"{origin} was exported with the optimizer of its variable"
            raise WrongUsage(f"{has}; leave out --optimizer, and change it with kvemb migrate --optimizer")
        target = store.variables[name] if known else _created(store, name, table, given, optimizer)
        wanted = _wanted(table, target)
        batches = read(wanted)
        rows = ahead(_rows(batches, table, target, origin, progress, hash_keys=given.hash_keys))
        loaded = bulk.load(target, rows, on_conflict=on_conflict)
        described = bulk.described(target)
        made = {what: kind_name(described[what]) for what in ("optimizer", "policy", "initializer")}
        counts = (loaded.added, loaded.replaced, loaded.kept, target.size(), loaded.duplicates)
        slots = tuple(each for each in _slots(target) if each in wanted)
        return Imported(name, *counts, None if known else made, slots)


@contextmanager
def filled(path: Path) -> Iterator[kvemb.Store]:
    """Open a store for a block that fills it. If the block fails, the variables that it created are discarded."""
    store = kvemb.open(path, memory_budget=WRITE_BUDGET)
    try:
        yield store
    except BaseException:
        store.close(flush=False)
        raise
    store.close()


def _wanted(table: Table, target: kvemb.Variable) -> list[str]:
    """Return the columns to read: key, value, and of kvemb's other ones those that the variable has."""
    there = {column.name for column in table.columns}
    slots = _slots(target)
    alone = [each.name for each in table.columns if each.name in (SCALE, SCORE, STEP) and each.width is None]
    return [KEY, VALUE, *alone, *(slots if there.issuperset(slots) else [])]


def _slots(target: kvemb.Variable) -> list[str]:
    return [slot.name for slot in target.optimizer.shapes(target.dim)] if target.optimizer else []


def _created(
    store: kvemb.Store, name: str, table: Table, given: SourceOptions, optimizer: dict[str, Any] | None
) -> kvemb.Variable:
    """Create a variable from the source's metadata, or from its columns."""
    key, value, metadata = table.key, table.value, table.metadata
    if metadata.get("whole"):
        return bulk.make(store, name, {field: metadata[field] for field in metadata if field not in _ADDED})
    keys = given.key_dtype or ("uint64" if key.dtype == np.uint64 else "int32" if key.dtype == np.int32 else "int64")
    values = given.value_dtype or metadata.get("value_dtype") or value.dtype.name
    if table.column(SCALE) is not None:
        values = given.value_dtype or "float32"
    if values not in VALUE_DTYPES:
        raise BadInput(f"the source has {values} values; give --value-dtype, one of {', '.join(VALUE_DTYPES)}")
    if not value.width:
        raise BadInput(f"the source has no rows and does not give their dim; create the variable {name!r} first")
    made = None if optimizer is None else kvemb.optimizers.optimizer_from_json(optimizer)
    target = store.get_variable(name, keys, values, value.width, optimizer=made, name_bytes=given.name_bytes)
    if made is not None and made.counts_steps and "optimizer_steps" in metadata:
        like = {**bulk.described(target), "optimizer_steps": metadata["optimizer_steps"]}
        store.drop_variable(name)
        target = bulk.make(store, name, like)
    return target


def _rows(
    batches: Iterator[Batch],
    table: Table,
    target: kvemb.Variable,
    source: object,
    progress: Progress | None,
    *,
    hash_keys: bool = False,
) -> Iterator[bulk.Rows]:
    """Convert batches of columns to rows of a variable. Raises BadInput if they do not fit."""
    slots = target.optimizer.shapes(target.dim) if target.optimizer else ()
    has_slots = bool(slots) and all(table.column(slot.name) is not None for slot in slots)
    done = 0
    for batch in batches:
        for name in table.metadata.get("bfloat16", []):
            batch[name] = narrow(batch[name])
        keys, values = batch[KEY], batch[VALUE]
        if target.key_dtype.kind == "O":
            if hash_keys:
                raise WrongUsage(f"variable {target.name!r} has string keys; leave out --hash-keys")
            keys = keys.astype(np.str_).astype(object) if isinstance(keys, np.ndarray) else np.array(keys, object)
        elif hash_keys:
            if isinstance(keys, np.ndarray):
                raise BadInput(f"{source} has integers as keys; leave out --hash-keys, which is for words")
            keys = kvemb.hash_strings(keys)
        elif not isinstance(keys, np.ndarray):
            numbers = batch.get(ROW, range(done, done + len(keys)))
            keys = integers(keys, target.key_dtype, partial(_place, table, numbers), source)
        if SCALE in batch:
            values = values.astype(np.float32) * batch[SCALE][:, None]
        if values.shape[1] != target.dim:
            raise BadInput(
                f"the source has rows of {values.shape[1]} values, variable {target.name!r} has {target.dim}"
            )
        for slot in slots if has_slots else ():
            batch[slot.name] = batch[slot.name].reshape(len(keys), -1) if len(keys) else batch[slot.name]
            shape = batch[slot.name].shape[1:]
            if shape != (slot.width,):
                raise BadInput(
                    f"the source has the slot {slot.name!r} with {shape[0] if shape else 1} numbers, variable "
                    f"{target.name!r} has it with {slot.width}; export without slots, or see kvemb migrate --optimizer"
                )
        if has_slots and SLOTLESS in batch and batch[SLOTLESS].any():
            for name, new in bulk.new_slots(target, values[batch[SLOTLESS]]).items():
                batch[name][batch[SLOTLESS]] = new
        yield bulk.Rows(
            converted(keys, keys, target.key_dtype, "keys", target.name),
            converted(values, keys, target.value_dtype, "values", target.name),
            {slot.name: batch[slot.name] for slot in slots} if has_slots else None,
            batch.get(SCORE),
            batch.get(STEP),
        )
        done += len(keys)
        if progress is not None:
            progress(done, table.rows or 0)


def _place(table: Table, numbers: Sequence[int], at: int) -> str:
    return table.place(int(numbers[at]))


def check_dtype(value_dtype: str | None) -> None:
    """Raise WrongUsage unless value_dtype is a dtype of values, or None."""
    if value_dtype is not None and value_dtype not in VALUE_DTYPES:
        raise WrongUsage(f"--value-dtype must be one of {', '.join(VALUE_DTYPES)}, got {value_dtype!r}")


def converted(array: Any, keys: Any, dtype: np.dtype[Any], what: str, name: str) -> Any:
    """Return an array (n,) or (n, dim) in a variable's dtype. Floats may be rounded; integers must not change.

    keys (n,): of the rows, for the message. Raises BadInput, also if a finite number would become infinite.
    """
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu" or dtype.kind in "iu":
        with np.errstate(invalid="ignore", over="ignore"):
            changed = array.astype(dtype)
            back = changed.astype(array.dtype)
        wrong = (back != array) | ((changed < 0) != (array < 0))
        if wrong.any():
            raise BadInput(
                f"{what} of the source do not fit {dtype.name}, the dtype of variable {name!r}: "
                f"{array[wrong].reshape(-1)[0]}"
            )
        return changed
    return rounded(array, dtype, keys, f"create variable {name!r} with another --value-dtype, or change the number")
