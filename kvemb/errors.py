"""Every error kvemb raises, grouped by when it can happen. Imports nothing.

Each leaf also inherits the built-in it resembles, so `except ValueError` works as a newcomer expects. A missing key is
data, not an error. Arguments of the wrong kind raise the plain built-ins TypeError, ValueError and IndexError.

Each message says what happened and what to do.

Example:
    >>> try:
    ...     kvemb.open("nowhere", read_only=True)
    ... except kvemb.errors.StoreNotFound as error:
    ...     print(isinstance(error, FileNotFoundError))
    True
"""

from __future__ import annotations


class KvembError(Exception):
    """The root of kvemb's own errors: `except kvemb.KvembError` catches them all.

    Wrong arguments raise TypeError, ValueError, KeyError or IndexError instead.
    """


# When a store or a checkpoint is opened.


class StoreNotFound(KvembError, FileNotFoundError):
    """There is no store at this path, or none that a call without `store` could use.

    It is raised when a store is opened, verified or repaired and the path holds something else: nothing, a file, a
    checkpoint, a series of checkpoints, a cluster's directory, or what an interrupted restore left. `Store.refresh`
    raises it when another store has taken the place of the one that it follows, or is just being restored there. A
    function or a module without `store=` raises it outside of a `with` block of a store.

    Check the path: the message says what is there, and what to do with it. Or pass a store.
    """


class CheckpointNotFound(KvembError, FileNotFoundError):
    """There is no complete checkpoint at this path, or not the one that is needed.

    It is raised when a checkpoint is opened, restored, pulled or verified and the path, the number or the URL has none,
    or when it is deleted while it is read. It is also raised when two checkpoints are compared, or a delta is applied,
    and the newer one does not record what changed since the older one.

    Name another checkpoint: the message says which exist. Without a record of changes, restore the whole checkpoint.
    """


class MarkNotFound(KvembError, LookupError):
    """The store does not have this mark, or does not have it any more.

    It is raised by `Store.rollback`, `Store.drop_mark` and the `load_state_dict` of kvemb.torch's modules, if the mark
    was dropped, was never complete, or belongs to another store. Nothing has changed then.

    `Store.marks` lists the marks that there are. Give a mark that you need later a name: marks without one are dropped,
    the oldest first, once there are more of them than keep_marks= of `kvemb.open`.
    """


class UnsupportedFormat(KvembError, ValueError):
    """The files were written by a kvemb with another format version, or name something this kvemb does not know.

    It is raised when a store or checkpoint is opened whose format, optimizer, initializer or policy this kvemb cannot
    read. The files are not damaged.

    Use the kvemb that wrote them, or a newer one.
    """


class Locked(KvembError, BlockingIOError):
    """Another process, or another Store of this process, has the store open for writing.

    It is raised when a store, a series of checkpoints or a cluster is opened that only one process may write to at a
    time. The message names the process and its host, where the filesystem tells them.

    Close it there, or wait until that process has ended. To read meanwhile, open the store with follow=True.
    """


class BackendUnavailable(KvembError, ImportError):
    """The hardware or the package that a backend needs is missing; or, in a forked process, its threads.

    It is raised when kvemb needs an optional package that is not installed (PyTorch, Ray, CuPy, fsspec, ml_dtypes), a
    GPU that is not there, or a Ray cluster or shard that cannot be reached or has another version of kvemb. In a
    process that was forked after its parent had opened a store, no store can be written, because RocksDB's threads do
    not survive a fork.

    The message has the command that installs the package. Start workers by spawn instead of fork.
    """


# When a variable is opened or created.


