"""The coordinator of a cluster: makes its shards, and does what must see all of them at one moment.

Clients call it through call(), as they call shards: a call that changes something has a Stamp, and is made once. It
knows the variables that are open, and its own calls of shards are made one after the other, under `_alone`, but for
what a checkpoint sends. Once a shard is lost, its calls raise ShardLost until recover(). Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import kvemb
from kvemb.cluster.calls import ADVICE, Calls, Patience
from kvemb.cluster.coordination import restricting
from kvemb.cluster.coordination.counting import Steps, Total
from kvemb.cluster.coordination.cuts import cut
from kvemb.cluster.coordination.opened import Open, new_token, next_token, steps_of
from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint, Checkpointing, CheckpointRequest
from kvemb.cluster.ledger import Ledger, Stamp
from kvemb.cluster.making import Plan
from kvemb.cluster.messages import Change, JoinReply, OpenVariable
from kvemb.cluster.transport import Transport
from kvemb.durability.manifest import VariableEntry
from kvemb.errors import BackendUnavailable, Closed, SchemaMismatch, ShardLost
from kvemb.moment import Moment
from kvemb.optimizers import Optimizer

# Makes the shards of a plan.
Make = Callable[[Plan], Transport]
# A variable's steps, by its token.
StepsByToken = dict[str, Steps]
_logger = logging.getLogger("kvemb")


class Coordinator:
    """See the module. make: makes shards. checkpointing: None without a url. absent_seconds: see cuts.

    patience: with shards, of this and of all clients. closed: whether close() was called. Raises what making a shard
    raises.
    """

    def __init__(
        self, plan: Plan, make: Make, checkpointing: Checkpointing | None, absent_seconds: float, patience: Patience
    ) -> None:
        self._absent_seconds, self._patience = absent_seconds, patience
        self._plan, self._make, self._checkpointing = plan, make, checkpointing
        self._ledger = Ledger()
        self._alone, self._recovering, self._changing = threading.RLock(), threading.Lock(), threading.Lock()
        self._cuts, self._generation, self._recovered, self.closed = 0, -1, 0, False
        self._opened: dict[str, Open] = {}
        self._recovery: Recovery | None = None
        self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        calls = Calls(self._make(plan), patience=self._patience)
        with self._changing:  # a report is of the shards before, or of these
            self.calls, self._generation = calls, self._generation + 1
        self._stored = {} if plan.checkpoint is None else dict(plan.checkpoint[1].variables)

    @property
    def place(self) -> str:
        """What messages call a cluster without a url: where its shards are."""
        return str(getattr(self.calls.transport, "place", "the cluster"))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method."""
        if self.closed and name not in ("close", "written"):
            raise Closed("the cluster was closed by the process that opened it; open it again")
        return getattr(self, name)(*arguments)

    # Clients.

    def join(self, version: str) -> JoinReply:
        """Return what a client begins with. version: its kvemb's. Raises BackendUnavailable for another one."""
        if version != kvemb.__version__:
            raise BackendUnavailable(
                f"the cluster has kvemb {kvemb.__version__}, and this program {version}; install one version everywhere"
            )
        with self._alone:
            opened = {name: known.told() for name, known in self._opened.items()}
            return JoinReply(self._generation, self.calls.transport, self._patience, opened)

    def exchange(self, generation: int, client: str, own: StepsByToken) -> tuple[StepsByToken, str | None]:
        """Take over a client's counts; return those of the others, and why the client must stop, None if it may go on.

        Waits for nothing. generation: the client's.
        """
        if generation != self._generation:
            return {}, "the cluster went back to its last checkpoint"
        totals = {known.token: known.total for known in list(self._opened.values())}
        others = {token: totals[token].told(client, Steps(*steps)) for token, steps in own.items() if token in totals}
        return others, None if self.calls.lost is None else str(self.calls.lost)

    def report(self, generation: int, lost: str) -> None:
        """Hear from a client that a shard is lost. From now on no checkpoint can be made: half of a call may be."""
        with self._changing:
            calls = self.calls if generation == self._generation else None
        if calls is not None:
            calls.lose(ShardLost(lost))

    # Variables.

    def catalog(self) -> dict[str, VariableEntry | None]:
        """Return all variables: those that are not open as they are stored."""
        with self._alone:
            return {**self._stored, **dict.fromkeys(self._opened)}

    def described(self, name: str) -> tuple[str | None, VariableEntry | None]:
        """Return a variable's token, if it is open, and what describes it, if there is one."""
        with self._alone:
            if (known := self._opened.get(name)) is None:
                return None, self._stored.get(name)
            steps, entry = known.total.steps(), self.calls.each("entry", {0: (known.token,)})[0]
            return known.token, replace(entry, step=steps.uses, optimizer_steps=steps.training)

    def open_variable(self, stamp: Stamp, name: str, arguments: dict[str, Any]) -> OpenVariable:
        """Make a variable on all shards, or open it.

        Functions cannot be compared between processes: those of the client that opened it first are used.
        """

        def make() -> OpenVariable:
            with self._alone:
                given, known = arguments, self._opened.get(name)
                if known is not None:
                    given = {**given, "constraint": None, "admission": None}
                token = known.token if known is not None else new_token()
                try:
                    self.calls.all_once("open_variable", token, name, given)
                except Exception:
                    if known is None and name not in self._stored and self.calls.lost is None:
                        self.calls.all_once("drop_variable", name)
                    raise
                if known is None:
                    entry = self._stored.get(name)
                    known = Open(token, given, Total(steps_of(entry)))
                optimizer = given["optimizer"]
                self._opened[name] = known._replace(arguments={**known.arguments, "optimizer": optimizer})
                return known.told()

        return self._ledger.once(stamp, make)  # type: ignore[no-any-return]

    def drop_variable(self, stamp: Stamp, name: str) -> None:
        """Drop a variable on all shards."""

        def drop() -> None:
            with self._alone:
                self.calls.all_once("drop_variable", name)
                self._opened.pop(name, None)
                self._stored.pop(name, None)

        self._ledger.once(stamp, drop)

    def set_optimizer(self, stamp: Stamp, token: str, optimizer: Optimizer, writable: bool) -> None:
        """Go on with an optimizer on all shards."""

        def change() -> None:
            with self._alone:
                self.calls.all_once("set_optimizer", token, optimizer, writable)
                for name, known in self._opened.items():
                    if known.token == token:
                        self._opened[name] = known._replace(arguments={**known.arguments, "optimizer": optimizer})

        self._ledger.once(stamp, change)

    # What is done while no client's call is under way.

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make a cut; the block is its work. Raises ShardLost."""
        with self._alone:
            self._cuts += 1
            with cut(self.calls, self._cuts, self._absent_seconds):
                yield

    def clear(self, stamp: Stamp, token: str, at: Moment) -> None:
        """Drop every row of a variable."""

        def clear() -> None:
            with self.alone():
                for (failure,) in self.calls.all_once("change", [Change(token, "clear", (), at)]):
                    if failure is not None:
                        raise failure

        self._ledger.once(stamp, clear)

    def begin_scan(self, scan: str, token: str, batch_rows: int, first: int, last: int) -> None:
        """Begin a scan on all shards: Shard.begin_scan."""
        with self.alone():
            self.calls.all("begin_scan", scan, token, batch_rows, first, last)

    def restrict(
        self, stamp: Stamp, token: str, at: Moment, keep_rows: int, trigger_rows: int | None, expire: bool
    ) -> int:
        """Keep the rows with the highest scores over all shards; returns how many left. See restricting."""

        def restrict() -> int:
            with self.alone():
                return restricting.restrict(self.calls, token, at, keep_rows, trigger_rows, expire)

        return self._ledger.once(stamp, restrict)  # type: ignore[no-any-return]

    # Checkpoints.

    def checkpoint(
        self, stamp: Stamp, generation: int, client: str, own: StepsByToken, request: CheckpointRequest
    ) -> int:
        """Begin a checkpoint, which has all calls until now; returns its number: Checkpointing.start.

        generation, client, own: see exchange. Raises ShardLost to a client that does not know of a recovery.
        """

        def start() -> int:
            assert self._checkpointing is not None
            calls = self.calls  # the client's, if exchange() does not tell of a recovery
            _, lost = self.exchange(generation, client, own)
            if lost is not None:
                raise ShardLost(lost if ADVICE in lost else f"{lost}; {ADVICE}")
            return self._checkpointing.start(self, calls, request)

        return self._ledger.once(stamp, start)  # type: ignore[no-any-return]

    def written(self, number: int) -> Checkpoint:
        """Wait for a checkpoint that was begun, and return it. Raises what it failed with."""
        assert self._checkpointing is not None
        return self._checkpointing.result(number)

    def steps(self) -> dict[str, tuple[int, int]]:
        """Return the steps of each open variable, by its token. REQUIRES: alone()."""
        return {known.token: known.total.steps() for known in self._opened.values()}

    def last(self) -> int | None:
        """Return the number of the checkpoint that it would go back to."""
        return None if self._checkpointing is None else self._checkpointing.last

    def carries(self) -> bool:
        """Return whether that checkpoint has files or values beside the rows: Checkpointing.carries."""
        return self._checkpointing is not None and self._checkpointing.carries()

    def recover(self, generation: int, lost: str, version: str) -> tuple[Recovery, JoinReply]:
        """Go back to the last checkpoint, with new shards, unless that was done since; returns the last recovery.

        generation: of the client, which calls the shards that are to go. lost: why, as the client knows it. version:
        see join(), whose answer is returned, too: the client must not join after another recovery. Old shards are
        closed or ended first, so nothing of theirs can be published or called any more. Variables that are open stay
        open; those that the checkpoint does not have begin again without rows; those that were dropped, and made again
        with another schema than there, are closed.
        """
        with self._recovering:
            if generation < self._recovered and self._recovery is not None:
                return self._recovery, self.join(version)
            begun = time.monotonic()
            self.calls.lose(ShardLost(lost))
            with suppress(Exception):  # what is lost may not close
                self.calls.transport.close()
            checkpoint = None if self._checkpointing is None else self._checkpointing.settled()
            with self._alone:
                why = str(self.calls.lost).removesuffix(f"; {ADVICE}")
                self._begin(replace(self._plan, checkpoint=checkpoint))
                for name, known in list(self._opened.items()):
                    self._reopen(name, known)
                self._recovered = self._generation
            number, created = (None, None) if checkpoint is None else (checkpoint[0], checkpoint[1].created)
            steps = {name: entry.step for name, entry in self._stored.items()}
            self._recovery = Recovery(number, created, steps, time.monotonic() - begun, why)
            _logger.warning("%s", self._recovery)
            return self._recovery, self.join(version)

    def _reopen(self, name: str, known: Open) -> None:
        """Open a variable on new shards. One that the checkpoint has with another schema is as it is there."""
        token, entry = next_token(known.token), self._stored.get(name)
        try:
            self.calls.all_once("open_variable", token, name, known.arguments)
        except (SchemaMismatch, ValueError):
            if entry is None:
                raise
            del self._opened[name]
        else:
            self._opened[name] = Open(token, known.arguments, Total(steps_of(entry)))

    def close(self) -> None:
        """Close every shard, once what is under way here has ended. Idempotent."""
        with self._alone:
            if self.closed:
                return
            self.closed = True
            try:
                if self._checkpointing is not None:
                    self._checkpointing.wait()
                self.calls.transport.close()
            finally:
                if self._checkpointing is not None:
                    self._checkpointing.close()
