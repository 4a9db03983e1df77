"""Whether a store may be read and written: open, read-only, poisoned or closed. One per store, shared by its
variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvemb.errors import Closed, ColdStoreError, Poisoned, ReadOnly

# The id of this process, cached because every call needs it and a system call takes longer.
_here = [os.getpid()]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _here.__setitem__(0, os.getpid()))


class StoreState:
    """Hold the state of a store: open, read-only, poisoned or closed.

    Reading an attribute needs no lock. Only ``cause`` can return to what it was, in ``recovering()``.

    A store is poisoned by a failure of one of two kinds. If rows stayed whole, as when a full disk refused to write
    rows, which stay in memory until they are written, every row can be read and the write can be tried again. If rows
    or files may be half-way from one state to another, as after an error while rows moved, only the last durable point
    is known to be whole.

    Attributes:
        name: The store's path, for messages.
        read_only: Whether the store was opened with ``read_only=True`` or ``follow=True``.
        closed: Whether ``close()`` was called.
        cause: The failure after which writes are refused; None: there was none, or it was recovered from.
        halfway: The first failure that may have left something half-way; None: there was none.
        process: The id of the process that opened the store.
        of_shard: Whether the store is scratch of a cluster, which saves the rows elsewhere.
    """

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        self.name, self.read_only = name, read_only
        self.process = _here[0]
        self.closed = self.of_shard = False
        self._why = f"the store {name} is closed; open it again with kvemb.open"
        self.cause: BaseException | None = None
        self.halfway: BaseException | None = None
        self._recovering = self._failed_again = False

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that opened the store, and so lacks its threads."""
        return _here[0] != self.process

    @property
    def gone(self) -> bool:
        """Whether the store is unusable in this process: closed or forked."""
        return self.closed or self.forked

    def check_here(self) -> None:
        """Raise Closed if this process was forked from the one that opened the store.

        It is called before locking, because a lock that was held at the fork stays locked.
        """
        if _here[0] != self.process:
            raise Closed(self._why_forked())

    def _why_forked(self) -> str:  # a cluster's client says something else
        return (
            f"the store {self.name} was opened by process {self.process}, and does not survive a fork; open it in this "
            "process with follow=True, or start workers by spawn"
        )

    def check_open(self) -> None:
        """Raise Closed if the store cannot be read: it is closed, or this process was forked."""
        self.check_here()
        if self.closed:
            raise Closed(self._why)

    def check_writable(self) -> None:
        """Raise Closed, ReadOnly or Poisoned if rows may not change."""
        self.check_open()
        if self.read_only:
            raise ReadOnly(f"the store {self.name} is read-only; open it without read_only or follow to change it")
        self.check_sound()

    def check_may_flush(self) -> None:
        """Raise what check_writable() raises, but not while recover() tries again. REQUIRES: the store's lock."""
        if not self._recovering:
            self.check_writable()

    def check_whole(self) -> None:
        """Raise Poisoned if something may be half-way between two states, also after ``close()``."""
        if self.halfway is not None:
            raise Poisoned(
                f"the store {self.name} refuses writes, because a change failed: {_told(self.halfway)}; rows may be "
                "half-way between two states, so recover() cannot help. Reads still work. Free what is short, if "
                "anything is, then close the store and open it again: it recovers what was durable"
            ) from self.halfway

    def check_sound(self) -> None:
        """Raise Poisoned if a write has failed, also after ``close()``."""
        self.check_whole()
        if self.cause is not None:
            raise Poisoned(
                f"the store {self.name} refuses writes, because one failed: {_told(self.cause)}; every row can still "
                "be read. Free what is short, such as disk space, then call recover(), which loses nothing"
            ) from self.cause

    @property
    def keeps_uses(self) -> bool:
        """Whether a use may change a row's score."""
        return not self.read_only and self.cause is None

    def close(self) -> None:
        """Refuse every call from now on. Only the store calls it."""
        self.closed = True

    def poison(self, cause: BaseException, *, intact: bool = False) -> None:
        """Refuse writes from now on, because of what failed. The first cause is kept, and the latest of recover().

        intact: whether every row can still be read as the calls left it, so that recover() can try again.
        """
        if isinstance(cause, Poisoned) and self.cause is not None:
            cause = self.cause  # which it tells of
        if not intact and self.halfway is None:
            self.halfway = cause
        if self.cause is None or self._recovering:
            self.cause, self._failed_again = cause, True

    def keeping_rows(self) -> Poisoning:
        """A block that may fail at any place without a row being lost or half changed, such as a write of rows that
        stay in memory until it has succeeded. If it fails, the store is poisoned, and recover() can try again.
        """
        return Poisoning(self, intact=True)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Try again in this block what failed; if it succeeds, writes are taken again. Raises Poisoned if it fails.

        REQUIRES: the store's lock.
        """
        self.check_whole()
        try:
            self._recovering, self._failed_again = True, False
            yield
            if not self._failed_again:
                self.cause = None
        except Exception as error:
            if not self._failed_again:
                self.poison(error, intact=True)
        finally:
            self._recovering = False
        self.check_sound()


class Poisoning:
    """A block that poisons the store if it fails. A ColdStoreError is raised as Poisoned; all else unchanged.

    intact: whether an Exception in it leaves every row whole, so that recover() can try again; may change in the block.
    """

    __slots__ = ("_state", "intact")

    def __init__(self, state: StoreState, *, intact: bool = False) -> None:
        self._state, self.intact = state, intact

    def __enter__(self) -> Poisoning:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._state.poison(error, intact=self.intact and isinstance(error, Exception))
        self._end()
        if isinstance(error, ColdStoreError):
            self._state.check_writable()

    def _end(self) -> None:
        """Called when the block has succeeded, or its failure has poisoned the store."""


def _told(error: BaseException) -> str:
    return str(error) or repr(error)


class DroppedState(StoreState):
    """The state of a dropped variable in an open store. why: the text of the error that every use raises."""

    def __init__(self, state: StoreState, why: str) -> None:
        super().__init__(state.name, read_only=state.read_only)
        self.closed, self._why = True, why
