"""The implementation of a cluster's Store: one client, its tables, and its calls to the shards that have the keys.

Thread-safe: `lock` guards tables and collections.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

import kvemb
from kvemb.cluster.batches import Packed, divided, fill
from kvemb.cluster.calls import ADVICE, Calls
from kvemb.cluster.client_state import ClientState
from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint, CheckpointRequest
from kvemb.cluster.messages import ChangeRequest, JoinReply, OpenVariable, ReadRequests
from kvemb.cluster.router import GroupedKeys, Router
from kvemb.cluster.session import ENDED, ClientVariable, Session
from kvemb.cluster.transport import Transport
from kvemb.contracts import Mask, Values
from kvemb.durability.attachments import Attachments
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.engine.table import Table
from kvemb.errors import Closed, KvembError, ShardLost
from kvemb.restrict import ScoreRule
from kvemb.rows.hashing import Keys, Positions
from kvemb.threads.pool import Threads
from kvemb.timestamp import Timestamp

Result = TypeVar("Result")
# Asynchronous lookups that run at the same time; further ones wait.
MAX_STARTED = 8


class LookupPart(NamedTuple):
    """A lookup of one variable: the arrays to fill with rows (n, dim) and existence (n,) or None. counts (n,): uses."""

    table: Table
    keys: Keys
    out: Values
    exists: Mask | None
    counts: Positions | None = None


class StepPart(NamedTuple):
    """An optimizer's step on one variable."""

    table: Table
    keys: Keys
    grads: Values


