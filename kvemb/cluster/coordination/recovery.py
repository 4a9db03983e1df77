"""The result of a recovery: to which checkpoint the cluster went back, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from kvemb.options import format_time


@dataclass(frozen=True)
class Recovery:
    """Say what ``kvemb.cluster.Store.recover`` did. ``str()`` of it is a sentence for a log.

    Attributes:
        number: The number of the checkpoint to which the cluster went back. None: there was none, so the cluster is
            empty.
        created: When that checkpoint's snapshots were taken, in seconds since 1970; None without one.
        steps: For each variable of the checkpoint, how many calls had recorded uses by then.
        seconds: Seconds from the call of ``recover()`` until all shards could be called again.
        lost: Why the cluster was lost.
    """

    number: int | None
    created: float | None
    steps: dict[str, int]
    seconds: float
    lost: str

    def __str__(self) -> str:
        to = "to its beginning, without rows, as there is no checkpoint"
        if self.number is not None and self.created is not None:
            when = format_time(self.created)
            to = f"to checkpoint {self.number}, of {when}"
        return f"the cluster went back {to}, in {self.seconds:.1f} s; lost: {self.lost}"
