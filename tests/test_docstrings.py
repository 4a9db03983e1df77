"""Docstrings of everything public: each argument, what is returned, what is raised; see docstrings.py for the form."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType

import pytest
from docstrings import Public, faults, modules, public, sections

from kvemb.catalog import VariableMap
from kvemb.durability.recovery import Recovery
from kvemb.engine.slot_variable import SlotVariable
from kvemb.limits import Limits
from kvemb.stats import TierSize

MODULES = ["kvemb", "kvemb.bulk", "kvemb.optimizers", "kvemb.initializers", "kvemb.errors", "kvemb.cluster"]
MODULES += [name for name in ["kvemb.monitoring"] if importlib.util.find_spec(name) is not None]
# What users get from calls, and do not import.
GOT = {"kvemb": [VariableMap, SlotVariable, TierSize, Recovery, Limits]}
# Classes whose objects kvemb makes. Their constructors take what is inside kvemb.
MADE_BY_KVEMB = {
    *("kvemb.Store", "kvemb.PendingCheckpoint", "kvemb.VariableMap", "kvemb.SlotVariable", "kvemb.Embeddings"),
    *("kvemb.cluster.Store", "kvemb.cluster.Variable"),
    "kvemb.errors.SchemaMismatch",
}
# Nobody calls an optimizer's formula, which kernels are generated from: its arguments are those of
# kvemb.optimizers.formula.
FORMULA = ".formula"

# The calls that people make most.
WITH_EXAMPLE = {
    *("kvemb.open", "kvemb.get_variable", "kvemb.variable_scope", "kvemb.restore", "kvemb.verify"),
    *("kvemb.embedding_lookup", "kvemb.embedding_lookup_sparse"),
    *(f"kvemb.Store.{name}" for name in ("get_variable", "checkpoint", "refresh")),
    *("kvemb.ManyTables.lookup", "kvemb.ManyTables.apply_gradients"),  # methods of Store
    *(f"kvemb.Variable.{name}" for name in ("lookup", "upsert", "apply_gradients", "restrict", "export_batches")),
    *("kvemb.CheckpointManager", "kvemb.CheckpointManager.resume", "kvemb.Checkpoint.changes"),
}


def everything(names: list[str]) -> list[Public]:
    """Everything public of modules, and what users get from their calls."""
    found = list(public(modules(names)))
    for prefix, kinds in GOT.items():
        if prefix in names:
            got = ModuleType(prefix)
            vars(got).update({kind.__name__: kind for kind in kinds}, __all__=[kind.__name__ for kind in kinds])
            found += public({prefix: got})
    return found


def check(names: list[str]) -> None:
    told: list[str] = []
    for each in everything(names):
        if each.name.endswith(FORMULA):
            continue
        told += [f"{each.name}: {fault}" for fault in faults(each, made_by_kvemb=each.name in MADE_BY_KVEMB)]
    assert told == [], "\n".join([f"{len(told)} faults; their form is that of tests/docstrings.py", *told])


def test_docstrings_have_all_sections():
    check(MODULES)


@pytest.mark.needs("torch")
def test_docstrings_of_modules_of_pytorch_have_all_sections():
    check(["kvemb.torch"])


@pytest.mark.needs("keras", "torch")
def test_docstrings_of_layers_of_keras_have_all_sections(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    check(["kvemb.keras"])


def test_what_people_call_most_has_an_example():
    having = {each.name for each in everything(MODULES) if ">>>" in sections(each.doc).get("Example", "")}
    assert sorted(WITH_EXAMPLE - having) == []


def whole(keys: int, *, touch: bool = True) -> int:
    """Look up a key.

    Args:
        keys: The key,
            as a number.
        touch: Whether it counts.

    Returns:
        The key.

    Raises:
        TypeError, ValueError: Never.
        Closed: Never.

    Example:
        >>> whole(1)
        1
    """
    return keys


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Look up a key.", "Look up a key", "its first line"),
        ("Look up a key.\n", "Look up a key.\nOr not.", "its first line"),
        ("Args:", "Arguments:", "`Arguments:` is no section"),
        ("Args:", "Args\n", "argument keys is not described"),
        ("    touch: Whether it counts.\n", "", "argument touch is not described"),
        ("    touch: Whether", "    touched: Whether", "`Args:` describes touched, which is no argument"),
        ("    touch: Whether", "    keys: Whether", "argument keys is described twice"),
        ("        as a number", "    as a number", "`Args:` has a line that is not `name: text`"),
        ("Returns:", "Return:", "it returns int, and has no `Returns:`"),
        ("Raises:", "Note:", "it has no `Raises:`"),
        ("    Closed: Never", "    Clothed: Never", "`Raises:` names Clothed"),
        ("    Closed: Never", "    Closed", "`Raises:` has a line"),
        (">>> whole(1)", "whole(1)", "its `Example:` has no line that runs"),
        ("Example:", "Returns:", "it has a section twice"),
        ("Raises:", "Attributes:", "its sections are not in the order"),
    ],
)
def test_a_fault_of_a_docstring_is_found(old, new, fault):
    each = Public("whole", whole, "kvemb")
    assert faults(each) == []
    text = inspect.cleandoc(whole.__doc__ or "")
    assert old in text

    def other(keys: int, *, touch: bool = True) -> int: ...

    other.__doc__ = text.replace(old, new, 1)
    assert any(told.startswith(fault) for told in faults(Public("other", other, "kvemb"))), faults(each)


def test_a_method_says_what_differs_from_the_one_that_it_overrides():
    def method(self: object, keys: int, touch: bool) -> int:
        """Look up a key, in its own way."""
        return keys

    each = Public("Kind.method", method, "kvemb", is_method=True)
    assert len(faults(each)) == 4
    assert faults(Public("Kind.method", method, "kvemb", True, (inspect.cleandoc(whole.__doc__ or ""),))) == []


def test_a_function_that_returns_nothing_does_not_say_what_it_returns():
    def nothing() -> None:
        """Do it.

        Returns:
            None.
        """

    assert faults(Public("nothing", nothing, "kvemb")) == ["it returns nothing, and says what it returns"]
