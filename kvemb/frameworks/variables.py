"""Arguments of modules and layers: the variable, given itself or by name and arguments, and the padding key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class Needs:
    """What a module needs of its variable besides floats.

    strings: whether keys may be strings. padding: the padding key, which must be one of the variable's. fused: whether
    each backward pass takes a step, which needs an optimizer.
    """

    strings: bool = False
    padding: int | str | None = None
    fused: bool = False

    def check(self, name: str, name_bytes: int, untrained: bool) -> None:
        """Raise TypeError, ValueError. name_bytes: 0 for keys of integers. untrained: whether there is no optimizer."""
        if name_bytes and not self.strings:
            raise ValueError(
                f"variable {name!r} has string keys, but tensors of integers are needed here: use a variable with "
                "key_dtype='int64', and make its keys with kvemb.hash_strings"
            )
        if self.padding is not None and isinstance(self.padding, str) != bool(name_bytes):
            raise TypeError(
                f"padding_idx must be {'a string' if name_bytes else 'an integer'}, as the keys of variable {name!r} "
                f"are, got {brief(self.padding)}"
            )
        if isinstance(self.padding, str):
            named_keys(self.padding, name_bytes)
        if self.fused and untrained:
            raise ValueError(f"variable {name!r} has no optimizer, which fused=True needs")


def variable_of(*arguments: Any, **others: Any) -> Variable:
    """Return a module's variable, for the arguments of variable_getter(). Raises what that and its result raise."""
    return variable_getter(*arguments, **others)()


def variable_getter(
    given: Any,
    dim: int | None,
    store: Store | None,
    arguments: dict[str, Any],
    refused: Mapping[str, str],
    initial: Initializer | None = None,
    needs: Needs = Needs(),
) -> Callable[[], Variable]:
    """Return what returns a module's variable, of floats: the one given, or that of Store.get_variable.

    A variable that does not exist is checked here, so that it is not made for a module that is refused: the last check,
    of the variable itself, is for those that exist, and for what a custom getter makes.
    arguments: dtypes may be torch's or TensorFlow's. refused: arguments of a framework's own modules, each with what to
    use instead. initial: the framework's initializer, which a new variable has unless the arguments or the scope name
    another.
    Raises TypeError; ValueError for arguments together with a Variable. What is returned raises what get_variable does.
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
        return partial(_checked, partial(_same, given), needs)
    if not isinstance(given, str):
        raise TypeError(
            f"expected a name or a Variable, got {brief(given)}; begin with a name and dim, such as 'words', 16: no "
            "number of rows is needed, because any int64 is a key"
        )
    store = cast(Store, store_or_default(store))
    arguments = {name: _as_named(value) for name, value in arguments.items()}
    if dim is not None:
        arguments = {"dim": dim, **arguments}
    scope = get_variable_scope()
    full = given if scope is None else f"{scope.name}/{given}"
    if full not in store.variables:
        changed = arguments.get("custom_getter") or (scope and scope.custom_getter)
        # A custom getter may give dim. Without dim, get_variable would take the reference's default, 1.
        if "dim" not in arguments and not changed:
            raise TypeError(
                f"dim is missing: variable {full!r} is new; give the number of values in a row, as in dim=16"
            )
        _check_floats(full, value_dtype(arguments.get("value_dtype", "float32")))
        if not changed:
            untrained = arguments.get("trainable", True) and arguments.get("optimizer") is None
            needs.check(full, name_bytes_of(given, arguments), untrained)
        if arguments.get("initializer") is None and (scope is None or scope.initializer is None):
            arguments["initializer"] = initial
    return partial(_checked, partial(store.get_variable, given, **arguments), needs)


def _same(variable: Variable) -> Variable:
    return variable


def _checked(get: Callable[[], Variable], needs: Needs) -> Variable:
    variable = get()
    _check_floats(variable.name, variable.value_dtype)
    name_bytes = inside(variable).schema.name_bytes
    needs.check(variable.name, name_bytes, variable.trainable and variable.optimizer is None)
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


def _as_named(value: Any) -> Any:
    """Return the name of a dtype of torch or TensorFlow, and everything else as it is."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    return value.name if kind.__module__.startswith("tensorflow.") and kind.__name__ == "DType" else value
