"""The formats that tables are exported to and imported from: name, limits, and the functions that write and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.installed import pip_install
from kvemb.tools.destinations import uncompressed
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    SCALE,
    SCORE,
    SLOTS,
    STEP,
    VALUE,
    Batch,
    PathOrFile,
    Read,
    SourceOptions,
    Table,
)


@dataclass(frozen=True)
class Format:
    """One format. endings: of file names; kvemb writes the first. what: a description.

    module: of this folder; its functions read_NAME and write_NAME read and write it. imported_only: there is no
    write_NAME. folder: its output is a folder. pipe: it can be written to and read from a pipe. counted: it begins with
    the number of rows. describes: it contains the table's description, so that an import creates the variable as it
    was. int64_keys: its keys are int64 only. dtypes: of the values it can hold, None for all; bfloat16 is widened to
    float32 unless listed. other_columns: the columns it can hold besides key and value. always: the columns it always
    has, and no others; if empty, those that are asked for. index: an ending; a source may be a name to which it and
    others are added.
    """

    name: str
    endings: tuple[str, ...]
    what: str
    module: str
    imported_only: bool = False
    folder: bool = False
    pipe: bool = False
    counted: bool = False
    describes: bool = False
    int64_keys: bool = False
    strings: bool = False
    dtypes: tuple[str, ...] | None = None
    other_columns: tuple[str, ...] = (SLOTS, SCORE, STEP, SCALE)
    always: tuple[str, ...] = ()
    index: str | None = None

    @property
    def suffix(self) -> str:
        """The ending that kvemb gives to files of this format; may be empty."""
        return self.endings[0] if self.endings else ""

    def is_at(self, path: Path) -> bool:
        """Whether there is a source at a path."""
        return path.exists() or (self.index is not None and Path(f"{path}{self.index}").is_file())

    def write(self, target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
        """Write a table to a file, an existing folder, or a pipe."""
        self._function("write")(target, table, batches)

    def read(self, source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
        """Return a source's columns and metadata, and a function that yields its batches. Raises BadInput."""
        if given.keys is not None and self.module not in ("arrays", "torch"):
            raise WrongUsage(f"{self.name} has keys of its own; --keys is for a matrix, in npy, safetensors or torch")
        found: tuple[Table, Read] = self._function("read")(source, given)
        return found

    def _function(self, what: str) -> Any:
        try:
            module = import_module(f"kvemb.tools.formats.{self.module}")
        except ImportError as error:
            raise BadInput(f"{self.name} needs {error.name}; install it: {pip_install('tools')}") from error
        return getattr(module, f"{what}_{self.name.replace('-', '_')}")

    def check(self, table: Table) -> None:
        """Raise BadInput unless the format can hold these columns."""
        if self.imported_only:
            raise WrongUsage(f"{self.name} can be imported, not exported; choose {names(written=True)}")
        if self.dtypes is not None and table.value.dtype.name not in self.dtypes:
            raise BadInput(
                f"{self.name} holds {' or '.join(self.dtypes)} values, these are {table.value.dtype.name}; "
                "choose another format, or --dtype"
            )
        if table.key.dtype == object and not self.strings:
            able = ", ".join(kind.name for kind in FORMATS.values() if kind.strings)
            raise BadInput(f"{self.name} holds integers as keys, these are strings; choose {able}")
        if self.int64_keys and table.key.dtype == np.uint64:
            raise BadInput(f"{self.name} holds int64 keys, these are uint64; choose another format")
        slots = [slot["name"] for slot in table.metadata.get("slots", [])] if SLOTS in self.other_columns else []
        held = (KEY, VALUE, *self.other_columns, *slots)
        refused = [column.name for column in table.columns if column.name not in held]
        if refused:
            raise BadInput(f"{self.name} cannot hold the column {refused[0]!r}; choose another format, or leave it out")


_NUMBERS = ("float32", "float64", "float16", "int8", "int32", "int64")
FORMATS = {
    kind.name: kind
    for kind in (
        Format(
            "parquet",
            (".parquet",),
            "Parquet, a file or with --partitions a folder of files",
            "arrow",
            strings=True,
            describes=True,
        ),
        Format(
            "arrow",
            (".arrow",),
            "Arrow IPC, a file, or a stream through a pipe",
            "arrow",
            strings=True,
            pipe=True,
            describes=True,
        ),
        Format(
            "safetensors",
            (".safetensors",),
            "safetensors, one tensor per column",
            "arrays",
            describes=True,
            dtypes=(*_NUMBERS, "bfloat16"),
        ),
        Format(
            "npy",
            (".npy",),
            "a folder of .npy files, one per column, to be memory-mapped; or one file, a matrix",
            "arrays",
            folder=True,
            describes=True,
        ),
        Format("csv", (".csv", ".tsv"), "CSV, one column per number", "csv", pipe=True, strings=True),
        Format(
            "hugectr",
            (".model",),
            "HugeCTR's sparse model, a folder with key and emb_vector",
            "raw",
            folder=True,
            int64_keys=True,
            dtypes=("float32",),
            other_columns=(),
        ),
        Format(
            "tfra",
            (),
            "TFRA's file system saver, a folder",
            "raw",
            folder=True,
            dtypes=(*_NUMBERS, "bfloat16"),
            other_columns=(SLOTS,),
        ),
        Format(
            "dynamicemb",
            (),
            "NVIDIA dynamicemb's dump, a folder; its scores are integers",
            "raw",
            folder=True,
            int64_keys=True,
            dtypes=("float32",),
            other_columns=(SLOTS, SCORE),
            always=(SLOTS, SCORE),
        ),
        Format(
            "word2vec",
            (".w2v", ".vec", ".txt"),
            "word2vec's text, which fastText writes, too",
            "words",
            pipe=True,
            strings=True,
            counted=True,
            dtypes=("float32", "float16"),
            other_columns=(),
        ),
        Format(
            "glove",
            (".glove",),
            "GloVe's text, which is word2vec's without its first line",
            "words",
            pipe=True,
            strings=True,
            dtypes=("float32", "float16"),
            other_columns=(),
        ),
        Format(
            "word2vec-binary",
            (".w2v.bin",),
            "word2vec's binary format",
            "words",
            pipe=True,
            strings=True,
            counted=True,
            dtypes=("float32",),
            other_columns=(),
        ),
        Format(
            "tf-checkpoint",
            (".index",),
            "tables of TFRA in a checkpoint of TensorFlow, to import",
            "tf_checkpoint",
            imported_only=True,
            index=".index",
        ),
        Format("torch", (".pt", ".pth"), "a PyTorch state dict, to import", "torch", imported_only=True),
    )
}


def names(*, written: bool = False) -> str:
    """Return the names of all formats, for messages. written: only those that can be exported to."""
    return ", ".join(kind.name for kind in FORMATS.values() if not (written and kind.imported_only))


def format_of(name: str | None, path: str, *, written: bool = False) -> Format:
    """Return the format of a name, or by the ending of a path. written: for an export. Raises WrongUsage."""
    if name is not None:
        if name not in FORMATS:
            raise WrongUsage(f"there is no format {name!r}; choose {names(written=written)}")
        return FORMATS[name]
    lowered = uncompressed(path.rstrip("/").lower())
    fitting = {ending: kind for kind in FORMATS.values() for ending in kind.endings if lowered.endswith(ending)}
    if not fitting:
        raise WrongUsage(f"the ending of {path} names no format; give --format, one of {names(written=written)}")
    return fitting[max(fitting, key=len)]
