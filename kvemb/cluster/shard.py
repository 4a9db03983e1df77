"""A shard: a store with the additional calls that a cluster needs.

Every method is called through a transport, by call(): arguments and results are plain values. A call that changes rows
has a Stamp, and is executed once, however often it arrives; a call that only reads may be repeated. A Timestamp has
the step and the time of a call, so that scores are those of one table. A variable has a token, which differs from that
of any later variable of the same name, so that a call that was sent before a drop reaches no other variable.
Thread-safe, as the store is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import timestamp
from kvemb.cluster.batches import Packed
from kvemb.cluster.durability.shard_checkpoints import ShardCheckpoints
from kvemb.cluster.in_flight.accepted_steps import Accepted, FailedStep, StepsInFlight
from kvemb.cluster.in_step.parts import Joint, Part, Parts
from kvemb.cluster.ledger import Ledger, Stamp, StoredCalls, once
from kvemb.cluster.messages import ChangeCounts, ChangeRequest, PushedPart, ReadRequests
from kvemb.cluster.ranking import Ranking
from kvemb.cluster.scans import Scans
from kvemb.cluster.transport import ShardFailed
from kvemb.contracts import Mask, Values
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.keeping_bounds import set_bounds
from kvemb.engine.table import Table
from kvemb.errors import Closed, ColdStoreError, Corruption, KvembError, ReadOnly
from kvemb.handle import inside
from kvemb.operations.selection import ScoreLimit
from kvemb.optimizers import Optimizer
from kvemb.restrict.bounds import Bounds
from kvemb.rows.hashing import Keys
from kvemb.stats import Stats
from kvemb.store import Store
from kvemb.timestamp import Timestamp

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
        self._store, self._delete, self._checkpoints = store, release, checkpoints
        store.state.of_shard = True
        self.ledger, self._closed = Ledger(), False
        self.ledger.add(made or {})
        self._opened: dict[str, Table] = {}  # by token
        self._scans, self._parts, self._steps, self._ranking = Scans(), Parts(), StepsInFlight(), Ranking()
        # Calls that one part answers: reading a scan, failed steps, a restriction, the gate of a cut, attached files.
        self.next_batch, self.end_scan = self._scans.batch, self._scans.end
        self.failed_steps, self.forget_steps = self._steps.failed, self._steps.forget
        self.joined_norms = self._parts.norms
        self.count_ranks, self.matching_ranks = self._ranking.counts, self._ranking.matching
        self.hold, self.admits = self.ledger.hold, self.ledger.admits
        self.admit, self.release = self.ledger.admit, self.ledger.release
        if checkpoints is not None:
            self.attach, self.detach = checkpoints.attach, checkpoints.detach

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method, once no step is in flight. Raises ShardFailed if the store has failed, or was closed."""
        try:
            if name not in _BESIDE_STEPS:
                self._steps.settle()
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

    @once()
    def open_variable(self, token: str, name: str, arguments: dict[str, Any]) -> None:
        """Make a variable or open it: Store.get_variable. token: identifies it in later calls."""
        self._opened[token] = table = inside(self._store.get_variable(name, **arguments))
        if table.entry() != inside(self._store).current_manifest.variables.get(name):
            self.ledger.count_change()

    @once(changes=True)
    def drop_variable(self, name: str) -> None:
        """Drop a variable if there is one of this name."""
        if name in self._store.variables:
            self._store.drop_variable(name)
        for token in [token for token, table in self._opened.items() if table.name == name]:
            del self._opened[token]

    @once(changes=True)
    def set_optimizer(self, token: str, optimizer: Optimizer, writable: bool) -> None:
        """Replace the optimizer: Table.set_optimizer."""
        self._table(token).set_optimizer(optimizer, writable=writable)

    @once(changes=True)
    def set_bounds(self, token: str, max_rows: int | None) -> None:
        """Replace the bound of the whole table, of which this shard keeps its part."""
        engine = inside(self._store)
        with engine.lock:
            set_bounds(engine, self._table(token), Bounds(max_rows))

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
        self, stamp: Stamp, reads: ReadRequests, exists: bool, touch: bool
    ) -> tuple[npt.NDArray[np.uint8], Mask | None, list[FailedStep]]:
        """Return the rows of all reads (Packed), and, if exists, which keys exist (n,); then the client's failed steps.

        touch: whether to record uses.
        """
        there = np.empty(len(reads.keys), np.bool_) if exists else None
        with self.ledger.using(stamp if touch else None) as first:
            tables = [self._table(token) for token in reads.variables]
            packed, end = Packed([table.schema for table in tables], reads.lengths), 0
            for table, rows, when in zip(tables, packed.rows, reads.moments, strict=True):
                part, end = slice(end, end + len(rows)), end + len(rows)
                counts = reads.counts[part] if first and reads.counts is not None else None
                with timestamp.at(Timestamp(*when)):
                    found = None if there is None else there[part]
                    table.operations.lookup(reads.keys[part], rows, found, touch=first, counts=counts)
        return packed.bytes, there, self._steps.failed(stamp.client)

    @once(changes=True)
    def change(self, changes: list[ChangeRequest]) -> list[Exception | None]:
        """Execute changes, each of another variable; returns the error of each, or None. All are tried."""
        return [self._changed(change) for change in changes]

    def begin_step(self, stamp: Stamp, changes: list[ChangeRequest]) -> Accepted:
        """Accept an optimizer's step on some variables, and take it after the answer.

        Returns the errors of variables that were dropped, by token; then the client's failed steps.
        """
        gone: dict[str, Exception] = {
            change.variable: Closed(_DROPPED) for change in changes if change.variable not in self._opened
        }
        begun: list[Callable[[], None]] = []

        def take() -> dict[str, Exception]:
            return self._failures([change for change in changes if change.variable not in gone])

        self.ledger.once(stamp, lambda: begun.append(self._steps.begin(stamp, take)), changes=True)
        return Accepted((gone, self._steps.failed(stamp.client)), begun[0] if begun else lambda: None)

    def _failures(self, changes: list[ChangeRequest]) -> dict[str, Exception]:
        """Execute changes; returns the errors of those that failed, by the variable's token."""
        made = {change.variable: self._changed(change) for change in changes}
        return {token: error for token, error in made.items() if error is not None}

    def _changed(self, change: ChangeRequest) -> Exception | None:
        try:
            with timestamp.at(change.timestamp):
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

    @once(changes=True)
    def step_together(self, joint: Joint) -> dict[str, Exception]:
        """Join the parts of all ranks, and take the step; returns the errors of variables that failed, by token."""
        return self._failures(self._parts.take(joint))

    # All rows.

    def begin_scan(self, scan: str, token: str, batch_rows: int, first: int, last: int) -> None:
        """Begin a scan of rows as they are now, between two ordered keys. scan: identifies it in later calls."""
        self._scans.begin(scan, lambda: self._table(token).storage.scan(batch_rows, first, last))

    @once()
    def rank(self, token: str, at: Timestamp) -> tuple[int, int]:
        """Rank every row of a variable; returns how many there are, and how many have not expired.

        No other call changes the variable's rows until forget_ranks().
        """
        with timestamp.at(at):
            ranked = self._table(token).operations.ranked()
        self._ranking.begin(ranked)
        return ranked.rows, ranked.alive

    @once(changes=True)
    def remove_ranked(self, token: str, limit: ScoreLimit | None) -> int:
        """Remove the rows whose rank is below a limit, or all rows if it is None; returns their number."""
        with self._ranking.using() as ranked:
            return self._table(token).operations.remove_below(ranked, limit)

    @once()
    def forget_ranks(self) -> None:
        """End a restriction."""
        self._ranking.end()

    # A checkpoint over all shards.

    def changes(self) -> ChangeCounts:
        """Return how many calls may have changed what a checkpoint has, since the shard was made."""
        return ChangeCounts(self.ledger.changes, self.ledger.uses)

    @once()
    def snapshot(
        self, number: int, checkpoint: str, steps: dict[str, tuple[int, int]], files: str | None
    ) -> StoredCalls:
        """Begin a checkpoint of the rows as they are now: ShardCheckpoints.begin. Returns the calls that they contain.

        steps: of each variable's token, and of its optimizer.
        """
        assert self._checkpoints is not None
        for token, counts in steps.items():
            self._table(token).storage.advance(*counts)
        self._checkpoints.begin(number, checkpoint, files)
        return self.ledger.to_json()

    @once()
    def push(self, number: int) -> PushedPart:
        """Complete a checkpoint, and send it to the URL: ShardCheckpoints.push."""
        assert self._checkpoints is not None
        return self._checkpoints.push(number)

    # The store as a whole.

    def check(self, deep: bool) -> None:
        """Raise Corruption if anything is damaged: Store.check."""
        self._store.check(deep=deep)

    def close(self) -> None:
        """Close the store without writing, and delete its files. Idempotent. Calls that are still running may fail."""
        self._closed = True
        self._ranking.end()
        self._scans.end_all()
        self._store.close(flush=False)
        self._delete()

    def _table(self, token: str) -> Table:
        if (table := self._opened.get(token)) is None:
            raise Closed(_DROPPED)
        return table
