"""Executes a call that came as a message, and returns its answer as a message."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from kvemb.cluster.data_plane.encoding import Bytes, Message, read
from kvemb.cluster.in_flight.accepted_steps import Accepted, FailedStep
from kvemb.cluster.local import Callee

# As pickle.dumps, for what pickle.dumps refuses, such as an error whose class was defined in a user's script.
Dumps = Callable[..., bytes]


def answered(callee: Callee, call: Bytes, dumps: Dumps) -> tuple[Message, Callable[[], None] | None]:
    """Execute a call: a name and arguments. The answer says whether the call failed, and has its result or error.

    Also returns the rest of the call, if there is any: see Accepted. Raises ValueError if the message is none.
    """
    try:
        name, arguments = read(call)
    except Exception as error:  # a pickle can raise anything
        raise ValueError(f"the message is no call: {error}") from error
    rest = None
    try:
        result = callee.call(name, arguments)
        if isinstance(result, Accepted):
            result, rest = result
        return Message((False, _portable(result, dumps)), dumps), rest
    except Exception as error:
        return Message((True, _portable(error, dumps)), dumps), rest


def _portable(value: Any, dumps: Dumps) -> Any:
    """Return a value in which errors that no other process can make from a pickle are replaced by ones that say the
    same.
    """
    if isinstance(value, Exception):
        try:
            pickle.loads(dumps(value))
        except Exception:
            return RuntimeError(f"{type(value).__qualname__}: {value}")
    elif isinstance(value, list):
        return [_portable(each, dumps) for each in value]
    elif isinstance(value, dict):
        return {name: _portable(each, dumps) for name, each in value.items()}
    elif isinstance(value, FailedStep):
        return value._replace(error=_portable(value.error, dumps))
    elif type(value) is tuple:
        return tuple(_portable(each, dumps) for each in value)
    return value


def outcome(answer: Bytes) -> tuple[bool, Any]:
    """Return whether a call failed, and its result or error. Arrays are views of the answer."""
    try:
        failed, result = read(answer)
    except Exception as error:  # the class of an error is not known here
        return True, RuntimeError(f"the answer of a shard cannot be read: {error}")
    return failed, result
