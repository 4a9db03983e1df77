"""A cluster, as users see it: variables whose rows are spread over shards. Thread-safe."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Literal, NoReturn, cast, overload

import numpy.typing as npt

from kvemb.catalog import VariableMap, variable_of
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_SERIES
from kvemb.cluster.cluster import Cluster, LookupPart, StepPart
from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint
from kvemb.cluster.storage import ClusterStorage
from kvemb.cluster.variable import OpenVariables, Variable, arguments_of, counts_of, lines_of
from kvemb.defaults import DefaultStore
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.engine.agreement import agreed_optimizer, completed
from kvemb.engine.arguments import Arguments, GraphKeys
from kvemb.engine.engine import Engine
from kvemb.engine.specification import check_name, specify
from kvemb.engine.table import Table
from kvemb.errors import Closed, ShardLost
from kvemb.handle import inside
from kvemb.many_tables import arguments as call_arguments
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable as OneStoresVariable
from kvemb.variable_scope import get_in_scope


class Store(DefaultStore[Cluster]):
    """Embedding variables whose rows are spread over shards. Made by kvemb.cluster.open, and connect.

    Its methods are those of kvemb.Store, with the same results. A context manager: inside `with`, module-level
    functions use it; leaving the block closes it. A call that fails on one shard, for example because a user's
    constraint raised, may have been executed on others. When a shard is lost, every call raises ShardLost until
    recover(). Only checkpoints outlive the cluster. checkpoint() has other arguments; there is no apply_delta and no
    refresh, and the store cannot be pickled.
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
        """The number of the last checkpoint, opened with or written, to which recover() returns; None: none."""
        last: int | None = self._inside.begin_call().ask("last")
        return last

    @property
    def id(self) -> str:
        """The store's identity in a state_dict of kvemb.torch: the cluster's path."""
        return self.path

    @property
    def point(self) -> int:
        """The number of the last checkpoint, 0 if there is none."""
        return self.last_checkpoint or 0

    # Its variables.

    @method_of(Arguments)
    def get_variable(self, arguments: Arguments) -> Variable:
        """Return the variable of this name: the open one, the stored one, or a new one: kvemb.Store.get_variable.

        hot_rows, init_size and the memory of an Admission are each shard's. Functions and user-defined policies are
        called on the shards, and cannot call the cluster; later changes of a policy's attributes have no effect there.
        """
        self.state.check_open()
        with self._inside.lock:
            return cast(Variable, get_in_scope(arguments, cast(Engine, self._inside), self._got))

    def _got(self, arguments: Arguments) -> Variable:
        session = self._inside.begin_call()
        token, entry, mine = session.ask("described", check_name(arguments.name))
        known = self._inside.tables.get(arguments.name)
        if known is not None and session.is_opened(known, token):
            if (optimizer := agreed_optimizer(known, arguments)) is not None:
                known.set_optimizer(optimizer, writable=False)
            return cast(Variable, variable_of(known))
        if known is not None:  # another client has dropped it
            _storage(known).keep_stats()
            self._inside.forget(known)
        specification = specify(completed(arguments, mine), entry)
        variable = Variable(self, specification)
        self._inside.add(
            inside(variable), session.ask_once("open_variable", arguments.name, arguments_of(specification))
        )
        for collection in specification.collections:
            self._inside.collect(collection, variable)
        if arguments.regularizer is not None and (loss := arguments.regularizer(variable)) is not None:
            self._inside.collect(GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    def drop_variable(self, name: str) -> None:
        """Drop a variable with all its rows; the Variable raises Closed from then on. Raises KeyError; Closed."""
        self.state.check_open()
        with self._inside.lock:
            table = inside(self.variables[name])  # raises KeyError
            _storage(table).keep_stats()
            self._inside.session.ask_once("drop_variable", name)
            self._inside.forget(table)

    @property
    def variables(self) -> Mapping[str, OneStoresVariable]:
        """The variables by name. Getting one that is not open yet opens it. Raises Closed."""
        return VariableMap(self._inside.names, self._opened)

    @property
    def _by_name(self) -> OpenVariables:
        return OpenVariables(self._inside, self._opened)

    def _opened(self, name: str) -> OneStoresVariable:
        self.state.check_here()
        with self._inside.lock:
            if (known := self._inside.tables.get(name)) is not None and self._inside.session.has(known):
                return variable_of(known)
            if self._inside.begin_call().ask("described", name)[1] is None:
                raise KeyError(f"there is no variable {name!r}: it was dropped")
            return self._got(Arguments(name))

    def get_collection(self, name: str) -> list[Any]:
        """Return what was added under a GraphKeys name, in order, a copy."""
        return list(self._inside.collections.get(name, []))

    # Many of its variables at once.

    def lookup(
        self,
        keys: Mapping[OneStoresVariable | str, npt.ArrayLike],
        *,
        touch: bool = True,
        out: dict[OneStoresVariable | str, npt.NDArray[Any]] | None = None,
    ) -> dict[OneStoresVariable | str, npt.NDArray[Any]]:
        """Look up keys of several variables, with one call to each shard: kvemb.Store.lookup."""
        parts = call_arguments.parts_to_read(self, keys, out, self._by_name)
        wanted = [LookupPart(part.table, part.keys, part.values, None) for part in parts.values()]
        self._inside.lookup(wanted, touch=bool(touch))
        return call_arguments.rows_of(parts, out)

    def apply_gradients(self, grads: Mapping[OneStoresVariable | str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Take one optimizer step on several variables, with one call to each shard: kvemb.Store.apply_gradients."""
        parts = list(call_arguments.checked_parts(self, grads, call_arguments.part_to_train, self._by_name).values())
        failures = self._inside.train([StepPart(part.table, part.keys, part.values) for part in parts])
        for part, failure in zip(parts, failures, strict=True):
            if failure is not None:
                call_arguments.raise_named(part.table.name, failure)

    def prefetch(self, keys: Mapping[OneStoresVariable | str, npt.ArrayLike], *, after_lookup: bool = False) -> None:
        """Start reading the cold rows of several variables for the next call. Changes no result.

        after_lookup: see Variable.prefetch.
        """
        for part in call_arguments.checked_parts(self, keys, call_arguments.part_to_prefetch, self._by_name).values():
            part.table.operations.prefetch(part.keys, bool(after_lookup))

    def lookup_async(
        self, keys: Mapping[OneStoresVariable | str, npt.ArrayLike], *, touch: bool = True
    ) -> Future[dict[OneStoresVariable | str, npt.NDArray[Any]]]:
        """Start a lookup, and return a future of its result. keys must not change until it is done.

        Calls that run at the same time are executed in any order.
        """
        return self._inside.start(lambda: self.lookup(keys, touch=touch))

    def apply_gradients_async(
        self, grads: Mapping[OneStoresVariable | str, tuple[npt.ArrayLike, npt.ArrayLike]]
    ) -> Future[None]:
        """Start apply_gradients, and return a future, as lookup_async does."""
        return self._inside.start(lambda: self.apply_gradients(grads))

    # The store as a whole.

    def check(self, *, deep: bool = False) -> None:
        """Raise Corruption with the findings of the first shard that has any: kvemb.Store.check."""
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
        """Write the next checkpoint of the series at the cluster's url, and return it once it is complete.

        It contains every call on all shards or on none: calls wait while the shards take their snapshots. Then each
        shard sends what changed since its last checkpoint, while later calls run. The checkpoint exists once all shards
        have done so. With block=False returns a PendingCheckpoint once the snapshots are taken; result() waits for it.
        If it fails, result() or this client's next flush(), checkpoint() or close() raises the error. Only one
        checkpoint is written at a time: a second call, of any client, waits for the first.

        keep: how many of the newest checkpoints are kept at the url; None: all. files, extra: what to save beside the
        rows, such as dense parameters, as for kvemb.Store.checkpoint; a function that writes a file is called in this
        process, before the snapshots. kvemb.cluster.latest(url)[1].extra has the values, and kvemb.cluster.pull_files
        copies the files. Variables with checkpoint=False, and those in memory alone, are left out. Raises ValueError if
        the cluster was opened without a url; TypeError, ValueError for keep, files and extra, and what a function
        raises; TransferError, after which the next checkpoint tries again; ColdStoreError, Poisoned, ShardLost, Closed.
        """
        if not self._series:
            raise ValueError("the cluster was opened without a url, where its checkpoints would be; open it with one")
        kept = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES)
        pending = self._inside.checkpoint(kept, Attachments(files, extra))
        return pending.result() if block else pending

    def flush(self) -> None:
        """Write a checkpoint, without files; the next process that opens the cluster starts there. See checkpoint()."""
        self.checkpoint()

    def recover(self) -> Recovery:
        """After ShardLost, take the cluster back to its last checkpoint, with new shards; returns what was done.

        Changes of all clients after that checkpoint are lost. Every client must call this before its next call: the
        first one does the work, and the others wait for it. A checkpoint that is being written is completed first, or
        fails. Variables stay valid. A variable that the checkpoint lacks is empty again. A variable that was dropped
        since exists again; if another was made under its name with another schema, that one raises Closed. Running
        calls of this client's other threads raise ShardLost; these threads must call this, too. Raises ValueError
        without a url; what kvemb.cluster.open raises, after which it may be called again; ShardLost if the process that
        opened the cluster has ended; Closed.
        """
        if not self._series:
            raise ValueError("the cluster has no url, and no checkpoint to go back to; open another one")
        return self._inside.recover()

    def close(self, *, flush: bool = True) -> None:
        """End this client. If it opened the cluster, write a last checkpoint, close every shard, and delete the shards'
        files in scratch; Ctrl-C waits for that. No call changes rows after that checkpoint: calls of other threads and
        clients that have not begun by then wait, and raise ShardLost when the shards are closed. Idempotent.

        No checkpoint is written with flush=False, without a url, when a shard is lost, if nothing has changed since the
        newest one, or if the last one has files or extra, which a newer one would lack; later changes are then lost. If
        writing fails, its error is raised, the cluster stays open, and the calls that wait are executed. If an earlier
        checkpoint with block=False failed and nobody got its error, that error is raised after the cluster is closed.
        """
        if self.state.gone:
            return
        self.state.check_here()
        with ExitStack() as last:
            last.callback(self._close, flush)
            self._inside.finish()

    def _close(self, flush: bool) -> None:
        with uninterrupted():  # between the last cut and the end, other threads' calls wait
            if self._owner and flush and self._series and self._inside.session.calls.lost is None:
                session = self._inside.begin_call()
                with suppress(Closed):  # another thread has made the last cut
                    session.ask("finish", session.generation, session.client, session.own())
            with suppress(ShardLost, Closed):
                for table in self._inside.tables.values():
                    _storage(table).keep_stats()
            self._inside.end(owner=self._owner)

    @property
    def stats(self) -> Stats:
        """The sums of the counts of all existing variables on all shards; of a closed cluster, at its close."""
        return sum((stats for by_shard in counts_of(self._inside) for stats in by_shard), Stats())

    @property
    def stats_by_shard(self) -> list[Stats]:
        """The sums of the counts of all variables, one for each shard, in the order of shards."""
        each = zip(*counts_of(self._inside), strict=True)
        return [sum(of_shard, Stats()) for of_shard in each] or [Stats()] * self.shards

    def __reduce__(self) -> NoReturn:
        raise TypeError("a cluster cannot be pickled: its shards are in this process")

    def __repr__(self) -> str:
        state = "closed" if self.state.gone else "lost" if self._inside.session.calls.lost is not None else "open"
        first = f"<kvemb.cluster.Store {self.path} {state}, {self.shards} shards>"
        return "\n".join([first, *(lines_of(self._inside) if state == "open" else [])])


def _storage(table: Table) -> ClusterStorage:
    return cast(ClusterStorage, table.storage)
