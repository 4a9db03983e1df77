"""Raw files of other systems, one a column: no header, little-endian. HugeCTR, TFRA and dynamicemb.

Columns are written beside each other as rows come, and mapped to be read, so memory does not follow the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.arrays import READ_ROWS, of_arrays, write_columns
from kvemb.tools.formats.columns import (
    KEY,
    SCORE,
    VALUE,
    Batch,
    Column,
    Given,
    Table,
    check_width,
    rows_at_once,
)
from kvemb.tools.numbers import dtype_of


def write_hugectr(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write HugeCTR's sparse model: `key` int64 and `emb_vector` float32."""
    wide = ({**batch, KEY: batch[KEY].astype("<i8")} for batch in batches)
    with open(folder / "key", "wb") as keys, open(folder / "emb_vector", "wb") as values:
        write_columns({KEY: keys, VALUE: values}, wide)


def read_hugectr(folder: Path, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read HugeCTR's sparse model."""
    arrays = {KEY: _raw(folder / "key", np.int64), VALUE: _raw(folder / "emb_vector", np.float32)}
    return of_arrays(str(folder), _shaped(folder, arrays), {}, Given())


def tfra_name(table: str, what: str) -> str:
    """The name of a file of TFRA's file system saver, of one worker."""
    return f"{_in_a_name(table)}_mht_1of1_rank0_size1-{what}"


def _in_a_name(table: str) -> str:
    """A variable's name as a part of a file's."""
    return table.replace("%", "%25").replace("/", "%2F")


def _out_of_a_name(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


def write_tfra(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write TFRA's file system saver's files: keys and values; slots as tables of their own, NAME-SLOT."""
    name = table.about["name"]
    with ExitStack() as stack:

        def begin(table_name: str, what: str) -> IO[bytes]:
            return stack.enter_context(open(folder / tfra_name(table_name, what), "wb"))

        columns = {column.name: column.name for column in table.columns}
        files = {columns.pop(KEY): begin(name, "keys"), columns.pop(VALUE): begin(name, "values")}
        copies = [begin(f"{name}-{slot}", "keys") for slot in columns]
        files |= {slot: begin(f"{name}-{slot}", "values") for slot in columns}
        for batch in batches:
            write_columns(files, iter([batch]))
            for copy in copies:
                copy.write(batch[KEY].tobytes())


def read_tfra(folder: Path, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read a table of TFRA's file system saver, of all ranks; slots are tables of their own, and stay out.

    Its files do not say of what dtype they are: int64 and float32 unless that is given.
    """
    key_dtype, value_dtype = dtype_of(given.key_dtype or "int64"), dtype_of(given.value_dtype or "float32")
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*_mht_*of*_rank*_size*-keys")) if folder.is_dir() else []:
        stem = re.split(r"_mht_\d+of\d+_rank\d+_size\d+-keys$", path.name)[0]
        found.setdefault(_out_of_a_name(stem), []).append(path)
    main = {name: paths for name, paths in found.items() if not any(name.startswith(f"{other}-") for other in found)}
    name = _meant(folder, list(found), list(main), given)
    parts = []
    for path in found[name]:
        values = path.with_name(path.name.removesuffix("keys") + "values")
        parts.append(_shaped(folder, {KEY: _raw(path, key_dtype), VALUE: _raw(values, value_dtype)}))
    return _joined(str(folder), name, parts)


def write_dynamicemb(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write what NVIDIA's dynamicemb dumps, of one rank: keys, values, scores and the optimizer's values."""
    name, slots = table.about["name"], [slot["name"] for slot in table.about["slots"]]
    with ExitStack() as stack:

        def begin(what: str) -> IO[bytes]:
            return stack.enter_context(open(folder / f"{_in_a_name(name)}_emb_{what}.rank_0.world_size_1", "wb"))

        keys, values, scores, opt_values = (begin(what) for what in ("keys", "values", "scores", "opt_values"))
        for batch in batches:
            keys.write(batch[KEY].astype("<i8").tobytes())
            values.write(batch[VALUE].tobytes())
            scores.write(np.rint(batch[SCORE]).astype("<i8").tobytes())
            if slots:
                opt_values.write(np.concatenate([batch[slot] for slot in slots], axis=1).astype("<f4").tobytes())
    optimizer = dict(table.about.get("optimizer") or {})
    args = {"opt_type": optimizer.pop("name", None), **optimizer}
    (folder / f"{_in_a_name(name)}_opt_args.json").write_text(json.dumps(args, indent=1) + "\n", encoding="utf-8")


def read_dynamicemb(folder: Path, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read a table that dynamicemb dumped, of all ranks, with its scores; the optimizer's values stay out."""
    pattern = re.compile(r"(.*)_emb_keys\.rank_\d+\.world_size_\d+")
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if match := pattern.fullmatch(path.name):
            found.setdefault(_out_of_a_name(match[1]), []).append(path)
    name = _meant(folder, list(found), list(found), given)
    parts = []
    for path in found[name]:
        arrays = {KEY: _raw(path, np.int64), VALUE: _raw(_sibling(path, "values"), np.float32)}
        if _sibling(path, "scores").is_file():
            arrays[SCORE] = _raw(_sibling(path, "scores"), np.int64)
        parts.append(_shaped(folder, arrays))
    return _joined(str(folder), name, parts)


def _meant(folder: Path, known: list[str], likely: list[str], given: Given) -> str:
    """Return the table of a folder that is named, or the only likely one. Raises BadInput."""
    if given.variable in known:
        return given.variable
    if not known:
        raise BadInput(f"{folder} has no table in the files of this format")
    if len(likely) != 1:
        raise WrongUsage(f"{folder} has the tables {', '.join(sorted(known))}; name one: --variable {min(known)}")
    return likely[0]


def _sibling(keys: Path, what: str) -> Path:
    return keys.with_name(keys.name.replace("_emb_keys.", f"_emb_{what}."))


def _joined(place: str, name: str, parts: list[Batch]) -> tuple[Table, Iterator[Batch]]:
    widths = {part[VALUE].shape[1] for part in parts if len(part[KEY])} or {0}
    if len(widths) > 1:
        raise BadInput(f"{place} has parts whose rows have {min(widths)} and {max(widths)} values")
    columns = [Column(KEY, parts[0][KEY].dtype), Column(VALUE, parts[0][VALUE].dtype, widths.pop())]
    if all(SCORE in part for part in parts):
        columns.append(Column(SCORE, np.dtype(np.float64)))
    step = rows_at_once(sum(column.nbytes for column in columns), READ_ROWS)

    def batches() -> Iterator[Batch]:
        for part in parts:
            for at in range(0, len(part[KEY]), step):
                yield {each.name: np.array(part[each.name][at : at + step], each.dtype) for each in columns}

    return Table(columns, sum(len(part[KEY]) for part in parts), {"name": name}), batches()


def _raw(path: Path, dtype: Any) -> Any:
    """A file's numbers, mapped."""
    if not path.is_file():
        raise BadInput(f"{path} is missing")
    kind = np.dtype(dtype)
    if path.stat().st_size % kind.itemsize:
        raise BadInput(f"{path} has {path.stat().st_size:,} bytes, which are no whole number of {kind.name}")
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


def _shaped(folder: Path, arrays: Batch) -> Batch:
    """Give the values of keys (n,) their width."""
    rows, numbers = len(arrays[KEY]), len(arrays[VALUE])
    if numbers % max(1, rows) or (rows == 0 and numbers):
        raise BadInput(f"{folder} has {rows:,} keys and {numbers:,} numbers, which are no whole number a key")
    if SCORE in arrays and len(arrays[SCORE]) != rows:
        raise BadInput(f"{folder} has {rows:,} keys and {len(arrays[SCORE]):,} scores")
    return {**arrays, VALUE: arrays[VALUE].reshape(rows, check_width(numbers // max(1, rows), folder))}
