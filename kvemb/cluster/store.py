"""A cluster, as users see it: variables whose rows are spread over shards. Thread-safe.

Every call on a cluster is defined here, with its docstring. What an argument that kvemb.Store
has, too, means is said there once; described_as completes the docstrings here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Literal, NoReturn, cast, overload

import numpy.typing as npt

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_SERIES
from kvemb.cluster.catalog import OpenVariables, counts_of, get_or_make, lines_of, storage_of
from kvemb.cluster.cluster import Cluster, LookupPart, StepPart
from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint, Dropped
from kvemb.cluster.variable import Variable
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.engine.arguments import Arguments
from kvemb.engine.engine import Engine
from kvemb.errors import Closed, ShardLost
from kvemb.handle import inside
from kvemb.many_tables import table_parts
from kvemb.many_tables.methods import ManyTables
from kvemb.options import format_count
from kvemb.shared_docs import described_as
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.store import Store as OneStore
from kvemb.store_state import StoreState
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable as OneStoresVariable
from kvemb.variable_scope import get_in_scope

_logger = logging.getLogger("kvemb")


class Store(ManyTables[Cluster]):
    """Hold embedding variables whose rows are spread over shards.

    You get one from ``kvemb.cluster.open`` or ``kvemb.cluster.connect``. The methods that ``kvemb.Store`` has, too,
    give the same results, bit for bit. Only ``checkpoint`` has other arguments. There is no ``apply_delta`` and no
    ``refresh``, and the store cannot be pickled. Inside its ``with`` block it is the default store of functions such as
    ``kvemb.get_variable``. Leaving the block closes it. Thread-safe.

    ``apply_gradients`` of the cluster and of its variables returns when all shards have accepted the step, and you may
    change the arrays. The shards take the step while you prepare the next batch. Every later call of any client sees
    it, and every later checkpoint has it. If a step fails on a shard, for example because a constraint of yours raised
    an error, the next ``lookup``, ``apply_gradients``, ``synchronize``, ``checkpoint``, ``flush`` or ``close`` of this
    client raises the error, with a note that says which step it was. The calls before it have then been executed, this
    one, too.

    Any other call that fails on one shard may have been executed on others. When a shard is lost, every call raises
    ``ShardLost`` until ``recover``. Once this client is closed, calls raise ``Closed``. Only checkpoints outlive the
    cluster.

    Attributes:
        path: The cluster's url, or a name if it has none.
        state: Whether it is open or closed.
    """

    def __init__(self, cluster: Cluster, *, series: bool, owner: bool) -> None:
        """Wrap a client. series: whether the cluster has a url. owner: whether closing this store ends the cluster."""
        super().__init__(cluster)
        self._series, self._owner = series, owner
        self.state: StoreState = cluster.state
        self.path: str = cluster.path

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._inside.router.shards

    @property
    def last_checkpoint(self) -> int | None:
        """The number of the newest checkpoint that this cluster wrote or was opened with; None: none.

        ``recover`` returns to it.
        """
        last: int | None = self._inside.begin_call().ask("last")
        return last

    @property
    def id(self) -> str:
        """The identity that a state_dict of kvemb.torch saves: the cluster's path."""
        return self.path

    @property
    def point(self) -> int:
        """The number of the last checkpoint, which a state_dict of kvemb.torch saves; 0: none."""
        return self.last_checkpoint or 0

    # Its variables.

    @described_as(OneStore.get_variable)
    @method_of(Arguments)
    def get_variable(self, arguments: Arguments) -> Variable:
        """Return the variable of this name: the open one, the stored one, or a new one.

        It works as ``kvemb.Store.get_variable``, whose docstring says what the arguments mean, and which of them must
        be as stored. These differ in a cluster:

        - ``hot_rows``, ``init_size`` and the memory of an ``Admission`` are for each shard.
        - Functions and policies of your own are called on the shards, and cannot call the cluster. Later changes of a
          policy's attributes have no effect there.

        Returns:
            The variable. Calls with the same name return the same object.

        Raises:
            SchemaMismatch: The stored variable has another dim, dtype, initializer, policy or optimizer class.
            ValueError: An argument is not valid, or the variable is already open with another one, here or in another
                client.
            TypeError: An argument has the wrong type.
            BackendUnavailable: A shard lacks a device, or a package that it needs.
        """
        self.state.check_open()
        with self._inside.lock:
            return cast(Variable, get_in_scope(arguments, cast(Engine, self._inside), partial(get_or_make, self)))

    @described_as(OneStore.drop_variable)
    def drop_variable(self, name: str) -> None:
        """Drop a variable with all its rows.

        Every later use of the ``Variable`` raises Closed. Earlier checkpoints keep the variable.

        Raises:
            KeyError: The cluster has no variable of this name.
        """
        self.state.check_open()
        with self._inside.lock:
            table = inside(self.variables[name])  # raises KeyError
            storage_of(table).keep_stats()
            self._inside.session.ask_once("drop_variable", name)
            self._inside.forget(table)

    @property
    def variables(self) -> Mapping[str, OneStoresVariable]:
        """The cluster's variables by name. Getting one that is not open yet opens it as it is stored.

        Raises:
            KeyError: There is no variable of this name.
        """
        return OpenVariables(self)

    @described_as(OneStore.get_collection)
    def get_collection(self, name: str) -> list[Any]:
        """List what this client added to a collection.

        Returns:
            A new list, in the order of addition; empty for an unknown name.
        """
        return list(self._inside.collections.get(name, []))

    # Many of its variables at once.

    def _lookup(self, wanted: Mapping[Any, npt.ArrayLike], *, touch: bool, out: Any = None) -> dict[Any, Any]:
        parts = table_parts.parts_to_read(self, wanted, out)
        reads = [LookupPart(part.table, part.keys, part.values, None, part.counts) for part in parts.values()]
        self._inside.lookup(reads, touch=touch)
        return table_parts.rows_of(parts, out)

    def _apply_gradients(self, wanted: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        parts = list(table_parts.checked_parts(self, wanted, table_parts.part_to_train).values())
        failures = self._inside.train([StepPart(part.table, part.keys, part.values) for part in parts])
        for part, failure in zip(parts, failures, strict=True):
            if failure is not None:
                table_parts.raise_named(part.table.name, failure)

    def _prefetch(self, wanted: Mapping[Any, npt.ArrayLike], after_lookup: bool) -> None:
        for part in table_parts.checked_parts(self, wanted, table_parts.part_to_prefetch).values():
            part.table.operations.prefetch(part.keys, after_lookup)

    def synchronize(self) -> None:
        """Wait until the shards have taken all steps of this client.

        Raises:
            Exception: What a step of this client raised, if no call has raised it yet.
        """
        self._inside.synchronize()

    @described_as(OneStore.lookup)
    def lookup_async(
        self, keys: Mapping[OneStoresVariable | str, npt.ArrayLike], *, touch: bool = True
    ) -> Future[dict[OneStoresVariable | str, npt.NDArray[Any]]]:
        """Start a lookup on another thread. Calls that run at the same time are executed in any order.

        At most eight of a client's asynchronous calls run at a time; further ones wait. Do not change the keys until
        the future is done.

        Returns:
            A future. Its ``result()`` returns what ``lookup`` returns, or raises what it raises.

        Raises:
            Closed: This client is closed.

        Example:
            >>> import kvemb.cluster
            >>> with kvemb.cluster.open(shards=2, transport="local") as cluster:
            ...     items = cluster.get_variable("items", dim=8)
            ...     rows = cluster.lookup_async({"items": [1, 2, 3]})
            ...     rows.result()["items"].shape
            (3, 8)
        """
        return self._inside.start(lambda: self.lookup(keys, touch=touch))

    # The store as a whole.

    @described_as(OneStore.check)
    def check(self, *, deep: bool = False) -> None:
        """Check all shards, as ``kvemb.Store.check`` does.

        Raises:
            Corruption: Something is damaged. The message has the findings of the first shard that has any.
            ColdStoreError: A disk could not be read.
            Poisoned: An earlier write to a shard's disk failed.
        """
        self._inside.begin_call().calls.all("check", bool(deep))

    @overload
    def checkpoint(
        self, *, keep: int | None = None, block: Literal[True] = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint: ...
    @overload
    def checkpoint(
        self, *, keep: int | None = None, block: Literal[False], files: Files = None, extra: Extra = None
    ) -> PendingCheckpoint[Checkpoint]: ...
    @overload
    def checkpoint(
        self, *, keep: int | None = None, block: bool, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]: ...

    def checkpoint(
        self, *, keep: int | None = None, block: bool = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]:
        """Write the next checkpoint of the series at the cluster's url.

        The checkpoint contains every call on all shards or on none. Calls wait while the shards take their snapshots.
        Then each shard sends what changed since its last checkpoint, while later calls run. The checkpoint exists once
        all shards have sent theirs. Only one is written at a time: a second call, of any client, waits for the first.
        Variables with ``checkpoint=False``, and those in memory alone, are left out.

        Read the values of ``extra`` with ``kvemb.cluster.latest``, and copy the files with
        ``kvemb.cluster.pull_files``.

        Args:
            keep: How many of the newest checkpoints are kept at the url. None: all.
            block: Whether to wait until the checkpoint is complete. With False the call returns once the snapshots are
                taken, and ``result()`` of the returned object waits for the rest. If it fails, ``result()`` or this
                client's next ``flush()``, ``checkpoint()`` or ``close()`` raises the error.
            files: Other files that belong to this state, such as dense parameters: a dict from a name, without folders,
                to bytes, a path to copy from, or a function that writes to a binary file. The function is called in
                this process, before the snapshots.
            extra: A dict of JSON values.

        Returns:
            The ``Checkpoint``; with ``block=False`` a ``kvemb.PendingCheckpoint``.

        Raises:
            ValueError: The cluster has no url; or ``keep``, the names of ``files``, or ``extra`` are not valid.
            TypeError: ``keep``, ``files`` or ``extra`` has the wrong type.
            TransferError: The url could not be written to. The next checkpoint tries again.
            ColdStoreError: A shard's files could not be written.
            Poisoned: A write of a shard's own files failed, in this call or earlier.

        Example:
            >>> import kvemb.cluster
            >>> with kvemb.cluster.open("series", shards=2, transport="local") as cluster:
            ...     items = cluster.get_variable("items", dim=8)
            ...     items.upsert([1, 2], np.ones((2, 8), np.float32))
            ...     saved = cluster.checkpoint(extra={"epoch": 1})
            >>> saved.number, saved.variables["items"].rows, saved.extra
            (1, 2, {'epoch': 1})
        """
        if not self._series:
            raise ValueError("the cluster was opened without a url, so it has no checkpoints; open it with one")
        kept = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES)
        pending = self._inside.checkpoint(kept, Attachments(files, extra))
        return pending.result() if block else pending

    def flush(self) -> None:
        """Write a checkpoint, without files. The next process that opens the cluster starts there.

        Raises:
            ValueError: The cluster has no url.
            TransferError: The url could not be written to.
            ColdStoreError: A shard's files could not be written.
            Poisoned: A write of a shard's own files failed, in this call or earlier.
        """
        self.checkpoint()

    def recover(self) -> Recovery:
        """After ShardLost, take the cluster back to its last checkpoint, with new shards.

        Changes of all clients after that checkpoint are lost. A checkpoint that is being written is completed first, or
        fails.

        - Every client must call this before its next call. The first call does the work, and the others wait for it.
        - Running calls of this client's other threads raise ShardLost. These threads must call this, too.
        - Variables stay valid. A variable that the checkpoint lacks is empty again. A variable that was dropped since
          exists again. If another was made under its name with another schema, that one raises Closed.

        Returns:
            The checkpoint to which the cluster went back, and what was lost.

        Raises:
            ValueError: The cluster has no url.
            ShardLost: The process that opened the cluster has ended.
            KvembError: What ``kvemb.cluster.open`` raises. You may call this again.
        """
        if not self._series:
            raise ValueError("the cluster was opened without a url, so it has no checkpoint to return to; open another")
        return self._inside.recover()

    def close(self, *, flush: bool = True, checkpoint: bool = False) -> None:
        """End this client. If it opened the cluster, write a last checkpoint and end the cluster.

        The client that opened the cluster closes every shard, and deletes the shards' files in ``scratch``; Ctrl-C
        waits for that. No call changes rows after the last checkpoint: calls of other threads and clients that have not
        begun by then wait, and raise ShardLost when the shards are closed. Calling it again does nothing.

        No checkpoint is written without a url, when a shard is lost, or if nothing has changed since the newest one. If
        the last checkpoint has files or extra, no newer one is written, which would lack them. Later changes are then
        lost, and a warning says how many steps.

        If the last checkpoint cannot be written, its error is raised, the cluster stays open, and the calls that wait
        are executed. If an earlier checkpoint with ``block=False`` failed and nobody got its error, that error is
        raised after the cluster is closed.

        Args:
            flush: With False, no checkpoint is written.
            checkpoint: Whether to write a last checkpoint also after one with files or extra. It has the rows alone.

        Raises:
            ValueError: ``checkpoint=True`` with ``flush=False``, without a url, or for a client that ``connect``
                returned.
            ShardLost: A shard is lost, and ``checkpoint=True``.
            TransferError: The url could not be written to.
            ColdStoreError: A shard's files could not be written.
            Poisoned: A write of a shard's own files failed.
        """
        if self.state.gone:
            return
        self.state.check_here()
        if checkpoint:
            self._check_last_checkpoint(flush)
        with ExitStack() as last:
            last.callback(self._close, flush, bool(checkpoint))
            self._inside.finish()

    def _check_last_checkpoint(self, flush: bool) -> None:
        """Raise unless close(checkpoint=True) can write one."""
        if not flush:
            raise ValueError("checkpoint=True does not go with flush=False, which writes no checkpoint; leave one out")
        if not self._series:
            raise ValueError("the cluster was opened without a url, so it has no checkpoints; leave checkpoint out")
        if not self._owner:
            raise ValueError("only the client that opened the cluster writes one at its end; call checkpoint() before")
        self._inside.session.calls.check()

    def _close(self, flush: bool, anyway: bool) -> None:
        with uninterrupted():  # between the last cut and the end, other threads' calls wait
            if self._owner and flush and self._series and self._inside.session.calls.lost is None:
                session = self._inside.begin_call()
                with suppress(Closed):  # another thread has made the last cut
                    dropped: Dropped | None = session.ask("finish", session.own(), anyway)
                    if dropped is not None:
                        self._warn(dropped)
            with suppress(ShardLost, Closed):
                for table in self._inside.tables.values():
                    storage_of(table).keep_stats()
            self._inside.end(owner=self._owner)

    def _warn(self, dropped: Dropped) -> None:
        _logger.warning(
            "the cluster %s is closed without a new checkpoint, because checkpoint %d has files or extra, which a "
            "newer one would lack; lost since then: %s; end with checkpoint(files=...), or with close(checkpoint=True)",
            self.path,
            dropped.number,
            format_count(dropped.steps, "step") if dropped.steps else "changes",
        )

    @property
    def stats(self) -> Stats:
        """The sums of the counts of all open variables on all shards; after ``close()``, the sums at that time."""
        return sum((stats for by_shard in counts_of(self._inside) for stats in by_shard), Stats())

    @property
    def stats_by_shard(self) -> list[Stats]:
        """The sums of the counts of all open variables, one for each shard, in the order of shards."""
        each = zip(*counts_of(self._inside), strict=True)
        return [sum(of_shard, Stats()) for of_shard in each] or [Stats()] * self.shards

    def __reduce__(self) -> NoReturn:
        raise TypeError("a cluster cannot be pickled: its shards are in this process")

    def __repr__(self) -> str:
        state = "closed" if self.state.gone else "lost" if self._inside.session.calls.lost is not None else "open"
        first = f"<kvemb.cluster.Store {self.path} {state}, {self.shards} shards>"
        return "\n".join([first, *(lines_of(self._inside) if state == "open" else [])])
