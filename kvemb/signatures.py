"""Arguments that several functions share: written once, described once, and shown by each function.

Shared arguments are the fields of frozen dataclasses. function_of and method_of give a function the dataclass's
parameters: inspect.signature and help() show them, mypy and editors check them (ParamSpec), and the function itself
gets the value. No caller repeats a list of sixteen arguments in order.

described_as completes a docstring with the descriptions of arguments that another docstring has.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Owner = TypeVar("Owner")
Value = TypeVar("Value")
Result = TypeVar("Result")
Described = TypeVar("Described", bound=Callable[..., Any])

# A docstring: what comes before `Args:`, its entries, and the sections after it.
_PARTS = re.compile(
    r"(.*?)(?:^Args:\n(.*?))?((?:^(?:Attributes|Returns|Yields|Raises|Warns|Example):\n.*)?)", re.MULTILINE | re.DOTALL
)


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


def described_as(source: Callable[..., Any]) -> Callable[[Described], Described]:
    """Return a decorator that completes the `Args:` of a function or a class.

    Arguments that its docstring does not describe get the descriptions that they have in the docstring of `source`.
    Arguments that `source` does not describe either stay undescribed.
    """

    def decorate(target: Described) -> Described:
        if target.__doc__ and source.__doc__:  # python -OO drops them
            before, own, after = _around_args(target.__doc__)
            known = {**_around_args(source.__doc__)[1], **own}
            entries = [known[name] for name in inspect.signature(target).parameters if name in known]
            target.__doc__ = f"{before}\n\nArgs:\n{''.join(entries)}\n{after}"
        return target

    return decorate


def _around_args(doc: str) -> tuple[str, dict[str, str], str]:
    """Split a docstring into what comes before `Args:`, its entries by argument, and the sections after it."""
    found = _PARTS.fullmatch(inspect.cleandoc(doc) + "\n")
    assert found is not None  # its last part may be empty, its first part is anything
    before, section, after = found.groups(default="")
    entries = re.split(r"^(?=    \S)", section, flags=re.MULTILINE)[1:]
    return before.rstrip(), {re.findall(r"\w+", entry)[0]: entry.rstrip() + "\n" for entry in entries}, after


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
