"""Opening a store, and restoring one from a checkpoint. See kvemb.store."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal

from kvemb.checks import open_file_limit
from kvemb.checks.usable_memory import memory_bytes
from kvemb.durability import layout, paths
from kvemb.durability.installing import discard, install
from kvemb.durability.marks.kept import KEEP_MARKS
from kvemb.engine.engine import Engine
from kvemb.engine.open_arguments import OpenArguments
from kvemb.engine.periodic_flush import as_flush_every, run_flushes
from kvemb.errors import Locked
from kvemb.limits import Limits
from kvemb.options import format_bytes
from kvemb.store import Store
from kvemb.store_state import StoreState

_logger = logging.getLogger("kvemb")


def open(
    path: str | os.PathLike[str],
    *,
    memory_budget: int | str = "1GiB",
    device_memory: int | str | None = None,
    read_only: bool = False,
    follow: bool = False,
    warm: bool = False,
    durability: Literal["checkpoint", "write"] = "checkpoint",
    flush_every: float | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
    keep_marks: int = KEEP_MARKS,
) -> Store:
    """Open the store at a path. It is created if the directory is missing or empty.

    Args:
        path: The store's directory; or, with ``read_only``, that of a checkpoint.
        memory_budget: Memory for everything that the store keeps: bytes, or text such as ``"512MiB"``. If it is more
            than the machine has, a warning is logged.
        device_memory: Memory for hot tables and their buffers on each GPU: bytes, or text. None: three quarters of the
            GPU's memory. The arrays of calls take GPU memory in addition.
        read_only: Open the last durable point of a store, or a checkpoint in place. Nothing changes, and uses are not
            counted.
        follow: Open a store that another process trains, read-only. ``refresh()`` moves to its newest durable point.
        warm: When a variable is opened, load the rows that were hot at the last durable point. With False, no row is
            hot at first.
        durability: Which changes survive a crash. ``"checkpoint"``: those before the last completed ``flush()`` or
            ``checkpoint()``. ``"write"``: those of every call that has returned. Each call then waits for an fsync,
            which concurrent calls share. Uses that lookups record become durable with the next ``flush()`` in both
            modes.
        flush_every: Seconds between flushes in the background. None starts while a durable point is being written.
            After a crash the store is then at most this time, and the duration of a flush, behind. A background flush
            can fall in the middle of a call: after a crash, some of its keys may then have their new rows and others
            their old ones. Every call that had returned before the flush began is included. If a flush fails, the store
            refuses writes, and the error is raised as that of ``checkpoint(block=False)``. With ``durability="write"``
            flushes make uses durable and keep the log short. None: the store is flushed only when you call ``flush()``.
            A cluster has no ``flush_every``; use ``checkpoint(block=False)`` there.
        limits: How much one internal step processes at a time (``kvemb.limits.Limits``).
        keep_marks: How many marks without a name the store keeps, the newest ones (``Store.mark``), such as those of
            a ``state_dict`` that was saved to a file. Those of one that lives do not count.

    Returns:
        The store. Use it in a ``with`` block, which flushes and closes it, or call ``close()``.

    Raises:
        StoreNotFound: There is no store to read at the path; or the path has other files.
        Locked: Another process, or this one, has the store open for writing.
        Corruption: Bytes on disk differ from what was written.
        UnsupportedFormat: The store was written by a kvemb with another format.
        ColdStoreError: The disk could not be read or written.
        ValueError: An argument is not valid, or does not go with another one.
        TypeError: An argument has the wrong type.
        BackendUnavailable: The store is to be written to in a process that was forked after a store had been opened.

    Example:
        >>> with kvemb.open("my_store", memory_budget="64MiB") as my_store:
        ...     items = my_store.get_variable("items", dim=8)
        ...     items.upsert([1], np.ones((1, 8), np.float32))
        >>> with kvemb.open("my_store", read_only=True) as reader:
        ...     reader.variables["items"].size()
        1
    """
    place = paths.local(path)
    how = OpenArguments(
        memory_budget=memory_budget,
        device_memory=device_memory,
        read_only=read_only,
        follow=follow,
        warm=warm,
        durability=durability,
        flush_every=flush_every,
        limits=limits,
        keep_marks=keep_marks,
    )
    if follow and layout.is_checkpoint(place):
        raise ValueError(f"{path} is a checkpoint, which never changes; follow the store, or use read_only=True")
    return open_at(place, how)


def open_at(path: Path, how: OpenArguments) -> Store:
    """Open the store at a path. See open()."""
    with open_file_limit.told(f"open {path}"):
        engine = Engine(
            path,
            memory_budget=how.memory_budget,
            device_memory=how.device_memory,
            read_only=how.reads,
            follow=how.follow,
            durability=how.durability,
            limits=how.limits,
            warm=how.warm,
            keep_marks=how.keep_marks,
        )
    store = Store(engine)
    if (seconds := as_flush_every(how.flush_every)) is not None:
        run_flushes(engine, seconds, engine.closing.wait)
    if how.durability == "checkpoint" and not store.state.read_only:
        weakref.finalize(engine, _warn_if_open, store.state)
    if (asked := store.budget.total) > (there := memory_bytes()):
        _logger.warning(
            "the memory_budget of %s is %s, but this machine or container has only %s: the system may kill the process "
            "once the hot tables have grown; use a smaller memory_budget",
            path,
            format_bytes(asked),
            format_bytes(there),
        )
    return store


def restore(checkpoint: Path, path: Path, how: OpenArguments, variables: Collection[str] | None = None) -> Store:
    """Make a new store at path from a checkpoint on this machine, and open it. See kvemb.restore."""
    install(checkpoint, path, variables)
    try:
        return open_at(path, how)
    except BaseException:
        with suppress(Locked, OSError), layout.lock(path):  # another process may have opened it meanwhile
            discard(path)
        raise


def _warn_if_open(state: StoreState) -> None:
    """Warn of a store that nothing refers to any more, or that is open as the program ends."""
    if not state.gone and not state.of_shard:
        _logger.warning(
            "the store %s was not closed: what changed after its last flush or checkpoint is lost; call close(), or "
            "open it in a `with` block",
            state.name,
        )
