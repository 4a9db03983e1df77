"""Executes a call that came as a message, and returns its answer as a message."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Protocol

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
            result = [_portable(each, dumps) if isinstance(each, Exception) else each for each in result]
        return Message((False, result), dumps)
    except Exception as error:
        return Message((True, _portable(error, dumps)), dumps)


def _portable(error: Exception, dumps: Dumps) -> Exception:
    """Return the error, or one that says the same if another process cannot make it from a pickle."""
    try:
        pickle.loads(dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error
