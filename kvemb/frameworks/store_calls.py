"""Lookups and steps of several variables, with one call of each store. Keys and rows may be in a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from kvemb.store import Store
from kvemb.variable import Variable


class Wanted(Protocol):
    """Keys (n,) of a variable, to look up."""

    @property
    def variable(self) -> Variable:
        """The variable."""

    @property
    def keys(self) -> Any:
        """The keys."""


Given = TypeVar("Given", bound=Wanted)


def look_up(
    wanted: Sequence[Given], joined: Callable[[list[Given]], Any], *, touch: bool
) -> list[tuple[Any, int, int]]:
    """Look up the keys of each; all keys of one variable together.

    joined: returns the argument of Store.lookup for one variable, from all that want its rows. Returns for each the
    rows of its variable, and where among these its own begin and end.
    """
    by_store: dict[Store, dict[Variable, list[int]]] = {}
    for at, each in enumerate(wanted):
        by_store.setdefault(each.variable.resource_handle[0], {}).setdefault(each.variable, []).append(at)
    parts: list[Any] = [None] * len(wanted)
    for store, places in by_store.items():
        found = store.lookup(
            {variable: joined([wanted[at] for at in ats]) for variable, ats in places.items()}, touch=touch
        )
        for variable, ats in places.items():
            end = 0
            for at in ats:
                begin, end = end, end + len(wanted[at].keys)
                parts[at] = found[variable], begin, end
    return parts


def apply_gradients(gradients: Iterable[tuple[Variable, Any, Any]]) -> None:
    """Take one step on each variable. gradients: the variable, its keys (n,) and the gradients of their rows (n, dim).

    Raises what Store.apply_gradients raises.
    """
    by_store: dict[Store, dict[Variable | str, Any]] = {}
    for variable, keys, values in gradients:
        by_store.setdefault(variable.resource_handle[0], {})[variable] = keys, values
    for store, given in by_store.items():
        store.apply_gradients(given)
