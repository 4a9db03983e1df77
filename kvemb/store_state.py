"""Whether a store may be read and written: open, read-only, poisoned or closed. One per store, shared by its
variables.
"""

from __future__ import annotations

import os

from kvemb.errors import Closed, Poisoned, ReadOnly

# The id of this process, cached because every call needs it and a system call takes longer.
_here = [os.getpid()]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _here.__setitem__(0, os.getpid()))


class StoreState:
    """Hold the state of a store: open, read-only, poisoned or closed.

    Each attribute changes at most once, so reading it needs no lock.

    Attributes:
        name: The store's path, for messages.
        read_only: Whether the store was opened with ``read_only=True`` or ``follow=True``.
        closed: Whether ``close()`` was called.
        cause: The write to disk that failed, after which writes are refused; None: none failed.
        process: The id of the process that opened the store.
        of_shard: Whether the store is scratch of a cluster, which saves the rows elsewhere.
    """

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        self.name, self.read_only = name, read_only
        self.process = _here[0]
        self.closed = self.of_shard = False
        self._why = f"the store {name} is closed; open it again with kvemb.open"
        self.cause: BaseException | None = None

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

    def check_sound(self) -> None:
        """Raise Poisoned if a write to disk has failed, also after ``close()``."""
        if self.cause is not None:
            cause = str(self.cause) or repr(self.cause)
            raise Poisoned(
                f"the store {self.name} refuses writes, because one failed: {cause}; reads still work. Free what is "
                "short, such as disk space, then close the store and open it again: it recovers what was durable"
            ) from self.cause

    @property
    def keeps_uses(self) -> bool:
        """Whether a use may change a row's score."""
        return not self.read_only and self.cause is None

    def close(self) -> None:
        """Refuse every call from now on. Only the store calls it."""
        self.closed = True

    def poison(self, cause: BaseException) -> None:
        """Refuse writes from now on, because of the write that failed. The first cause is kept."""
        if self.cause is None:
            self.cause = cause


class DroppedState(StoreState):
    """The state of a dropped variable in an open store. why: the text of the error that every use raises."""

    def __init__(self, state: StoreState, why: str) -> None:
        super().__init__(state.name, read_only=state.read_only)
        self.closed, self._why = True, why
