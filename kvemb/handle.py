"""Handles: the objects that users have of a store or a variable, and the internal objects behind them.

A copy of a handle is the handle itself.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

Inside = TypeVar("Inside", covariant=True)


class Handle(Generic[Inside]):
    """An object whose copies are the object itself; kvemb.pickling says how it is pickled.

    Users call its methods. The modules of kvemb work with the internal object, which inside() returns.
    """

    def __init__(self, stands_for: Inside) -> None:
        self._inside = stands_for

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def inside(handle: Handle[Inside]) -> Inside:
    """Return the internal object of a handle: the Table of a Variable, the Engine of a Store."""
    return handle._inside
