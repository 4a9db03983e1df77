"""The examples of docstrings run, each in an empty directory, after the few lines of docstrings.SETUP."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest
from docstrings import SETUP
from test_docstrings import MODULES, everything

import kvemb


def examples(names: list[str]) -> dict[str, str]:
    """The docstrings of modules, and of everything public in them, that have an example, by name."""
    found = {name: importlib.import_module(name).__doc__ or "" for name in names}
    found |= {each.name: each.doc for each in everything(names)}
    return {name: doc for name, doc in found.items() if ">>>" in doc}


def failures(name: str, doc: str) -> list[str]:
    """Run the example of a docstring in this directory; return what it printed instead of what it should."""
    given: dict[str, Any] = {}
    exec(SETUP, given)
    try:
        with given["store"].as_default():
            test = doctest.DocTestParser().get_doctest(doc, given, name, None, None)
            told: list[str] = []
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            runner.run(test, out=told.append, clear_globs=False)
            return told
    finally:
        if not given["store"].state.closed:
            given["store"].close()


def run(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run all examples of modules; return how many docstrings have some."""
    told: list[str] = []
    found = examples(names)
    for name, doc in found.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        told += failures(name, doc)
    assert told == [], "".join(told)
    return len(found)


@pytest.mark.slow
def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    assert run(MODULES, tmp_path, monkeypatch) > 0


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_examples_of_docstrings_of_modules_of_pytorch_run(tmp_path, monkeypatch):
    run(["kvemb.torch"], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.needs("keras", "torch")
def test_examples_of_docstrings_of_layers_of_keras_run(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    run(["kvemb.keras"], tmp_path, monkeypatch)


def test_the_example_of_the_package_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert failures("kvemb", kvemb.__doc__ or "") == []


@pytest.mark.slow
def test_an_example_that_fails_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    doc = "Do it.\n\nExample:\n    >>> users.size()\n    {}\n"
    assert failures("right", doc.format(3)) == []
    assert "Expected:\n    4\nGot:\n    3" in "".join(failures("wrong", doc.format(4)))
