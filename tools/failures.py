"""What each failure tells the caller: one line, and an exit code that a script can act on. Decides; prints nothing."""

from __future__ import annotations

import errno
from typing import NamedTuple

from kvemb.errors import ColdStoreError, Corruption, KvembError, Locked, Poisoned

# Scripts depend on these; do not renumber. 2 is what every Click program uses.
OK, BAD_INPUT, WRONG_USAGE, STORE_IN_USE, DISK_REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 130


class BadInput(ValueError):
    """An argument or a file cannot be used; the message says which, and what to do."""


class Told(NamedTuple):
    """A failure as the caller sees it."""

    code: int
    line: str


def explain(failure: BaseException) -> Told | None:
    """Return the exit code and the line for a failure that input or the machine caused; None for a bug."""
    told = _explain(failure)
    return None if told is None else Told(told.code, " ".join(told.line.split()))


def _explain(failure: BaseException) -> Told | None:
    if isinstance(failure, KeyboardInterrupt) or type(failure).__name__ == "Abort":
        return Told(INTERRUPTED, "interrupted")
    # Typer has its own copy of Click in some versions, and Click's classes in others: only the shape is common.
    if hasattr(failure, "format_message"):
        return Told(getattr(failure, "exit_code", WRONG_USAGE), f"{failure.format_message()} (see kvemb --help)")
    if isinstance(failure, Locked):
        return Told(STORE_IN_USE, str(failure))
    if _disk_is_full(failure):
        return Told(DISK_REFUSED, f"the disk is full: {failure}; free some space, or give another --dir")
    if isinstance(failure, (ColdStoreError, Poisoned)) and not isinstance(failure, Corruption):
        return Told(DISK_REFUSED, f"the disk refused: {failure}")
    if isinstance(failure, (KvembError, OSError, ValueError)):
        return Told(BAD_INPUT, _describe(failure))
    return None


def _disk_is_full(failure: BaseException | None) -> bool:
    """Look for ENOSPC along the chain of causes: a poisoned store raises for a write that failed earlier."""
    while failure is not None:
        if getattr(failure, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(failure):
            return True
        failure = failure.__cause__
    return False


def _describe(failure: Exception) -> str:
    """An OSError of the system's own reads `[Errno 2] ...: 'x'`; say `x: ...` as other commands do."""
    if isinstance(failure, OSError) and failure.filename is not None and failure.strerror:
        return f"{failure.filename}: {failure.strerror}"
    return str(failure) or type(failure).__name__
