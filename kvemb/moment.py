"""The step and the time of a call that a shard makes for a client of a cluster: the client counts and has the clock.

A variable of an ordinary store counts its own steps and asks the clock. The moment belongs to the thread, so that no
method needs an argument for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Moment(NamedTuple):
    """When a call happens. step: calls that recorded uses, ever, this one included. seconds: since 1970.

    optimizer_step: the number of the optimizer's step that the call takes, 0 if it takes none. epoch: of a policy that
    has epochs.
    """

    step: int
    seconds: float
    optimizer_step: int = 0
    epoch: int = 0


_moment: ContextVar[Moment | None] = ContextVar("kvemb_moment", default=None)
# Return the moment that a client gave the call this thread makes; None: the variable counts and asks the clock itself.
current_moment = _moment.get


@contextmanager
def at(moment: Moment) -> Iterator[None]:
    """Let calls in the block happen at this moment."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)
