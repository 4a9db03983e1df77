"""The coordinator of a cluster: makes its shards, and runs the operations that must see all of them at one moment.

Clients call it through call(), as they call shards: a call that changes something has a Stamp, and is executed
once. It knows the open variables. It calls shards one call after the other (_exclusively), except to send a
checkpoint. Once a shard is lost, its methods raise ShardLost until recover(). Thread-safe.

Every call of a client to the coordinator is here.
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
from kvemb.cluster.calls import ADVICE, Calls, Timeouts
from kvemb.cluster.coordination import restricting
from kvemb.cluster.coordination.counting import ClientCounts, StepsByToken, TotalSteps
from kvemb.cluster.coordination.cuts import cut
from kvemb.cluster.coordination.opened import OpenedVariable, compared, new_token, next_token, steps_of
from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint, Checkpointing, CheckpointRequest, Dropped, OpenSteps
from kvemb.cluster.ledger import Ledger, once
from kvemb.cluster.making import Plan
from kvemb.cluster.messages import ChangeRequest, JoinReply, OpenVariable
from kvemb.cluster.transport import Transport
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import BackendUnavailable, Closed, SchemaMismatch, ShardLost
from kvemb.optimizers import Optimizer
from kvemb.timestamp import Timestamp

# Makes the shards of a plan.
Make = Callable[[Plan], Transport]
_logger = logging.getLogger("kvemb")


class Coordinator:
    """See the module. make: makes shards. checkpointing: None without a url. absent_seconds: see cuts.

    timeouts: the timeouts for calls of shards, also for all clients. closed: whether calls have ended, by finish() or
    close(). Raises what making a shard raises.
    """

    def __init__(
        self, plan: Plan, make: Make, checkpointing: Checkpointing | None, absent_seconds: float, timeouts: Timeouts
    ) -> None:
        self._absent_seconds, self._timeouts = absent_seconds, timeouts
        self._plan, self._make, self._checkpointing = plan, make, checkpointing
        self.ledger = Ledger()
        self._alone, self._recovering, self._changing = threading.RLock(), threading.Lock(), threading.Lock()
        self._cuts, self._generation, self._recovered = 0, -1, 0
        self.closed = self._ended = False
        self._opened: dict[str, OpenedVariable] = {}
        self._recovery: Recovery | None = None
        self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        calls = Calls(self._make(plan), timeouts=self._timeouts)
        with self._changing:  # so that a report is either about the old shards or about these
            self.calls, self._generation = calls, self._generation + 1
        self._stored = {} if plan.checkpoint is None else dict(plan.checkpoint.described.variables)

    @property
    def place(self) -> str:
        """The name in messages of a cluster without a url: where its shards are."""
        return str(getattr(self.calls.transport, "place", "the cluster"))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method."""
        if name not in ("finish", "written", "close"):
            self._check_open()
        return getattr(self, name)(*arguments)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the cluster was closed by the process that opened it; open it again")

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Run the block while no other method calls shards. Raises Closed, also if it was closed meanwhile."""
        with self._alone:
            self._check_open()
            yield

    # Clients.

    def join(self, version: str) -> JoinReply:
        """Return what a new client needs. version: the client's kvemb. Raises BackendUnavailable for another one."""
        if version != kvemb.__version__:
            raise BackendUnavailable(
                f"the cluster runs kvemb {kvemb.__version__}, but this program has {version}; install the same version "
                "everywhere"
            )
        with self._exclusively():
            opened = {name: known.told() for name, known in self._opened.items()}
            return JoinReply(self._generation, self.calls.transport, self._timeouts, opened)

    def exchange(self, own: ClientCounts) -> tuple[StepsByToken, str | None]:
        """Store a client's counts; returns those of the others, and the reason why the client must stop, or None.

        Does not block.
        """
        if own.generation != self._generation:
            return {}, "the cluster went back to its last checkpoint"
        totals = {each.token: each.total for each in list(self._opened.values())}
        known = {token: each for token, each in own.steps.items() if token in totals}
        told = {token: totals[token].told(own.client, each) for token, each in known.items()}
        return told, None if self.calls.lost is None else str(self.calls.lost)

    def report(self, generation: int, lost: str) -> None:
        """Record that a client found a shard lost: no checkpoint can be made any more, as it could have half a call."""
        with self._changing:
            calls = self.calls if generation == self._generation else None
        if calls is not None:
            calls.lose(ShardLost(lost))

    # Variables.

    def catalog(self) -> dict[str, VariableEntry | None]:
        """Return all variables; None for those that are open."""
        with self._exclusively():
            return {**self._stored, **dict.fromkeys(self._opened)}

    def described(self, name: str) -> tuple[str | None, VariableEntry | None, dict[str, Any]]:
        """Return a variable's token (None: not open), its entry (None: there is none), and what it was opened with."""
        with self._exclusively():
            if (known := self._opened.get(name)) is None:
                return None, self._stored.get(name), {}
            steps, entry = known.total.steps(), self.calls.each("entry", {0: (known.token,)})[0]
            return known.token, replace(entry, step=steps.uses, optimizer_steps=steps.training), known.arguments

    @once()
    def open_variable(self, name: str, arguments: dict[str, Any]) -> OpenVariable:
        """Make a variable on all shards, or open it.

        The functions and the flags of the client that opened it first are used.
        """
        with self._exclusively():
            known = self._opened.get(name)
            given = arguments if known is None else compared(arguments)
            token = new_token() if known is None else known.token
            try:
                self.calls.all_once("open_variable", token, name, given)
            except Exception:
                if known is None and name not in self._stored and self.calls.lost is None:
                    self.calls.all_once("drop_variable", name)
                raise
            if known is None:
                known = OpenedVariable(token, given, TotalSteps(steps_of(self._stored.get(name))))
            self._opened[name] = known = known.having(optimizer=given["optimizer"], max_rows=given["max_rows"])
            return known.told()

    @once()
    def drop_variable(self, name: str) -> None:
        """Drop a variable on all shards."""
        with self._exclusively():
            self.calls.all_once("drop_variable", name)
            self._opened.pop(name, None)
            self._stored.pop(name, None)

    @once()
    def set_optimizer(self, token: str, optimizer: Optimizer, writable: bool) -> None:
        """Replace the optimizer on all shards."""
        self._change(token, "set_optimizer", (optimizer, writable), optimizer=optimizer)

    @once()
    def set_bounds(self, token: str, max_rows: int | None) -> None:
        """Replace the bound on all shards."""
        self._change(token, "set_bounds", (max_rows,), max_rows=max_rows)

    def _change(self, token: str, call: str, given: tuple[Any, ...], **changed: Any) -> None:
        with self._exclusively():
            self.calls.all_once(call, token, *given)
            for name in [name for name, known in self._opened.items() if known.token == token]:
                self._opened[name] = self._opened[name].having(**changed)

    # Operations during which no client's call runs.

    @contextmanager
    def alone(self, *, last: bool = False) -> Iterator[OpenSteps]:
        """Make a cut, and run the block inside it. Yields the steps of the open variables at the cut.

        last: if the block succeeds, no call is executed after it. Raises ShardLost, Closed.
        """
        with self._exclusively():
            self._cuts += 1
            with cut(self.calls, self._cuts, self._absent_seconds, last=last):
                yield {name: (known.token, known.total.steps()) for name, known in self._opened.items()}
            self.closed = last

    @once()
    def clear(self, token: str, at: Timestamp) -> None:
        """Drop every row of a variable."""
        with self.alone():
            for (failure,) in self.calls.all_once("change", [ChangeRequest(token, "clear", (), at)]):
                if failure is not None:
                    raise failure

    def begin_scan(self, scan: str, token: str, batch_rows: int, first: int, last: int) -> None:
        """Begin a scan on all shards: Shard.begin_scan."""
        with self.alone():
            self.calls.all("begin_scan", scan, token, batch_rows, first, last)

    @once()
    def restrict(self, token: str, at: Timestamp, keep_rows: int, trigger_rows: int | None, expire: bool) -> int:
        """Keep the rows with the highest scores over all shards; returns how many were removed. See restricting."""
        with self.alone():
            return restricting.restrict(self.calls, token, at, keep_rows, trigger_rows, expire)

    # Checkpoints.

    @once()
    def checkpoint(self, own: ClientCounts, request: CheckpointRequest) -> int:
        """Begin a checkpoint of all calls until now; returns its number: Checkpointing.start.

        own: the counts of the client that asks. Raises ShardLost if that does not know of a recovery.
        """
        assert self._checkpointing is not None
        return self._checkpointing.start(self.alone, self._calls_of(own), request)

    def finish(self, own: ClientCounts, anyway: bool) -> Dropped | None:
        """Write a last checkpoint if one is needed, and execute no call after it: Checkpointing.finish. Idempotent.

        own: as for checkpoint(). Raises ShardLost as that does.
        """
        if self.closed or self._checkpointing is None:
            return None
        return self._checkpointing.finish(self.alone, self._calls_of(own), anyway=anyway)

    def _calls_of(self, own: ClientCounts) -> Calls:
        """Store a client's counts; returns the calls to the shards that it knows."""
        calls = self.calls  # those that the client knows, unless exchange() reports a recovery
        _, lost = self.exchange(own)
        if lost is not None:
            raise ShardLost(lost if ADVICE in lost else f"{lost}; {ADVICE}")
        return calls

    def written(self, number: int) -> Checkpoint:
        """Wait for a checkpoint that was begun, and return it. Raises its error if it failed."""
        assert self._checkpointing is not None
        return self._checkpointing.result(number)

    def last(self) -> int | None:
        """Return the number of the checkpoint to which recover() would go back."""
        return None if self._checkpointing is None else self._checkpointing.last

    def last_created(self) -> tuple[int, float | None]:
        """Return that number, 0 if there is none, and when the checkpoint was made."""
        checkpointing = self._checkpointing
        return (0, None) if checkpointing is None else (checkpointing.last or 0, checkpointing.created())

    def recover(self, generation: int, lost: str, version: str) -> tuple[Recovery, JoinReply]:
        """Go back to the last checkpoint, with new shards, unless that was done since; returns the last recovery.

        generation: the client's; the shards of this generation are replaced. lost: the reason that the client knows.
        version: see join(). Also returns the answer of join(), so that no other recovery can come between. The old
        shards are closed or ended first, so that they can neither publish nor be called any more. Open variables stay
        open. Those that the checkpoint lacks are empty; those that were dropped since and made again with another
        schema are closed.
        """
        with self._recovering:
            if generation < self._recovered and self._recovery is not None:
                return self._recovery, self.join(version)
            begun = time.monotonic()
            self.calls.lose(ShardLost(lost))
            with suppress(Exception):  # closing a lost shard may fail
                self.calls.transport.close()
            checkpoint = None if self._checkpointing is None else self._checkpointing.settled()
            with self._exclusively():
                why = str(self.calls.lost).removesuffix(f"; {ADVICE}")
                self._begin(replace(self._plan, checkpoint=checkpoint))
                for name, known in list(self._opened.items()):
                    self._reopen(name, known)
                self._recovered = self._generation
            number, created = (None, None) if checkpoint is None else (checkpoint.number, checkpoint.described.created)
            steps = {name: entry.step for name, entry in self._stored.items()}
            self._recovery = Recovery(number, created, steps, time.monotonic() - begun, why)
            _logger.warning("%s", self._recovery)
            return self._recovery, self.join(version)

    def _reopen(self, name: str, known: OpenedVariable) -> None:
        """Open a variable on new shards. If the checkpoint has it with another schema, that one is used."""
        token, entry = next_token(known.token), self._stored.get(name)
        try:
            self.calls.all_once("open_variable", token, name, known.arguments)
        except (SchemaMismatch, ValueError):
            if entry is None:
                raise
            del self._opened[name]
        else:
            self._opened[name] = OpenedVariable(token, known.arguments, TotalSteps(steps_of(entry)))

    def close(self) -> None:
        """Close every shard, once the coordinator's running calls have ended. Idempotent."""
        with self._alone:
            if self._ended:
                return
            self.closed = self._ended = True
            try:
                if self._checkpointing is not None:
                    self._checkpointing.wait()
                self.calls.transport.close()
            finally:
                if self._checkpointing is not None:
                    self._checkpointing.close()
