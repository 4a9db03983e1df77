"""What brings calls to shards. Names and values only: a shard may be in another process, on another machine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol


class Unanswered(Exception):
    """A call brought no answer: it was made, or it was not. It may be repeated, if the shard knows repeated calls."""


class Transport(Protocol):
    """The way to the shards. Thread-safe. shards: how many there are."""

    shards: int

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """Start a call of a method of kvemb.cluster.shard.Shard; returns a future of its result.

        Arguments and results are plain values: numbers, text, arrays, values of kvemb, and tuples, lists and dicts of
        these. What the method raises, the future does; and Unanswered.
        """

    def close(self) -> None:
        """Close the shards that can be reached, and end. No call is under way, and none follows."""
