"""Every number of the command line has a range; anything else is refused in one line before any other work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from kvemb.checks import ranges
from kvemb.tools import cli, limits

TEXTS = ["x", "", "1.5", "nan", "1e400", "-1", str(2**63), str(10**400), "9" * 5000]


def numbers(app: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[list[str], type, Any]]:
    """Yield (what to type before it, int or float, its Option or Argument) for every number that a command takes."""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from numbers(group.typer_instance, (*path, str(group.name)))
    for command in app.registered_commands:
        assert command.callback is not None
        words = (*path, command.name or command.callback.__name__)
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            parts = set(get_args(hint)) | {inner for part in get_args(hint) for inner in get_args(part)}
            parts |= {inner for part in parts for inner in get_args(part)}
            kind = next((kind for kind in (int, float) if kind in parts), None)
            if kind is not None:
                said = next(each for each in get_args(hint) if isinstance(each, (OptionInfo, ArgumentInfo)))
                before = [f"--{name.replace('_', '-')}"] if isinstance(said, OptionInfo) else ARGUMENTS[words, name]
                yield [*words, *before], kind, said


# What stands before a number that is no option.
ARGUMENTS = {(("peek",), "keys"): ["nowhere"], (("restrict",), "keep"): ["nowhere"]}
FOUND = list(numbers(cli.app))


def test_bounds_of_the_library_are_the_librarys():
    names = ["MAX_DIM", "MAX_SERIES", "MAX_PARTS", "MAX_JOBS"]
    assert [getattr(limits, name) for name in names] == [getattr(ranges, name) for name in names]
    assert limits.MAX_STORED_ROWS == ranges.MAX_ROWS


def test_the_numbers_of_all_commands_are_found():
    commands = {"demo", "peek", "export", "push", "pull", "restrict", "bench"}
    assert {words[0] for words, *_ in FOUND} >= commands


def _in_range(text: str, kind: type, said: Any) -> bool:
    try:
        return bool(said.min <= kind(text) <= said.max)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("words", "kind", "said"), FOUND, ids=lambda each: " ".join(each) if type(each) is list else ""
)
def test_a_number_has_a_range_and_is_refused_beyond(capsys, words, kind, said):
    assert said.min is not None, "every number needs both ends of a range"
    assert said.max is not None, "every number needs both ends of a range"
    refused = [text for text in TEXTS if not _in_range(text, kind, said)]
    assert len(refused) >= 6
    for text in refused:
        assert cli.run([*words, text]) == 2, text[:50]
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1, text[:50]
        assert len(shown.err) < 1000
