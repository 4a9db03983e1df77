"""Optimizers' kernels on a GPU: CUDA C generated from their formulas (kvemb.optimizers.formula), compiled by NVRTC.

A warp processes a row, and a lane every 32nd element: a formula's loops run over these elements, and every lane
calculates statements outside of loops. Each literal has the slots' dtype, and nothing is reordered, so the bits are
those of the formulas. arithmetic.cu has the functions that they call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from kvemb.optimizers.base import STEPS
from kvemb.optimizers.formula import Formula, Function, read, uses_buffers

# Functions that have another name or argument in C.
_NAMES = {"sqrt": "root"}
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

# The kernel's own names end in an underscore or are those of cells.cu; a formula's names end in the formula's place.
_KERNEL = """
WIDE_KERNEL step(
    TABLE_PARAMETERS, const i64* cells_, i64 n_, const Slot* grads_, const i64* first_, const i64* starts_,
    const i64* ends_, Slot* sums_, const i64* sum_at_, Slot* wide_, i64 dim_, i64 step_, double count_{parameters}) {{
  const Table table_ = TABLE;
  const u32 lane_ = lane_number();
  for (i64 i_ = first_warp(); i_ < n_; i_ += all_warps()) {{
    if (cells_[i_] < 0) continue;
    u8* bucket_ = table_.bucket(cells_[i_] / CELLS);
    const i64 slot_ = cells_[i_] % CELLS;
    Value* stored_ = (Value*)table_.row(bucket_, slot_);
    const i64 at_ = first_ ? first_[i_] : i_;
    const bool summed_ = ends_ && ends_[i_] - starts_[i_] > 1;
    {gradient} g = {given}grads_ + at_ * dim_;
    if ({copies} || summed_) {{
      Slot* sum_ = sums_ + (sum_at_ ? sum_at_[i_] : i_) * dim_;
      for (i64 j_ = lane_; {copies} && !summed_ && j_ < dim_; j_ += 32) sum_[j_] = g[j_];
      g = sum_;
    }}
{body}
    if (lane_) continue;
    steps(bucket_)[slot_] = step_;
    flags(bucket_)[slot_] |= DIRTY;
  }}
}}
"""
_COUNT_OF_ROW = [
    f"const Slot count_of_row_ = slots_[at_{STEPS}_] + (Slot)1;",
    "__syncwarp();",
    f"if (lane_ == 0) slots_[at_{STEPS}_] = count_of_row_;",
    "__syncwarp();",
]
_TO_WIDE = ["Slot* w = wide_ + i_ * dim_;", "for (i64 j_ = lane_; j_ < dim_; j_ += 32) w[j_] = wide(stored_[j_]);"]
_FROM_WIDE = ["for (i64 j_ = lane_; j_ < dim_; j_ += 32) narrow(w[j_], &stored_[j_]);"]


class _Text:
    """The C of the formula at `place`.

    stored: whether w is the embedding as stored. count: the name of the step count.
    """

    def __init__(self, formula: Formula, place: int, *, stored: bool, count: str) -> None:
        self._formula, self._place, self._stored, self._count = formula, place, stored, count
        self._names: set[str] = set()

    def statements(self) -> Iterator[str]:
        """Yield the formula's statements. Lanes synchronise around elements that all of them use."""
        for node in self._formula.body:
            if isinstance(node, ast.For):
                index = self._name(ast.unparse(node.target))
                yield f"for (i64 {index} = lane_; {index} < dim_; {index} += 32) {{"
                yield from ("  " + self._assigned(each) for each in node.body)
                yield "}"
                continue
            if not any(isinstance(each, ast.Subscript) for each in ast.walk(node)):
                yield self._assigned(node)
                continue
            yield "__syncwarp();"
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                yield f"if (lane_ == 0) {self._assigned(node)}"
                yield "__syncwarp();"
            else:
                yield self._assigned(node)

    def _assigned(self, node: ast.stmt) -> str:
        if not isinstance(node, ast.Assign):
            raise TypeError(f"{self._formula.name}: no loop is in a loop: {ast.unparse(node)}")
        (target,), value = node.targets, self._of(node.value)
        if isinstance(target, ast.Name):
            if target.id in self._names:
                raise TypeError(f"{self._formula.name}: {target.id} is assigned twice; use another name")
            self._names.add(target.id)
            return f"const auto {self._name(target.id)} = {value};"
        element = self._element(target)
        return f"narrow({value}, &{element});" if element.startswith("stored_") else f"{element} = {value};"

    def _of(self, node: ast.expr) -> str:
        """Return the C of an expression."""
        if isinstance(node, ast.BinOp):
            return f"({self._of(node.left)} {_OPERATORS[type(node.op)]} {self._of(node.right)})"
        if isinstance(node, ast.UnaryOp):
            return f"(-{self._of(node.operand)})"
        if isinstance(node, ast.Constant):
            return f"(Slot){node.value!r}"
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Subscript):
            element = self._element(node)
            return f"wide({element})" if element.startswith("stored_") else element
        if ast.unparse(node) == "dim":
            return "(Slot)dim_"
        return self._count if ast.unparse(node) == self._formula.count else self._name(ast.unparse(node))

    def _called(self, node: ast.Call) -> str:
        name, given = ast.unparse(node.func), node.args
        if name == "rounded":
            return f"(Slot)({self._of(given[0])})"
        if name == "sum_of_squares":
            return f"sum_of_squares({ast.unparse(given[0])}, dim_)"
        arguments = [self._of(each) for each in given]
        if name == "entry":
            arguments.insert(1, f"{arguments[0]}_length")
        return f"{_NAMES.get(name, name)}({', '.join(arguments)})"

    def _element(self, node: ast.expr) -> str:
        assert isinstance(node, ast.Subscript)
        row = ast.unparse(node.value)
        at = self._name(node.slice.id) if isinstance(node.slice, ast.Name) else ast.unparse(node.slice)
        return f"{'stored_' if row == 'w' and self._stored else row}[{at}]"

    def _name(self, name: str) -> str:
        return f"{name}_{self._place}"


