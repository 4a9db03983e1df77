"""The interface for sending calls to shards, by name and with plain values, as a shard may be on another machine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

# Calls with rows, and those of steps that ranks take together. On Ray, the data plane carries them.
_ON_ROWS = ["lookup", "change", "begin_step", "slot", "scores", "prefetch", "next_batch"]
WITH_ROWS = frozenset([*_ON_ROWS, "put_part", "joined_norms", "step_together"])
# Calls whose time does not grow with the table: one that takes very long hangs.
_BRIEF = ["size", "stats", "entry", "end_scan", "failed_steps", "hold", "admit", "admits", "release", "changes"]
LIMITED = WITH_ROWS.union(_BRIEF)


class Unanswered(Exception):
    """No answer came; the call may have been executed. It may be sent again if it has a Stamp or only reads."""


class GateClosed(Exception):
    """A cut is being made, and the shard has not executed the call: send it again."""


class ShardFailed(Exception):
    """The shard's store has failed and cannot continue: its rows may be older than those of other shards."""


class Transport(Protocol):
    """Sends calls to shards. Thread-safe. shards: how many there are."""

    shards: int

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """Start a call of a method of kvemb.cluster.shard.Shard; returns a future of its result.

        Arguments and results are plain values: numbers, text, arrays, values of kvemb, and tuples, lists and dicts of
        these. The future raises what the method raises, or Unanswered; also after close().
        """

    def ping(self, shard: int) -> Future[Any]:
        """Ask whether the process of a shard answers, whatever calls it is executing."""

    def close(self) -> None:
        """Close the shards that can be reached, and end those that cannot. Idempotent."""


def done(result: Any) -> Future[Any]:
    """Return a future that has this result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def failed(error: BaseException) -> Future[Any]:
    """Return a future that raises this."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
