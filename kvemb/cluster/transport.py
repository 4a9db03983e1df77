"""The contract of what sends calls to shards. Names and values only: a shard may be on another machine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol


class Unanswered(Exception):
    """No answer came; the call may have been made or not. It may be sent again if the shard knows repeated calls."""


class GateClosed(Exception):
    """A cut is being made, and the shard has not made the call: it is to be sent again."""


class Failed(Exception):
    """The shard's store has failed, and cannot go on: its rows may be older than those of other shards."""


class Transport(Protocol):
    """The way to the shards. Thread-safe. shards: how many there are."""

    shards: int

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """Start a call of a method of kvemb.cluster.shard.Shard; returns a future of its result.

        Arguments and results are plain values: numbers, text, arrays, values of kvemb, and tuples, lists and dicts of
        these. The future raises what the method raises, or Unanswered; also after close().
        """

    def ping(self, shard: int) -> Future[Any]:
        """Ask whether the process of a shard answers, whatever calls it has under way."""

    def close(self) -> None:
        """Close the shards that can be reached, and end those that cannot. Idempotent."""
