"""A store's variables by name, opened as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvemb.variable import Variable


class ByName(Mapping[str, "Variable"]):
    """A view: names() are the variables there are, get(name) opens one or raises KeyError."""

    def __init__(self, names: Callable[[], list[str]], get: Callable[[str], Variable]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Variable:
        if name not in self._names():
            raise KeyError(f"there is no variable {name!r}; there is {', '.join(self._names()) or 'none'}")
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<variables {', '.join(self)}>"
