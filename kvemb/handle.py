"""What a user holds of something that is in one place only, as a store and its variables are, and what is inside."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

Inside = TypeVar("Inside", covariant=True)


class Handle(Generic[Inside]):
    """An object whose copies are the object itself. How it is pickled says kvemb.pickling.

    Users call its methods; the modules of kvemb work with what it stands for, which inside() returns.
    """

    def __init__(self, stands_for: Inside) -> None:
        self._inside = stands_for

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def inside(handle: Handle[Inside]) -> Inside:
    """Return what a handle stands for: the Table of a Variable, the Engine of a Store."""
    return handle._inside
