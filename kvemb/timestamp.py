"""The step and the time of a call that a shard makes for a cluster's client, which counts the steps and has the clock.

A variable of an ordinary store counts its own steps and reads the clock. The timestamp is thread-local, so that no
method needs an argument for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Timestamp(NamedTuple):
    """When a call is made. step: how many calls have recorded uses, ever, this one included.

    seconds: since 1970. optimizer_step: the number of the optimizer step that the call takes; 0 if it takes none.
    epoch: that of a policy that has epochs.
    """

    step: int
    seconds: float
    optimizer_step: int = 0
    epoch: int = 0


_timestamp: ContextVar[Timestamp | None] = ContextVar("kvemb_timestamp", default=None)
# Returns the timestamp that a client gave to this thread's call; None: the variable counts and reads the clock itself.
current_timestamp = _timestamp.get


@contextmanager
def at(timestamp: Timestamp) -> Iterator[None]:
    """Give calls in the block this timestamp."""
    token = _timestamp.set(timestamp)
    try:
        yield
    finally:
        _timestamp.reset(token)
