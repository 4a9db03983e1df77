"""Reads that take the lock several times, and must still see one durable point while a follower moves to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

Read = TypeVar("Read", bound=Callable[..., Any])


class Shown(Protocol):
    """What shows one durable point after another. shown: how many times it moved to a later one."""

    shown: int


def of_one_point(read: Read) -> Read:
    """Return a method that repeats `read` if self._storage, a Shown, moved on meanwhile (Store.refresh)."""

    @wraps(read)
    def reading(self: Any, *args: Any, **options: Any) -> Any:
        storage: Shown = self._storage
        while True:
            shown = storage.shown
            result = read(self, *args, **options)
            if shown == storage.shown:
                return result

    return cast(Read, reading)
