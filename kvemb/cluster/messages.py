"""Requests to shards, and their answers. Plain values, which may be sent to a process on another machine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from kvemb.cluster.calls import Timeouts
from kvemb.cluster.coordination.counting import StepCounts
from kvemb.cluster.transport import Transport
from kvemb.durability.variable_entry import VariableEntry
from kvemb.rows.hashing import Keys, Positions
from kvemb.timestamp import Timestamp

# A block of rows as plain arrays: RowBlock.columns.
Columns = tuple[npt.NDArray[Any], ...]


class OpenVariable(NamedTuple):
    """What a client must know of an open variable. token: identifies it in calls (coordination.opened).

    steps: of all clients. admits: whether its shards count how often a missing key is trained. scores: whether uses
    change scores on the shards: they do not while a user-defined policy is missing.
    """

    token: str
    steps: StepCounts
    admits: bool
    scores: bool


class JoinReply(NamedTuple):
    """What a client needs for its calls. generation: counts recoveries. transport: to the shards. timeouts: the
    timeouts.

    opened: the open variables, by name.
    """

    generation: int
    transport: Transport
    timeouts: Timeouts
    opened: dict[str, OpenVariable]


class ReadRequests(NamedTuple):
    """Lookups of several variables. lengths: how many of the keys (n,) each has, one after the other.

    counts (n,): uses of each key; None: one each. moments: of the uses, as plain tuples. Many small arrays and named
    tuples would take several times as long to pickle. The answer has the rows likewise (batches.Packed).
    """

    variables: list[str]
    lengths: list[int]
    keys: Keys
    counts: Positions | None
    moments: list[tuple[Any, ...]]


class ChangeRequest(NamedTuple):
    """A change of one variable: a method of TableOperations, with its arguments."""

    variable: str
    method: str
    arguments: tuple[Any, ...]
    timestamp: Timestamp


class ChangeCounts(NamedTuple):
    """How many calls may have changed what a checkpoint has: by changes of rows, and by uses alone (Ledger)."""

    changes: int = 0
    uses: int = 0


class PushedPart(NamedTuple):
    """A shard's part of a checkpoint, at the URL. store: the identity of its store. nbytes: bytes sent.

    files: the names of the files saved beside the rows, which only the first shard has.
    """

    store: str
    variables: dict[str, VariableEntry]
    nbytes: int
    files: tuple[str, ...]
