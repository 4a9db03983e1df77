"""get_variable and get_collection of the default store, or of a given one.

Its arguments have the names, the order and the defaults of tfra.dynamic_embedding.get_variable.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, cast

from kvemb.defaults import chosen
from kvemb.engine.arguments import Arguments
from kvemb.signatures import function_of
from kvemb.store import Store
from kvemb.variable import InStore, Variable


@dataclass(frozen=True, eq=False)
class ArgumentsInStore(Arguments, InStore):
    """The arguments of kvemb.get_variable."""


@function_of(ArgumentsInStore)
def get_variable(arguments: ArgumentsInStore) -> Variable:
    """Return the variable of this name in a store: Store.get_variable, which explains the other arguments.

    store: the innermost default store (`with kvemb.open(path):`) unless given.
    """
    place = cast(Store, chosen(arguments.store))
    return place.get_variable(**{name: value for name, value in vars(arguments).items() if name != "store"})


def get_collection(name: str, *, store: Store | None = None) -> list[Any]:
    """Return what was added under a GraphKeys name to a store, in order, a copy: Store.get_collection."""
    return cast(Store, chosen(store)).get_collection(name)


# One text explains the arguments of both.
_own, _shared = inspect.getdoc(get_variable) or "", inspect.getdoc(Store.get_variable) or ""
get_variable.__doc__ = _own + "\n" + _shared.partition("\n\n")[2]
