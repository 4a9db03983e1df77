"""The default stores of this process, the innermost last. No thread contract: the same for all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvemb.checks.brief import brief
from kvemb.handle import Place


class Defaults:
    """The stores that functions use if they are given none. temporary: makes one if there is none (kvemb.opening)."""

    temporary: Callable[[], Place[Any]]

    def __init__(self) -> None:
        self.stores: list[Place[Any]] = []

    def innermost(self) -> Place[Any]:
        """Return the default store."""
        return self.stores[-1] if self.stores else self.temporary()


DEFAULTS = Defaults()


def chosen(store: Any) -> Place[Any]:
    """Return a `store` argument, for None the default store. Raises TypeError."""
    if store is None:
        return DEFAULTS.innermost()
    if not isinstance(store, Place):
        raise TypeError(f"store must be a Store, got {brief(store)}; use kvemb.open(path)")
    return store
