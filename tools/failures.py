"""The error line and the exit code of each failure. Prints nothing."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from kvemb.errors import ColdStoreError, Corruption, KvembError, Locked, Poisoned
from kvemb.masking import masked
from kvemb.tools.stopping import Terminated

# Scripts depend on these; do not renumber. 2 is what every Click program uses.
OK, BAD_INPUT, WRONG_USAGE, STORE_IN_USE, DISK_REFUSED = 0, 1, 2, 3, 4
INTERRUPTED, READER_LEFT, TERMINATED = 130, 141, 143

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A read-only disk, a failing one, and missing permission: a store reports these as ColdStoreError.
_REFUSED = frozenset({errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM})
# The most characters of a message of Click.
_MAX_CHARACTERS = 600


class BadInput(ValueError):
    """An argument or a file cannot be used; the message names it and says what to do."""


class WrongUsage(BadInput):
    """An option or an argument is missing or invalid, independently of any file's content."""


class Explanation(NamedTuple):
    """The exit code of a failure, and the line to print."""

    code: int
    line: str


def explain(failure: BaseException) -> Explanation | None:
    """Return the exit code and the line of a failure caused by input or the machine; None for a bug."""
    found = _explain(failure)
    if found is None:
        return None
    return Explanation(found.code, masked(" ".join(found.line.split())))


def _explain(failure: BaseException) -> Explanation | None:
    if isinstance(failure, Terminated):
        return Explanation(TERMINATED, "terminated")
    if isinstance(failure, KeyboardInterrupt) or type(failure).__name__ == "Abort":
        return Explanation(INTERRUPTED, "interrupted")
    # Some versions of Typer have their own copy of Click's exceptions, so they are recognized by their methods.
    if hasattr(failure, "format_message"):
        return Explanation(getattr(failure, "exit_code", WRONG_USAGE), _usage(failure))
    if isinstance(failure, WrongUsage):
        return Explanation(WRONG_USAGE, str(failure))
    if isinstance(failure, Locked):
        return Explanation(STORE_IN_USE, str(failure))
    if _is_caused_by(failure, _FULL, "No space left on device"):
        return Explanation(DISK_REFUSED, f"the disk is full: {failure}; free some space, or use another disk")
    if not isinstance(failure, Corruption) and (
        isinstance(failure, (ColdStoreError, Poisoned)) or _is_caused_by(failure, _REFUSED)
    ):
        return Explanation(DISK_REFUSED, f"the disk refused: {_describe(failure)}")
    if isinstance(failure, MemoryError):
        return Explanation(BAD_INPUT, f"there is not enough memory: {failure}; ask for less")
    if isinstance(failure, (KvembError, OSError, ValueError)):
        return Explanation(BAD_INPUT, _describe(failure))
    return None


def _usage(failure: Any) -> str:
    """Return Click's message and the command that prints the help."""
    command = getattr(getattr(failure, "ctx", None), "command_path", None) or "kvemb"
    message = failure.format_message() or "name a command"  # Click has printed the list of them
    if len(message) > _MAX_CHARACTERS:  # the message quotes arguments of any length
        message = f"{message[: _MAX_CHARACTERS // 2]} ... {message[-_MAX_CHARACTERS // 2 :]}"
    return f"{message.removesuffix('.')}{_on_the_variable(failure, message)} (see {command} --help)"


def _on_the_variable(failure: Any, message: str) -> str:
    """Return advice for a variable that was named without --variable, after all arguments."""
    command = getattr(getattr(failure, "ctx", None), "command", None)
    taken = [name for parameter in getattr(command, "params", []) for name in parameter.opts]
    if "--variable" in taken and "unexpected extra argument" in message:
        return "; a variable is named with --variable NAME"
    return ""


def _is_caused_by(failure: BaseException | None, numbers: frozenset[int], text: str | None = None) -> bool:
    """Look for an error number, or a text, in the chain of causes: Poisoned has the failed write as its cause."""
    while failure is not None:
        if getattr(failure, "errno", None) in numbers or (text is not None and text in str(failure)):
            return True
        failure = failure.__cause__
    return False


def _describe(failure: BaseException) -> str:
    """Return `x: ...`, as other commands print it, for an OSError that reads `[Errno 2] ...: 'x'`."""
    if isinstance(failure, OSError) and failure.filename is not None and failure.strerror:
        return f"{failure.filename}: {failure.strerror}"
    return str(failure) or type(failure).__name__
