"""Formats with one array per column: .npy files in a folder, a safetensors file. A matrix alone is a table, too.

Rows are appended to all columns' files as they arrive, so memory does not grow with the table.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    MAX_METADATA_BYTES,
    VALUE,
    Batch,
    Column,
    Read,
    SourceOptions,
    Table,
    check_width,
    parse_metadata,
    slices,
)
from kvemb.tools.numbers import dtype_of

METADATA_FILE = "about.json"
_MAGIC = b"\x93NUMPY"
NPY_HEADER_BYTES = 128
_SAFE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8"}
_SAFE |= {"int32": "I32", "int64": "I64", "uint64": "U64"}


def write_files(parts: Mapping[Path, Callable[[Batch], Any]], batches: Iterator[Batch], at: int = 0) -> int:
    """Write new files, each with the arrays that its function returns for the batches; returns the number of rows.

    at: where in the files the arrays begin.
    """
    rows = 0
    with ExitStack() as stack:
        files = [(stack.enter_context(open(path, "wb")), part) for path, part in parts.items()]
        for file, _ in files:
            file.seek(at)
        for batch in batches:
            for file, part in files:
                file.write(np.ascontiguousarray(part(batch)).tobytes())
            rows += len(batch[KEY])
    return rows


def _header(column: Column, rows: int) -> bytes:
    """Return the header of a .npy file; its length does not depend on the number of rows."""
    shape = (rows,) if column.width is None else (rows, column.width)
    text = repr({"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": shape})
    text = text.ljust(NPY_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def write_npy(folder: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write key.npy, value.npy and so on, which numpy.load(..., mmap_mode="r") can map."""
    paths = {column.name: folder / f"{column.name}.npy" for column in table.columns}
    rows = write_files({path: itemgetter(name) for name, path in paths.items()}, batches, NPY_HEADER_BYTES)
    for column in table.columns:
        with open(paths[column.name], "r+b") as file:
            file.write(_header(column, rows))
    if table.metadata:
        (folder / METADATA_FILE).write_text(json.dumps(table.metadata, indent=1) + "\n", encoding="utf-8")


def read_npy(source: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read one .npy file, a matrix, or those of a folder; a file's name without .npy is its column's."""
    files = [source] if source.is_file() else sorted(source.glob("*.npy"))
    metadata = {}
    if (source / METADATA_FILE).is_file():
        with open(source / METADATA_FILE, "rb") as file:
            metadata = parse_metadata(file.read(MAX_METADATA_BYTES + 1), source / METADATA_FILE)
    return of_arrays(source, {path.stem: _mapped(path) for path in files}, metadata, given)


def _mapped(path: Path) -> Any:
    """Return the memory-mapped array of a .npy file. Raises BadInput."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:  # np.load's advice would be to unpickle it
                raise ValueError("it does not begin as a .npy file does")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays, or none")
    except Exception as error:  # a damaged header can raise anything
        raise BadInput(f"{path} cannot be read: {error}") from error
    return array


def of_arrays(
    source: object, arrays: Mapping[str, Any], metadata: dict[str, Any], given: SourceOptions
) -> tuple[Table, Read]:
    """Return a table of arrays of equal length; without metadata, only key and value are read.

    Without an array of keys, one of the matrices: the keys of its rows are those given, or their numbers.
    """
    key = given.key_column or KEY
    if key not in arrays and (given.key_column or metadata):
        raise BadInput(f"{source} has no {key!r} for the key; it has {', '.join(sorted(arrays)) or 'nothing'}")
    if key in arrays and given.keys is not None:
        raise WrongUsage(f"{source} has keys, in {key!r}; leave out --keys, or name a matrix in a file of its own")
    matrices = {name: array for name, array in arrays.items() if array.ndim == 2}
    value = VALUE if given.value_column is None and VALUE in arrays else given.value_column
    if value is None and len(matrices) == 1:
        value = next(iter(matrices))
    if value is None or value not in arrays:
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in matrices.items())
        raise WrongUsage(f"{source} has the matrices {shapes or '(none)'}; name one with --value-column")
    named = {KEY: key, VALUE: value} if key in arrays else {VALUE: value}
    named |= {name: name for name in arrays if metadata and name not in (key, value)}
    rows, columns = len(arrays[value]), []
    for what, name in named.items():
        array = arrays[name]
        if array.ndim not in (1, 2) or (what == VALUE and array.ndim != 2) or (what == KEY and array.ndim != 1):
            raise BadInput(f"{name!r} of {source} cannot have the shape {tuple(array.shape)}")
        _check_numbers(array.dtype, "iu" if what == KEY else "biuf", name, source)
        if len(array) != rows:
            raise BadInput(f"{name!r} of {source} has {len(array):,} rows for {rows:,} rows of {value!r}")
        columns.append(Column(what, array.dtype, check_width(array.shape[1], source) if array.ndim == 2 else None))
    keys = given.keys
    if KEY not in named:
        if keys is not None and len(keys) != rows:
            raise BadInput(f"--keys has {len(keys):,} keys, but {value!r} of {source} has {rows:,} rows")
        dtype = np.int64 if keys is None else getattr(keys, "dtype", object)  # an Arrow array of words has none
        columns.append(Column(KEY, np.dtype(dtype)))

    def read(wanted: Collection[str]) -> Iterator[Batch]:
        for part in slices(rows, sum(column.nbytes for column in columns)):
            batch = {what: np.array(arrays[name][part]) for what, name in named.items() if what in wanted}
            if KEY not in named:
                batch[KEY] = np.arange(part.start, part.stop) if keys is None else keys[part]
            yield batch

    return Table(columns, rows, metadata), read


