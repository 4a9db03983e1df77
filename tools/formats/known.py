"""The formats that tables are exported to and imported from, by name: what each can hold, who writes and reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import KEY, SCALE, SCORE, SLOTS, STEP, VALUE, Batch, Given, Place, Table


@dataclass(frozen=True)
class Format:
    """One format. endings: of its files' names, the first as kvemb writes them. writer, reader: module:function.

    folder: its output is a folder. pipe: it can be written to one, and read from one. counted: it begins with the
    number of rows. describes: it says what the table was, so that importing makes it again. int64_keys: it holds no
    others. dtypes: of values that it can hold, None for all; bfloat16 is widened to float32 unless it is among them.
    beside: the columns that it has a place for beside key and value. always: those that it has whatever is asked for,
    and then no others; none: those that are asked for.
    """

    name: str
    endings: tuple[str, ...]
    what: str
    writer: str | None
    reader: str
    folder: bool = False
    pipe: bool = False
    counted: bool = False
    describes: bool = False
    int64_keys: bool = False
    dtypes: tuple[str, ...] | None = None
    beside: tuple[str, ...] = (SLOTS, SCORE, STEP, SCALE)
    always: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """What the name of a file of it ends in."""
        return self.endings[0] if self.endings else ""

    def write(self, place: Place, table: Table, batches: Iterator[Batch]) -> None:
        """Write a table to a file, a folder that is there, or a pipe."""
        assert self.writer is not None
        _load(self, self.writer)(place, table, batches)

    def read(self, place: Place, given: Given) -> tuple[Table, Iterator[Batch]]:
        """Return what a source says of itself, and its batches. Raises BadInput."""
        found: tuple[Table, Iterator[Batch]] = _load(self, self.reader)(place, given)
        return found

    def check(self, table: Table) -> None:
        """Raise BadInput unless it can hold these columns."""
        if self.writer is None:
            raise WrongUsage(f"{self.name} can be imported, not exported; choose {names(written=True)}")
        if self.dtypes is not None and table.value.dtype.name not in self.dtypes:
            raise BadInput(
                f"{self.name} holds {' or '.join(self.dtypes)}, the values are {table.value.dtype.name}; "
                "choose another format, or --dtype"
            )
        if self.int64_keys and table.key.dtype == np.uint64:
            raise BadInput(f"{self.name} holds int64 keys, these are uint64; choose another format")
        slots = [slot["name"] for slot in table.about.get("slots", [])] if SLOTS in self.beside else []
        held = (KEY, VALUE, *self.beside, *slots)
        refused = [column.name for column in table.columns if column.name not in held]
        if refused:
            raise BadInput(f"{self.name} has no place for {refused[0]!r}; choose another format, or leave it out")


def _load(kind: Format, place: str) -> Any:
    module, name = place.split(":")
    try:
        return getattr(import_module(f"kvemb.tools.formats.{module}"), name)
    except ImportError as error:
        raise BadInput(f"{kind.name} needs {error.name}; install it: pip install 'kvemb[tools]'") from error


_NUMBERS = ("float32", "float64", "float16", "int8", "int32", "int64")
FORMATS = {
    kind.name: kind
    for kind in (
        Format(
            "parquet",
            (".parquet",),
            "Parquet, a file or with --partitions a folder of files",
            "arrow:write_parquet",
            "arrow:read_parquet",
            describes=True,
        ),
        Format(
            "arrow",
            (".arrow",),
            "Arrow IPC, a file, or a stream in a pipe",
            "arrow:write_arrow",
            "arrow:read_arrow",
            pipe=True,
            describes=True,
        ),
        Format(
            "safetensors",
            (".safetensors",),
            "safetensors, a tensor a column",
            "arrays:write_safetensors",
            "arrays:read_safetensors",
            describes=True,
            dtypes=(*_NUMBERS, "bfloat16"),
        ),
        Format(
            "npy",
            (".npy",),
            "a folder of .npy files, a file a column, to be memory-mapped",
            "arrays:write_npy",
            "arrays:read_npy",
            folder=True,
            describes=True,
        ),
        Format("csv", (".csv",), "CSV, a column a number", "arrow:write_csv", "csv:read_csv", pipe=True),
        Format(
            "hugectr",
            (".model",),
            "HugeCTR's sparse model, a folder with key and emb_vector",
            "raw:write_hugectr",
            "raw:read_hugectr",
            folder=True,
            int64_keys=True,
            dtypes=("float32",),
            beside=(),
        ),
        Format(
            "tfra",
            (),
            "TFRA's file system saver, a folder",
            "raw:write_tfra",
            "raw:read_tfra",
            folder=True,
            dtypes=(*_NUMBERS, "bfloat16"),
            beside=(SLOTS,),
        ),
        Format(
            "dynamicemb",
            (),
            "NVIDIA dynamicemb's dump, a folder; its scores are integers",
            "raw:write_dynamicemb",
            "raw:read_dynamicemb",
            folder=True,
            int64_keys=True,
            dtypes=("float32",),
            beside=(SLOTS, SCORE),
            always=(SLOTS, SCORE),
        ),
        Format(
            "word2vec",
            (".w2v",),
            "word2vec's text",
            "words:write_words",
            "words:read_words",
            pipe=True,
            counted=True,
            dtypes=("float32", "float16"),
            beside=(),
        ),
        Format(
            "word2vec-binary",
            (".w2v.bin",),
            "word2vec's binary format",
            "words:write_words_binary",
            "words:read_words_binary",
            pipe=True,
            counted=True,
            dtypes=("float32",),
            beside=(),
        ),
        Format("torch", (".pt", ".pth"), "a PyTorch state dict, to import", None, "torch:read_state_dict"),
    )
}


def names(*, written: bool = False) -> str:
    """The formats' names, for people. written: those that can be exported to."""
    return ", ".join(kind.name for kind in FORMATS.values() if kind.writer is not None or not written)


def format_of(name: str | None, place: str, *, written: bool = False) -> Format:
    """Return the format of a name, or the one that a path's ending says. written: to export to. Raises WrongUsage."""
    if name is not None:
        if name not in FORMATS:
            raise WrongUsage(f"there is no format {name!r}; choose {names(written=written)}")
        return FORMATS[name]
    name_of_place = place.rstrip("/").lower()
    fitting = {ending: kind for kind in FORMATS.values() for ending in kind.endings if name_of_place.endswith(ending)}
    if not fitting:
        raise WrongUsage(f"the ending of {place} names no format; say --format, one of {names(written=written)}")
    return fitting[max(fitting, key=len)]
