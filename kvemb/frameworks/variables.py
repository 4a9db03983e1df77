"""Arguments of modules and layers: the variable, given itself or by name and arguments, and the padding key."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int, is_integer
from kvemb.default_store import ArgumentsInStore
from kvemb.defaults import store_or_default
from kvemb.handle import inside
from kvemb.initializers import Initializer
from kvemb.rows.names import named_keys
from kvemb.rows.schema import DEFAULT_NAME_BYTES, is_string, rounded_name_bytes, value_dtype
from kvemb.store import Store
from kvemb.variable import Variable
from kvemb.variable_scope import get_variable_scope

# The arguments of get_variable that a module or a layer passes on.
_OF_VARIABLES = set(inspect.signature(ArgumentsInStore).parameters) - {"store", "name"}


def variable_of(
    given: Any,
    dim: int | None,
    store: Store | None,
    arguments: dict[str, Any],
    refused: Mapping[str, str],
    initial: Initializer | None = None,
    *,
    strings: bool = False,
) -> Variable:
    """Return a module's variable, of floats: the one given, or that of Store.get_variable with a name and arguments.

    arguments: dtypes may be torch's or TensorFlow's. refused: arguments of a framework's own modules, each with what to
    use instead. initial: the framework's initializer, which a new variable has unless the arguments or the scope name
    another. strings: whether its keys may be strings.
    Raises TypeError; ValueError for arguments together with a Variable; what get_variable raises.
    """
    for argument in arguments:
        if argument in refused:
            raise TypeError(f"there is no argument {argument} here: {refused[argument]}")
        if argument not in _OF_VARIABLES:
            raise TypeError(f"there is no argument {argument!r} here, and kvemb.Store.get_variable has none, either")
    if isinstance(given, Variable):
        if arguments or store is not None or dim not in (None, given.dim):
            named = ", ".join(["store", *arguments] if store is not None else arguments) or "dim"
            raise ValueError(f"variable {given.name!r} exists already: leave out {named}, or give another name")
        variable = given
    elif isinstance(given, str):
        store = cast(Store, store_or_default(store))
        arguments = {name: _as_named(value) for name, value in arguments.items()}
        if dim is not None:
            arguments = {"dim": dim, **arguments}
        scope = get_variable_scope()
        full = given if scope is None else f"{scope.name}/{given}"
        if full not in store.variables:
            # A custom getter may give dim. Without dim, get_variable would take the reference's default, 1.
            if "dim" not in arguments and (scope is None or scope.custom_getter is None):
                raise TypeError(
                    f"dim is missing: variable {full!r} is new; give the number of values in a row, as in dim=16"
                )
            _check_floats(full, value_dtype(arguments.get("value_dtype", "float32")))
            if arguments.get("initializer") is None and (scope is None or scope.initializer is None):
                arguments["initializer"] = initial
        variable = store.get_variable(given, **arguments)
    else:
        raise TypeError(
            f"expected a name or a Variable, got {brief(given)}; begin with a name and dim, such as 'words', 16: no "
            "number of rows is needed, because any int64 is a key"
        )
    _check_floats(variable.name, variable.value_dtype)
    if variable.key_dtype.hasobject and not strings:
        raise ValueError(
            f"variable {variable.name!r} has string keys, but tensors of integers are needed here: use a variable with "
            "key_dtype='int64', and make its keys with kvemb.hash_strings"
        )
    return variable


def name_bytes_of(given: Variable | str, arguments: Mapping[str, Any]) -> int:
    """Return the bytes of a string key of a module's variable, 0 for integers: as given, or as the arguments say."""
    if isinstance(given, Variable):
        return inside(given).schema.name_bytes
    if not is_string(arguments.get("key_dtype")):
        return 0
    return rounded_name_bytes(arguments.get("name_bytes") or DEFAULT_NAME_BYTES)


def _check_floats(name: str, dtype: np.dtype[Any]) -> None:
    if is_integer(dtype):
        raise ValueError(f"variable {name!r} holds {dtype.name}, but floats are needed here")


def check_padding(padding_idx: Any, *, strings: bool = False) -> Any:
    """Return a padding key, an int or None; a str if those are keys, too. Raises TypeError."""
    if padding_idx is None or (strings and isinstance(padding_idx, str)):
        return padding_idx
    return as_int(padding_idx, "padding_idx")


def check_kind_of_padding(padding: int | str | None, variable: Variable) -> None:
    """Raise TypeError unless a padding key is one of the variable; ValueError for a string that is too long."""
    if padding is None:
        return
    wanted = str if variable.key_dtype.hasobject else int
    if not isinstance(padding, wanted):
        raise TypeError(
            f"padding_idx must be {'a string' if wanted is str else 'an integer'}, as the keys of variable "
            f"{variable.name!r} are, got {brief(padding)}"
        )
    if isinstance(padding, str):
        named_keys(padding, inside(variable).schema.name_bytes)


def _as_named(value: Any) -> Any:
    """Return the name of a dtype of torch or TensorFlow, and everything else as it is."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    return value.name if kind.__module__.startswith("tensorflow.") and kind.__name__ == "DType" else value
