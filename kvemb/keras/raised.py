"""Errors of kvemb in graphs, where backends replace them by their own.

TensorFlow and JAX call kvemb on threads of theirs, and raise errors such as InvalidArgumentError and JaxRuntimeError,
of which kvemb's error is the text alone. Thread-safe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kvemb.errors import KvembError

_raised: deque[BaseException] = deque(maxlen=64)
_logger = logging.getLogger("kvemb")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def told(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function for a backend's thread, which logs an error that the backend would hide in its own."""

    def logged(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            _logger.error("%s: %s", type(error).__name__, error)
            _raised.append(error)
            raise

    return logged


def cause_of(error: BaseException) -> BaseException:
    """Return the error of kvemb for which a backend raised its own.

    In ``fit``, and elsewhere in graphs of TensorFlow and JAX, errors of kvemb become errors of the backend, so
    ``except kvemb.errors.Poisoned`` does not catch them.

    Args:
        error: What was raised.

    Returns:
        The error of kvemb, such as a ``kvemb.errors.Closed`` or a ValueError. An error that no call of kvemb caused is
        returned as it is.

    Example:
        >>> import kvemb.keras as kk
        >>> try:
        ...     raise RuntimeError("of the model itself")  # or model.fit(...)
        ... except Exception as error:
        ...     kk.cause_of(error)
        RuntimeError('of the model itself')
    """
    if isinstance(error, KvembError):
        return error
    text = str(error)
    mine = (each for each in reversed(_raised) if type(each).__name__ in text and str(each) in text)
    return next(mine, error)
