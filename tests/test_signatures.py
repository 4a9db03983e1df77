"""Functions that take the arguments of one class: what they pass on, their signatures, what they refuse."""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass

import pytest

from kvemb.signatures import function_of, method_of


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    _: KW_ONLY
    name: str = "p"


@function_of(Point)
def taken(point: Point) -> Point:
    """Return it."""
    return point


class Owner:
    @method_of(Point)
    def __init__(self, point: Point) -> None:
        self.point = point

    @method_of(Point)
    def with_it(self, point: Point) -> tuple[Owner, Point]:
        """Return both."""
        return self, point


def test_a_function_gets_the_value_of_its_arguments():
    assert taken(1) == taken(x=1) == Point(1)
    assert taken(1, 3, name="q") == Point(1, 3, name="q")
    owner = Owner(5, name="o")
    assert owner.point == Point(5, name="o")
    assert owner.with_it(1, y=4) == (owner, Point(1, 4))


def test_every_argument_is_shown_with_its_default_and_the_function_keeps_its_name():
    shown = inspect.signature(taken)
    assert str(shown) == "(x: 'int', y: 'int' = 2, *, name: 'str' = 'p') -> 'Point'"
    assert (taken.__name__, taken.__doc__) == ("taken", "Return it.")
    assert list(inspect.signature(Owner.with_it).parameters) == ["self", "x", "y", "name"]
    assert list(inspect.signature(Owner).parameters) == ["x", "y", "name"]
    assert list(inspect.signature(Owner(1).with_it).parameters) == ["x", "y", "name"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: taken(), r"taken\(\) missing a required argument: 'x'"),
        (lambda: taken(1, 2, "q"), r"taken\(\) too many positional arguments"),
        (lambda: taken(1, z=2), r"taken\(\) got an unexpected keyword argument 'z'"),
        (lambda: taken(1, x=1), r"taken\(\) multiple values for argument 'x'"),
        (lambda: Owner(), r"Owner\(\) missing a required argument: 'x'"),
        (lambda: Owner(1).with_it(z=1), r"Owner.with_it\(\) (missing a required|got an unexpected)"),
    ],
)
def test_arguments_it_does_not_take_are_told_by_its_own_name(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


def test_an_owner_may_have_an_argument_of_any_name():
    """The owner is positional only: an argument called as the wrapper's own is the value's."""

    @dataclass(frozen=True)
    class Named:
        owner: str

    class Place:
        @method_of(Named)
        def of(self, named: Named) -> str:
            return named.owner

    assert Place().of(owner="me") == "me"
