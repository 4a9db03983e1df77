"""The default store, and the functions that use it: get_variable and get_collection.

The arguments of get_variable have the names, the order and the defaults of tfra.dynamic_embedding.get_variable.
"""

from __future__ import annotations

import atexit
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
from kvemb.shared_docs import described_as
from kvemb.signatures import function_of
from kvemb.store import Store
from kvemb.variable import InStore, Variable


def default_store() -> Store:
    """Return the default store of module-level functions such as ``get_variable``.

    It is the store of the innermost ``with`` block. All threads share the default stores.

    Returns:
        The default store. If there is none, a temporary one is opened, and deleted at exit; a UserWarning says so.

    Example:
        >>> kvemb.default_store() is store
        True
    """
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


@described_as(Store.get_variable)
@function_of(ArgumentsInStore)
def get_variable(arguments: ArgumentsInStore) -> Variable:
    """Return the variable of this name in a store: the open one, the stored one, or a new one.

    This is ``Store.get_variable`` of ``store``, with the same other arguments. They have the names, order and defaults
    of ``tfra.dynamic_embedding.get_variable``.

    Args:
        store: The store, which must be open. None: the innermost default store, as in ``with kvemb.open(path):``.

    Returns:
        The variable. Calls with the same name return the same object.

    Example:
        >>> with kvemb.open("new_store") as new_store:
        ...     items = kvemb.get_variable("items", dim=8, optimizer=kvemb.optimizers.Adagrad(0.05))
        ...     items.lookup([7]).shape
        (1, 8)
    """
    place = cast(Store, store_or_default(arguments.store))
    return place.get_variable(**{name: value for name, value in vars(arguments).items() if name != "store"})


def get_collection(name: str, *, store: Store | None = None) -> list[Any]:
    """List what was added to a collection of a store.

    Args:
        name: The collection's name, such as ``GraphKeys.TRAINABLE_VARIABLES``.
        store: The store. None: the innermost default store.

    Returns:
        A new list, in the order of addition; empty for an unknown name.

    Raises:
        TypeError: ``store`` is not a store.

    Example:
        >>> kvemb.get_collection(kvemb.GraphKeys.TRAINABLE_VARIABLES) == [users]
        True
    """
    return cast(Store, store_or_default(store)).get_collection(name)
