"""The raw files of HugeCTR, TFRA and dynamicemb: one per column, little-endian, without a header.

Rows are appended to all columns' files as they arrive, and files are memory-mapped for reading, so memory does not grow
with the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.arrays import write_files
from kvemb.tools.formats.columns import (
    KEY,
    SCORE,
    VALUE,
    Batch,
    Column,
    Read,
    SourceOptions,
    Table,
    check_width,
    slices,
)
from kvemb.tools.numbers import dtype_of


def write_hugectr(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write HugeCTR's sparse model: `key` int64 and `emb_vector` float32."""
    write_files({folder / "key": _wide_keys, folder / "emb_vector": itemgetter(VALUE)}, batches)


def _wide_keys(batch: Batch) -> Any:
    return batch[KEY].astype("<i8")


def read_hugectr(folder: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read HugeCTR's sparse model."""
    arrays = {KEY: _raw(folder / "key", np.int64), VALUE: _raw(folder / "emb_vector", np.float32)}
    return _joined(folder, {}, [_shaped(folder, arrays)])


def _escaped(table: str) -> str:
    """Return a variable's name escaped for use in a file name."""
    return table.replace("%", "%25").replace("/", "%2F")


def _unescaped(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


def write_tfra(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write the files of TFRA's file system saver: keys and values; slots as separate tables, NAME-SLOT."""
    name, files = table.metadata["name"], dict[Path, Callable[[Batch], Any]]()
    for column in (column.name for column in table.columns if column.name != KEY):
        stem = f"{_escaped(name if column == VALUE else f'{name}-{column}')}_mht_1of1_rank0_size1"
        files |= {folder / f"{stem}-keys": itemgetter(KEY), folder / f"{stem}-values": itemgetter(column)}
    write_files(files, batches)


# Names of slots in TensorFlow's and Keras' optimizers.
_SLOTS = (
    *("m", "v", "vhat", "u", "velocity", "momentum", "accumulator", "linear", "rms", "mg", "average_gradient"),
    *("accum", "accum_update", "accum_grad", "accum_var", "accumulated_grad", "accumulated_delta_var"),
)


def companions(table: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the names of tables that TFRA saves beside a table: its slots, and a policy's status.

    TFRA names a slot NAME/OPERATION/SLOT, or NAME/SLOT with short_file_name, and a status SCOPE/status/NAME/timestamp
    or frequency. In the names of files each / is an underscore. kvemb names a slot NAME-SLOT.
    """
    name = re.escape(table)
    return (
        re.compile(rf"{name}(-.+|_(.+_)?({'|'.join(_SLOTS)}))"),
        re.compile(rf"(.+_)?status(_\d+)?_{name}_(timestamp|frequency)"),
    )


# A file of one of the shards of a process, whose rank and number of ranks follow.
_SHARD = re.compile(r"_mht_(?:\d+)of(?:\d+)_rank(?:\d+)_size(?:\d+)-keys")


def _check_shards(folder: Path, paths: list[Path]) -> None:
    """Raise BadInput unless the files are all shards of all ranks of one save."""
    numbers = [tuple(map(int, re.findall(r"\d+", _SHARD.search(path.name)[0]))) for path in paths]  # type: ignore[index]
    kinds = {(of, size) for _, of, _, size in numbers}
    if len(kinds) > 1:
        saves = " and ".join(f"of {of} shards and {size} ranks" for of, size in sorted(kinds))
        raise BadInput(f"{folder} has files of several saves, {saves}; keep those of one")
    ((of, size),) = kinds
    there = {(shard, rank) for shard, _, rank, _ in numbers}
    wanted = ((shard, rank) for rank in range(size) for shard in range(1, of + 1))
    if missing := [each for each in wanted if each not in there]:
        names = ", ".join(f"_mht_{shard}of{of}_rank{rank}_size{size}-keys" for shard, rank in missing[:4])
        raise BadInput(f"{folder} lacks {len(missing)} of {of * size} files with keys: {names}; get all of them")


def read_tfra(folder: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read a table of TFRA's file system saver, of all ranks; slots and statuses of policies are not read.

    The files do not contain dtypes: int64 keys and float32 values are assumed unless given.
    """
    if given.key_dtype == "string":
        raise BadInput(
            f"{folder} cannot have strings: a FileSystemSaver of TFRA writes where they are in memory. Save the "
            "variable in a checkpoint of TensorFlow, without that saver, and import it with --format tf-checkpoint"
        )
    key_dtype, value_dtype = dtype_of(given.key_dtype or "int64"), dtype_of(given.value_dtype or "float32")
    found = _key_files(folder, rf"(.*){_SHARD.pattern}")
    if found and given.variable is not None:
        name = given.variable if given.variable in found else given.variable.replace("/", "_")
        if name not in found:
            raise WrongUsage(f"{folder} has no table {given.variable!r}; it has {', '.join(sorted(found))}")
    else:
        name = _chosen_table(folder, list(found), main_tables(_sizes(found)), given)
    _check_shards(folder, found[name])
    parts = [{KEY: _raw(path, key_dtype), VALUE: _raw(_values_of(path), value_dtype)} for path in found[name]]
    return _joined(folder, {"name": name}, [_shaped(folder, part) for part in parts])


def _key_files(folder: Path, pattern: str) -> dict[str, list[Path]]:
    """Return the files whose names match a pattern, by the name of their table, which is the pattern's group."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if match := re.fullmatch(pattern, path.name):
            found.setdefault(_unescaped(match[1]), []).append(path)
    return found


def _values_of(keys: Path) -> Path:
    return keys.with_name(keys.name.removesuffix("keys") + "values")


def main_tables(sizes: dict[str, tuple[int, int]]) -> list[str]:
    """Return the tables that are not beside another one. A slot has as many values a row as its table.

    sizes: of each table by name, the bytes of its keys and of its values.
    """
    left = set(sizes)
    for table, (keys, values) in sizes.items():
        slot, status = companions(table)
        for name in left - {table}:
            if status.fullmatch(name):
                left.discard(name)
            elif slot.fullmatch(name):
                own_keys, own_values = sizes[name]
                if own_values * keys == values * own_keys:
                    left.discard(name)
    return sorted(left)


def _sizes(found: dict[str, list[Path]]) -> dict[str, tuple[int, int]]:
    def nbytes(paths: list[Path]) -> int:
        return sum(path.stat().st_size for path in paths if path.is_file())

    return {name: (nbytes(paths), nbytes([_values_of(path) for path in paths])) for name, paths in found.items()}


def write_dynamicemb(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write a dump of NVIDIA's dynamicemb, for one rank: keys, values, scores and the optimizer's values."""
    name, slots = _escaped(table.metadata["name"]), [slot["name"] for slot in table.metadata["slots"]]

    def numbers_of_slots(batch: Batch) -> Any:
        none = np.empty((len(batch[KEY]), 0), "<f4")
        return np.concatenate([none, *(batch[slot] for slot in slots)], axis=1, dtype="<f4")

    parts: dict[str, Callable[[Batch], Any]] = {
        "keys": _wide_keys,
        "values": itemgetter(VALUE),
        "scores": lambda batch: np.rint(batch[SCORE]).astype("<i8"),
        "opt_values": numbers_of_slots,
    }
    write_files({folder / f"{name}_emb_{what}.rank_0.world_size_1": part for what, part in parts.items()}, batches)
    optimizer = dict(table.metadata.get("optimizer") or {})
    args = {"opt_type": optimizer.pop("name", None), **optimizer}
    (folder / f"{name}_opt_args.json").write_text(json.dumps(args, indent=1) + "\n", encoding="utf-8")


def read_dynamicemb(folder: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read a dump of dynamicemb, of all ranks, with its scores; the optimizer's values are not read."""
    found = _key_files(folder, r"(.*)_emb_keys\.rank_\d+\.world_size_\d+")
    name = _chosen_table(folder, list(found), list(found), given)
    parts = []
    for path in found[name]:
        arrays = {KEY: _raw(path, np.int64), VALUE: _raw(_sibling(path, "values"), np.float32)}
        if _sibling(path, "scores").is_file():
            arrays[SCORE] = _raw(_sibling(path, "scores"), np.int64)
        parts.append(_shaped(folder, arrays))
    return _joined(folder, {"name": name}, parts)


def _chosen_table(folder: Path, known: list[str], candidates: list[str], given: SourceOptions) -> str:
    """Return the table named by the user, or the only candidate. Raises BadInput, WrongUsage."""
    if given.variable in known:
        return given.variable
    if not known:
        raise BadInput(f"{folder} has no table in the files of this format")
    if len(candidates) != 1:
        names = sorted(candidates or known)
        raise WrongUsage(f"{folder} has the tables {', '.join(names)}; name one: --variable {names[0]}")
    return candidates[0]


def _sibling(keys: Path, what: str) -> Path:
    return keys.with_name(keys.name.replace("_emb_keys.", f"_emb_{what}."))


def _joined(source: Path, metadata: dict[str, Any], parts: list[Batch]) -> tuple[Table, Read]:
    widths = {part[VALUE].shape[1] for part in parts if len(part[KEY])} or {0}
    if len(widths) > 1:
        raise BadInput(f"{source} has parts whose rows have {min(widths)} and {max(widths)} values")
    columns = [Column(KEY, parts[0][KEY].dtype), Column(VALUE, parts[0][VALUE].dtype, widths.pop())]
    if all(SCORE in part for part in parts):
        columns.append(Column(SCORE, np.dtype(np.float64)))
    row_bytes = sum(column.nbytes for column in columns)

    def read(wanted: Collection[str]) -> Iterator[Batch]:
        for part in parts:
            for rows in slices(len(part[KEY]), row_bytes):
                yield {
                    each.name: np.array(part[each.name][rows], each.dtype) for each in columns if each.name in wanted
                }

    return Table(columns, sum(len(part[KEY]) for part in parts), metadata), read


def _raw(path: Path, dtype: Any) -> Any:
    """Return a raw file as a memory-mapped array (n,). Raises BadInput."""
    if not path.is_file():
        raise BadInput(f"{path} is missing")
    kind = np.dtype(dtype)
    if path.stat().st_size % kind.itemsize:
        raise BadInput(
            f"{path} has {path.stat().st_size:,} bytes, not a multiple of the {kind.itemsize} of one {kind.name}"
        )
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


def _shaped(folder: Path, arrays: Batch) -> Batch:
    """Return arrays with the values reshaped to (n, width) for n keys. Raises BadInput if they do not divide evenly."""
    rows, numbers = len(arrays[KEY]), len(arrays[VALUE])
    if numbers % max(1, rows) or (rows == 0 and numbers):
        raise BadInput(f"{folder} has {rows:,} keys and {numbers:,} numbers, which is not a multiple of the keys")
    if SCORE in arrays and len(arrays[SCORE]) != rows:
        raise BadInput(f"{folder} has {rows:,} keys and {len(arrays[SCORE]):,} scores")
    return {**arrays, VALUE: arrays[VALUE].reshape(rows, check_width(numbers // max(1, rows), folder))}
