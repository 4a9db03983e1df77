"""What stands for something that is in one place only, as a store and its variables do."""

from __future__ import annotations

from typing import Any, Self


class Handle:
    """An object whose copies are the object itself. How it is pickled says kvemb.pickling."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
