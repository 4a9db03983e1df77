"""A store, as users see it: one directory of many variables, with one memory budget.

Every call on a store is defined here, with its docstring.

The work is done by kvemb.engine. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, overload

from kvemb.catalog import VariableMap, get_or_make, lines_of, open_variable
from kvemb.checks.brief import there_are
from kvemb.durability import paths
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.marks.mark import Mark
from kvemb.durability.recovery import Recovery
from kvemb.engine.arguments import Arguments, GraphKeys
from kvemb.engine.dropping import drop
from kvemb.engine.engine import Engine
from kvemb.engine.marking import drop_mark, mark, marks
from kvemb.engine.memory_use import memory_use
from kvemb.engine.recovering import recover
from kvemb.engine.refreshing import refresh
from kvemb.engine.rolling_back import rollback
from kvemb.errors import Corruption
from kvemb.limits import Limits
from kvemb.many_tables import calls
from kvemb.many_tables.methods import ManyTables
from kvemb.memory.budget import Budget
from kvemb.options import format_bytes
from kvemb.replica import apply_delta
from kvemb.shared_docs import described_as
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.variable import Variable
from kvemb.variable_scope import get_in_scope

__all__ = ["GraphKeys", "Store"]


class Store(ManyTables[Engine]):
    """Hold embedding variables in one directory, with one memory budget.

    You get one from ``kvemb.open`` or ``kvemb.restore``. Inside its ``with`` block it is the default store of functions
    such as ``kvemb.get_variable``. Leaving the block flushes and closes it, also by an exception.
    Thread-safe.

    Once it is closed, calls raise ``Closed``. Calls that write raise ``ReadOnly`` if it is read-only, and ``Poisoned``
    if a write to disk failed, in this call or earlier.

    Attributes:
        path: Its directory.
        follows: Whether it was opened with ``follow=True``.
        recovery: What was recovered when it was opened after a crash, with the fields ``created`` and ``rows``; None if
            it was closed properly.
        limits: How much one internal step processes at a time (``kvemb.limits.Limits``).
        budget: The memory budget.
        state: Whether it may be read and written: open, read-only, poisoned or closed.
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
        """The store's identity, 32 hexadecimal digits, which checkpoints and stores restored from them share."""
        return self._inside.current_manifest.store

    @property
    def point(self) -> int:
        """The number of the last durable point, or of the point that a read-only store reads. Numbers increase."""
        return self._inside.current_manifest.point

    # Variables.

    @method_of(Arguments)
    def get_variable(self, arguments: Arguments) -> Variable:
        """Return the variable of this name: the open one, the stored one, or a new one.

        Names, order and defaults of the arguments up to ``bp_v2`` are those of TensorFlow Recommenders-Addons'
        ``tfra.dynamic_embedding.get_variable``. The others are ``optimizer``, ``hot_rows``, ``admission``,
        ``max_rows``, ``ttl`` and ``name_bytes`` of kvemb, and the remaining arguments of TensorFlow 1's
        ``tf.get_variable``.

        Inside a ``variable_scope`` the name gets the scope's prefix, and arguments that you leave out are the scope's.

        If the variable exists, you can leave out everything but its name:

        - ``dim``, dtypes, ``name_bytes``, ``initializer``, and the classes of ``restrict_policy`` and the optimizer
          must be as stored. The optimizer's other settings may differ; the new ones are used from now on.
        - The ``ttl`` of a policy, or its ``half_life`` if it has one, may differ when the variable is opened.
        - ``trainable``, ``checkpoint``, ``bp_v2`` and ``kv_creator`` may differ when the variable is opened. A new
          ``kv_creator`` is used from the next opening of the store.
        - ``max_rows`` and ``ttl`` may differ at any time, in a store that is not read-only.
        - While the variable is open, each other argument except ``optimizer`` must be as the variable has it.

        Args:
            name: The variable's name, of printable characters. Slashes may divide it, as in ``"towers/users"``.
            key_dtype: ``int64``, ``int32``, ``uint64`` or ``"string"``. With strings, keys are given and returned as
                strings of any kind that ``kvemb.hash_strings`` takes; the page "String keys" says what it costs.
            value_dtype: ``float32``, ``float64``, ``float16``, ``bfloat16``, ``int8``, ``int32`` or ``int64``.
            dim: Values in a row, from 1 to 1,048,576. A new variable without it gets 1, and a warning is logged.
            devices: Where hot rows live: a device such as ``"cpu"`` or ``"gpu:0"``, or a list with one hot table on
                each. None: the CPU.
            partitioner: ``fn(keys, n)``, which returns the hot table of each key, from 0 to n - 1. The default is
                ``keys % n``.
            shared_name: Accepted and unused, as in the reference.
            initializer: The row of a missing key: a number, ``dim`` values, or an ``Initializer``. None: zeros. A seed
                that you leave out is derived from the variable's name.
            trainable: Whether ``apply_gradients`` is allowed. Trainable variables join the collection
                ``TRAINABLE_VARIABLES``.
            checkpoint: Whether checkpoints include the variable. If it becomes False, deltas and replicas drop the
                variable.
            init_size: Rows for which the hot tier has room at first; 0: a default. Later the hot tiers of all variables
                share the store's budget.
            kv_creator: Where cold rows live: a ``RocksDBCreator`` or a ``MemoryCreator``. None: RocksDB.
            restrict_policy: How rows are scored: a ``RestrictPolicy`` or its class. None: uses are counted, and
                ``restrict`` removes nothing. A policy of your own is not stored, so pass it at each opening. Without it
                (also through ``Store.variables``) the stored policy is kept, but uses are not recorded, scores do not
                change, and ``restrict`` raises ValueError.
            bp_v2: Whether writers use ``accum``, which adds, instead of ``upsert``.
            optimizer: The optimizer of ``apply_gradients``, one of ``kvemb.optimizers``.
            hot_rows: Cells of the hot tier, all reserved at once; at least ``init_size``. None: a share of the store's
                budget, into which the tier grows as needed.
            admission: An ``Admission``, which decides which missing keys get a row in ``apply_gradients``. None: all.
                Its counters are stored; the ``Admission`` itself is not, so pass it at each opening.
            max_rows: How many rows the table is restricted to. If it has a 16th more, a thread of kvemb's own removes
                the rows that the policy ranks lowest, while other calls go on; without a policy, those with the fewest
                uses. So the table may be larger for as long as that takes. None: as stored; a new variable has no
                bound. Stored. ``Variable.max_rows`` changes it, and sets it to None.
            ttl: The seconds after which a row that did not change is removed in the same way, whatever its rank:
                training, ``upsert`` and ``accum`` change rows, a lookup alone does not. Rows stay up to a 32nd longer.
                While the store is closed, time passes. None: as stored; a new variable's rows stay. Stored.
                ``Variable.ttl`` changes it, and sets it to None. A cluster has no ``ttl``.
            name_bytes: The most bytes of a string key in UTF-8, from 1 to 4,096, rounded up to a multiple of 8. Every
                row takes so many. Only for ``key_dtype="string"``. None: as stored; a new variable has 32.
            regularizer: ``fn(variable)``, called once when the variable is made or opened. Its result, unless None,
                joins the collection ``REGULARIZATION_LOSSES``.
            constraint: ``fn(values)``, which gets the rows (n, dim) that an optimizer has just changed, and returns
                them projected. Each result must depend on its own row only, because rows come in any combination. It is
                called under the variable's lock, once for each part of a step: a step on more rows than
                ``limits.call_rows``, 65,536, is made in parts of so many. If it raises, its part is undone, earlier
                parts stay made, and later ones are not begun.
            collections: Names of the collections that the variable joins. None: ``GLOBAL_VARIABLES``.
            custom_getter: ``fn(getter, name, **arguments)``, called instead; see ``variable_scope``.
            caching_device: Must be None, because the hot tier is the cache.
            validate_shape: Must be True.
            use_resource: Must be None or True.
            synchronization: Must be None or ``AUTO``.
            aggregation: Must be None or ``NONE``.

        Returns:
            The variable. Calls with the same name return the same object.

        Raises:
            SchemaMismatch: The stored variable has another dim, dtype, initializer, policy or optimizer class. The
                error, a ValueError, names the field.
            ValueError: An argument is not valid, or the variable is already open with different ``hot_rows``,
                ``devices``, or another argument. Or the ``reuse`` of a scope forbids the call.
            TypeError: An argument has the wrong type.
            BackendUnavailable: A device, or a package that it needs, is missing.
            ReadOnly: The variable is new, and the store is read-only.
            Poisoned: An earlier write failed, and the variable is new, or opening it would take memory from others.

        Example:
            >>> items = store.get_variable("items", dim=8, optimizer=kvemb.optimizers.Adagrad(0.05))
            >>> items.lookup([7]).shape
            (1, 8)
            >>> store.get_variable("items") is items
            True
        """
        self.state.check_here()
        with self._inside.lock:
            self.state.check_open()
            return cast(Variable, get_in_scope(arguments, self._inside, partial(get_or_make, self)))

    def drop_variable(self, name: str) -> None:
        """Drop a variable with all its rows, durably.

        Its memory and its disk space are freed, and every later call of the ``Variable`` raises Closed. Earlier
        checkpoints keep the variable. Deltas record the drop (``Checkpoint.changes``, ``Store.apply_delta``). The call
        waits for a checkpoint in progress. After a crash the variable is either unchanged or gone.

        Args:
            name: The variable's full name.

        Raises:
            KeyError: The store has no variable of this name.

        Example:
            >>> store.drop_variable("users")
            >>> list(store.variables)
            []
        """
        self.state.check_here()
        with self._inside.lock:
            self.state.check_writable()
            if name not in (names := self._inside.names()):
                raise KeyError(f"there is no variable {name!r}; {there_are(names)}")
            drop(self._inside, [name])

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The store's variables by name. Getting one that is not open yet opens it as it is stored.

        Raises:
            KeyError: There is no variable of this name.
            Closed: A variable is requested after ``close()``.

        Example:
            >>> store.variables["users"].size()
            3
        """
        return VariableMap(self._inside.names, lambda name: open_variable(self, name))

    def get_collection(self, name: str) -> list[Any]:
        """List what was added to a collection.

        As in TensorFlow 1, variables and losses join collections when they are made or opened; see ``get_variable``.

        Args:
            name: The collection's name, such as ``GraphKeys.TRAINABLE_VARIABLES``.

        Returns:
            A new list, in the order of addition; empty for an unknown name.
        """
        return list(self._inside.collections.get(name, []))

    # Calls on several variables (kvemb.many_tables.methods).

    _lookup = calls.lookup
    _apply_gradients = calls.apply_gradients
    _prefetch = calls.prefetch

    # Durability.

    def flush(self) -> None:
        """Write all changes to disk, as a durable point to which the store returns after a crash.

        The point holds the state at this call. Other threads continue meanwhile. If nothing changed since the last
        point, that one stays, with the files and values that were saved in it. An error of an earlier
        ``checkpoint(block=False)`` that no call has raised yet is raised here.

        Example:
            >>> store.flush()
        """
        self._inside.flush()

    def recover(self) -> None:
        """Take writes again after a write to disk has failed, once its cause is gone.

        A store whose write failed, for example because the disk is full, is poisoned: every row can still be read, and
        writes raise ``Poisoned``. Free the space, then call ``recover()``. It tries again what failed and makes a
        durable point, as ``flush()`` does; then writes work again, and no row is lost. Other calls that write are
        refused until then. If nothing has failed, it does nothing.

        The call that raised ``Poisoned`` was made for all of its keys, some or none; each row is either as before it or
        as after it. Look the rows up to decide whether to repeat it.

        After a full disk RocksDB looks for free space every 5 seconds, so the call may take that long.

        Raises:
            Poisoned: It failed again: the ``__cause__`` says why, and you can call it again. Or rows may be half-way
                between two states, because the failure was of another kind, such as lack of memory while rows moved, or
                a ``clear()`` that failed; then close the store and open it again.
            Closed: The store is closed.

        Example:
            >>> store.recover()  # nothing has failed
        """
        recover(self._inside)

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
        """Write a checkpoint of all variables, except those with ``checkpoint=False``, to a new directory.

        The checkpoint holds the state at this call, is complete or absent, and does not depend on the store. Only rows
        that changed since the previous checkpoint are written; unchanged files are hard links. The checkpoint is also a
        durable point of the store. One is written at a time: a second call waits for the first.

        Args:
            path: The new directory.
            block: Whether to wait until the checkpoint is complete. With False, rows may change while it is written,
                and ``result()`` of the returned object waits for it. If it fails, ``result()`` or the next ``flush()``,
                ``checkpoint()`` or ``close()`` raises the error.
            files: Other files that belong to this state, such as dense parameters: a dict from a name, without folders,
                to bytes, a path to copy from, or a function that writes to a binary file. The function is called before
                this call returns, with the store's lock held. So it must not checkpoint the store, or wait for a thread
                that uses the store. An error of the function is raised here.
            extra: A dict of JSON values. You read them as ``Checkpoint.extra``, and files as ``Checkpoint.files``. The
                durable point made here has them too; the next one does not.

        Returns:
            The ``Checkpoint``; with ``block=False`` a ``PendingCheckpoint``, at once.

        Raises:
            FileExistsError: ``path`` exists.
            ValueError: ``path`` is inside the store; or the names of ``files``, or ``extra``, are not valid.
            TypeError: ``path``, ``files`` or ``extra`` has the wrong type.
            ColdStoreError: The checkpoint could not be written. The store can still be used.
            Poisoned: A write of the store's own files failed, in this call or earlier.

        Example:
            >>> saved = store.checkpoint("backup", files={"dense.bin": b"weights"}, extra={"epoch": 1})
            >>> saved.variables["users"].rows, saved.extra, saved.files["dense.bin"].read_bytes()
            (3, {'epoch': 1}, b'weights')
        """
        target, attached = paths.local(path), Attachments(files, extra)
        pending: PendingCheckpoint[Checkpoint] = self._inside.start(target, attached=attached)
        return pending.result() if block else pending

    # Marks.

    def mark(self, name: str | None = None, *, files: Files = None, extra: Extra = None, block: bool = False) -> Mark:
        """Keep the present state, so that ``rollback`` can take the store back to it.

        A mark is a durable point that stays. It has all variables but those of a ``MemoryCreator``. The call returns
        when the snapshot is taken, after some tens of milliseconds, and the mark is written in the background, at the
        cost of a flush: only what changed since the last durable point is written, and unchanged files are shared by
        hard links. Marks survive closing and, once they are complete, crashes. They need disk space for rows that
        changed or were removed since, because their files stay until the mark is dropped.

        Args:
            name: A name, under which the mark stays until it is dropped or another mark gets the name. None: the mark
                stays until there are ``keep_marks`` newer ones without a name (``kvemb.open``). That of a
                ``state_dict`` also stays as long as this lives.
            files: Other files that belong to this state, as of ``checkpoint``.
            extra: A dict of JSON values, as of ``checkpoint``.
            block: Whether to wait until the mark is complete. With False, an error is raised by the next
                ``rollback()``, ``mark()``, ``flush()``, ``checkpoint()`` or ``close()``.

        Returns:
            A value that names the mark, and can be pickled.

        Raises:
            TypeError, ValueError: An argument is not valid.
            ColdStoreError: The mark could not be written. The store can still be used.
            Poisoned: A write of the store's own files failed, in this call or earlier.

        Example:
            >>> best = store.mark()
            >>> users.upsert([2], [[9, 9]])
            >>> store.rollback(best)
            >>> users.lookup([2])
            array([[2., 2.]], dtype=float32)
        """
        return mark(self._inside, name, Attachments(files, extra), block=block)

    def rollback(self, mark: Mark | str) -> None:
        """Take the store back to a mark, with all variables, at once and durably.

        Rows, scores, counts of steps and sightings become those at the mark; what came after it is lost, unless another
        mark or a checkpoint has it. Every ``Variable`` stays valid and keeps its optimizer's and its policy's settings.
        Calls on a variable that did not exist at the mark raise Closed; one that was dropped since is there again.
        Variables of a ``MemoryCreator`` do not change. Rows that did not change since the mark stay hot. Other threads
        may use the store meanwhile: a call that is running may change some of its keys before the rollback, and others
        after it. The mark stays, so you can go back to it again. The cost is that of opening the store. After any error
        but ``Poisoned`` the store is as it was.

        Later checkpoints follow those before the mark. A replica that has a checkpoint made after the mark must be
        restored; a reader with ``follow=True`` moves with ``refresh()``.

        Args:
            mark: A mark, or the name of one.

        Raises:
            MarkNotFound: The store does not have the mark.
            Corruption: Bytes on disk differ from what was written.
            ColdStoreError: The disk could not be read or written.
            Poisoned: A write of the store's own files failed, in this call or earlier.
            TypeError: ``mark`` is something else.

        Example:
            >>> _ = store.mark("before")
            >>> users.remove([1, 2, 3])
            >>> store.rollback("before")
            >>> users.size()
            3
        """
        rollback(self._inside, mark)

    @property
    def marks(self) -> list[Mark]:
        """The complete marks of the store, the oldest first.

        Raises:
            Closed: The store is closed.
            Corruption: A read-only store could not read its marks.

        Example:
            >>> _ = store.mark("best", block=True)
            >>> [(mark.name, kvemb.Checkpoint(mark.path).variables["users"].rows) for mark in store.marks]
            [('best', 3)]
        """
        return marks(self._inside)

    def drop_mark(self, mark: Mark | str) -> None:
        """Drop a mark, and free the disk space that it alone needs.

        Args:
            mark: A mark, or the name of one.

        Raises:
            MarkNotFound: The store does not have the mark.
            ColdStoreError: The disk could not be written.
            Poisoned: A write of the store's own files failed, in this call or earlier.
            TypeError: ``mark`` is something else.
        """
        drop_mark(self._inside, mark)

    def apply_delta(self, checkpoint: str | os.PathLike[str]) -> None:
        """Bring this store to a later checkpoint of the store that it follows, at the cost of what changed there.

        Rows that changed there are copied, and new variables are created. Variables that were dropped there, or are no
        longer in checkpoints (``checkpoint=False``), are dropped here, even if rows of theirs changed here. All other
        rows that changed only here are kept. Sightings of an ``Admission`` become those of the checkpoint. Variables
        that this store was restored without are not added. A checkpoint that this store already includes changes
        nothing. The result is durable when the call returns. To complete an interrupted call, call again.

        Args:
            checkpoint: A checkpoint that follows one from which this store was restored, which it made, or to which it
                was brought.

        Raises:
            CheckpointNotFound: There is no checkpoint there, or it does not follow. The latter also happens if the
                store that made it went back to a checkpoint earlier than the one that this store includes. Then restore
                the new one.
            SchemaMismatch: A variable here has another dim, other dtypes or other slots than there.
            Corruption: Bytes on disk differ from what was written.
            ColdStoreError: The checkpoint could not be read.

        Example:
            >>> first = store.checkpoint("first")
            >>> users.remove([1])
            >>> with kvemb.restore(first, "replica") as replica:
            ...     replica.apply_delta(store.checkpoint("second"))
            ...     replica.variables["users"].size()
            2
        """
        apply_delta(self, Checkpoint(checkpoint))

    def refresh(self) -> bool:
        """Move to the newest durable point of the store that this one follows.

        All variables move at once, and a lookup in progress starts again. Hot rows stay hot, and those that changed are
        read again. The hot tier is emptied if the point does not record what changed, or if the store was restored from
        a checkpoint since. A scan in progress raises Closed, and so does every call of a variable that was dropped
        there, even if a new variable has its name. Without a newer point the call costs microseconds.

        After an error the reader stays at its point, and you may call again.

        Returns:
            Whether there was a newer point.

        Raises:
            ValueError: The store was not opened with ``follow=True``.
            StoreNotFound: The store is gone, for example while it is restored again.
            Corruption: Bytes on disk differ from what was written.
            ColdStoreError: The disk could not be read.
            Closed: This reader is closed.

        Example:
            >>> store.flush()
            >>> with kvemb.open("store", follow=True) as reader:
            ...     users.remove([1])
            ...     store.flush()
            ...     reader.refresh(), reader.variables["users"].size()
            (True, 2)
        """
        return refresh(self._inside)

    def close(self, *, flush: bool = True) -> None:
        """Flush the store and release its directory.

        A poisoned or read-only store is only released. Calling it again does nothing. You may call ``close()`` from an
        ``atexit`` handler that you register after importing kvemb.

        Args:
            flush: With False, any store is released without a flush. Without a flush, changes since the last durable
                point that are in no log are lost; for a poisoned store a warning says so.

        Raises:
            Poisoned: The flush failed.
        """
        self._inside.close(flush=flush)

    def check(self, *, deep: bool = False) -> None:
        """Check that the last durable point and the open variables are undamaged.

        The hot tier of open variables is always compared with the cold tier, row by row. In a read-only store only the
        durable point is checked.

        Args:
            deep: Whether to also read every file of the durable point.

        Raises:
            Corruption: Something is damaged. The message has a line for each finding.
            ColdStoreError: The disk could not be read.
        """
        if found := self._inside.findings(deep=deep):
            raise Corruption("\n".join(found))

    @property
    def stats(self) -> Stats:
        """The sums of the counts of all open variables; after ``close()``, the sums at that time."""
        total = Stats()
        for table in list(self._inside.tables.values()):
            total += table.stats()
        return total

    @property
    def memory(self) -> dict[str, int]:
        """Where the bytes of the memory budget are; empty after ``close()``.

        The values add up to ``memory_budget``. Outside staging: ``cells`` of hot tables, used or not; ``free``, into
        which they can grow; ``copies`` that a snapshot of each variable may always make; ``sightings``, the counters
        of an ``Admission``; ``cache``, what RocksDB may cache if files are not mapped; and ``other`` memory, such as
        that through which GPUs are reached. In staging: ``read``, rows read for their update or ahead, and more copies
        for a snapshot; ``memtables``, rows that are on their way to a file; and ``staging_free``.
        """
        return {} if self.state.gone else memory_use(self._inside)

    def __repr__(self) -> str:
        state = "following" if self.follows else "read-only" if self.state.read_only else "open"
        state = "closed" if self.state.gone else "poisoned" if self.state.cause is not None else state
        first = f"<kvemb.Store {self.path} {state}, budget {format_bytes(self.budget.total)}>"
        return "\n".join([first, *([] if self.state.gone else lines_of(self._inside))])


# The class has the same arguments.
described_as(Store.get_variable)(Variable)
