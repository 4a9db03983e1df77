"""JSON as dataclasses: what fits comes back, and each refusal names the field and both values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from kvemb.checks.fields import OMITTED, Id, array, as_json, integer, number, one_of, read, text


@dataclass(frozen=True)
class Inner:
    """An object in an object."""

    n: Annotated[int, integer(0, 9)] = 0
    more: Annotated[list[str], OMITTED] = field(default_factory=list)


Key = Annotated[str, text("[a-z]+", "letters")]


@dataclass(frozen=True)
class Outer:
    """An object with a field of each kind."""

    x: Annotated[float, number(0, 9)]
    on: bool
    t: Key
    w: Annotated[str, one_of(("one", "two"))]
    o: dict[Key, Inner]
    e: Annotated[tuple[Inner, ...], array(1, 2)]
    some: Id | None
    given: dict[str, Any]
    left: Annotated[int | None, OMITTED] = None


SOUND = Outer(1.5, False, "ab", "one", {"a": Inner(3, ["x"])}, (Inner(), Inner(9)), "f" * 32, {"7": [None]}, 5)


def test_what_fits_comes_back_and_what_is_omitted_is_not_written():
    text_of = json.dumps(SOUND, default=as_json)
    assert read(Outer, json.loads(text_of)) == SOUND
    assert '"a": {"n": 3, "more": ["x"]}' in text_of
    assert '"e": [{"n": 0}, {"n": 9}]' in text_of
    assert "left" not in as_json(Outer(**{**vars(SOUND), "left": None}))
    assert read(Inner, {"n": 1}) == Inner(1)


REFUSED = {
    "x": [9, -1, "1", True, float("nan"), 10**400],
    "on": [0, 1, "true", None],
    "t": ["", "aB", "a\n", 7, None],
    "w": ["z", ["one"], None],
    "o": [[], "x", None, {"A": {"n": 1}}],
    "o.a": [{"a": value} for value in (3, [], None)],
    "o.a.n": [{"a": {"n": value}} for value in (10, -1, 1.0, True, "1", None)],
    "e": [{}, [], [{"n": 1}] * 3, "ab", None],
    r"e\[1\]": [[{"n": 1}, 2]],
    r"e\[1\].more": [[{"n": 1}, {"n": 2, "more": 1}]],
    "some": ["f" * 31, 7],
    "given": [[], None],
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in REFUSED.items() for value in values])
def test_what_does_not_fit_is_refused_by_name(path, value):
    data = json.loads(json.dumps(SOUND, default=as_json))
    with pytest.raises(ValueError, match=rf"^{path} must (be|have) .*, got "):
        read(Outer, {**data, path.partition(".")[0].partition("\\")[0]: value})


def test_missing_and_unknown_fields_are_named():
    with pytest.raises(ValueError, match=r"^n is missing$"):
        read(Inner, {})
    with pytest.raises(ValueError, match=r"^b is not a field that this kvemb knows$"):
        read(Inner, {"n": 1, "b": 1})
    with pytest.raises(ValueError, match=r"^it must be an object, got 7$"):
        read(Inner, 7)
    with pytest.raises(ValueError, match=r"^'a\\nb' is not a field") as told:
        read(Inner, {"n": 1, "a\nb": 1})
    with pytest.raises(ValueError, match="is not a field") as told:
        read(Inner, {"n": 1, "x" * 5000: 1})
    assert len(str(told.value)) <= 150