class SchemaMismatch(KvembError, ValueError):
    """A variable was requested with properties that differ from the stored ones.

    It is raised by get_variable, by setting `variable.optimizer` and by applying a delta, when dim, key_dtype,
    value_dtype, initializer, optimizer class or policy is not that of the stored rows.

    Ask for the stored property, or use another name. `kvemb migrate` changes the stored variable.

    Attributes:
        variable: The variable's name.
        field: The property that differs, such as "dim".
        stored: Its stored value.
        given: Its requested value.
    """

    def __init__(self, variable: str, field: str, stored: object, given: object, advice: str | None = None) -> None:
        super().__init__(
            f"variable {variable!r} is stored with {field}={stored!r}, got {field}={given!r}; "
            f"{advice or f'ask for the stored {field}, or use another name'}"
        )
        self.variable: str = variable
        self.field: str = field
        self.stored: object = stored
        self.given: object = given


# While a store is used.


class HashCollision(KvembError, ValueError):
    """Two strings have the same hash, so they cannot both be keys of one variable.

    It is raised by calls on a variable with `key_dtype="string"`, and by loads into one. Nothing has changed, but in a
    call of several parts the parts before. Of a thousand million strings two have the same hash with a probability of
    3 %; of ten million, 3e-6.

    Write one of the two in another way, for example with a prefix.
    """


class Closed(KvembError, ValueError):
    """The store, the variable or the scan was closed.

    It is raised by every call after `close()`, by calls on a variable that was dropped, and by calls in a process that
    was forked from the one that opened the store. A scan raises it when its variable is closed or dropped meanwhile.

    Open the store or get the variable again. In a forked process, open it with follow=True.
    """


class ReadOnly(KvembError, PermissionError):
    """A write was attempted in a store that was opened with read_only=True or follow=True.

    It is also raised by get_variable for a variable that such a store does not have.

    Open the store without these arguments to write.
    """


class Corruption(KvembError, OSError):
    """Bytes on disk differ from what was written, or a file is missing.

    It is raised when a store or checkpoint is opened, when damaged rows are read, and by `Store.check`. The message
    names the file. Other rows may still be readable.

    Run `kvemb verify --deep` to find all damage. Restore from a checkpoint, or let `kvemb repair` write what can be
    read to a new store.
    """


class ColdStoreError(KvembError, OSError):
    """The cold store could not read or write: a full disk, an I/O error, too many open files.

    It is raised with the system's or RocksDB's reason. If a write of rows failed, later writes raise Poisoned.

    Free what is short, then call again; for a poisoned store, call `Store.recover` first.
    """


class TransferError(KvembError, OSError):
    """A file could not be copied to or from another filesystem, or the filesystem did not answer.

    It is raised by push, pull, restore and verify with a URL, and by a cluster's checkpoints. The `__cause__` is the
    filesystem's own error.

    Check the URL, its credentials and the network, then call again. A push or pull continues where it stopped: files
    already transferred are kept.
    """


class Poisoned(KvembError, RuntimeError):
    """Something failed while rows were written or changed, so writes are refused; reads still work.

    It is raised by every call that would change rows, and by checkpoints, so that none contains half of a change. The
    failure is the `__cause__`.

    Free what is short, such as disk space. If the message says that every row can still be read, as after a full disk,
    call `Store.recover`: it tries again what failed, and no row is lost. If rows may be half-way between two states,
    close the store and open it again: it recovers what was durable.
    """


# While a cluster is used.


class ShardLost(KvembError, ConnectionError):
    """A shard of a cluster does not answer.

    It is raised by the call that notices it. Later calls are refused, so no checkpoint can contain half a call.

    Call `recover()`: it goes back to the last checkpoint. Then repeat the steps since that checkpoint.
    """


class RankLost(KvembError, ConnectionError):
    """A rank of a data parallel training does not take part in a step that all ranks take together.

    It is raised by the other ranks, and names the rank: its process has ended, or did not come within the `timeout` of
    the kvemb.torch.Optimizer. No rank has taken the step, except if rank 0 was lost while it took the step for all. The
    ranks cannot take another step together.

    End all ranks and start them again: they continue from the last checkpoint.
    """
