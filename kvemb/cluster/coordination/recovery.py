"""The result of a recovery: to which checkpoint the cluster went back, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from kvemb.options import format_time


@dataclass(frozen=True)
class Recovery:
    """A cluster's return to its last checkpoint. number: of the checkpoint; None: there was none, so the cluster is
    empty.

    created: when its cut was made, in seconds since 1970. steps: for each variable of the checkpoint, the calls that
    had recorded uses by then. seconds: from the call of recover() until all shards could be called again. lost: why.
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
