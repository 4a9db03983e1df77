"""get_variable and get_collection for the default store or a given one.

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
    """Return the variable of this name in a store. See Store.get_variable for the other arguments.

    store: the store; None: the innermost default store (`with kvemb.open(path):`).
    """
    place = cast(Store, chosen(arguments.store))
    return place.get_variable(**{name: value for name, value in vars(arguments).items() if name != "store"})


def get_collection(name: str, *, store: Store | None = None) -> list[Any]:
    """Return a list of what was added to a collection of a store, in order. See Store.get_collection."""
    return cast(Store, chosen(store)).get_collection(name)


# The arguments of both are documented once.
_own, _shared = inspect.getdoc(get_variable) or "", inspect.getdoc(Store.get_variable) or ""
get_variable.__doc__ = _own + "\n" + _shared.partition("\n\n")[2]
