"""A series of checkpoints (kvemb.offline.numbered) in training: saving them, and resuming from them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from functools import partial
from typing import Literal, overload

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_SERIES
from kvemb.checks.seconds import as_seconds
from kvemb.durability import paths
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.layout import series_name
from kvemb.durability.marks.kept import KEEP_MARKS
from kvemb.engine.open_arguments import OpenArguments, as_names
from kvemb.handle import inside
from kvemb.limits import DEFAULT, Limits
from kvemb.offline import leftovers
from kvemb.offline.numbered import NumberedCheckpoints
from kvemb.offline.pins import check_name
from kvemb.offline.places import chosen
from kvemb.offline.restoring import restore
from kvemb.offline.resuming import resume
from kvemb.shared_docs import described_as
from kvemb.store import Store


class CheckpointManager(NumberedCheckpoints):
    """Keep a series of checkpoints under a root directory, and copy them to and from URLs.

    The first ``save`` or ``pull`` creates the root. One process writes to the series (``save``, ``pull``), and holds
    its lock from its first write until ``close()``. Any number of processes may read it (``latest``, ``list``,
    ``push``) meanwhile. Use the manager in a ``with`` block, which closes it. Its arguments are its attributes, too.
    Not thread-safe.

    Args:
        root: The directory of the series. A relative path is made absolute.
        keep: How many of its store's newest checkpoints a save keeps, beside those that are pinned. None: all.
        every: Seconds between checkpoints of ``save_if_due``. None: ``save_if_due`` is not used.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``root`` is a URL, or a number is out of range.

    Example:
        >>> with kvemb.CheckpointManager("series", keep=3) as series:
        ...     saved = series.save(store)
        ...     series.numbers(), series.latest().id == saved.id
        ([1], True)
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: int | None = None, every: float | None = None) -> None:
        super().__init__(root, keep)
        self.every: float | None = None if every is None else as_seconds(every, "every")
        self._pending: PendingCheckpoint[Checkpoint] | None = None
        self._begun: float | None = None

    @overload
    def save(
        self,
        store: Store,
        *,
        block: Literal[True] = True,
        files: Files = None,
        extra: Extra = None,
        keep: str | None = None,
        take_over: bool = False,
    ) -> Checkpoint: ...
    @overload
    def save(
        self,
        store: Store,
        *,
        block: Literal[False],
        files: Files = None,
        extra: Extra = None,
        keep: str | None = None,
        take_over: bool = False,
    ) -> PendingCheckpoint[Checkpoint]: ...
    @overload
    def save(
        self,
        store: Store,
        *,
        block: bool,
        files: Files = None,
        extra: Extra = None,
        keep: str | None = None,
        take_over: bool = False,
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]: ...

    @described_as(Store.checkpoint)
    def save(
        self,
        store: Store,
        *,
        block: bool = True,
        files: Files = None,
        extra: Extra = None,
        keep: str | None = None,
        take_over: bool = False,
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]:
        """Write the next checkpoint of the series, and delete the store's own beyond ``keep``.

        A series belongs to one store and to those restored from its checkpoints, which have the same ``Store.id``.

        The checkpoint is that of ``Store.checkpoint``. With ``block=False`` old checkpoints are deleted when the new
        one is complete.

        Args:
            store: The store. A cluster has a series of its own at its URL.
            keep: A name, such as ``"best"``, under which the checkpoint is pinned, as by ``pin``: it stays until
                another one gets the name. None: it is not pinned.
            take_over: Whether to save to a series whose newest checkpoint is of another store. Its checkpoints stay.

        Returns:
            The ``Checkpoint``; with ``block=False`` a ``PendingCheckpoint``, at once.

        Raises:
            Locked: Another process writes to the series.
            TypeError: ``store`` is not a ``kvemb.Store``, or an argument has the wrong type.
            FileExistsError: The newest checkpoint of the series is of another store.
            ValueError: The root is inside a store, or ``files`` or ``extra`` is not valid.
            ColdStoreError: The checkpoint could not be written. The store can still be used.
            Poisoned: A write of the store's own files failed, in this call or earlier.
            Closed: The store is closed.
            ReadOnly: The store is read-only.
        """
        _check_store(store)
        name = check_name(keep, "keep")
        self._hold()
        if self._pending is not None and not self._pending.done():
            self._pending.result()
        id = store.id
        if not take_over:
            self._check_owner(id, str(store.path))
        self._drop_old(id)
        number = max(self.numbers(), default=0) + 1
        completed = partial(self._drop_old, id) if name is None else partial(self._pin_and_drop, number, name, id)
        pending = inside(store).start(self.path(number), attached=Attachments(files, extra), completed=completed)
        self._pending, self._begun = pending, time.time()
        if not block:
            return pending
        checkpoint: Checkpoint = pending.result()
        completed()  # raises what it could not do
        return checkpoint

    def _pin_and_drop(self, number: int, name: str, store: str) -> None:
        self._pin(number, name)
        self._drop_old(store)

    @described_as(save)
    def save_if_due(
        self, store: Store, *, block: bool = False, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint] | None:
        """Save a checkpoint if ``every`` seconds have passed since the last one began, in this or any other process.

        Call it after each step, with the dense parameters in ``files``. Each checkpoint then has the rows and the
        parameters of the same step. It raises what ``save`` raises.

        Returns:
            What ``save`` returns; None if no checkpoint is due.

        Raises:
            ValueError: The manager was made without ``every``.

        Example:
            >>> with kvemb.CheckpointManager("series", every=600) as series:
            ...     for step in range(3):
            ...         users.apply_gradients([1], [[1, 1]])
            ...         saved = series.save_if_due(store, extra={"step": step})
            >>> [checkpoint.extra for checkpoint in series.list()]
            [{'step': 0}]
        """
        if self.every is None:
            raise ValueError("save_if_due needs a manager made with every=, the seconds between checkpoints")
        _check_store(store)
        if self._begun is None:
            newest = self.latest()
            self._begun = newest.created if newest is not None else -math.inf
        # A time in the future is from a clock that was set back since.
        waiting = 0 <= time.time() - self._begun < self.every
        return None if waiting else self.save(store, block=block, files=files, extra=extra)

    @described_as(restore)
    def resume(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        memory_budget: int | str = "1GiB",
        device_memory: int | str | None = None,
        variables: Collection[str] | None = None,
        warm: bool = True,
        durability: Literal["checkpoint", "write"] = "checkpoint",
        flush_every: None = None,
        limits: Limits = DEFAULT,
        keep_marks: int = KEEP_MARKS,
    ) -> tuple[Store, Checkpoint | None]:
        """Open a store in the state of the newest checkpoint, or of another one, to continue training from it.

        A store that is at the path goes back to the checkpoint, if it was restored from this series or saved to it.
        Training after that checkpoint is lost, so that the rows fit the dense parameters in it. If the call
        raises, or is killed, the store is as it was, or as in the checkpoint, and may be resumed again. What a killed
        call left at a new path is replaced. If a save was killed just before the checkpoint got its name, the
        checkpoint is completed.

        Args:
            path: The directory of the store.
            number: The number of the checkpoint. None: the newest. Later checkpoints stay in the series, and the next
                one gets the number after theirs.
            variables: Names of the variables to take from the checkpoint; the store loses the others. None: all.
            warm: When a variable is opened, load the rows that were hot when the checkpoint was made.
            flush_every: Must be None, because ``resume`` goes back to a checkpoint: call ``save_if_due``.

        Returns:
            The open store and the checkpoint. If there is no checkpoint: a store without variables, and None.

        Raises:
            CheckpointNotFound: The series has no checkpoint with the number.
            FileExistsError: There is something else at ``path``, or the root is not a series.
            KeyError: The checkpoint has no variable of a name in ``variables``.
            Locked: The store is open.
            ValueError: An argument is not valid.
            TypeError: An argument has the wrong type.
            Corruption: Bytes on disk differ from what was written.
            UnsupportedFormat: The checkpoint was written by a kvemb with another format.
            ColdStoreError: The disk could not be read or written.

        Example:
            >>> with kvemb.CheckpointManager("series") as series:
            ...     resumed, last = series.resume("training")  # a new store
            ...     with resumed:
            ...         _ = series.save(resumed, extra={"step": 10})
            ...     resumed, last = series.resume("training")
            ...     resumed.close()
            >>> last.extra
            {'step': 10}
        """
        if flush_every is not None:
            raise ValueError("flush_every has no effect with resume, which goes back to a checkpoint; call save_if_due")
        how = OpenArguments(
            memory_budget=memory_budget,
            device_memory=device_memory,
            warm=warm,
            durability=durability,
            limits=limits,
            keep_marks=keep_marks,
        )
        store, names = paths.local(path), as_names(variables)
        paths.check_series_root(self.root)
        leftovers.complete(self.root, store)
        if number is None:
            chosen_one = self.latest()
        else:
            number = chosen(as_int(number, "number", 0, MAX_SERIES), self.numbers(), str(self.root))
            chosen_one = Checkpoint(self.path(number))
        resumed = resume(chosen_one, store, how, names)
        self._begun = time.time()  # the state is that of a checkpoint, so none is due
        return resumed, chosen_one

    def close(self) -> None:
        """Wait for the checkpoint being written, and release the series' lock. Calling it again does nothing.

        An error of ``save(block=False)`` that no call has raised yet is raised here.

        Raises:
            ColdStoreError: That checkpoint could not be written.
            Poisoned: A write of the store's own files failed.
        """
        try:
            if self._pending is not None and not self._pending.reported:
                self._pending.result()
        finally:
            self._pending = None
            self._release()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = self.numbers()
        span = f"{len(numbers)} checkpoints, the newest {series_name(numbers[-1])}" if numbers else "no checkpoint yet"
        return f"<kvemb.CheckpointManager {self.root}: {span}>"


def _check_store(store: object) -> None:
    """Raise TypeError for anything but a single store, before the series is created."""
    if not isinstance(store, Store):
        raise TypeError(
            f"store must be a kvemb.Store, got {brief(store)}; a cluster saves to its own url: call its "
            "checkpoint(keep=), then pull(url)"
        )
