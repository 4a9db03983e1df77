"""JSON as dataclasses, whose annotations say which values each field accepts.

    @dataclass(frozen=True)
    class FileEntry:
        bytes: Annotated[int, integer(0, MAX_FILE_BYTES)]
        sha256: Sha256

A field that is OMITTED may be missing, and is not written if it has its default. Pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from kvemb.checks.brief import brief

Made = TypeVar("Made")
OMITTED = "omitted"


class Accepted(NamedTuple):
    """The values that a field accepts. what: describes them in messages."""

    what: str
    fits: Callable[[Any], bool]


def integer(least: int, most: int) -> Accepted:
    """An int from least to most."""
    return Accepted(f"an int from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def number(least: float, below: float) -> Accepted:
    """A finite number, at least `least` and less than `below`."""
    what = f"a number from {least} to below {below}"
    return Accepted(what, lambda value: type(value) in (int, float) and least <= value < below)


def above(bound: float) -> Accepted:
    """A finite number above a bound."""
    fits = lambda value: type(value) in (int, float) and bound < value < math.inf  # noqa: E731
    return Accepted(f"a finite number above {bound}", fits)


def text(pattern: str, what: str) -> Accepted:
    """A str that matches a regular expression."""
    matches = re.compile(pattern).fullmatch
    return Accepted(what, lambda value: type(value) is str and matches(value) is not None)


def one_of(choices: Collection[str]) -> Accepted:
    """A str that is one of `choices`."""
    return Accepted(f"one of {', '.join(choices)}", lambda value: type(value) is str and value in choices)


def array(least: int, most: int) -> Accepted:
    """An array of `least` to `most` elements."""
    what = f"an array of {least} to {most} elements"
    return Accepted(what, lambda value: type(value) is list and least <= len(value) <= most)


# The identity of a store or a checkpoint; a checksum.
Id = Annotated[str, text(r"[0-9a-f]{32}", "32 hexadecimal digits")]
Sha256 = Annotated[str, text(r"[0-9a-f]{64}", "64 hexadecimal digits")]

_FLAG = Accepted("true or false", lambda value: type(value) is bool)
_ARRAY = Accepted("an array", lambda value: type(value) is list)
_OBJECT = Accepted("an object", lambda value: type(value) is dict)


class Refused(ValueError):
    """A value that is not as its field requires. path: of the field; empty: the value that was read itself."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path or 'it'} {reason}")
        self.reason, self.path = reason, path

    def below(self, part: str | int) -> Refused:
        """Return the error of the object or array that has the refused value at `part`."""
        outer = shown(part) if isinstance(part, str) else f"[{part}]"
        return Refused(self.reason, outer + "." * (self.path[:1] not in ("", "[")) + self.path)


def shown(name: str) -> str:
    """Return the name of a field as messages show it."""
    return name if re.fullmatch(r"\w{1,60}", name) else brief(name)


def read(kind: type[Made], value: object) -> Made:
    """Return the dataclass that JSON describes. Raises Refused, which names the field, what it must be and what it is.

    Fields of type bool, dict, list, tuple, `X | None` and dataclasses are checked also without Annotated.
    """
    hashable: Any = kind
    made: Made = _reader(hashable)(value)
    return made


def as_json(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields for JSON. json.dumps calls it for inner dataclasses if it is given as `default`."""
    given = dict(vars(value))
    kind: Any = type(value)
    for name, default in _fields(kind)[1].items():
        if given[name] == default:
            del given[name]
    return given


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types of a dataclass's fields, and the defaults of those that are OMITTED."""
    hints = get_type_hints(kind, include_extras=True)
    omitted = [each for each in fields(kind) if OMITTED in get_args(hints[each.name])[1:]]
    return hints, {
        each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in omitted
    }


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type, or raises Refused."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        accepted, read_plain = [each for each in inner[1:] if isinstance(each, Accepted)], _reader(inner[0])
        return lambda value: read_plain(_checked(accepted, value))
    if type(None) in inner:
        read_some = _reader(inner[0])
        return lambda value: None if value is None else read_some(value)
    if origin in (list, tuple):
        return partial(_elements, origin, _reader(inner[0]))
    if origin is dict:
        return partial(_by_name, get_args(inner[0])[1:], _reader(inner[1]))
    hashable: Any = kind
    if is_dataclass(kind):
        hints, omitted = _fields(hashable)
        return partial(_object, kind, {name: _reader(hint) for name, hint in hints.items()}, omitted.keys())
    return partial(_checked, [_FLAG] if kind is bool else [])


def _checked(accepted: Iterable[Accepted], value: Any) -> Any:
    for what, fits in accepted:
        if not fits(value):
            raise Refused(f"must be {what}, got {brief(value)}")
    return value


def _elements(kind: type, reader: Callable[[Any], Any], value: Any) -> Any:
    _checked([_ARRAY], value)
    return kind(_inside(at, reader, each) for at, each in enumerate(value))


def _by_name(names: Iterable[Accepted], reader: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    _checked([_OBJECT], value)
    for what, fits in names:
        if strange := [name for name in value if not fits(name)]:
            raise Refused(f"must have {what} as fields, got {brief(strange[0])}")
    return {name: _inside(name, reader, each) for name, each in value.items()}


def _object(kind: Any, readers: dict[str, Callable[[Any], Any]], omitted: Collection[str], value: Any) -> Any:
    _checked([_OBJECT], value)
    for name in value:
        if name not in readers:
            raise Refused("is not a field that this kvemb knows", shown(name))
    for name in readers:
        if name not in value and name not in omitted:
            raise Refused("is missing", name)
    return kind(**{name: _inside(name, readers[name], each) for name, each in value.items()})


def _inside(part: str | int, reader: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reader(value)
    except Refused as error:
        raise error.below(part) from None
