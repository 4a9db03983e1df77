"""The CUDA C of the GPU's hot table, assembled from the files in this folder, and its compiler options.

Each text is made once, because the device identifies a program by its text and hashes it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvemb.backends.cuda import formulas
from kvemb.optimizers.formula import Function
from kvemb.rows.schema import Schema

# No multiply-add is fused, and no subnormal float counts as 0, because results must have the CPU's bits.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

_TYPES = {
    "float16": "Half",
    "bfloat16": "Bfloat",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int32": "int",
    "int64": "i64",
}


@cache
def table_source() -> str:
    """Return the kernels that find, move and copy rows of any dtype, and those for callers' arrays."""
    return _files("cells", "find", "move", "columns", "arrays")


@cache
def values_source(schema: Schema) -> str:
    """Return the kernels that add to embeddings, and those that pool float embeddings."""
    kind = schema.value_dtype
    wide = "u64" if kind.kind in "iu" else _TYPES[schema.slot_dtype.name]
    types = f"typedef {_TYPES[kind.name]} Value;\ntypedef {wide} Wide;\n"
    return _files("cells", "arithmetic") + types + _files("values", *(["pooling"] if wide != "u64" else []))


@cache
def step_source(functions: tuple[Function, ...], slots: tuple[str, ...], schema: Schema) -> str:
    """Return the kernel `step` of formulas, and the one for sums before it. slots: the names of all slots of a row."""
    types = f"typedef {_TYPES[schema.value_dtype.name]} Value;\ntypedef {_TYPES[schema.slot_dtype.name]} Slot;\n"
    return _files("cells", "arithmetic") + types + _files("sums") + formulas.source_of(functions, slots)


def kernels_of(source: str) -> list[str]:
    """Return the names of the kernels in a text."""
    return re.findall(r"^(?:\w+_)?KERNEL (\w+)\(", source, re.MULTILINE)


@cache
def _files(*names: str) -> str:
    return "".join((Path(__file__).parent / f"{name}.cu").read_text(encoding="utf-8") for name in names)
