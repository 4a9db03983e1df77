"""How many files a database may keep open: a store of hundreds of variables has thousands, one for each sorted run."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from pathlib import Path

# The number of files kept open by a database that is only salvaged or amended; also the minimum for any database.
LEAST_OPEN = 50
# If a process may open this many files, its databases keep all their files open.
PLENTY = 1 << 14
# To how many the limit is raised at most: some programs, which inherit it, close as many descriptors when they start.
_MOST = 1 << 16
# The most files that macOS lets a process open if its hard limit is infinite.
_MACOS_MOST = 10_240
# RocksDB's own number of threads that open a database's files, and the files for which it is worth to start one.
_OPENING_THREADS, _FILES_OF_ONE = 16, 8
_logger = logging.getLogger("kvemb")


def raise_limit() -> int:
    """Raise the process's soft limit of open files towards its hard limit; return the limit.

    The usual soft limit of 1,024 is for programs that call select(), which cannot watch files of higher numbers. Go and
    Java raise it too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return PLENTY
    most = _MACOS_MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_open(path: Path) -> int | None:
    """Return how many files the database in a folder may keep open; None: all of them.

    If it has more files, it opens files for reads, which is slower, and a warning is logged. The other files that the
    process may open are for a folder handle of each column family, here and in the copy of a checkpoint.
    """
    limit = raise_limit()
    if limit >= PLENTY:
        return None
    most = max(LEAST_OPEN, limit // 4)
    if (count := sum(1 for _ in path.glob("*.sst"))) > most:
        _logger.warning(
            "%s has %d files, but this process may open only %d at a time, so reads of cold rows are slow; raise the "
            "limit (ulimit -Hn)",
            path,
            count,
            limit,
        )
    return most


def opening_threads(path: Path) -> int:
    """Return how many threads RocksDB starts to open the files of the database in a folder.

    With a few files it opens them sooner on one thread: to start 16, as it would, takes a fifth of the CPU time.
    """
    return min(_OPENING_THREADS, 1 + sum(1 for _ in path.glob("*.sst")) // _FILES_OF_ONE)
