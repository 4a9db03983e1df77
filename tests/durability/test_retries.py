"""A call that failed or was killed at an operation on the disk can be made again, and leaves nothing.

The calls are those of tests/retries.py. KVEMB_FAULTS says at how many operations of each, evenly spread, it fails, with
each errno and with a kill. 0: at every one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
import retries

pytest.importorskip("fsspec")
pytestmark = pytest.mark.slow

FAULTS = int(os.environ.get("KVEMB_FAULTS", "1"))
ERRORS = [errno.ENOSPC, errno.EIO, faults.KILL]
NO_LINKS = [errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Laboratory]:
    folder = tmp_path_factory.mktemp("faults")
    running = faults.Laboratory(faults.compiled(folder), folder)
    yield running
    running.close()


@pytest.fixture(scope="module")
def ready(laboratory: faults.Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = laboratory.run("ready", timeout=600, folder=tmp_path_factory.mktemp("ready"))
    assert made.error == ""
    return made.folder


@pytest.mark.parametrize("call", retries.CALLS)
def test_a_call_is_repeated(laboratory: faults.Laboratory, ready: Path, call: str) -> None:
    whole = laboratory.run("retried", ready=str(ready), call=call)
    assert whole.error == ""
    assert whole.seen
    for turn, error in enumerate(ERRORS):
        for at in places(whole.seen, turn + list(retries.CALLS).index(call)):
            told = f"{call}, operation {at} of {whole.seen}, {errno.errorcode.get(error, 'killed')}"
            trial = laboratory.run("retried", ready=str(ready), call=call, at=at, error=error)
            if trial.error == "killed by SIGKILL":
                trial = laboratory.run("retried", ready=str(ready), call=call, folder=trial.folder)
            assert not trial.hung, told
            assert trial.error == "", f"{told}: {trial.error}\nfailed: {trial.what_failed}"
            shutil.rmtree(trial.folder)


def places(last: int, turn: int) -> list[int]:
    """Which operations, from 1 to last, fail: others for each call and error."""
    if not FAULTS:
        return list(range(1, last + 1))
    return [1 + (5 * part + turn % 5) * last // (5 * FAULTS) for part in range(FAULTS)]


@pytest.mark.parametrize("error", NO_LINKS)
def test_a_filesystem_without_hard_links(laboratory: faults.Laboratory, ready: Path, error: int) -> None:
    trial = laboratory.run("without_links", ready=str(ready), error=error)
    assert trial.error == ""
