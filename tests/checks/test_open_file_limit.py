"""Where no more files may be opened, the error says so, and what to do."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.checks import open_file_limit
from kvemb.errors import ColdStoreError

ADVICE = r"this process may open [\d,]+ files: raise the limit \(ulimit -n\), or open fewer stores and variables"


@contextmanager
def room_for(files: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process open so many more files, and not raise the limit."""
    gc.collect()  # files of databases that earlier tests left
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    number = next(n for n in range(len(taken) + files, 1 << 20) if n - len([fd for fd in taken if fd < n]) >= files)
    with monkeypatch.context() as patched:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, limits[1]))
        patched.setattr(resource, "setrlimit", lambda *_: None)
        try:
            yield
        finally:
            patched.undo()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists its files in Linux's way")
@pytest.mark.parametrize("files", [0, 1, 2])
def test_openings_and_refreshes_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        table = store.get_variable("table", dim=1)
        table.upsert(np.arange(100), np.ones((100, 1), np.float32))
        store.flush()
        with kvemb.open(tmp_path / "store", memory_budget="8MiB", follow=True) as reader:
            table.upsert([1], [[2.0]])
            store.flush()
            with room_for(files, monkeypatch), pytest.raises(ColdStoreError, match=ADVICE):
                reader.refresh()
            with room_for(files, monkeypatch), pytest.raises(ColdStoreError, match=ADVICE):
                kvemb.open(tmp_path / "store", memory_budget="8MiB", follow=True)
            assert reader.refresh()
            assert reader.variables["table"].lookup([1]) == 2.0


def test_other_errors_stay() -> None:
    with pytest.raises(PermissionError), open_file_limit.told("open it"):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert open_file_limit.advice("No space left on device") == ""
