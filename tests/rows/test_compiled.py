"""Kernels run where nothing can be kept on disk: read-only packages and no home, as in a container."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.caching import IndexDataCacheFile

from kvemb.rows import compiled

PROGRAM = """
    import logging, sys
    import numba.core.caching as caching

    def refuse(self):
        raise PermissionError(30, "Read-only file system")

    if sys.argv[1] == "from the start":
        caching._CacheLocator.ensure_cache_path = refuse  # neither beside the sources nor below the home
    logging.basicConfig(format="%(name)s %(message)s", stream=sys.stdout)
    from kvemb.rows.hash_kernels import kernel
    from kvemb.rows.hashing import KeyIndex
    import numpy as np
    caching._CacheLocator.ensure_cache_path = refuse  # from here on, in any case
    index = KeyIndex(4)
    index.put(np.arange(4), 0, 4)
    print(index.find(np.arange(4), np.array([2])).tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("since", ["from the start", "since it was imported"])
def test_where_nothing_can_be_kept_kernels_are_compiled_and_that_is_told_once(tmp_path: Path, since: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), since]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    *told, result = done.stdout.splitlines()
    assert result == "[2]"
    assert [line.startswith("kvemb compiled code is not kept on disk") for line in told] == [True], told
    assert "NUMBA_CACHE_DIR" in told[0]


def double(number):
    return 2 * number


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder in which kernels are kept, as its variable of the environment says."""
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        numba.config.reload_config()
        yield tmp_path
    numba.config.reload_config()


def test_a_torn_file_of_the_cache_costs_a_compilation(cache, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_warned", [])
    assert compiled.compiled(double, "stamp")(4) == 8
    kept = list(cache.rglob("*.nb?"))
    assert len(kept) == 2
    assert compiled.compiled(double, "stamp")(4) == 8
    assert caplog.text == ""
    for file in kept:
        file.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert compiled.compiled(double, "stamp")(4) == 8
        assert compiled.compiled(double, "stamp")(4.5) == 9
    assert caplog.text.count("compiled code is not kept on disk") == 1


def test_kernels_that_two_processes_save_at_once_are_not_taken_for_each_other(cache, monkeypatch):
    """One's index was replaced by the other's, and then its code by the one's: it was executed for other arguments."""
    one, other, again = (compiled.compiled(double, "stamp") for _ in range(3))
    write, begun, late = IndexDataCacheFile._open_for_write, list[bool](), dict[str, io.BytesIO]()

    @contextmanager
    def open_for_write(file: Any, path: str) -> Iterator[Any]:
        if not begun:  # the first that the one writes
            begun.append(True)
            other(4.5)
        elif path.endswith(".nbc") and not late:
            yield late.setdefault(path, io.BytesIO())
            return
        with write(file, path) as opened:
            yield opened

    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_open_for_write", open_for_write)
        one(4)
    for path, code in late.items():
        Path(path).write_bytes(code.getvalue())
    assert [repr(again(number)) for number in (4, 4.5)] == ["8", "9.0"]
    assert sum(again.stats.cache_hits.values()) == 2


def test_the_code_of_other_sources_is_neither_used_nor_kept(cache):
    for stamp in ("old", "new", "new"):
        made = compiled.compiled(double, stamp)
        assert (made(4), made(4.5)) == (8, 9)
    assert sum(made.stats.cache_hits.values()) == 2
    assert len(list(cache.rglob("*.nb?"))) == 4
    compiled.compiled(double, "old")(4)
    assert len(list(cache.rglob("*.nb?"))) == 2


def test_ctrl_c_waits_until_a_kernel_is_compiled(cache):
    made = compiled.compiled(double, "stamp")

    class Interrupting:
        def load_overload(self, *arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def save_overload(self, *arguments: Any) -> None:
            pass

    made._cache = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        made(4)
    assert len(made.signatures) == 1
    assert made(4) == 8
