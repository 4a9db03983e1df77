"""Requests to shards, and their answers. Plain values: they may go to another process, on another machine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from kvemb.cluster.calls import Patience
from kvemb.cluster.coordination.counting import Steps
from kvemb.cluster.transport import Transport
from kvemb.durability.manifest import VariableEntry
from kvemb.moment import Moment
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions

# A block of rows as plain arrays: keys, scores, steps, flags, words.
Columns = tuple[npt.NDArray[Any], ...]


def columns_of(block: RowBlock) -> Columns:
    """Return the arrays that RowBlock.of takes."""
    return block.keys, block.scores, block.steps, block.flags, block.words


class OpenVariable(NamedTuple):
    """What a client must know of a variable that is open. token: what calls say for it (coordination.opened).

    steps: of all clients. admits: whether its shards count how often a key that is missing is trained. scores: whether
    uses change scores there: they do not while a user-defined policy is missing.
    """

    token: str
    steps: Steps
    admits: bool
    scores: bool


class JoinReply(NamedTuple):
    """What a client needs for its calls. generation: counts recoveries. transport: to the shards. patience: with them.

    opened: the variables that are open, by name.
    """

    generation: int
    transport: Transport
    patience: Patience
    opened: dict[str, OpenVariable]


class Read(NamedTuple):
    """What a lookup asks of one variable. counts: uses of each key; None: one. moment: of the use.

    nbytes: of the rows that answer it.
    """

    variable: str
    keys: Keys
    counts: Positions | None
    moment: Moment
    nbytes: int


class Change(NamedTuple):
    """What a call changes in one variable. method: of TableOperations, with these arguments."""

    variable: str
    method: str
    arguments: tuple[Any, ...]
    moment: Moment


class Pushed(NamedTuple):
    """A shard's part of a checkpoint, at the URL. store: the identity of its store. nbytes: bytes sent.

    files: the names of those saved beside the rows, which the first shard has.
    """

    store: str
    variables: dict[str, VariableEntry]
    nbytes: int
    files: tuple[str, ...]
