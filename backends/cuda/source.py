"""The CUDA C of the GPU's hot table, put together from the files beside this one, and how it is compiled."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvemb.backends.cuda import formulas
from kvemb.optimizers.formula import Function
from kvemb.rows.schema import Schema

# No multiply-add is fused: results must have the CPU's bits.
OPTIONS = ("-std=c++17", "--fmad=false")

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
    """Return the kernels that find, move and copy rows of any dtype, and those for arrays of a caller."""
    return _files("cells", "find", "move", "columns", "arrays")


def values_source(schema: Schema) -> str:
    """Return the kernels that add to embeddings, and those that pool floats."""
    kind = schema.value_dtype
    wide = "u64" if kind.kind in "iu" else _TYPES[schema.slot_dtype.name]
    types = f"typedef {_TYPES[kind.name]} Value;\ntypedef {wide} Wide;\n"
    return _files("cells", "arithmetic") + types + _files("values")


def step_source(functions: tuple[Function, ...], slots: tuple[str, ...], schema: Schema) -> str:
    """Return the kernel `step` of an optimizer's formulas. slots: the names of all slots of a row."""
    types = f"typedef {_TYPES[schema.value_dtype.name]} Value;\ntypedef {_TYPES[schema.slot_dtype.name]} Slot;\n"
    return _files("cells", "arithmetic") + types + formulas.source_of(functions, slots)


@cache
def _files(*names: str) -> str:
    return "".join((Path(__file__).parent / f"{name}.cu").read_text(encoding="utf-8") for name in names)
