"""The steps of a client, and which of them failed. Thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kvemb.cluster.calls import Calls
from kvemb.cluster.in_flight.steps import FailedStep
from kvemb.cluster.messages import ChangeRequest

# The latest steps, which are named in errors by how many the client has sent.
MAX_NAMED = 1024


class SentSteps:
    """See the module. calls: the client's."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._sent = calls, 0
        self._latest: deque[tuple[int, int]] = deque(maxlen=MAX_NAMED)  # a call's number, and which step it is
        self._unchecked = False

    def begin(self, changes: dict[int, list[ChangeRequest]]) -> tuple[dict[str, Exception], list[FailedStep]]:
        """Send a step to shards; returns when all have accepted it.

        Returns the errors of variables that were dropped, by token; then the failed steps of this client.
        """
        with self._calls.stamped(changes) as stamp:
            self._sent, self._unchecked = self._sent + 1, True
            self._latest.append((stamp.number, self._sent))
            found = self._calls.each("begin_step", {shard: (stamp, each) for shard, each in changes.items()})
        gone = {token: error for errors, _ in found.values() for token, error in errors.items()}
        return gone, self.named(failed for _, failed in found.values())

    def failed(self) -> list[FailedStep]:
        """Wait until all steps of this client are taken, and return those that failed."""
        if not self._unchecked:
            return []
        self._unchecked = False
        return self.named(self._calls.all("failed_steps", self._calls.client))

    def named(self, told: Iterable[list[FailedStep]]) -> list[FailedStep]:
        """Return failed steps of which shards have told, the first one first, and make the shards forget them.

        A note of its error says which step that was.
        """
        failed = sorted((each for of_shard in told for each in of_shard), key=lambda each: each.number)
        if failed:
            self._calls.all("forget_steps", self._calls.client, sorted({each.number for each in failed}))
            which = dict(self._latest).get(failed[0].number)
            step = "an earlier step" if which is None else f"step {which}"
            failed[0].error.add_note(f"in {step} of this client, whose call had returned")
        return failed
