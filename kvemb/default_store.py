"""The default store, a temporary one, and the functions that use a default: get_variable and get_collection.

The arguments of get_variable have the names, the order and the defaults of tfra.dynamic_embedding.get_variable.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvemb.defaults import DEFAULTS, store_or_default
from kvemb.engine.arguments import Arguments
from kvemb.engine.engine import Engine
from kvemb.errors import KvembError
from kvemb.handle import inside
from kvemb.options import parse_budget
from kvemb.shared_docs import described_as
from kvemb.signatures import function_of
from kvemb.store import Store
from kvemb.variable import InStore, Variable


def default_store() -> Store:
    """Return the default store of module-level functions such as ``get_variable``.

    It is the store of the innermost ``with`` block. All threads share the default stores.

    Returns:
        The default store.

    Raises:
        StoreNotFound: There is none.

    Example:
        >>> kvemb.default_store() is store
        True
    """
    return cast(Store, DEFAULTS.innermost())


def temporary(memory_budget: int | str = "1GiB") -> Store:
    """Open a new store in a temporary directory, which is deleted when this process ends.

    It is for experiments and tests. To keep rows, use ``kvemb.open``.

    Args:
        memory_budget: As for ``kvemb.open``.

    Returns:
        The store.

    Raises:
        ValueError: ``memory_budget`` is not valid.
        TypeError: ``memory_budget`` has the wrong type.

    Example:
        >>> with kvemb.temporary():
        ...     kvemb.get_variable("words", dim=8).lookup([7]).shape
        (1, 8)
    """
    parse_budget(memory_budget)
    directory = tempfile.mkdtemp(prefix="kvemb-")
    store = Store(Engine(Path(directory), memory_budget=memory_budget))

    def discard() -> None:
        if store.state.forked:
            return
        with suppress(KvembError):
            inside(store).release()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(discard)
    return store


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
        StoreNotFound: ``store`` is None, and there is no default store.

    Example:
        >>> kvemb.get_collection(kvemb.GraphKeys.TRAINABLE_VARIABLES) == [users]
        True
    """
    return cast(Store, store_or_default(store)).get_collection(name)
