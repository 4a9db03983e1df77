"""Every failure becomes one line and the documented exit code; a bug does not."""

from __future__ import annotations

import errno

import pytest

from kvemb import errors
from kvemb.tools.failures import BadInput, explain


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.txt"), 1, "x.txt: No such file or directory"),
        (BadInput("one\n  line"), 1, "one line"),
        (ValueError("memory_budget must be text"), 1, "memory_budget must be text"),
        (errors.StoreNotFound("there is no store at /s"), 1, "there is no store at /s"),
        (errors.Corruption("MANIFEST is damaged"), 1, "MANIFEST is damaged"),
        (errors.Locked("/s is in use"), 3, "/s is in use"),
        (errors.ColdStoreError("IO error: short write"), 4, "the disk refused: IO error: short write"),
        (errors.Poisoned("an earlier write failed"), 4, "the disk refused: an earlier write failed"),
        (OSError(errno.EROFS, "Read-only file system", "/d"), 4, "the disk refused: /d: Read-only file system"),
        (caused_by(errors.TransferError("no"), PermissionError(errno.EACCES, "no", "/d")), 4, "the disk refused: no"),
        (caused_by(errors.Corruption("1.sst"), OSError(errno.EIO, "Input/output error")), 1, "1.sst"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_failure_is_told_in_one_line(failure: BaseException, code: int, line: str) -> None:
    assert explain(failure) == (code, line)


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device", "/s/1.sst"),
        errors.ColdStoreError("IO error: No space left on device: While appending to file"),
        caused_by(errors.Poisoned("writes are refused"), errors.ColdStoreError("No space left on device")),
        caused_by(errors.ColdStoreError("cannot write the checkpoint"), OSError(errno.EDQUOT, "Disk quota exceeded")),
    ],
)
def test_a_full_disk_is_named_however_deep_it_lies(failure: Exception) -> None:
    told = explain(failure)
    assert told is not None
    assert told.code == 4
    assert told.line.startswith("the disk is full: ")


@pytest.mark.parametrize("bug", [AssertionError(), KeyError("x"), TypeError("x"), IndexError("x")])
def test_a_bug_is_not_explained_away(bug: Exception) -> None:
    assert explain(bug) is None
