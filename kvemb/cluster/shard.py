"""A shard: a store with the additional calls that a cluster needs.

Every method is called through a transport, by call(): arguments and results are plain values. A call that changes rows
has a Stamp, and is executed once, however often it arrives; a call that only reads may be repeated. A Moment has
the step and the time of a call, so that scores are those of one table. A variable has a token, which differs from that
of any later variable of the same name, so that a call that was sent before a drop reaches no other variable.
Thread-safe, as the store is. Longer than 300 lines: every method that clients call is defined here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import moment
from kvemb.cluster.durability.shard_checkpoints import ShardCheckpoints
from kvemb.cluster.in_flight.steps import Accepted, FailedStep, StepsInFlight
from kvemb.cluster.in_step.parts import JoinedNorm, Joint, Part, Parts
from kvemb.cluster.ledger import CallId, ExecutedCalls, Ledger, Stamp, StoredCalls
from kvemb.cluster.messages import ChangeRequest, Columns, PushedPart, ReadRequest
from kvemb.cluster.scans import Scans
from kvemb.cluster.transport import ShardFailed
from kvemb.contracts import Mask, Values
from kvemb.durability.manifest import VariableEntry
from kvemb.engine.table import Table
from kvemb.errors import Closed, ColdStoreError, Corruption, KvembError, ReadOnly
from kvemb.handle import inside
from kvemb.moment import Moment
from kvemb.operations.restricting import Restriction
from kvemb.operations.selection import ScoreLimit
from kvemb.optimizers import Optimizer
from kvemb.rows.hashing import Keys
from kvemb.stats import Stats
from kvemb.store import Store

_DROPPED = "the variable was dropped; get it again with get_variable"
# Calls that do not wait for the steps in flight: reading ahead changes no row.
_BESIDE_STEPS = frozenset(["close", "prefetch"])


class Shard:
    """A store that is a part of a cluster's tables. release: called when it is closed.

    checkpoints: None if it writes none. made: the calls that the rows of the store already contain.
    """

    def __init__(
        self,
        store: Store,
        release: Callable[[], None],
        checkpoints: ShardCheckpoints | None = None,
        made: StoredCalls | None = None,
    ) -> None:
        self._store, self._release, self._checkpoints = store, release, checkpoints
        store.state.of_shard = True
        self._ledger, self._closed = Ledger(), False
        self._ledger.add(made or {})
        self._opened: dict[str, Table] = {}  # by token
        self._scans, self._parts, self._in_flight = Scans(), Parts(), StepsInFlight()
        self._ranked: dict[str, Restriction] = {}
        self._ranking = threading.Lock()  # a repeated call must not read a spool at the same time

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method, once no step is in flight. Raises ShardFailed if the store has failed, or was closed."""
        try:
            if name not in _BESIDE_STEPS:
                self._in_flight.settle()
            return getattr(self, name)(*arguments)
        except Exception as error:
            if self._closed:
                raise ShardFailed("it was closed: a client took the cluster back, or ended it") from error
            if self._failed(error, name):
                raise ShardFailed(f"its store failed: {error}") from error
            raise

    def _failed(self, error: Exception, name: str) -> bool:
        """Whether an error means that the store cannot go on: its disk is full, damaged or gone."""
        if not isinstance(error, (KvembError, OSError)):
            return False
        if inside(self._store).state.cause is not None or not self._store.path.exists():
            return not isinstance(error, (Closed, ReadOnly))
        return name in ("lookup", "change") and isinstance(error, (ColdStoreError, Corruption))

    # Its variables.

    def open_variable(self, stamp: Stamp, token: str, name: str, arguments: dict[str, Any]) -> None:
        """Make a variable or open it: Store.get_variable. token: identifies it in later calls."""

        def make() -> None:
            self._opened[token] = table = inside(self._store.get_variable(name, **arguments))
            if table.entry() != inside(self._store).current_manifest.variables.get(name):
                self._ledger.count_change()

        self._ledger.once(stamp, make)

    def drop_variable(self, stamp: Stamp, name: str) -> None:
        """Drop a variable if there is one of this name."""

        def drop() -> None:
            if name in self._store.variables:
                self._store.drop_variable(name)
            for token in [token for token, table in self._opened.items() if table.name == name]:
                del self._opened[token]

        self._ledger.once(stamp, drop, changes=True)

    def set_optimizer(self, stamp: Stamp, token: str, optimizer: Optimizer, writable: bool) -> None:
        """Replace the optimizer: Table.set_optimizer."""
        self._ledger.once(stamp, lambda: self._table(token).set_optimizer(optimizer, writable=writable), changes=True)

    def entry(self, token: str) -> VariableEntry:
        """Return a variable's manifest entry; `rows` counts those of this shard."""
        return self._table(token).entry()

    def stats(self, tokens: list[str]) -> list[Stats]:
        """Return the counts of variables."""
        return [self._table(token).stats() for token in tokens]

    def size(self, token: str) -> int:
        """Return the number of rows of a variable."""
        return self._table(token).storage.size

    # Rows.

    def lookup(
        self, stamp: Stamp, reads: list[ReadRequest], exists: bool, touch: bool
    ) -> tuple[list[tuple[Values, Mask | None]], list[FailedStep]]:
        """Return rows (n, dim) for each read, and, if exists, which keys exist (n,); then the client's failed steps.

        touch: whether to record uses.
        """
        found = []
        with self._ledger.using(stamp if touch else None) as first:
            for read in reads:
                with moment.at(read.moment):
                    found.append(_looked_up(self._table(read.variable), read, exists, first))
        return found, self._in_flight.failed(stamp.client)

    def change(self, stamp: Stamp, changes: list[ChangeRequest]) -> list[Exception | None]:
        """Execute changes, each of another variable; returns the error of each, or None. All are tried."""
        found = self._ledger.once(stamp, lambda: [self._changed(change) for change in changes], changes=True)
        return found  # type: ignore[no-any-return]

    def begin_step(self, stamp: Stamp, changes: list[ChangeRequest]) -> Accepted:
        """Accept an optimizer's step on some variables, and take it after the answer.

        Returns the errors of variables that were dropped, by token; then the client's failed steps.
        """
        gone: dict[str, Exception] = {
            change.variable: Closed(_DROPPED) for change in changes if change.variable not in self._opened
        }
        begun: list[Callable[[], None]] = []

        def take() -> dict[str, Exception]:
            made = {change.variable: self._changed(change) for change in changes if change.variable not in gone}
            return {token: error for token, error in made.items() if error is not None}

        self._ledger.once(stamp, lambda: begun.append(self._in_flight.begin(stamp, take)), changes=True)
        return Accepted((gone, self._in_flight.failed(stamp.client)), begun[0] if begun else lambda: None)

    def failed_steps(self, client: str) -> list[FailedStep]:
        """Return a client's failed steps, all of whose steps are taken: StepsInFlight.failed."""
        return self._in_flight.failed(client)

    def forget_steps(self, client: str, numbers: list[int]) -> None:
        """Forget failed steps: StepsInFlight.forget."""
        self._in_flight.forget(client, numbers)

    def _changed(self, change: ChangeRequest) -> Exception | None:
        try:
            with moment.at(change.moment):
                getattr(self._table(change.variable).operations, change.method)(*change.arguments)
        except Exception as error:
            if self._closed or self._failed(error, "change"):
                raise
            return error
        return None

    def slot(self, token: str, keys: Keys, number: int) -> Values:
        """Return a slot of each key: TableOperations.slot."""
        return self._table(token).operations.slot(keys, number)

    def scores(self, token: str, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score: TableOperations.scores."""
        return self._table(token).operations.scores(keys)

    def prefetch(self, token: str, keys: Keys, after_lookup: bool) -> None:
        """Start reading cold rows: TableOperations.prefetch."""
        self._table(token).operations.prefetch(keys.copy(), after_lookup)  # the thread that reads keeps them

    # Steps that ranks take together (kvemb.cluster.in_step).

    def put_part(self, part: Part) -> None:
        """Keep a rank's part of the next step: Parts.put."""
        # The memory of its arrays is the transport's.
        own = {token: (keys.copy(), grads.copy()) for token, (keys, grads) in part.gradients.items()}
        self._parts.put(part._replace(gradients=own))

    def joined_norms(self, joint: Joint) -> dict[str, JoinedNorm]:
        """Return the norm of each variable's joined gradients: Parts.norms."""
        return self._parts.norms(joint)

    def step_together(self, stamp: Stamp, joint: Joint) -> dict[str, Exception]:
        """Join the parts of all ranks, and take the step; returns the errors of variables that failed, by token."""

        def step() -> dict[str, Exception]:
            made = {change.variable: self._changed(change) for change in self._parts.take(joint)}
            return {token: error for token, error in made.items() if error is not None}

        return self._ledger.once(stamp, step, changes=True)  # type: ignore[no-any-return]

    # Scans.

    def begin_scan(self, scan: str, token: str, batch_rows: int, first: int, last: int) -> None:
        """Begin a scan of rows as they are now, between two ordered keys. scan: identifies it in later calls."""
        self._scans.begin(scan, lambda: self._table(token).storage.scan(batch_rows, first, last))

    def next_batch(self, scan: str, number: int) -> Columns | None:
        """Return the batch with this number, from 0, of a scan, None after its end. Raises Closed."""
        return self._scans.batch(scan, number)

    def end_scan(self, scan: str) -> None:
        """Forget a scan."""
        self._scans.end(scan)

    # A restriction over all shards. No other call changes the variable's rows meanwhile.

    def rank(self, stamp: Stamp, token: str, at: Moment) -> tuple[int, int]:
        """Rank every row of a variable; returns how many there are, and how many have not expired."""

        def rank() -> tuple[int, int]:
            self._forget_ranks(token)
            with moment.at(at):
                ranked = self._table(token).operations.ranked()
            self._ranked[token] = ranked
            return ranked.rows, ranked.alive

        return self._ledger.once(stamp, rank)  # type: ignore[no-any-return]

    def count_ranks(self, token: str, prefix: list[int]) -> npt.NDArray[np.int64]:
        """Return how many ranks with this prefix have each value of the next digit: ScoreSpool.counts."""
        with self._ranking:
            return self._ranked[token].counts(prefix)

    def matching_ranks(self, token: str, prefix: list[int]) -> npt.NDArray[Any]:
        """Return the ranks with this prefix of digits: ScoreSpool.matching."""
        with self._ranking:
            return self._ranked[token].matching(prefix)

    def remove_ranked(self, stamp: Stamp, token: str, limit: ScoreLimit | None) -> int:
        """Remove the rows whose rank is below a limit, or all rows if it is None; returns their number."""

        def remove() -> int:
            with self._ranking:
                return self._table(token).operations.remove_below(self._ranked[token], limit)

        return self._ledger.once(stamp, remove, changes=True)  # type: ignore[no-any-return]

    def forget_ranks(self, stamp: Stamp, token: str) -> None:
        """End a restriction."""
        self._ledger.once(stamp, lambda: self._forget_ranks(token))

    def _forget_ranks(self, token: str) -> None:
        with self._ranking:
            if (ranked := self._ranked.pop(token, None)) is not None:
                ranked.close()

    # The gate, and a checkpoint over all shards.

    def changes(self) -> int:
        """Return how many calls may have changed what a checkpoint has, since the shard was made: Ledger.changes."""
        return self._ledger.changes

    def hold(self, cut: int, cutter: str) -> dict[str, ExecutedCalls]:
        """Close the gate: Ledger.hold."""
        return self._ledger.hold(cut, cutter)

    def admits(self, stamp: Stamp) -> bool:
        """Whether a call may be sent: Ledger.admits."""
        return self._ledger.admits(stamp)

    def admit(self, cut: int, calls: list[CallId], seconds: float) -> list[CallId]:
        """Admit calls: Ledger.admit."""
        return self._ledger.admit(cut, calls, seconds)

    def release(self, cut: int) -> None:
        """Open the gate: Ledger.release."""
        self._ledger.release(cut)

    def attach(self, files: str, name: str, at: int, piece: bytes) -> None:
        """Receive a piece of a file to save beside the rows of a checkpoint: ShardCheckpoints.attach."""
        self._saved().attach(files, name, at, piece)

    def detach(self, files: str) -> None:
        """Delete these files: ShardCheckpoints.detach."""
        self._saved().detach(files)

    def snapshot(
        self, stamp: Stamp, number: int, checkpoint: str, steps: dict[str, tuple[int, int]], files: str | None
    ) -> StoredCalls:
        """Begin a checkpoint of the rows as they are now: ShardCheckpoints.begin. Returns the calls that they contain.

        steps: of each variable's token, and of its optimizer.
        """

        def begin() -> StoredCalls:
            for token, counts in steps.items():
                self._table(token).storage.advance(*counts)
            self._saved().begin(number, checkpoint, files)
            return self._ledger.to_json()

        return self._ledger.once(stamp, begin)  # type: ignore[no-any-return]

    def push(self, stamp: Stamp, number: int) -> PushedPart:
        """Complete a checkpoint, and send it to the URL: ShardCheckpoints.push."""
        return self._ledger.once(stamp, lambda: self._saved().push(number))  # type: ignore[no-any-return]

    def _saved(self) -> ShardCheckpoints:
        assert self._checkpoints is not None
        return self._checkpoints

    # The store as a whole.

    def check(self, deep: bool) -> None:
        """Raise Corruption if anything is damaged: Store.check."""
        self._store.check(deep=deep)

    def close(self) -> None:
        """Close the store without writing, and delete its files. Idempotent. Calls that are still running may fail."""
        self._closed = True
        for name in list(self._ranked):
            self._forget_ranks(name)
        self._scans.end_all()
        self._store.close(flush=False)
        self._release()

    def _table(self, token: str) -> Table:
        if (table := self._opened.get(token)) is None:
            raise Closed(_DROPPED)
        return table


def _looked_up(table: Table, read: ReadRequest, exists: bool, touch: bool) -> tuple[Values, Mask | None]:
    rows = np.empty((len(read.keys), table.schema.dim), table.schema.value_dtype)
    there = np.empty(len(read.keys), np.bool_) if exists else None
    table.operations.lookup(read.keys, rows, there, touch=touch, counts=read.counts if touch else None)
    return rows, there
