"""An optimizer's formula as it is written: Python over one row's elements, read so that kernels can be made of it.

A formula is a function of `dim`, `w` (the embedding), `g` (its gradient), the optimizer's slots, in order and by name,
and numbers by the names of the optimizer's attributes:

    def formula(dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number):
        for j in range(dim):
            s = accumulator[j] + g[j] * g[j]
            accumulator[j] = s
            w[j] = w[j] - learning_rate * g[j] / (sqrt(s) + epsilon)

It may assign names and elements, call what stands in kvemb.optimizers.arithmetic, and loop over range(dim); there is
no if. All is calculated in the dtype of the slots, dim and literals included, which float32 must hold exactly, but for
numbers that are annotated np.float64: what is calculated with these is float64 until rounded() brings it back. An
element of w is read before it is written, as 16-bit values are rounded when they are.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kvemb.optimizers import arithmetic

FUNCTIONS = ("sqrt", "rounded", "power")
_OPERATIONS = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub)
_PLAIN = (ast.Assign, ast.For, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Subscript, ast.Call, *_OPERATIONS)


@dataclass(frozen=True)
class Formula:
    """What a formula's function says. rows: its parameters that are rows, w and g first, then the slots. numbers: its
    other parameters. wide: those of the numbers that are float64. body: its statements.
    """

    name: str
    rows: tuple[str, ...]
    numbers: tuple[str, ...]
    wide: frozenset[str]
    body: tuple[ast.stmt, ...]


@cache
def read(function: Callable[..., None]) -> Formula:
    """Return what a formula says. Raises TypeError for what no formula can have."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    given = {each.name: each.annotation for each in inspect.signature(function, eval_str=True).parameters.values()}
    rows = tuple(name for name, kind in given.items() if kind is arithmetic.Elements)
    numbers = tuple(given)[1 + len(rows) :]
    if tuple(given) != ("dim", *rows, *numbers) or rows[:2] != ("w", "g"):
        raise TypeError(f"a formula is a function of dim, the Elements w, g and slots, and numbers, got {list(given)}")
    wide = frozenset(name for name in numbers if given[name] is np.float64)
    found = Formula(function.__qualname__, rows, numbers, wide, tuple(tree.body[ast.get_docstring(tree) is not None :]))
    for node in _nodes(found):
        _check(node, found)
    return found


def _nodes(formula: Formula) -> Iterator[ast.AST]:
    for statement in formula.body:
        yield from ast.walk(statement)


def _check(node: ast.AST, formula: Formula) -> None:
    """Raise TypeError for a statement or an expression that no formula may have."""
    fine = isinstance(node, _PLAIN)
    if isinstance(node, ast.Assign):
        fine = len(node.targets) == 1
    elif isinstance(node, ast.For):
        fine = ast.unparse(node.iter) == "range(dim)" and not node.orelse
    elif isinstance(node, ast.Subscript):
        fine = isinstance(node.value, ast.Name) and node.value.id in formula.rows
    elif isinstance(node, ast.Call):
        fine = isinstance(node.func, ast.Name) and node.func.id in (*FUNCTIONS, "range") and not node.keywords
    elif isinstance(node, ast.Name):
        fine = not node.id.startswith("_")
    elif isinstance(node, ast.Constant):
        fine = isinstance(node.value, (int, float)) and float(np.float32(node.value)) == node.value
    if not fine:
        raise TypeError(f"{formula.name}, line {getattr(node, 'lineno', 0)}: a formula cannot have {ast.unparse(node)}")


class _Columns:
    """A slot or the embedding of many rows, as a formula sees one row: an element is a column, read as a copy."""

    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype

    def __getitem__(self, j: int) -> Any:
        return self._array[:, j].copy()

    def __setitem__(self, j: int, value: Any) -> None:
        self._array[:, j] = value


def run(function: Callable[..., None], rows: list[Any], numbers: list[Any]) -> None:
    """Run a formula in NumPy, on all rows at once, in place. rows: arrays (n, width) of one dtype, in its order."""
    with np.errstate(all="ignore"):
        function(rows[0].shape[1], *map(_Columns, rows), *numbers)
