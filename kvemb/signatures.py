"""Arguments that several functions share: written once, and shown by each function.

Shared arguments are the fields of frozen dataclasses. function_of and method_of give a function the dataclass's
parameters: inspect.signature and help() show them, mypy and editors check them (ParamSpec), and the function itself
gets the value. No caller repeats a list of sixteen arguments in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Owner = TypeVar("Owner")
Value = TypeVar("Value")
Result = TypeVar("Result")


def function_of(
    value: Callable[Parameters, Value],
) -> Callable[[Callable[[Value], Result]], Callable[Parameters, Result]]:
    """Return a decorator that gives a function of one value the parameters of that value's class."""

    def decorate(function: Callable[[Value], Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def taking(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            _check(taking, args, kwargs)
            return function(value(*args, **kwargs))

        _show(taking, function, value)
        return taking

    return decorate


def method_of(
    value: Callable[Parameters, Value],
) -> Callable[[Callable[[Owner, Value], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Return a decorator that gives a method of one value the parameters of that value's class."""

    def decorate(method: Callable[[Owner, Value], Result]) -> Callable[Concatenate[Owner, Parameters], Result]:
        @wraps(method)
        def taking(owner: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            _check(taking, (owner, *args), kwargs)
            return method(owner, value(*args, **kwargs))

        _show(taking, method, value)
        return taking

    return decorate


def _show(taking: Any, function: Callable[..., Any], value: Callable[..., Any]) -> None:
    """Replace a function's last parameter by the parameters of a class."""
    own = inspect.signature(function)
    before = list(own.parameters.values())[:-1]
    taking.__signature__ = own.replace(parameters=[*before, *inspect.signature(value).parameters.values()])


def _check(taking: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError, naming the function, for arguments that it does not accept."""
    try:
        taking.__signature__.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{taking.__qualname__.removesuffix('.__init__')}() {error}") from None
