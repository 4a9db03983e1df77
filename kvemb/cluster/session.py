"""What a client knows of its cluster between two recoveries: the shards, and the token of each variable.

A call uses one session from beginning to end: the one that is current when it begins. Thread-safe.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kvemb.cluster.calls import ADVICE, Calls
from kvemb.cluster.coordination.counting import ClientCounts, ClientSteps, StepCounts, StepsByToken
from kvemb.cluster.coordination.opened import are_of_one_variable
from kvemb.cluster.in_flight.accepted_steps import FailedStep
from kvemb.cluster.messages import ChangeRequest, JoinReply, OpenVariable
from kvemb.cluster.transport import Unanswered
from kvemb.durability.attachments import Attachments
from kvemb.durability.scratch import scratch
from kvemb.engine.table import Table
from kvemb.errors import Closed, ShardLost
from kvemb.many_tables.table_parts import raise_named
from kvemb.threads.interrupts import result_of

# Interval at which a client that makes calls sends the coordinator its counts, and learns whether a shard is lost.
EXCHANGE_SECONDS = 0.25
# How many of its latest steps a client remembers, so that an error says which step failed.
MAX_NAMED = 1024
# Bytes of a file that are sent to a shard at a time.
PIECE_BYTES = 8 << 20
CLOSED = "the process that opened the cluster has closed it; open it again"
ENDED = "the cluster's coordinator has ended with the process that opened it, or hangs; open the cluster again"


class ClientVariable(NamedTuple):
    """A variable that this client has open. token, admits, scores: see OpenVariable."""

    token: str
    clock: ClientSteps
    admits: bool
    scores: bool


class Session:
    """See the module. coordinator: the transport to it. joined: its answer when the client joined.

    before: the client's session before a recovery, whose variables stay open.
    """

    def __init__(self, coordinator: Calls, joined: JoinReply, before: Session | None = None) -> None:
        self.generation, self._coordinator = joined.generation, coordinator
        self.calls = Calls(joined.transport, advice=self._advice, timeouts=joined.timeouts)
        self.calls.on_loss, self.calls.on_wait = self._report, self.exchange_if_due
        self._opened: dict[Table, ClientVariable] = {}
        self._sent, self._unchecked = 0, False
        self._latest: deque[tuple[int, int]] = deque(maxlen=MAX_NAMED)  # the number of a step's call, and of the step
        self._ended: deque[tuple[int, str]] = deque()
        self._exchanged, self._exchanging = time.monotonic(), threading.Lock()
        for table, opened in [] if before is None else before.all_opened():
            told = joined.opened.get(table.name)
            if told is not None and are_of_one_variable(opened.token, told.token):
                self.open(table, told, follows=opened.clock.follows)

    def open(self, table: Table, told: OpenVariable, *, follows: bool = False) -> None:
        """Add a variable. follows: see ClientSteps."""
        clock = ClientSteps(StepCounts(*told.steps), follows=follows)
        self._opened[table] = ClientVariable(told.token, clock, told.admits, told.scores)

    def forget(self, table: Table) -> None:
        """Drop a variable."""
        self._opened.pop(table, None)

    def client_variable(self, table: Table) -> ClientVariable:
        """Return what calls need to know of a variable. Raises Closed."""
        table.storage.state.check_open()  # its message says that this client dropped the variable
        if (found := self._opened.get(table)) is None:
            raise Closed(f"variable {table.name!r} was dropped by another client; get it again with get_variable")
        return found

    @contextmanager
    def noticing_drops(self, tables: Iterable[Table]) -> Iterator[None]:
        """Send a call of these tables in the block. If another client has dropped one, raises Closed with its name.

        Later calls then find the variable that was made again under that name.
        """
        try:
            yield
        except Closed:
            self.exchange()
            for table in tables:
                self.client_variable(table)
            raise

    def notice(self, failures: Iterable[Exception]) -> None:
        """Learn at once which variables another client has dropped, if changes failed because of that."""
        if any(isinstance(failure, Closed) for failure in failures):
            self.exchange()

    # Optimizer's steps, which shards take after they have answered (kvemb.cluster.in_flight).

    def begin_step(self, changes: dict[int, list[ChangeRequest]]) -> dict[str, Exception]:
        """Send an optimizer's step to shards; returns the errors of variables that were dropped, by token.

        Returns when all shards have accepted it. Raises the error of an earlier step of this client that failed.
        """
        with self.calls.stamped(changes) as stamp:
            self._sent, self._unchecked = self._sent + 1, True
            self._latest.append((stamp.number, self._sent))
            found = self.calls.each("begin_step", {shard: (stamp, each) for shard, each in changes.items()})
        gone = {token: error for errors, _ in found.values() for token, error in errors.items()}
        self.notice(gone.values())
        self.raise_failed(failed for _, failed in found.values())
        return gone

    def synchronize(self) -> None:
        """Wait until all steps of this client are taken. Raises the error of the first one that failed."""
        if self._unchecked:
            self._unchecked = False
            self.raise_failed(self.calls.all("failed_steps", self.client))

    def raise_failed(self, told: Iterable[list[FailedStep]]) -> None:
        """Raise the error of the first failed step of which shards have told, if any; the shards forget them all.

        A note says which step that was.
        """
        failed = sorted((each for of_shard in told for each in of_shard), key=lambda each: each.number)
        if not failed:
            return
        self.calls.all("forget_steps", self.client, sorted({each.number for each in failed}))
        self.notice(each.error for each in failed)
        number, variable, error = failed[0]
        which = dict(self._latest).get(number)
        step = "an earlier step" if which is None else f"step {which}"
        error.add_note(f"in {step} of this client, whose call had returned")
        for table, opened in self.all_opened():
            if opened.token == variable:
                raise_named(table.name, error)
        raise error

    def all_opened(self) -> list[tuple[Table, ClientVariable]]:
        """Return all variables that this client has open."""
        return list(self._opened.items())

    def has(self, table: Table) -> bool:
        """Whether a table is open, as far as this client knows."""
        return table in self._opened

    def is_opened(self, table: Table, token: str | None) -> bool:
        """Whether a table is still the variable that has this token. Raises ShardLost if a recovery gave it another."""
        if table in self._opened and self._opened[table].token == token:
            return True
        self.exchange()
        return False

    def begin(self) -> None:
        """Begin a call: exchanges counts if that is due, and ends deleted scans. Raises ShardLost."""
        self.calls.check()
        self.exchange_if_due()
        with suppress(IndexError):
            while True:
                shard, scan = self._ended.popleft()
                self.calls.transport.call(shard, "end_scan", scan)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the coordinator that only reads or may be repeated."""
        with self._recording_loss():
            return self._coordinator.all(name, *arguments)[0]

    def ask_once(self, name: str, *arguments: Any) -> Any:
        """Call a method of the coordinator that must be executed once. Sends it this client's counts first."""
        self.exchange()
        with self._recording_loss():
            return self._coordinator.all_once(name, *arguments)[0]

    @contextmanager
    def _recording_loss(self) -> Iterator[None]:
        """Remember a loss that the coordinator reports."""
        self.calls.check()
        try:
            yield
        except ShardLost as error:
            self.calls.lose(error)
            raise

    @contextmanager
    def attached(self, attachments: Attachments) -> Iterator[str | None]:
        """Send files to the first shard, for a checkpoint begun in the block; yields their name there, or None.

        They are sent in pieces, so that memory does not grow with them. Raises what writing them raises.
        """
        if not attachments.names:
            yield None
            return
        files = uuid.uuid4().hex
        with scratch("kvemb-attached-") as folder:
            attachments.write(folder / "files")
            try:
                for name in attachments.names:
                    self._send(files, name, folder / "files" / name)
                yield files
            finally:
                if self.calls.lost is None:
                    self.calls.each("detach", {0: (files,)})

    def _send(self, files: str, name: str, path: Path) -> None:
        at = 0
        with open(path, "rb") as file:
            while (piece := file.read(PIECE_BYTES)) or at == 0:
                self.calls.each("attach", {0: (files, name, at, piece)})
                if not piece:
                    return
                at += len(piece)

    def own(self) -> ClientCounts:
        """Return this client's counts."""
        steps = {opened.token: opened.clock.own for opened in list(self._opened.values())}
        return ClientCounts(self.generation, self.client, steps)

    @property
    def client(self) -> str:
        """The client's identity."""
        return self.calls.client

    def exchange(self) -> None:
        """Send the coordinator this client's counts, and receive those of the other clients."""
        own = self.own()
        self._take_counts(own, self.ask("exchange", own))

    def exchange_if_due(self) -> None:
        """As exchange(), a few times a second, without waiting for the answer."""
        now = time.monotonic()
        if now < self._exchanged + EXCHANGE_SECONDS or not self._exchanging.acquire(blocking=False):
            return
        self._exchanged, own = now, self.own()

        def arrived(future: Future[Any]) -> None:
            self._exchanging.release()
            if future.exception() is None:  # otherwise the next call raises it
                self._take_counts(own, future.result())

        asked = self._coordinator.transport.call(0, "exchange", own)
        asked.add_done_callback(arrived)

    def _take_counts(self, own: ClientCounts, answer: tuple[StepsByToken, str | None]) -> None:
        """Take the answer of the exchange in which `own` was sent.

        A variable that the coordinator does not know was dropped by another client.
        """
        others, lost = answer
        for table, opened in self.all_opened():
            if opened.token in others:
                opened.clock.hear(StepCounts(*others[opened.token]))
            elif lost is None and opened.token in own.steps:
                self.forget(table)
        if lost is not None:
            self.calls.on_loss = None  # the coordinator knows
            self.calls.lose(ShardLost(lost if ADVICE in lost else f"{lost}; {ADVICE}"))

    def _advice(self) -> str:
        """Return a message's advice after a loss: without a coordinator no recovery is possible."""
        try:
            result_of(self._coordinator.transport.ping(0), self._coordinator.timeouts.ping)
        except (Unanswered, TimeoutError):
            return ENDED
        with suppress(Unanswered, TimeoutError):
            try:
                result_of(self._coordinator.transport.call(0, "last"), self._coordinator.timeouts.ping)
            except Closed:
                return CLOSED
        return ADVICE

    def _report(self, lost: ShardLost) -> None:
        self._coordinator.transport.call(0, "report", self.generation, str(lost))

    def end_scan(self, shard: int, scan: str) -> None:
        """Make the next call end a scan. Takes no lock: garbage collection may call this inside any function."""
        self._ended.append((shard, scan))