@cache
def source_of(functions: tuple[Function, ...], slots: tuple[str, ...]) -> str:
    """Return the CUDA C of the kernel `step`, which runs formulas in order.

    slots: names of all slots of a row. After the parameters that every kernel has come each slot's column and each
    formula's numbers, in order; a table is followed by its length. Value and Slot are the dtypes of embeddings and
    slots; sums_ and wide_ have n rows each if uses_buffers says that they are needed. Raises TypeError for a formula
    that assigns a name twice.
    """
    formulas = [read(function) for function in functions]
    copies, wide = uses_buffers(functions)
    parameters = [f"i64 at_{slot}_" for slot in slots]
    parameters += [each for place, formula in enumerate(formulas) for each in _parameters(formula, place)]
    body = ["Slot* slots_ = (Slot*)stored_;"] if slots else []
    body += [f"Slot* {slot} = slots_ + at_{slot}_;" for slot in slots if any(slot in each.rows for each in formulas)]
    body += _TO_WIDE if wide else []
    of_row = STEPS in slots and any(formula.count for formula in formulas)
    body += _COUNT_OF_ROW if of_row else []
    for place, formula in enumerate(formulas):
        text = _Text(formula, place, stored=not wide, count="count_of_row_" if of_row else "count_")
        body += text.statements()
    body += _FROM_WIDE if wide else []
    return _KERNEL.format(
        parameters="".join(f",\n    {each}" for each in parameters),
        gradient="Slot*" if copies else "const Slot*",
        given="(Slot*)" if copies else "",
        copies="true" if copies else "false",
        body="\n".join(f"    {each}" for each in body),
    )


def _parameters(formula: Formula, place: int) -> Iterator[str]:
    for name in formula.numbers:
        if name in formula.tables:
            yield f"const double* {name}_{place}, i64 {name}_{place}_length"
        else:
            yield f"{'double' if name in formula.wide else 'Slot'} {name}_{place}"
