"""Kernels are compiled once for all processes, and again when their sources differ."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

from kvemb.backends import cpu_insert
from kvemb.kernels import cache, compiling
from kvemb.rows import hashing


def double(number):
    return 2 * number


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where kernels are kept."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", [])
    return tmp_path / "kvemb"


def test_a_kernel_is_compiled_once_for_each_signature(folder, caplog):
    for _ in range(2):
        made = compiling.kernel(double)
        assert [repr(made(number)) for number in (4, 4.5)] == ["8", "9.0"]
    assert sum(made._cache_hits.values()) == 2
    kept = sorted(folder.glob("*/*"))
    assert [path.name.partition("-")[0] for path in kept] == ["test_compiling.double"] * 2
    kept[0].write_bytes(b"torn")
    made = compiling.kernel(double)
    assert [repr(made(number)) for number in (4, 4.5)] == ["8", "9.0"]
    assert sum(made._cache_hits.values()) == 1
    assert caplog.text == ""


def test_code_that_cannot_be_loaded_is_compiled_again(folder):
    """What another build of numba kept, say."""
    compiling.kernel(double)(4)
    (kept,) = folder.glob("*/*")
    cache.keep(kept.parent.name, kept.name, b"not a pickle")
    assert compiling.kernel(double)(4) == 8


@pytest.mark.slow
def test_what_numba_can_compile_is_not_imported_for_a_kernel_that_was_kept():
    """It takes a second; where SciPy is installed, numba imports that, too."""
    hashing.Unique(np.arange(2))
    done = run_python("""
        import sys
        import numpy
        from kvemb.rows import hashing

        hashing.Unique(numpy.arange(2))
        print([name for name in ("numba.np.linalg", "scipy.linalg") if name in sys.modules])
    """)
    assert done.stdout == "[]\n", done.stderr


def test_kernels_are_compiled_again_when_any_source_that_they_may_contain_differs(tmp_path):
    """numba itself watches one file: insert would have gone on with the digests of an older cpu_probe."""
    folder = Path(cpu_insert.__file__).parent
    assert cpu_insert.insert._cache.sources == compiling.source_stamp(folder)
    before, after = tmp_path / "before", tmp_path / "after"
    for copy in (before, after):
        copy.mkdir()
        for source in folder.glob("cpu_*.py"):
            (copy / source.name).write_bytes(source.read_bytes())
    assert compiling.source_stamp(before) == compiling.source_stamp(after)
    (after / "cpu_probe.py").write_text("CELLS = 8\n")
    compiling.source_stamp.cache_clear()
    assert compiling.source_stamp(before) != compiling.source_stamp(after)


def test_generated_kernels_of_one_name_are_told_apart_by_their_source(folder):
    kernels = []
    for number in (2, 3):
        source = f"def times(number): return {number} * number"
        exec(compile(source, __file__, "exec"), made := dict[str, Any]())
        kernels.append(compiling.kernel(made["times"], source.encode()))
    assert [kernel(5) for kernel in kernels] == [10, 15]
    assert len(list(folder.glob("*/*"))) == 2


def test_ctrl_c_waits_until_a_kernel_is_compiled():
    made = compiling.kernel(double)

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
