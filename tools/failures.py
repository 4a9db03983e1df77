"""What each failure tells the caller: one line, and an exit code that a script can act on. Decides; prints nothing."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from kvemb.errors import ColdStoreError, Corruption, KvembError, Locked, Poisoned
from kvemb.tools.stopping import Terminated

# Scripts depend on these; do not renumber. 2 is what every Click program uses.
OK, BAD_INPUT, WRONG_USAGE, STORE_IN_USE, DISK_REFUSED = 0, 1, 2, 3, 4
INTERRUPTED, READER_LEFT, TERMINATED = 130, 141, 143

# What kvemb advises a program to do, and what can be done on the command line instead.
_ADVICE = {
    "is a checkpoint, not a store; open it with read_only=True, or kvemb.restore it to another path": (
        "is a checkpoint, which never changes; make a store of it with kvemb restore"
    ),
    "close it there, or open it with read_only=True": "stop the process that has it open",
    "again with verify=True": "again with --verify",
    "close it there": "stop the process that has it open",
    "ask for on_conflict 'replace' or 'keep'": "say --on-conflict replace, or keep",
}


class BadInput(ValueError):
    """An argument or a file cannot be used; the message says which, and what to do."""


class WrongUsage(BadInput):
    """An option or an argument is missing, or cannot be what it is, whatever is in the files."""


class Told(NamedTuple):
    """A failure as the caller sees it."""

    code: int
    line: str


def explain(failure: BaseException) -> Told | None:
    """Return the exit code and the line for a failure that input or the machine caused; None for a bug."""
    told = _explain(failure)
    if told is None:
        return None
    line = " ".join(told.line.split())
    for advice, instead in _ADVICE.items():
        line = line.replace(advice, instead)
    return Told(told.code, line)


def _explain(failure: BaseException) -> Told | None:
    if isinstance(failure, Terminated):
        return Told(TERMINATED, "terminated")
    if isinstance(failure, KeyboardInterrupt) or type(failure).__name__ == "Abort":
        return Told(INTERRUPTED, "interrupted")
    # Typer has its own copy of Click in some versions, and Click's classes in others: only the shape is common.
    if hasattr(failure, "format_message"):
        return Told(getattr(failure, "exit_code", WRONG_USAGE), _usage(failure))
    if isinstance(failure, WrongUsage):
        return Told(WRONG_USAGE, str(failure))
    if isinstance(failure, Locked):
        return Told(STORE_IN_USE, str(failure))
    if _disk_is_full(failure):
        return Told(DISK_REFUSED, f"the disk is full: {failure}; free some space, or give another --dir")
    if isinstance(failure, (ColdStoreError, Poisoned)) and not isinstance(failure, Corruption):
        return Told(DISK_REFUSED, f"the disk refused: {failure}")
    if isinstance(failure, (KvembError, OSError, ValueError)):
        return Told(BAD_INPUT, _describe(failure))
    return None


def _usage(failure: Any) -> str:
    """What Click says, and of which command the help says more."""
    command = getattr(getattr(failure, "ctx", None), "command_path", None) or "kvemb"
    return f"{failure.format_message()} (see {command} --help)"


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
