"""What a training step does to a row: which slots it keeps, how they start, the numbers and the formula.

A file a family. What stands here is public: kvemb.optimizers.Adagrad and its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvemb.checks.brief import brief
from kvemb.errors import UnsupportedFormat
from kvemb.optimizers.adagrad import Adagrad
from kvemb.optimizers.adam import Adam
from kvemb.optimizers.base import Optimizer, Slot
from kvemb.optimizers.row_wise_adagrad import RowWiseAdagrad
from kvemb.optimizers.sgd import SGD

__all__ = [
    "KINDS",
    "SGD",
    "Adagrad",
    "Adam",
    "Optimizer",
    "RowWiseAdagrad",
    "Slot",
    "as_optimizer",
    "optimizer_from_json",
]

# By name, every optimizer there is.
KINDS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adagrad, RowWiseAdagrad, Adam)}


def as_optimizer(spec: Any) -> Optimizer | None:
    """Return the optimizer of an `optimizer` argument: None or one of KINDS. Raises TypeError for anything else."""
    if spec is None or type(spec) in KINDS.values():
        return spec  # type: ignore[no-any-return]
    known = ", ".join(f"{kind.__name__}(...)" for kind in KINDS.values())
    raise TypeError(f"optimizer must be None or an Optimizer, got {spec!r}; use one of {known} from kvemb.optimizers")


def optimizer_from_json(data: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that to_json() gave. Raises UnsupportedFormat for a name or a field it does not know."""
    name = data.get("name") if isinstance(data, Mapping) else None
    found = KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(KINDS)
        raise UnsupportedFormat(f"optimizer must be one of {known}, got {brief(data)}; use the kvemb that wrote it")
    try:
        return found(**{field: value for field, value in data.items() if field != "name"})
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"optimizer {brief(data)} cannot be read: {error}") from error
