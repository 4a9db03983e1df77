"""The variable of a module or layer: one that exists, or that of a name and arguments."""

from __future__ import annotations

from typing import Any, cast

from kvemb.checks.brief import brief
from kvemb.defaults import store_or_default
from kvemb.store import Store
from kvemb.variable import Variable
from kvemb.variable_scope import get_variable_scope


def variable_of(given: Any, dim: int | None, store: Store | None, arguments: dict[str, Any]) -> Variable:
    """Return a module's variable: the one given, or that of Store.get_variable with a name and arguments.

    arguments: dtypes may be torch's. Raises TypeError; ValueError for arguments together with a Variable; what
    get_variable raises.
    """
    if isinstance(given, Variable):
        if arguments or store is not None or dim not in (None, given.dim):
            named = ", ".join(["store", *arguments] if store is not None else arguments) or "dim"
            raise ValueError(f"variable {given.name!r} exists already: leave out {named}, or give another name")
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"expected a name or a Variable, got {brief(given)}; begin with a name and dim, such as 'words', 16: no "
            "number of rows is needed, because any int64 is a key"
        )
    store = cast(Store, store_or_default(store))
    if dim is not None:
        arguments = {"dim": dim, **arguments}
    elif "dim" not in arguments:
        _check_exists(store, given)
    return store.get_variable(given, **{name: _without_torch(value) for name, value in arguments.items()})


def _without_torch(value: Any) -> Any:
    """Return the name of a dtype of torch, and everything else as it is."""
    kind = type(value)
    return str(value).removeprefix("torch.") if (kind.__module__, kind.__name__) == ("torch", "dtype") else value


def _check_exists(store: Store, name: str) -> None:
    """Raise TypeError for a new variable without dim; get_variable would take the reference's default, 1."""
    scope = get_variable_scope()
    if scope is not None and scope.custom_getter is not None:
        return  # it may give dim
    full = name if scope is None else f"{scope.name}/{name}"
    if full not in store.variables:
        raise TypeError(f"dim is missing: variable {full!r} is new; give the number of values in a row, as in dim=16")
