"""A store, as users see it: one directory of many variables, with one memory budget.

The work is done by kvemb.engine. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy.typing as npt

from kvemb.catalog import VariableMap, get_or_make, lines_of, open_variable
from kvemb.checks.brief import there_are
from kvemb.defaults import DefaultStore
from kvemb.durability import paths
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.recovery import Recovery
from kvemb.engine.arguments import Arguments, GraphKeys
from kvemb.engine.dropping import drop
from kvemb.engine.engine import Engine
from kvemb.engine.refreshing import refresh
from kvemb.errors import Corruption
from kvemb.limits import Limits
from kvemb.many_tables import calls
from kvemb.memory.budget import Budget
from kvemb.options import format_bytes
from kvemb.replica import apply_delta
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.variable import Variable
from kvemb.variable_scope import get_in_scope

__all__ = ["GraphKeys", "Store"]
_Rows = dict[Variable | str, npt.NDArray[Any]]


class Store(DefaultStore[Engine]):
    """Embedding variables that live in one directory. Made by kvemb.open and kvemb.restore.

    As a context manager, it is the store that module-level functions use inside the `with` block; leaving the block
    flushes and closes it. path: its directory. recovery: the state recovered after a crash (a Recovery: created, rows),
    else None. budget: the memory budget.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.path: Path = engine.path
        self.follows: bool = engine.follows
        self.recovery: Recovery | None = engine.recovery
        self.limits: Limits = engine.limits
        self.budget: Budget = engine.budgets.host
        self.state: StoreState = engine.state

    @property
    def id(self) -> str:
        """The store's identity, 32 hexadecimal digits; its checkpoints and stores restored from them have the same."""
        return self._inside.current_manifest.store

    @property
    def point(self) -> int:
        """The number of the last durable point, in a reader of the point that it reads. Numbers increase."""
        return self._inside.current_manifest.point

    # Variables.

    @method_of(Arguments)
    def get_variable(self, arguments: Arguments) -> Variable:
        """Return the variable of this name: the open one, the stored one, or a new one.

        name: printable; slashes may divide it, as in "towers/users".
        key_dtype: int64, int32 or uint64.
        value_dtype: float32, float64, float16, bfloat16, int8, int32 or int64.
        dim: values in a row, from 1 to 1,048,576. Left out: as stored; a new variable gets 1, and a warning is logged.
        devices: names such as "cpu" or "gpu:0", one or a list, with one hot table each; None: the CPU.
        partitioner: fn(keys, n), which gives each key its hot table, from 0 to n - 1.
        shared_name: accepted and unused, as in the reference.
        initializer: the row of a missing key: None (zeros), a number, `dim` values, or an Initializer. A seed that is
        not given is derived from the variable's name.
        trainable: whether apply_gradients is allowed; such variables join the collection TRAINABLE_VARIABLES.
        checkpoint: whether checkpoints include the variable. If it becomes False, deltas and replicas drop it.
        init_size: rows that the hot tier has room for at first; 0: a default. Later the hot tiers of a store share its
        budget.
        kv_creator: where cold rows live: a RocksDBCreator, the default, or a MemoryCreator.
        restrict_policy: how rows are scored, a RestrictPolicy or its class; None: uses are counted, and restrict
        removes nothing. A user-defined policy must be given at each opening. Without it (also through `variables`) the
        stored policy is kept, but uses are not recorded, scores do not change, and restrict raises ValueError.
        bp_v2: writers use accum, which adds, instead of upsert.
        optimizer: the optimizer of apply_gradients, one of kvemb.optimizers.
        hot_rows: cells of the hot tier, all reserved at once, so at least init_size; None: a share of the store's
        budget, into which the tier grows as needed.
        admission: an Admission, which decides which missing keys get a row in apply_gradients; None: all. Its
        counters are stored, the Admission itself is not: give it at each opening.
        regularizer: fn(variable), called once when the variable is made or opened; what it returns, unless None, joins
        the collection REGULARIZATION_LOSSES.
        constraint: fn(values), which projects the rows (n, dim) that an optimizer has just changed, and returns them.
        Each result must depend on its own row only, because rows come in any combination. Called under the variable's
        lock. If it raises, the step is undone.
        collections: names of the collections that the variable joins; None: GLOBAL_VARIABLES.
        custom_getter: fn(getter, name, **arguments), called instead; see variable_scope.
        caching_device: must be None.
        validate_shape: must be True.
        use_resource: must be None or True.
        synchronization: must be None or AUTO.
        aggregation: must be None or NONE.

        Inside a variable_scope the name gets its prefix, and arguments that are left out are those of the scope.
        If the variable exists, dim, dtypes, initializer, optimizer class and restrict_policy must be as stored,
        unless they are left out. The optimizer's other settings may differ; the new ones are used from now on.
        trainable, checkpoint, bp_v2 and kv_creator may differ when the variable is opened; if left out, they are as
        stored. A kv_creator that differs is used from the next opening of the store. Once the variable is open, every
        argument but the optimizer must be as the variable has it, or left out.
        Raises SchemaMismatch (a ValueError) naming the field; ValueError, TypeError for an argument; ValueError for one
        that an open variable does not have, such as other hot_rows or devices; Closed; BackendUnavailable if a device
        or what it needs is missing; for a new variable ReadOnly, Poisoned; Poisoned also if memory for a stored
        variable would have to be taken from other variables.
        """
        self.state.check_here()
        with self._inside.lock:
            self.state.check_open()
            return cast(Variable, get_in_scope(arguments, self._inside, partial(get_or_make, self)))

    def drop_variable(self, name: str) -> None:
        """Drop a variable with all its rows, durably; its memory and its disk space are freed.

        Every later use of the Variable raises Closed. Deltas record the drop (Checkpoint.changes, Store.apply_delta);
        earlier checkpoints keep the variable. Waits for a checkpoint in progress. After a crash the variable is either
        unchanged or gone. Raises KeyError; Poisoned if the disk refuses; Closed, ReadOnly.
        """
        self.state.check_here()
        with self._inside.lock:
            self.state.check_writable()
            if name not in (names := self._inside.names()):
                raise KeyError(f"there is no variable {name!r}; {there_are(names)}")
            drop(self._inside, [name])

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The store's variables by name. Getting one that is not open yet opens it. Raises Closed."""
        return VariableMap(self._inside.names, lambda name: open_variable(self, name))

    def get_collection(self, name: str) -> list[Any]:
        """Return a list of what was added to a collection, by its GraphKeys name, in the order of addition."""
        return list(self._inside.collections.get(name, []))

    # Calls on several variables.

    def lookup(
        self, keys: Mapping[Variable | str, npt.ArrayLike], *, touch: bool = True, out: _Rows | None = None
    ) -> _Rows:
        """Look up keys of several variables in one call: Variable.lookup of each, at a lower cost.

        keys: a dict from a variable or its name to keys of any shape. out: a dict from some of these variables to
        arrays, as for Variable.lookup. Returns a dict, in the order of keys, to rows, keys.shape + (dim,): new arrays,
        or those of out. A large call finds hot rows on all cores, and its cold reads of different variables overlap.
        All arguments are checked first. The call is atomic per key, not across variables; but a follower's refresh()
        happens before or after the whole call. Raises what Variable.lookup raises, with the variable's name in the
        message of a TypeError or ValueError, and in a note of other errors; KeyError for an unknown name; ValueError
        for a variable that is given twice or is of another store.
        """
        return calls.lookup(self, keys, touch=bool(touch), out=out)

    def apply_gradients(self, grads: Mapping[Variable | str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Take one optimizer step on several variables in one call: Variable.apply_gradients of each.

        grads: a dict from a variable or its name to (keys, grads), as for Variable.apply_gradients. Raises what lookup
        raises, and ReadOnly, Poisoned.
        All arguments are checked before any row changes. After that, each variable's step is as atomic as a separate
        call. If one fails, the others are still taken, and the first error is raised with the name of its variable.
        With durability="write" all steps wait for one sync of the log.
        """
        calls.apply_gradients(self, grads)

    def prefetch(self, keys: Mapping[Variable | str, npt.ArrayLike], *, after_lookup: bool = False) -> None:
        """Start reading the cold rows of several variables, for the call that follows. Changes no result.

        keys, and errors raised: see lookup. after_lookup: see Variable.prefetch.
        """
        calls.prefetch(self, keys, bool(after_lookup))

    # Durability.

    def flush(self) -> None:
        """Write every dirty row and make a durable point, which is the state after a later crash.

        The point holds the state at this call; other threads continue meanwhile. If nothing changed since the last
        point, that one stays, with the files and values that were saved in it. Raises Poisoned if a write fails; the
        error of an earlier checkpoint with block=False that failed; Closed, ReadOnly.
        """
        self._inside.flush()

    @overload
    def checkpoint(
        self, path: str | os.PathLike[str], *, block: Literal[True] = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint: ...
    @overload
    def checkpoint(
        self, path: str | os.PathLike[str], *, block: Literal[False], files: Files = None, extra: Extra = None
    ) -> PendingCheckpoint[Checkpoint]: ...
    @overload
    def checkpoint(
        self, path: str | os.PathLike[str], *, block: bool, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]: ...

    def checkpoint(
        self, path: str | os.PathLike[str], *, block: bool = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]:
        """Write a checkpoint of every variable (except those with checkpoint=False) to a new directory.

        The checkpoint holds the state at this call, is complete or absent, and is independent of the store. Only rows
        that changed since the previous checkpoint are written; unchanged files are hard links. It is also a durable
        point of the store. Returns the Checkpoint. With block=False returns a PendingCheckpoint at once, and rows may
        change while it is written; result() waits for it. If it fails, result() or the next flush(), checkpoint() or
        close() raises the error. One checkpoint is written at a time: a second call waits for the first.

        files: a dict of other files that belong to this state, such as dense parameters: from a name, without folders,
        to bytes, a path to copy from, or a function that writes to a binary file. The function is called before this
        call returns, with the store's lock held, so it must not checkpoint the store or wait for a thread that uses it.
        extra: a dict of JSON values. Read them as Checkpoint.files and Checkpoint.extra. The durable point made here
        has them too; the next one does not.

        Raises FileExistsError; ValueError for a path inside the store; TypeError, ValueError for files and extra, and
        what a function of files raises; ColdStoreError, Poisoned, Closed, ReadOnly.
        """
        target, attached = paths.local(path).absolute(), Attachments(files, extra)
        pending = PendingCheckpoint(self._inside.start(target, attached=attached))
        return pending.result() if block else pending

    def apply_delta(self, checkpoint: str | os.PathLike[str]) -> None:
        """Bring this store to a later checkpoint of the store it follows, at the cost of what changed there.

        checkpoint: one that follows a checkpoint that this store was restored from, made, or was brought to. Rows that
        changed there are copied, and new variables are created. Variables that were dropped there, or are no longer in
        checkpoints (checkpoint=False), are dropped here, even if rows of theirs changed here. All other rows that
        changed only here are kept. Sightings of an Admission become those of the checkpoint. Variables that this store
        was restored without are not added. A checkpoint that this store already includes changes nothing. The result is
        durable when this returns; to complete an interrupted call, call again.

        Raises CheckpointNotFound, also if it does not follow, such as after the store that made it went back to a
        checkpoint earlier than the one that this store was restored from or brought to: restore it then. Raises
        SchemaMismatch; Corruption, ColdStoreError, Poisoned, Closed, ReadOnly.
        """
        apply_delta(self, Checkpoint(checkpoint))

    def refresh(self) -> bool:
        """Move to the last durable point of the store that this one follows; return whether it is a newer one.

        All variables move at once, and a lookup in progress starts again. Hot rows stay hot, and those that changed are
        read again; if the point does not record what changed, or the store was restored from a checkpoint since, the
        hot tier is emptied. A scan in progress raises Closed, and so does every use of a variable that was dropped
        there, even if a new variable has its name. Without a newer point it costs microseconds. Raises ValueError
        unless opened with follow=True; StoreNotFound, for example while CheckpointManager.resume replaces the store,
        Corruption, ColdStoreError, Closed; then the reader stays at its point, and may call again.
        """
        return refresh(self._inside)

    def close(self, *, flush: bool = True) -> None:
        """Flush, and release the directory. A poisoned or read-only store is only released. Idempotent.

        A function of atexit may call it, if it was registered after kvemb was imported.
        flush=False: release any store without a flush. Without one, changes since the last durable point that are in no
        log are lost; for a poisoned store a warning says so.
        """
        self._inside.close(flush=flush)

    def check(self, *, deep: bool = False) -> None:
        """Raise Corruption if the last durable point or an open variable is damaged, with a line for each finding.

        deep: also read every file of the durable point. The hot tier of open variables is always compared with the cold
        tier, row by row; in a read-only store only the durable point is checked. Raises Closed, Poisoned,
        ColdStoreError.
        """
        if found := self._inside.findings(deep=deep):
            raise Corruption("\n".join(found))

    @property
    def stats(self) -> Stats:
        """The sums of the counts of all open variables; after close(), the sums at that time."""
        total = Stats()
        for table in list(self._inside.tables.values()):
            total += table.stats()
        return total

    def __repr__(self) -> str:
        state = "following" if self.follows else "read-only" if self.state.read_only else "open"
        state = "closed" if self.state.gone else "poisoned" if self.state.cause is not None else state
        first = f"<kvemb.Store {self.path} {state}, budget {format_bytes(self.budget.total)}>"
        return "\n".join([first, *([] if self.state.gone else lines_of(self._inside))])
