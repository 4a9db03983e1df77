"""What docstrings take from others: a class from its bases, a function from the one whose arguments it has."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest

from kvemb.optimizers import KINDS, SGD, AdamW, Optimizer
from kvemb.shared_docs import describe_inherited, described_as


@dataclass
class Base:
    """Do a step.

    Args:
        rate: Step size.
        limit: The most,
            of all.

    Raises:
        ValueError: A number is below 0.
    """

    rate: float
    limit: float = 1.0


class Near(Base):
    """Do a step, near."""


@pytest.mark.parametrize("kind", KINDS.values())
def test_all_arguments_are_described_in_their_order(kind: type[Optimizer]):
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")
    lines = section.partition("\n\n")[0].splitlines()
    described = [line.split(":")[0].strip() for line in lines if not line.startswith("     ")]
    assert described == list(inspect.signature(kind).parameters)


def test_an_argument_of_its_own_is_described_as_the_class_says():
    assert "    weight_decay: The strength of weight decay. It acts only" in (AdamW.__doc__ or "")
    assert (AdamW.__doc__ or "").count("weight_decay: ") == 1
    assert (AdamW.__doc__ or "").rstrip().endswith(SGD.__doc__.partition("\nRaises:")[2].rstrip())  # type: ignore[union-attr]


def test_inherited_entries_stand_in_the_order_of_the_arguments():
    @dataclass
    class Kind(Base):
        """Do another step.

        Args:
            share: A share.
            limit: The least.

        Example:
            None.
        """

        share: float = 0.0

    describe_inherited(Kind)
    assert Kind.__doc__ == inspect.cleandoc(
        """Do another step.

        Args:
            rate: Step size.
            limit: The least.
            share: A share.

        Raises:
            ValueError: A number is below 0.

        Example:
            None.
        """
    )


def test_a_docstring_without_sections_gets_them():
    describe_inherited(Near)
    assert (Near.__doc__ or "") == "Do a step, near." + inspect.cleandoc(Base.__doc__ or "").removeprefix("Do a step.")


def test_a_class_without_a_docstring_gets_none():
    class Kind(Base):
        pass

    describe_inherited(Kind)
    assert Kind.__doc__ is None


def shared(keys: int, *rest: int, touch: bool = True, **others: int) -> int:
    """Return it.

    Args:
        keys: The keys.
            Any shape.
        *rest: More.
        touch: Whether it counts:

            as a use.
        **others: Not known below.

    Returns:
        The keys.

    Raises:
        TypeError: Yes.
    """
    return keys


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("Do it.", "Do it.\n\nArgs:\n{rest}{touch}{raised}"),
        ("Do it.\n\nMore: this.\n", "Do it.\n\nMore: this.\n\nArgs:\n{rest}{touch}{raised}"),
        (
            "Do it.\n\n    Raises:\n        ValueError: No.\n    ",
            "Do it.\n\nArgs:\n{rest}{touch}\nRaises:\n    ValueError: No.",
        ),
        (
            "Do it.\n\nArgs:\n    own: Its own.\n    touch: Unlike.\n        this.\n\nReturns:\n    0.",
            "Do it.\n\nArgs:\n{rest}    touch: Unlike.\n        this.\n    own: Its own.\n\nReturns:\n    0.\n{raised}",
        ),
    ],
)
def test_arguments_that_are_not_described_get_the_descriptions_of_another_function(given, completed):
    def target(*rest: int, touch: bool, unknown: int, own: int) -> None:
        pass

    class Target:
        def __init__(self, *rest: int, touch: bool, unknown: int, own: int) -> None:
            pass

    rest, touch = "    *rest: More.\n", "    touch: Whether it counts:\n\n        as a use.\n"
    raised = "\nRaises:\n    TypeError: Yes."
    for each in (target, Target):
        each.__doc__ = given
        assert described_as(shared)(each) is each
        assert inspect.getdoc(each) == completed.format(rest=rest, touch=touch, raised=raised).rstrip()


def test_a_function_without_a_docstring_gets_none():
    def target(keys: int) -> None:
        pass

    described_as(shared)(target)
    assert target.__doc__ is None
