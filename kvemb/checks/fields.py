"""Validation of the fields of a JSON object: they are taken one by one, each checked for its type and range.

Every error is a ValueError that names the field, what it must be and what it is. Not thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from kvemb.checks.brief import brief

# Patterns of Fields.text and texts, with their descriptions: the identity of a store or checkpoint; a checksum.
ID = (r"[0-9a-f]{32}", "32 hexadecimal digits")
SHA256 = (r"[0-9a-f]{64}", "64 hexadecimal digits")


class Fields:
    """An object's fields. where: its path in messages, empty for the outermost object. Raises ValueError."""

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'it'} must be an object, got {brief(value)}")
        self._left: dict[str, Any] = dict(value)
        self.where = where

    def path(self, name: str) -> str:
        """Return a field's path for messages."""
        named = name if re.fullmatch(r"\w{1,60}", name) else brief(name)
        return f"{self.where}.{named}" if self.where else named

    def take(self, name: str) -> Any:
        """Take a field of any type."""
        if name not in self._left:
            raise ValueError(f"{self.path(name)} is missing")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        """Whether the object has the field and it has not been taken yet."""
        return name in self._left

    def integer(self, name: str, least: int, most: int) -> int:
        """Take an int from least to most."""
        value = self.take(name)
        if type(value) is not int or not least <= value <= most:
            raise self.refused(name, f"an int from {least} to {most}", value)
        return value

    def number(self, name: str, least: float, below: float) -> float:
        """Take a finite number, at least `least` and less than `below`."""
        value = self.take(name)
        if type(value) not in (int, float) or not least <= value < below:
            raise self.refused(name, f"a number from {least} to below {below}", value)
        return float(value)

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self.take(name)
        if type(value) is not bool:
            raise self.refused(name, "true or false", value)
        return value

    def text(self, name: str, pattern: str, what: str) -> str:
        """Take a str that matches a regular expression. what: describes it in messages."""
        value = self.take(name)
        if type(value) is not str or re.fullmatch(pattern, value) is None:
            raise self.refused(name, what, value)
        return value

    def one_of(self, name: str, choices: Collection[str]) -> str:
        """Take a str that is one of `choices`."""
        value = self.take(name)
        if type(value) is not str or value not in choices:
            raise self.refused(name, f"one of {', '.join(choices)}", value)
        return value

    def fields(self, name: str) -> Fields:
        """Take an object."""
        return Fields(self.take(name), self.path(name))

    def elements(self, name: str) -> list[Any]:
        """Take an array."""
        value = self.take(name)
        if type(value) is not list:
            raise self.refused(name, "an array", value)
        return value

    def texts(self, name: str, pattern: str, what: str) -> list[str]:
        """Take an array of str that match a regular expression. what: describes them in messages."""
        values = self.elements(name)
        for value in values:
            if type(value) is not str or re.fullmatch(pattern, value) is None:
                raise self.refused(name, f"an array of {what}", value)
        return values

    def names(self) -> Iterator[str]:
        """Yield the names of the fields not taken yet."""
        yield from list(self._left)

    def done(self) -> None:
        """Raise ValueError unless all fields were taken."""
        for name in self._left:
            raise ValueError(f"{self.path(name)} is not a field that this kvemb knows")

    def refused(self, name: str, expected: str, got: object) -> ValueError:
        """Return the error for a field that is not as expected."""
        return ValueError(f"{self.path(name)} must be {expected}, got {brief(got)}")
