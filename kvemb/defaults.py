"""The default stores of this process, the innermost last. All threads share them. Not synchronised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from kvemb.checks.brief import brief
from kvemb.errors import StoreNotFound
from kvemb.handle import Handle, Inside
from kvemb.store_state import StoreState


class Defaults:
    """The stores that functions use by default."""

    def __init__(self) -> None:
        self.stores: list[DefaultStore[Any]] = []

    def innermost(self) -> DefaultStore[Any]:
        """Return the default store. Raises StoreNotFound if there is none."""
        if not self.stores:
            raise StoreNotFound(
                "no store is open here: make the call inside `with kvemb.open(path):`, or pass store=kvemb.open(path); "
                "for rows that are deleted when the program ends, pass store=kvemb.temporary()"
            )
        return self.stores[-1]

    def leave(self, store: DefaultStore[Any]) -> None:
        """Take away the innermost block of a store, which may be in several."""
        at = max(at for at, each in enumerate(self.stores) if each is store)
        del self.stores[at]


DEFAULTS = Defaults()


class DefaultStore(Handle[Inside]):
    """A store or a cluster. Module-level functions use it inside its `with` block, whose end closes it."""

    state: StoreState

    @property
    @abstractmethod
    def variables(self) -> Mapping[str, Any]:
        """Its variables by name."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Calling it again does nothing."""

    def __enter__(self) -> Self:
        self.state.check_open()
        DEFAULTS.stores.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        DEFAULTS.leave(self)
        self.close()

    @contextmanager
    def as_default(self) -> Iterator[Self]:
        """Make this store the default of module-level functions inside a ``with`` block.

        Unlike ``with store:``, the block leaves the store open.

        Yields:
            The store.

        Raises:
            Closed: The store is closed.

        Example:
            >>> with store.as_default():
            ...     kvemb.get_variable("users") is users
            True
        """
        self.state.check_open()
        DEFAULTS.stores.append(self)
        try:
            yield self
        finally:
            DEFAULTS.leave(self)


def store_or_default(store: Any) -> DefaultStore[Any]:
    """Return the store of a `store` argument; None: the default store. Raises TypeError, StoreNotFound."""
    if store is None:
        return DEFAULTS.innermost()
    if not isinstance(store, DefaultStore):
        raise TypeError(f"store must be a Store, got {brief(store)}; use kvemb.open(path)")
    return store