class Cluster:
    """A client of a cluster. coordinator: the transport to it. path: the cluster's name in messages. shared: whether
    other processes can be clients of the same cluster, because it is on Ray and has a url.
    """

    def __init__(self, coordinator: Transport, path: str, *, shared: bool = False) -> None:
        self.path, self.shared = path, shared
        self.state = ClientState(path)
        self.lock = threading.RLock()
        self.tables: dict[str, Table] = {}
        self.collections: dict[str, list[Any]] = {}
        self._coordinator = Calls(coordinator, lambda _: "the cluster's coordinator", lambda: ENDED)
        joined: JoinReply = self._coordinator.all("join", kvemb.__version__)[0]
        self._coordinator.timeouts = joined.timeouts._replace(most=math.inf)
        self.session = self._joined(joined)
        self.router = Router(self.session.calls.transport.shards)
        self._thread = threading.local()  # session: that of each thread's last call
        self._recovery: Recovery | None = None
        self._started = Threads(MAX_STARTED, thread_name_prefix="kvemb-started")
        self._waiting = Threads(1, thread_name_prefix="kvemb-written")
        self._checkpointing = threading.RLock()
        self._pending: PendingCheckpoint[Checkpoint] | None = None

    def _joined(self, joined: JoinReply, before: Session | None = None) -> Session:
        """Return the session after the coordinator's answer. before: see Session."""
        self.state.shards = joined.transport
        return Session(self._coordinator, joined, before)

    def begin_call(self) -> Session:
        """Begin a call; returns the current session. Raises Closed, ShardLost."""
        self.state.check_open()
        self._thread.session = session = self.session
        session.begin()
        return session

    @property
    def address(self) -> str:
        """The address of this process's node, at which the nodes of the shards reach it."""
        return str(getattr(self.session.calls.transport, "address", "127.0.0.1"))

    def names(self) -> list[str]:
        """Return the names of all variables. Raises Closed."""
        return sorted(self.begin_call().ask("catalog"))

    def add(self, table: Table, told: OpenVariable) -> None:
        """Add the table of a variable that every shard has. REQUIRES: lock."""
        self.session.open(table, told)
        self.tables[table.name] = table

    def forget(self, table: Table) -> None:
        """Forget a variable that was dropped. REQUIRES: lock."""
        self.session.forget(table)
        self.tables.pop(table.name, None)
        table.forget(f"variable {table.name!r} was dropped")
        for collection, items in self.collections.items():
            self.collections[collection] = [each for each in items if each is not table.variable]

    def collect(self, collection: str, item: Any) -> None:
        """Add to a collection. REQUIRES: lock."""
        self.collections.setdefault(collection, []).append(item)

    def recover(self) -> Recovery:
        """Return to the last checkpoint: Coordinator.recover. Raises ShardLost, Closed.

        If several threads of one client call this after the same loss, the cluster goes back once: the session of a
        thread's last call identifies the loss.
        """
        self.state.check_here()
        with self.lock:
            self.state.check_open()
            known: Session = getattr(self._thread, "session", self.session)
            self._thread.session = self.session
            if known is not self.session and known.calls.lost is not None and self._recovery is not None:
                return self._recovery
            lost = self.session.calls.lost
            why = "nothing, no shard was lost" if lost is None else str(lost).removesuffix(f"; {ADVICE}")
            asked = self.session.generation, why, kvemb.__version__
            found: tuple[Recovery, JoinReply] = self._coordinator.all("recover", *asked)[0]
            self._thread.session = self.session = self._joined(found[1], self.session)
            self._recovery = found[0]
            self._pending = None  # the checkpoint to which the cluster went back shows how it ended
            return self._recovery

    # Checkpoints.

    def checkpoint(self, keep: int | None, attachments: Attachments) -> PendingCheckpoint[Checkpoint]:
        """Begin a checkpoint once the last one that this client began is complete. Raises as Store.checkpoint()."""
        self.state.check_here()
        with self._checkpointing:
            self.settle()
            self.synchronize()
            session = self.begin_call()
            with session.attached(attachments) as files:
                request = CheckpointRequest(keep, attachments.extra, files)
                number: int = session.ask_once("checkpoint", session.own(), request)
            self._pending = PendingCheckpoint(self._submit(self._waiting, lambda: session.ask("written", number)))
            return self._pending

    def settle(self) -> None:
        """Wait for the checkpoint that this client began last. Raises its error, unless a caller got it already."""
        pending = self._pending
        if pending is not None and not pending.reported:
            pending.result()
        self._pending = None  # only now: after Ctrl-C above it is still being written

    # Rows of several variables, with one call to each shard.

    def lookup(self, wanted: list[LookupPart], *, touch: bool) -> None:
        """Fill in rows and existence. A repeated key is sent once, with the number of its uses."""
        session = self.begin_call()
        parts = [(part, self.router.group(part.keys)) for part in wanted]
        reads: dict[int, list[tuple[int, Keys, Positions | None]]] = {}  # of each shard; first: which of `wanted`
        tokens: list[str] = []
        moments: list[tuple[Any, ...]] = []
        for at, (part, grouped) in enumerate(parts):
            opened = session.client_variable(part.table)
            when, counts = self._used(part, opened, grouped, touch)
            tokens.append(opened.token)
            moments.append(tuple(when))
            for shard, where in grouped.parts:
                read = at, grouped.keys[where], None if counts is None else counts[where]
                reads.setdefault(shard, []).append(read)
        exists = any(part.exists is not None for part in wanted)
        with session.noticing_drops([part.table for part in wanted]), session.calls.stamped(reads) as stamp:
            asked = {shard: (stamp, _joined(each, tokens, moments), exists, touch) for shard, each in reads.items()}
            found = session.calls.each("lookup", asked)
        session.raise_failed(failed for _, _, failed in found.values())
        answers: list[dict[int, Any]] = [{} for _ in wanted]
        for shard, (packed, there, _) in found.items():
            schemas, end = [wanted[at].table.schema for at, _, _ in reads[shard]], 0
            rows_of_each = Packed(schemas, [len(keys) for _, keys, _ in reads[shard]], packed).rows
            for (at, _, _), rows in zip(reads[shard], rows_of_each, strict=True):
                answers[at][shard] = rows, None if there is None else there[end : end + len(rows)]
                end += len(rows)
        for (part, grouped), answer in zip(parts, answers, strict=True):
            fill(part.out, part.exists, grouped, answer)

    @staticmethod
    def _used(part: LookupPart, opened: ClientVariable, grouped: GroupedKeys, touch: bool) -> tuple[Timestamp, Any]:
        """Return the timestamp of a lookup, and the uses of each distinct key; None: one each, or not recorded."""
        policy = part.table.policy
        if not touch or not opened.scores:
            return opened.clock.now(policy), None
        counted = policy is None or policy.rule is not ScoreRule.LAST_USE
        counts = grouped.uses(part.counts) if counted and (grouped.repeated or part.counts is not None) else None
        return opened.clock.use(policy), counts

    def train(self, steps: list[StepPart]) -> list[Exception | None]:
        """Take an optimizer's step on each variable; returns the error of each, or None.

        The shards take it after they have answered (kvemb.cluster.in_flight). Raises the error of an earlier step that
        failed.
        """
        session = self.begin_call()
        changes: dict[int, list[ChangeRequest]] = {}
        tokens: list[str] = []
        for table, keys, grads in steps:
            token, clock, admits, _ = session.client_variable(table)
            optimizer = table.operations.optimizer  # raises Closed if the variable was dropped
            assert optimizer is not None
            counted = optimizer.counts_steps and len(keys) > 0
            timestamp = clock.train(table.policy, counted)
            tokens.append(token)
            for shard, part in divided(self.router, keys, grads, table.schema.dim, admits=admits):
                changes.setdefault(shard, []).append(ChangeRequest(token, "apply_gradients", part, timestamp))
        gone = session.begin_step(changes)
        return [gone.get(token) for token in tokens]

    def synchronize(self) -> None:
        """Wait until all steps of this client are taken. Raises the error of the first one that failed."""
        self.begin_call().synchronize()

    def change(self, table: Table, method: str, keys: Keys, *columns: Any, use: bool = False) -> None:
        """Call a method that changes rows, on the shards of keys (n,); columns (n, ...) are divided as the keys are.

        use: whether it is a call that records uses.
        """
        session = self.begin_call()
        token, clock, *_ = session.client_variable(table)
        timestamp = clock.use(table.policy) if use else clock.now(table.policy)
        changes = {
            shard: [ChangeRequest(token, method, tuple(each[positions] for each in (keys, *columns)), timestamp)]
            for shard, positions in self.router.split(keys).positions()
        }
        for failure in _execute(session, changes, [token]):
            if failure is not None:
                raise failure

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a function on another thread, and return a future of its result. Raises Closed."""
        self.state.check_open()
        return self._submit(self._started, call)

    def _submit(self, pool: Threads, call: Callable[[], Result]) -> Future[Result]:
        """Give work to a pool. Raises Closed if end() has come between."""
        try:
            return pool.submit(call)
        except RuntimeError as error:
            raise Closed(f"this client of the cluster {self.path} was closed meanwhile") from error

    def finish(self) -> None:
        """Wait for all functions that start() was given, for all steps, and for the checkpoint: settle()."""
        wait(self._started.unfinished)
        with ExitStack() as last, suppress(ShardLost, Closed):
            last.callback(self.settle)
            self.synchronize()

    def end(self, *, owner: bool) -> None:
        """Make no more calls. owner: close the shards, too. Idempotent."""
        if self.state.gone:
            return
        if not owner:
            self._end_threads()
            with suppress(KvembError):  # of a lost cluster
                self.session.exchange()
        self.state.close()
        if owner:
            with ExitStack() as last:
                last.callback(self._end_threads)  # their calls may wait for the last cut to end
                last.callback(self._coordinator.transport.close)
                with suppress(ShardLost):  # it is gone
                    self._coordinator.all("close")

    def _end_threads(self) -> None:
        self._started.shutdown(wait=True)
        self._waiting.shutdown(wait=True)


def _joined(
    reads: list[tuple[int, Keys, Positions | None]], tokens: list[str], moments: list[tuple[Any, ...]]
) -> ReadRequests:
    """Return one message of a shard's reads."""
    counts = None
    if any(each is not None for _, _, each in reads):
        counts = np.concatenate([np.ones(len(keys), np.int64) if each is None else each for _, keys, each in reads])
    ats, keys = [at for at, _, _ in reads], [keys for _, keys, _ in reads]
    return ReadRequests(
        [tokens[at] for at in ats],
        [len(each) for each in keys],
        np.concatenate(keys),
        counts,
        [moments[at] for at in ats],
    )


def _execute(session: Session, changes: dict[int, list[ChangeRequest]], tokens: list[str]) -> list[Exception | None]:
    """Execute changes; returns for each variable its first error, or None."""
    with session.calls.stamped(changes) as stamp:
        found = session.calls.each("change", {shard: (stamp, each) for shard, each in changes.items()})
    failures: dict[str, Exception] = {}
    for shard, results in found.items():
        for change, failure in zip(changes[shard], results or [], strict=bool(results)):
            if failure is not None:
                failures.setdefault(change.variable, failure)
    session.notice(failures.values())
    return [failures.get(token) for token in tokens]
