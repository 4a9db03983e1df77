"""Optimizers' kernels on the CPU, generated from their formulas (kvemb.optimizers.formula) and compiled by numba.

A kernel is a step's formulas in a loop over rows: each element named in them becomes an element of a block's columns,
each literal a number of the slots' dtype. Nothing else changes, so the bits are those of the formulas. Generated
kernels are cached on disk like other kernels.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.backends import cpu_arithmetic
from kvemb.backends.cpu_threads import InParts, even_bounds, in_parts, part_count, run_parts
from kvemb.backends.intrinsics import LINE_BYTES, item_bytes, load, prefetch, store
from kvemb.kernels.compiling import kernel
from kvemb.optimizers import Optimizer, arithmetic
from kvemb.optimizers.base import STEPS
from kvemb.optimizers.formula import FUNCTIONS, Formula, Function, parsing, read, uses_buffers
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Positions, Sums
from kvemb.threads.interrupts import uninterrupted

# How many rows ahead rows are prefetched.
AHEAD = 12

# The kernel's own names begin with an underscore; those of formulas do not.
_KERNEL = """
def {name}(
    _index, _start, _stop, _own, _values, _slots, _grads, _first, _following, dim, _step, _steps, _flags,
    _column, _end, _count, {parameters}
):
    _sum, _wide = _own[0], _own[1]
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
            if {copies} or _next >= 0:
                for _j in range(dim):
                    _sum[_j] = g[_j]
                while _next >= 0:
                    for _j in range(dim):
                        _sum[_j] = _sum[_j] + _grads[_next, _j]
                    _next = _following[_next]
                g = _sum
            _ROWS
            _BODY
            _steps[_r] = _step
            _flags[_r] |= _DIRTY
"""

_SLOTS_AHEAD = """
for _j in range(_column, _end, _slot_line):
    _prefetch(_slots, _index[_i + _AHEAD] * _slot_width + _j)
"""
_EMBEDDING = "w = _values[_r, :dim]"
_TO_WIDE = """
for _j in range(dim):
    _wide[_j] = _load(_values[_r, _j])
w = _wide
"""
_FROM_WIDE = """
for _j in range(dim):
    _values[_r, _j] = _store(_wide[_j], _values[_r, _j])
"""
_COUNT_OF_ROW = """
_count_of_row = _slots[_r, _at_steps] + rounded(1, g)
_slots[_r, _at_steps] = _count_of_row
"""


class _Elements(ast.NodeTransformer):
    """Replaces a formula's elements by those of a block's columns, and makes its names unique by `place`.

    stored: whether w is the embedding as stored. count: the name of the step count.
    """

    def __init__(self, formula: Formula, place: int, *, stored: bool, count: str) -> None:
        self._formula, self._place, self._stored, self._count = formula, place, stored, count

    def visit_For(self, node: ast.For) -> ast.AST:
        """Leave the range of a loop unchanged."""
        node.target = self.visit(node.target)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Convert a value assigned to the embedding to its stored representation."""
        target, value = self.visit(node.targets[0]), self.visit(node.value)
        if self._stored and isinstance(node.targets[0], ast.Subscript) and ast.unparse(node.targets[0].value) == "w":
            value = _expression(f"_store({ast.unparse(value)}, {ast.unparse(target)})")
        return ast.Assign([target], value)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Replace an element."""
        if isinstance(node.slice, ast.Name):
            node.slice = self.visit(node.slice)
        read = isinstance(node.ctx, ast.Load) and self._stored and ast.unparse(node.value) == "w"
        return _expression(f"_load({ast.unparse(node)})") if read else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a whole row in a call: it is summed, or stands for its dtype, which is that of the gradients."""
        if ast.unparse(node.func) == "sum_of_squares":
            summed: ast.AST = _expression(f"sum_of_squares({ast.unparse(node.args[0])}, dim)")
            return summed
        for at, argument in enumerate(node.args):
            whole = isinstance(argument, ast.Name) and argument.id in self._formula.rows
            node.args[at] = _expression("g") if whole else self.visit(argument)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        """Replace a name: the number of values (in arithmetic), the step count, or a local name of this formula."""
        if node.id == "dim":
            return _expression("rounded(dim, g)")
        return ast.Name(self._count if node.id == self._formula.count else _placed(node.id, self._place), node.ctx)

    def visit_Constant(self, node: ast.Constant) -> Any:
        """Convert a literal to the slots' dtype."""
        return _expression(f"rounded({ast.unparse(node)}, g)")


def _placed(name: str, place: int) -> str:
    return f"{name}_{place}"


def _expression(text: str) -> Any:
    return ast.parse(text, mode="eval").body


