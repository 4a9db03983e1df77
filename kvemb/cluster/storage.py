"""All rows of a cluster's variable: their number, scans in key order, and statistics. Thread-safe."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NoReturn

from kvemb.cluster.cluster import Cluster
from kvemb.cluster.messages import Columns
from kvemb.cluster.session import Session
from kvemb.engine.table import Table
from kvemb.errors import Closed
from kvemb.offline.merging import merged
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import LAST_KEY
from kvemb.stats import Stats


class ClusterStorage:
    """The rows of one variable. state: of the cluster. table: the variable's table, set once it is made."""

    table: Table

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.state = cluster, cluster.state
        self._last_stats: list[Stats] | None = None

    @property
    def size(self) -> int:
        """The number of rows on all shards."""
        session = self._cluster.begin_call()
        return sum(session.calls.all("size", session.client_variable(self.table).token))

    @property
    def step(self) -> int:
        """The number of calls that ever recorded uses."""
        return self._cluster.session.client_variable(self.table).clock.steps.uses

    @property
    def optimizer_steps(self) -> int:
        """The number of steps that an optimizer that counts them ever took."""
        return self._cluster.session.client_variable(self.table).clock.steps.training

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Return rows in key order, batch_rows at a time, as they are now. first, last: ordered keys, both included."""
        schema, session, scan = self.table.schema, self._cluster.begin_call(), uuid.uuid4().hex
        streams = [_Stream(self._cluster, session, shard, scan) for shard in range(self._cluster.router.shards)]
        session.exchange()  # a client that missed a recovery gets ShardLost here, not an unknown variable
        session.ask("begin_scan", scan, session.client_variable(self.table).token, batch_rows, first, last)
        blocks = [(RowBlock.of(schema, *columns) for columns in stream) for stream in streams]
        return _in_batches(merged([iter(each) for each in blocks], schema, batch_rows), batch_rows, schema)

    def stats_by_shard(self) -> list[Stats]:
        """Return the counts of each shard; of a closed cluster, at its close."""
        if self._last_stats is not None:
            return self._last_stats
        session = self._cluster.begin_call()
        return [stats for (stats,) in session.calls.all("stats", [session.client_variable(self.table).token])]

    def stats(self) -> Stats:
        """Return the sum of all shards' counts."""
        return sum(self.stats_by_shard(), Stats())

    def keep_stats(self) -> None:
        """Keep the counts, which cannot be read after the cluster is closed; none if another client dropped it."""
        try:
            self._last_stats = self.stats_by_shard()
        except Closed:
            self._last_stats = [Stats()] * self._cluster.router.shards

    def __getattr__(self, name: str) -> NoReturn:
        # Functions that bypass the tiers, such as kvemb.bulk.load, need a single store.
        raise AttributeError(f"a variable of a cluster has no {name}: its rows are in the stores of its shards")


class _Stream:
    """The rows of one shard in key order, read one batch ahead. Ends the shard's scan when it is deleted."""

    def __init__(self, cluster: Cluster, session: Session, shard: int, scan: str) -> None:
        self._cluster, self._session, self._shard, self._scan = cluster, session, shard, scan
        self._number = 0

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Columns:
        self._cluster.state.check_open()
        arguments: dict[int, tuple[Any, ...]] = {self._shard: (self._scan, self._number)}
        columns: Columns | None = self._session.calls.each("next_batch", arguments)[self._shard]
        self._number += 1
        if columns is None:
            raise StopIteration
        return columns

    def __del__(self) -> None:
        self._session.end_scan(self._shard, self._scan)


def _in_batches(blocks: Iterator[RowBlock], rows: int, schema: Any) -> Iterator[RowBlock]:
    """Yield the same rows in batches of `rows`."""
    waiting: list[RowBlock] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += len(block)
        if count >= rows:
            joined = RowBlock.joined(waiting, schema)
            whole = count - count % rows
            yield from (joined.part(at, at + rows) for at in range(0, whole, rows))
            waiting, count = [joined.part(whole, count)], count - whole
    if count:
        yield RowBlock.joined(waiting, schema)
