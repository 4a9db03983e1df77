"""Executes a call that came as a message, and returns its answer as a message."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol

from kvemb.cluster.data_plane.encoding import Bytes, Message, read
from kvemb.cluster.local import Callee

# As pickle.dumps, for what pickle.dumps refuses, such as an error whose class was defined in a user's script.
Dumps = Callable[..., bytes]


class Server(Protocol):
    """Takes calls from other processes. address: where."""

    address: str

    def close(self) -> None:
        """Take no more calls, and close all connections. Idempotent."""


def answered(callee: Callee, call: Bytes, dumps: Dumps) -> Message:
    """Execute a call: a name and arguments. The answer says whether the call failed, and has its result or error.

    Raises ValueError if the message is none.
    """
    try:
        name, arguments = read(call)
    except Exception as error:  # a pickle can raise anything
        raise ValueError(f"the message is no call: {error}") from error
    try:
        result = callee.call(name, arguments)
        if isinstance(result, list):  # of a change: an error for each part
            result = [_portable(each, dumps) for each in result]
        elif isinstance(result, dict):  # of a step of several ranks: by variable
            result = {name: _portable(each, dumps) for name, each in result.items()}
        return Message((False, result), dumps)
    except Exception as error:
        return Message((True, _portable(error, dumps)), dumps)


def _portable(error: Any, dumps: Dumps) -> Any:
    """Return an error, or one that says the same if another process cannot make it from a pickle. Else the value."""
    if not isinstance(error, Exception):
        return error
    try:
        pickle.loads(dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


def outcome(answer: Bytes) -> tuple[bool, Any]:
    """Return whether a call failed, and its result or error. Arrays are views of the answer."""
    try:
        failed, result = read(answer)
    except Exception as error:  # the class of an error is not known here
        return True, RuntimeError(f"the answer of a shard cannot be read: {error}")
    return failed, result