def _check_numbers(dtype: np.dtype[Any], kinds: str, name: str, source: object) -> None:
    """Raise BadInput unless an array holds numbers of these kinds; NumPy does not count bfloat16 as a float."""
    if dtype.kind not in kinds and not ("f" in kinds and dtype.name == "bfloat16"):
        raise BadInput(f"{name!r} of {source} must hold {'integers' if kinds == 'iu' else 'numbers'}, got {dtype}")


def write_safetensors(target: Path, table: Table, batches: Iterator[Batch]) -> None:
    """Write one tensor per column. The safetensors library writes only tensors that are in memory as a whole; its
    format is simple enough to be written here from files.
    """
    with tempfile.TemporaryDirectory(prefix=".columns-", dir=target.parent) as scratch:
        parts = {Path(scratch) / str(at): itemgetter(column.name) for at, column in enumerate(table.columns)}
        rows = write_files(parts, batches)
        head: dict[str, Any] = {"__metadata__": {"kvemb": json.dumps(table.metadata)}} if table.metadata else {}
        at = 0
        for column in table.columns:
            shape = [rows] if column.width is None else [rows, column.width]
            end = at + rows * column.nbytes
            head[column.name] = {"dtype": _SAFE[column.dtype.name], "shape": shape, "data_offsets": [at, end]}
            at = end
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(target, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for path in parts:
                with open(path, "rb") as file:
                    shutil.copyfileobj(file, out, 1 << 20)


def read_safetensors(source: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read the tensors of a safetensors file; a tensor's name is its column's."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(source), framework="np")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{source} cannot be read: {error}") from error
    metadata = parse_metadata((file.metadata() or {}).get("kvemb", "{}"), source)
    tensors = {name: _Slices(file.get_slice(name), name, source) for name in file.keys()}  # noqa: SIM118
    return of_arrays(source, tensors, metadata, given)


class _Slices:
    """A tensor of a file; only the slices that are asked for are read."""

    def __init__(self, tensor: Any, name: str, source: Path) -> None:
        self._tensor, self._name, self._source = tensor, name, source
        self.shape = tuple(tensor.get_shape())
        self.ndim = len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers. Raises BadInput if NumPy has none for them."""
        short = self._tensor.get_dtype()
        found = next((dtype for dtype, each in _SAFE.items() if each == short), None)
        if found is None:
            raise BadInput(
                f"{self._name!r} of {self._source} holds {short}, which no variable can hold; save it as F32, or name "
                "another tensor"
            )
        return dtype_of(found)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, part: slice) -> Any:
        return self._tensor[part]