def source_of(name: str, functions: tuple[Function, ...], slots: tuple[str, ...]) -> str:
    """Return the Python source of a kernel that runs formulas in order. slots: names of all slots of a row."""
    formulas = [read(function) for function in functions]
    copies, wide = uses_buffers(functions)
    numbers = [_placed(number, place) for place, formula in enumerate(formulas) for number in formula.numbers]
    parameters = ", ".join([*(f"_at_{slot}" for slot in slots), *numbers])
    tree = ast.parse(_KERNEL.format(name=name, parameters=parameters, copies=copies))
    used = [slot for slot in slots if any(slot in formula.rows for formula in formulas)]
    rows = [_TO_WIDE if wide else _EMBEDDING, *(f"{slot} = _slots[_r, _at_{slot}:]" for slot in used)]
    of_row = STEPS in slots and any(formula.count for formula in formulas)
    body = [_COUNT_OF_ROW] if of_row else []
    for place, formula in enumerate(formulas):
        turn = _Elements(formula, place, stored=not wide, count="_count_of_row" if of_row else "_count")
        turned = (turn.visit(ast.parse(ast.unparse(each)).body[0]) for each in formula.body)
        body += [ast.unparse(ast.fix_missing_locations(each)) for each in turned]
    body += [_FROM_WIDE] if wide else []
    texts = {"_ROWS": rows, "_BODY": body, "_SLOTS_AHEAD": [_SLOTS_AHEAD] if slots else []}
    parts = {place: ast.parse("\n".join(of_place)).body for place, of_place in texts.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            node.body = [part for each in node.body for part in parts.get(ast.unparse(each), [each])]
    return ast.unparse(ast.fix_missing_locations(tree))


_compiled: dict[tuple[tuple[Function, ...], tuple[str, ...]], tuple[Callable[..., None], InParts]] = {}


def _kernels(functions: tuple[Function, ...], slots: tuple[str, ...]) -> tuple[Callable[..., None], InParts]:
    """Return what _made() returns, which is kept. No lock is taken for what is there."""
    if (made := _compiled.get((functions, slots))) is None:
        with uninterrupted(), parsing:  # threads that train several variables get here at the same time
            if (made := _compiled.get((functions, slots))) is None:
                made = _compiled[functions, slots] = _made(functions, slots)
    return made


def _made(functions: tuple[Function, ...], slots: tuple[str, ...]) -> tuple[Callable[..., None], InParts]:
    """Return the kernel for a range of rows, and the one that runs it for each part of a batch."""
    name = "step_" + re.sub(r"\W+", "_", "_".join((*(function.__qualname__ for function in functions), *slots)))
    source = source_of(name, functions, slots)
    names = {
        "_load": load,
        "_store": store,
        "_prefetch": prefetch,
        "_item_bytes": item_bytes,
        "_AHEAD": AHEAD,
        "_LINE_BYTES": LINE_BYTES,
    }
    made: dict[str, Any] = {**names, "_DIRTY": DIRTY, "__name__": __name__}
    made |= {each: getattr(cpu_arithmetic, each) for each in FUNCTIONS}
    exec(compile(source, __file__, "exec"), made)
    own = source.encode() + Path(arithmetic.__file__).read_bytes()
    step = kernel(made[name], own)

    def step_part(number: Any, arguments: Any) -> None:
        index, bounds, own, rest = arguments
        step(index, bounds[number], bounds[number + 1], own[number], *rest)

    return step, in_parts(step_part, own)


def run_formulas(
    functions: tuple[Function, ...],
    optimizer: Optimizer,
    index: Positions,
    block: RowBlock,
    grads: Any,
    step: int,
    sums: Sums,
    count: int,
    *,
    threads: bool,
) -> None:
    """Run formulas, with the optimizer's numbers, on the rows at `index` of a block; see contracts.RowKernels.apply.

    threads: the rows, which are distinct, are split over the cores.
    """
    schema, columns = block.schema, block.schema.slot_columns
    numbers = [each for function in functions for each in optimizer.numbers(function, schema.slot_dtype).values()]
    rest = (
        block.values, block.slots, grads, sums.first, sums.following, schema.dim, step, block.steps, block.flags,
        columns[0], columns[-1], float(count), *columns[:-1], *numbers,
    )  # fmt: skip
    run, run_in_parts = _kernels(functions, tuple(slot.name for slot in optimizer.slots))
    if threads:
        own = np.empty((part_count(), 2, schema.dim), grads.dtype)
        run_parts(run_in_parts, index, even_bounds(len(index)), own, rest)
    else:
        run(index, 0, len(index), np.empty((2, schema.dim), grads.dtype), *rest)
