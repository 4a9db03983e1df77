"""Errors that tell what to do where a process may not open more files."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from kvemb.errors import ColdStoreError, KvembError

_TEXT = os.strerror(errno.EMFILE)


def advice(error: str) -> str:
    """Return what to add to the text of an error, also one of RocksDB; nothing if it has another cause."""
    if _TEXT not in error:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"; this process may open {limit:,} files: raise the limit (ulimit -n), or open fewer stores and variables"


@contextmanager
def told(what: str) -> Iterator[None]:
    """Translate an OSError that says that too many files are open into ColdStoreError.

    what: the operation, for the message.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, KvembError) or error.errno != errno.EMFILE:
            raise
        raise ColdStoreError(f"cannot {what}: {error}{advice(str(error))}") from error
