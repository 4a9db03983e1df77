"""The docstring of an optimizer describes what it inherits, too."""

from __future__ import annotations

import inspect

import pytest

from kvemb.optimizers import KINDS, SGD, AdamW, Optimizer
from kvemb.optimizers.inherited_docs import complete


class Base:
    """Do a step.

    Args:
        rate: Step size.
        limit: The most,
            of all.

    Raises:
        ValueError: A number is below 0.
    """


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


def test_inherited_entries_follow_the_own_ones():
    class Kind(Base):
        """Do another step.

        Args:
            share: A share.
            limit: The least.

        Example:
            None.
        """

    complete(Kind)
    assert Kind.__doc__ == inspect.cleandoc(
        """Do another step.

        Args:
            share: A share.
            limit: The least.
            rate: Step size.

        Raises:
            ValueError: A number is below 0.

        Example:
            None.
        """
    )


def test_a_docstring_without_sections_gets_them():
    complete(Near)
    assert (Near.__doc__ or "") == "Do a step, near." + inspect.cleandoc(Base.__doc__ or "").removeprefix("Do a step.")


def test_a_class_without_a_docstring_gets_none():
    class Kind(Base):
        pass

    complete(Kind)
    assert Kind.__doc__ is None


def test_the_signature_is_that_of_the_constructor():
    """Sphinx asks for it in this way, and would else show that of __new__."""
    assert list(Optimizer.__signature__.parameters) == ["clip_value", "clip_norm"]
    assert list(SGD.__signature__.parameters)[:2] == ["learning_rate", "clip_value"]
    assert inspect.signature(SGD) == SGD.__signature__
