"""Fields of JSON, taken one by one: what fits comes back, and each refusal names the field and both values."""

from __future__ import annotations

import pytest

from kvemb.checks.fields import Fields


def test_what_fits_comes_back():
    fields = Fields({"n": 3, "x": 1, "on": False, "t": "ab", "w": "one", "o": {"n": 1}, "e": [1], "s": ["a"]})
    assert fields.integer("n", 0, 3) == 3
    assert fields.number("x", 0, 2) == 1.0
    assert fields.flag("on") is False
    assert fields.text("t", "[a-z]+", "letters") == "ab"
    assert fields.one_of("w", ("one", "two")) == "one"
    assert fields.fields("o").integer("n", 1, 1) == 1
    assert fields.elements("e") == [1]
    assert list(fields.names()) == ["s"]
    assert fields.has("s")
    assert fields.texts("s", "a", "a's") == ["a"]
    fields.done()


@pytest.mark.parametrize(
    ("take", "value"),
    [
        *((lambda fields: fields.integer("a", 0, 9), value) for value in (10, -1, 1.0, True, "1", None)),
        *((lambda fields: fields.number("a", 0, 9), value) for value in (9, -1, "1", True, float("nan"), 10**400)),
        *((lambda fields: fields.flag("a"), value) for value in (0, 1, "true", None)),
        *((lambda fields: fields.text("a", "[a-z]+", "letters"), value) for value in ("", "aB", "a\n", 7, None)),
        *((lambda fields: fields.one_of("a", ("x", "y")), value) for value in ("z", ["x"], None)),
        *((lambda fields: fields.elements("a"), value) for value in ({}, "ab", None)),
        *((lambda fields: fields.texts("a", "x", "x's"), value) for value in (["y"], [1], "x")),
        *((lambda fields: fields.fields("a"), value) for value in ([], "x", None)),
    ],
)
def test_what_does_not_fit_is_refused_by_name(take, value):
    with pytest.raises(ValueError, match=r"^outer\.a must be .*, got "):
        take(Fields({"a": value}, "outer"))


def test_missing_and_unknown_fields_are_named():
    with pytest.raises(ValueError, match=r"^outer.b is missing$"):
        Fields({}, "outer").take("b")
    with pytest.raises(ValueError, match=r"^b is not a field that this kvemb knows$"):
        Fields({"b": 1}).done()
    with pytest.raises(ValueError, match=r"^it must be an object, got 7$"):
        Fields(7)


def test_a_strange_name_is_quoted_and_cut():
    with pytest.raises(ValueError, match=r"^'a\\nb' is missing$"):
        Fields({}).take("a\nb")
    assert len(Fields({}).path("x" * 5000)) <= 100
