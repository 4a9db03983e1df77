"""The step and the time of a call that a shard makes for a cluster's client, which counts the steps and has the clock.

A variable of an ordinary store counts its own steps and reads the clock. The moment is thread-local, so that no method
needs an argument for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Moment(NamedTuple):
    """When a call is made. step: how many calls have recorded uses, ever, this one included.

    seconds: since 1970. optimizer_step: the number of the optimizer step that the call takes; 0 if it takes none.
    epoch: that of a policy that has epochs.
    """

    step: int
    seconds: float
    optimizer_step: int = 0
    epoch: int = 0


_moment: ContextVar[Moment | None] = ContextVar("kvemb_moment", default=None)
# Returns the moment that a client gave to this thread's call; None: the variable counts and reads the clock itself.
current_moment = _moment.get


@contextmanager
def at(moment: Moment) -> Iterator[None]:
    """Give calls in the block this moment."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)
