"""The default store, and the functions that use it: get_variable and get_collection.

The arguments of get_variable have the names, the order and the defaults of tfra.dynamic_embedding.get_variable.
"""

from __future__ import annotations

import atexit
import inspect
import shutil
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvemb.defaults import DEFAULTS, store_or_default
from kvemb.engine.arguments import Arguments
from kvemb.engine.engine import Engine
from kvemb.errors import KvembError
from kvemb.handle import inside
from kvemb.signatures import function_of
from kvemb.store import Store
from kvemb.variable import InStore, Variable


def default_store() -> Store:
    """Return the innermost default store, or else a temporary one, deleted at exit; a UserWarning says so."""
    return cast(Store, DEFAULTS.innermost())


def _temporary() -> Store:
    """Open a temporary store, which is the default store from now on and is deleted at exit."""
    directory = tempfile.mkdtemp(prefix="kvemb-")
    warnings.warn(
        f"no default store is set: using a temporary one in {directory}, deleted at exit; "
        "use `with kvemb.open(path):` to keep rows",
        stacklevel=6,  # the caller of get_variable
    )
    store = Store(Engine(Path(directory)))
    DEFAULTS.stores.append(store)

    def discard() -> None:
        if store.state.forked:
            return
        with suppress(KvembError):
            inside(store).release()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(discard)
    return store


DEFAULTS.temporary = _temporary


@dataclass(frozen=True, eq=False)
class ArgumentsInStore(Arguments, InStore):
    """The arguments of kvemb.get_variable."""


@function_of(ArgumentsInStore)
def get_variable(arguments: ArgumentsInStore) -> Variable:
    """Return the variable of this name in a store. See Store.get_variable for the other arguments.

    store: the store; None: the innermost default store (`with kvemb.open(path):`).
    """
    place = cast(Store, store_or_default(arguments.store))
    return place.get_variable(**{name: value for name, value in vars(arguments).items() if name != "store"})


def get_collection(name: str, *, store: Store | None = None) -> list[Any]:
    """Return a list of what was added to a collection of a store, in order. See Store.get_collection."""
    return cast(Store, store_or_default(store)).get_collection(name)


# The arguments of both are documented once.
_own, _shared = inspect.getdoc(get_variable) or "", inspect.getdoc(Store.get_variable) or ""
get_variable.__doc__ = _own + "\n" + _shared.partition("\n\n")[2]
