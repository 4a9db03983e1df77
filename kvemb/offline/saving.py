"""A checkpoint of a series that is being written; when it completes, old ones are deleted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PointInProgress
from kvemb.errors import KvembError


class PendingSave(PointInProgress[Checkpoint]):
    """A checkpoint of a series that is being written. When it completes, those beyond `keep` are deleted."""

    def __init__(self, writing: PointInProgress[Checkpoint], drop_old: Callable[[], None]) -> None:
        self._writing, self._drop_old = writing, drop_old
        super().__init__(writing.future)
        self.future.add_done_callback(self._complete)

    def _complete(self, future: Future[Checkpoint | None]) -> None:
        if future.exception() is None:
            with suppress(KvembError):  # the next save tries again
                self._drop_old()

    @property
    def reported(self) -> bool:
        """Whether its failure was raised to a caller."""
        return self._writing.reported

    @reported.setter
    def reported(self, reported: bool) -> None:
        self._writing.reported = reported

    def wait(self, timeout: float | None = None) -> Checkpoint | None:
        """Wait for it, and until the old ones are deleted. Raises its error if it failed."""
        checkpoint = self._writing.wait(timeout)
        self._drop_old()
        return checkpoint
