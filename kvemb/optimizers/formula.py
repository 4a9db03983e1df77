"""Reading an optimizer's formula, which is Python on one row's elements, so that kernels can be generated from it.

A formula is a function of `dim`, `w` (the embedding), `g` (its gradient), slots by name, and numbers by the names of
the optimizer's attributes:

    def formula(dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number):
        for j in range(dim):
            s = accumulator[j] + g[j] * g[j]
            accumulator[j] = s
            w[j] = w[j] - learning_rate * g[j] / (sqrt(s) + epsilon)

It may assign names and elements, call functions of kvemb.optimizers.arithmetic, and loop over range(dim); there is no
if. A step is one or several formulas in order: each may change g for the next ones. Everything is calculated in the
slots' dtype, including dim and literals, which float32 must hold exactly. Exceptions are numbers annotated np.float64:
results that depend on them are float64 until rounded() converts them back. A number that is subtracted from 1 needs
this, because float32 would lose digits of the result. A number annotated Count is the step count, this step included;
one annotated Table is an array for entry().

A loop that names at most four rows, w and g included, is compiled to vector instructions; with more rows it is not.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvemb.optimizers import arithmetic
from kvemb.threads.interrupts import uninterrupted

Function = Callable[..., None]

FUNCTIONS = (
    *("sqrt", "absolute", "larger", "smaller", "where_positive", "rounded"),
    *("sum_of_squares", "entry", "power", "root_power"),
)
_OPERATIONS = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub)
_PLAIN = (ast.Assign, ast.For, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Subscript, ast.Call, *_OPERATIONS)


@dataclass(frozen=True, repr=False)
class Formula:
    """A parsed formula.

    rows: the parameters that are rows: w, g, then slots. numbers: the parameters that are the optimizer's attributes.
    wide: the numbers that are float64. tables: the numbers that are arrays. count: the parameter that is the step
    count. body: its statements. sets: the rows whose elements it sets. summed: the rows given to sum_of_squares.
    """

    name: str
    rows: tuple[str, ...]
    numbers: tuple[str, ...]
    wide: frozenset[str]
    tables: frozenset[str]
    count: str | None
    body: tuple[ast.stmt, ...]
    sets: frozenset[str]
    summed: frozenset[str]


# Held while Python is parsed, because up to CPython 3.12 ast.parse in two threads may fail (python/cpython#106905).
parsing = threading.RLock()
_parsed: dict[Function, Formula] = {}


def read(function: Function) -> Formula:
    """Parse a formula, once. Raises TypeError for what no formula may contain. No lock is taken for what is there."""
    if (found := _parsed.get(function)) is None:
        with uninterrupted(), parsing:
            found = _parsed[function] = _read(function)
    return found


def _read(function: Function) -> Formula:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    given = {each.name: each.annotation for each in inspect.signature(function, eval_str=True).parameters.values()}
    rows = tuple(name for name, kind in given.items() if kind is arithmetic.Elements)
    rest = tuple(given)[1 + len(rows) :]
    if tuple(given) != ("dim", *rows, *rest) or rows[:2] != ("w", "g"):
        raise TypeError(f"a formula is a function of dim, the Elements w, g and slots, and numbers, got {list(given)}")
    counts = [name for name in rest if given[name] is arithmetic.Count]
    body = tuple(tree.body[ast.get_docstring(tree) is not None :])
    nodes = list(_nodes(body))
    found = Formula(
        name=function.__qualname__,
        rows=rows,
        numbers=tuple(name for name in rest if name not in counts),
        wide=frozenset(name for name in rest if given[name] is np.float64),
        tables=frozenset(name for name in rest if given[name] == arithmetic.Table),
        count=counts[0] if counts else None,
        body=body,
        sets=frozenset(
            ast.unparse(node.value)
            for node in nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        ),
        summed=frozenset(row for node in nodes if (row := _summed(node)) is not None),
    )
    for node in nodes:
        _check(node, found)
    return found


def uses_buffers(functions: tuple[Function, ...]) -> tuple[bool, bool]:
    """Return whether formulas, run in order, change the gradient; and whether w must be a copy in the slots' dtype.

    It must if several of them set w, or one needs all of w: then 16-bit values are rounded once, at the end.
    """
    formulas = [read(function) for function in functions]
    sets = [row for formula in formulas for row in formula.sets]
    return "g" in sets, sets.count("w") > 1 or any("w" in formula.summed for formula in formulas)


def _nodes(body: tuple[ast.stmt, ...]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _summed(node: ast.AST) -> str | None:
    """Return the argument of a call of sum_of_squares; None for any other node."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "sum_of_squares":
        return ", ".join(map(ast.unparse, node.args))
    return None


def _check(node: ast.AST, formula: Formula) -> None:
    """Raise TypeError for a statement or an expression that no formula may contain."""
    fine = isinstance(node, _PLAIN)
    if isinstance(node, ast.Assign):
        fine = len(node.targets) == 1
    elif isinstance(node, ast.For):
        fine = ast.unparse(node.iter) == "range(dim)" and not node.orelse
    elif isinstance(node, ast.Subscript):
        fine = isinstance(node.value, ast.Name) and node.value.id in formula.rows
    elif isinstance(node, ast.Call):
        fine = isinstance(node.func, ast.Name) and node.func.id in (*FUNCTIONS, "range") and not node.keywords
        fine = fine and _summed(node) in (None, *formula.rows)
    elif isinstance(node, ast.Name):
        fine = not node.id.startswith("_")
    elif isinstance(node, ast.Constant):
        fine = isinstance(node.value, (int, float)) and float(np.float32(node.value)) == node.value
    if not fine:
        raise TypeError(f"{formula.name}, line {getattr(node, 'lineno', 0)}: a formula cannot have {ast.unparse(node)}")


class _Columns:
    """A slot or the embedding of many rows, in place of one row's: an element is a column, read as a copy."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype

    def __getitem__(self, j: int) -> Any:
        return self.array[:, j].copy()

    def __setitem__(self, j: int, value: Any) -> None:
        self.array[:, j] = value


def run(function: Function, rows: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
    """Run a formula in NumPy on all rows at once, in place. rows: arrays (n, width) of one dtype, by name."""
    formula, dim = read(function), rows["w"].shape[1]
    with np.errstate(all="ignore"):
        function(dim, **{name: _Columns(rows[name]) for name in formula.rows}, **numbers)
