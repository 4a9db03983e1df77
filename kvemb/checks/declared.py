"""Optimizers, policies and initializers as values: their fields say what they accept, and they are kept as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import partial
from typing import Any, TypeVar

from kvemb.checks.brief import brief
from kvemb.checks.numeric import from_plain, to_plain
from kvemb.errors import UnsupportedFormat

Made = TypeVar("Made")
_CHECK = "check"


def accepts(check: Callable[..., Any], default: Any = MISSING, **limits: Any) -> Any:
    """Declare a field: it becomes what check(value, what, **limits) returns. A default of None is not checked."""
    return field(default=default, metadata={_CHECK: partial(check, **limits)})


class Declared:
    """A frozen dataclass that checks its fields when it is made, those with accepts()."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value, check = getattr(self, each.name), each.metadata.get(_CHECK)
            if check is not None and not (value is None and each.default is None):
                object.__setattr__(self, each.name, check(value, f"{type(self).__name__} {each.name}"))


def arguments(value: Any) -> list[Field[Any]]:
    """Return the fields of a dataclass in the order of the arguments that make it."""
    return sorted(fields(value), key=lambda each: each.kw_only is True)


def as_json(value: Any, tag: str, name: str) -> dict[str, Any]:
    """Return a value as plain JSON: its name under `tag`, and its fields, exact to the bit."""
    return {tag: name, **{each.name: to_plain(getattr(value, each.name)) for each in arguments(value)}}


def from_json(data: Any, tag: str, kinds: Mapping[str, type[Made]], what: str) -> Made:
    """Return the value that as_json described. kinds: the classes by name. what: names the value in messages.

    Raises UnsupportedFormat if the name or a field is unknown, or a field's value is invalid.
    """
    name = data.get(tag) if isinstance(data, Mapping) else None
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(kinds)
        raise UnsupportedFormat(f"{what} must be one of {known}, got {brief(data)}; use the kvemb that wrote it")
    try:
        return kind(**{field: from_plain(value) for field, value in data.items() if field != tag})
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"{what} {brief(data)} cannot be read: {error}") from error
