"""Values in messages: one line, short, whatever they are."""

from __future__ import annotations

import pytest

from kvemb.checks.brief import MAX_CHARACTERS, brief, there_are


@pytest.mark.parametrize("value", [7, -1.5, "users", None, True, [1, 2], {"a": 1}])
def test_small_values_are_shown_as_they_are(value):
    assert brief(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["x" * 10_000, list(range(10_000)), {"a" * 500: "b" * 500}, b"\0" * 5000, [[[[[[1]]]]]]]
)
def test_long_and_nested_values_are_cut(value):
    assert len(brief(value)) <= MAX_CHARACTERS
    assert "..." in brief(value)


def test_lines_become_one():
    class Lines:
        def __repr__(self):
            return "a\n  b\r\n\tc"

    assert brief(Lines()) == "a b c"


def test_an_int_that_python_refuses_to_print_is_told_by_its_length():
    assert brief(1 << 100_000) == "an int of 100,001 bits"
    assert brief([1 << 100_000]) == "[an int of 100,001 bits]"


@pytest.mark.parametrize(
    ("names", "told"), [([], "there is none"), (["u"], "there is u"), (["u", "v", "w"], "there are u, v, w")]
)
def test_several_names_are_told_of_in_the_plural(names, told):
    assert there_are(iter(names)) == told
