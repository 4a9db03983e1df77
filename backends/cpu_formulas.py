"""Kernels of optimizers on the CPU, made of their formulas (kvemb.optimizers.formula), for numba to compile.

A kernel is a formula in a loop over rows: each element that the formula names becomes one of a block's columns, each
literal a number of the slots' dtype. Nothing else changes, so the bits are those of the formula. What is made is kept
on disk as other kernels are.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba.extending import overload

from kvemb.backends.intrinsics import item_bytes, load, prefetch, store
from kvemb.optimizers import Optimizer, arithmetic
from kvemb.optimizers.formula import FUNCTIONS, Formula, read
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.compiled import compiled
from kvemb.rows.hash_kernels import source_stamp
from kvemb.rows.hashing import Positions, Sums

AHEAD = 12
LINE_BYTES = 64

# Names of its own begin with an underscore; a formula's do not.
_KERNEL = """
def {name}(
    _index, _start, _stop, _values, _slots, _grads, _first, _following, _sum, dim, _step, _steps, _flags,
    _column, _end, {parameters}
):
    _width = _values.shape[1]
    _slot_width = _slots.shape[1]
    _line = _LINE_BYTES // _item_bytes(_values)
    _slot_line = _LINE_BYTES // _item_bytes(_slots)
    for _i in range(_start, _stop):
        if _i + _AHEAD < _stop and _index[_i + _AHEAD] >= 0:
            for _j in range(0, dim, _line):
                _prefetch(_values, _index[_i + _AHEAD] * _width + _j)
            _SLOTS_AHEAD
        _r = _index[_i]
        if _r >= 0:
            g = _grads[_first[_i]]
            _next = _following[_first[_i]]
            if _next >= 0:
                for _j in range(dim):
                    _sum[_j] = g[_j]
                while _next >= 0:
                    for _j in range(dim):
                        _sum[_j] = _sum[_j] + _grads[_next, _j]
                    _next = _following[_next]
                g = _sum
            w = _values[_r, :dim]
            _ROWS
            _BODY
            _steps[_r] = _step
            _flags[_r] |= _DIRTY
"""


_SLOTS_AHEAD = """
for _j in range(_column, _end, _slot_line):
    _prefetch(_slots, _index[_i + _AHEAD] * _slot_width + _j)
"""


class _Elements(ast.NodeTransformer):
    """Turns a formula's elements into those of a block's columns."""

    def __init__(self, formula: Formula) -> None:
        self._slots = formula.rows[2:]

    def visit_For(self, node: ast.For) -> ast.AST:
        """A loop keeps its range."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """What goes into the embedding is stored as its values are."""
        (target,) = node.targets
        value = self.visit(node.value)
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "w":
            value = _expression(f"_store({ast.unparse(value)}, {ast.unparse(target)})")
        return ast.Assign([target], value)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """An element that is read."""
        return _expression(f"_load({ast.unparse(node)})") if ast.unparse(node.value) == "w" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A row that is named whole says which dtype is meant: all have that of the gradients."""
        for at, argument in enumerate(node.args):
            whole = isinstance(argument, ast.Name) and argument.id in ("w", "g", *self._slots)
            node.args[at] = _expression("g") if whole else self.visit(argument)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        """The number of values, where it is calculated with."""
        return _expression("rounded(dim, g)") if node.id == "dim" else node

    def visit_Constant(self, node: ast.Constant) -> Any:
        """A literal."""
        return _expression(f"rounded({ast.unparse(node)}, g)")


def _expression(text: str) -> Any:
    return ast.parse(text, mode="eval").body


def source_of(name: str, formula: Formula) -> str:
    """Return the Python of a formula's kernel."""
    parameters = ", ".join([*(f"_at_{slot}" for slot in formula.rows[2:]), *formula.numbers])
    tree = ast.parse(_KERNEL.format(name=name, parameters=parameters))
    statements = [_Elements(formula).visit(ast.parse(ast.unparse(each)).body[0]) for each in formula.body]
    rows = [ast.parse(f"{slot} = _slots[_r, _at_{slot}:]").body[0] for slot in formula.rows[2:]]
    ahead = ast.parse(_SLOTS_AHEAD).body if rows else []
    parts = {"_ROWS": rows, "_BODY": statements, "_SLOTS_AHEAD": ahead}
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            node.body = [part for each in node.body for part in parts.get(ast.unparse(each), [each])]
    return ast.unparse(ast.fix_missing_locations(tree))


@cache
def _kernel(function: Callable[..., None]) -> Callable[..., None]:
    formula = read(function)
    name = "step_" + re.sub(r"\W+", "_", formula.name)
    source = source_of(name, formula)
    names = {
        "_load": load,
        "_store": store,
        "_prefetch": prefetch,
        "_item_bytes": item_bytes,
        "_AHEAD": AHEAD,
        "_LINE_BYTES": LINE_BYTES,
    }
    # numba keeps a kernel on disk beside the file that its code names, and knows it by its name.
    made: dict[str, Any] = {**names, "_DIRTY": DIRTY, "__name__": __name__}
    made |= {each: getattr(arithmetic, each) for each in FUNCTIONS}
    exec(compile(source, __file__, "exec"), made)
    stamp = source_stamp(Path(__file__).parent) + hashlib.sha256(source.encode()).hexdigest()
    return compiled(made[name], stamp, nogil=True, error_model="numpy", _nrt=False)  # type: ignore[no-any-return]


def take_step(
    optimizer: Optimizer, index: Positions, block: RowBlock, grads: Any, step: int, sums: Sums, start: int, stop: int
) -> None:
    """Take one step of an optimizer on the rows index[start:stop] of a block, as contracts.RowKernels.apply.

    Other threads may take other ranges meanwhile.
    """
    schema, columns = block.schema, block.schema.slot_columns
    _kernel(optimizer.formula)(
        index, start, stop, block.values, block.slots, grads, sums.first, sums.following,
        np.empty(schema.dim, grads.dtype), schema.dim, step, block.steps, block.flags,
        columns[0], columns[-1], *columns[:-1], *optimizer.numbers(schema.slot_dtype),
    )  # fmt: skip


# What formulas call, compiled: the bits of kvemb.optimizers.arithmetic.


@overload(arithmetic.sqrt, inline="always")
def _sqrt(value: Any) -> Any:
    def root(value: Any) -> Any:
        return np.sqrt(value)

    return root


@overload(arithmetic.rounded, inline="always")
def _rounded(value: Any, like: Any) -> Any:
    kind = np.dtype(like.dtype.name).type

    def converted(value: Any, like: Any) -> Any:
        return kind(value)

    return converted


@overload(arithmetic.power)
def _power(base: Any, exponent: Any) -> Any:
    def squared(base: Any, exponent: Any) -> Any:
        left: Any = np.int64(min(np.float64(exponent), 2.0**62)) if exponent >= 1 else np.int64(0)
        result, square = 1.0, base
        while left > 0:
            if left & 1:
                result *= square
            square *= square
            left >>= 1
        return result

    return squared
