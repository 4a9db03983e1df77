"""Every error of kvemb's is caught by its root, and by the built-in that it resembles."""

from __future__ import annotations

import inspect

import pytest

from kvemb import errors

LEAVES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each is not errors.KvembError]


@pytest.mark.parametrize("error", LEAVES)
def test_an_error_is_kvembs_and_a_built_in(error):
    assert issubclass(error, errors.KvembError)
    assert any(base.__module__ == "builtins" and base is not Exception for base in error.__mro__[2:-3])


def test_a_mismatch_tells_what_disagrees():
    error = errors.SchemaMismatch("users", "dim", 4, 8)
    assert (error.variable, error.field, error.stored, error.given) == ("users", "dim", 4, 8)
    advice = "ask for the stored dim, or use another name"
    assert str(error) == f"variable 'users' is stored with dim=4, got dim=8; {advice}"
    assert str(errors.SchemaMismatch("users", "dim", 4, 8, "do this")).endswith("; do this")
