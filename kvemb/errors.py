"""Every error kvemb raises, grouped by when it can happen. Imports nothing.

Each leaf also inherits the built-in it resembles, so `except ValueError` works as a newcomer expects. A missing key is
data, not an error. Arguments of the wrong kind raise the plain built-ins TypeError, ValueError and IndexError.
"""

from __future__ import annotations


class KvembError(Exception):
    """The root of kvemb's own errors."""


# When a store or a checkpoint is opened.


class StoreNotFound(KvembError, FileNotFoundError):
    """There is no store at this path."""


class CheckpointNotFound(KvembError, FileNotFoundError):
    """There is no complete checkpoint at this path."""


class UnsupportedFormat(KvembError, ValueError):
    """The directory was written by a kvemb with another format version."""


class Locked(KvembError, BlockingIOError):
    """Another process, or another Store of this process, has the store open for writing."""


class BackendUnavailable(KvembError, ImportError):
    """The hardware or the package that a backend needs is missing; or, in a forked process, its threads."""


# When a variable is opened or created.


class SchemaMismatch(KvembError, ValueError):
    """A variable was requested with properties that differ from the stored ones.

    field, stored, given: what differs, as attributes. advice: what to do.
    """

    def __init__(self, variable: str, field: str, stored: object, given: object, advice: str | None = None) -> None:
        super().__init__(
            f"variable {variable!r} is stored with {field}={stored!r}, got {field}={given!r}; "
            f"{advice or f'ask for the stored {field}, use another name, or delete it with store.drop_variable'}"
        )
        self.variable, self.field, self.stored, self.given = variable, field, stored, given


# While a store is used.


class Closed(KvembError, ValueError):
    """The store was closed."""


class ReadOnly(KvembError, PermissionError):
    """A write was attempted in a store that was opened with read_only=True or follow=True."""


class Corruption(KvembError, OSError):
    """Bytes on disk differ from what was written."""


class ColdStoreError(KvembError, OSError):
    """The cold store could not read or write: a full disk, an I/O error."""


class TransferError(KvembError, OSError):
    """A file could not be copied to or from another filesystem."""


class Poisoned(KvembError, RuntimeError):
    """An earlier write to disk failed, so writes are refused; reads still work. The failed write is the __cause__."""


# While a cluster is used.


class ShardLost(KvembError, ConnectionError):
    """A shard of a cluster does not answer. Later calls are refused, so no checkpoint can contain half a call."""
