"""A store of many variables under the usual limits of open files."""

from __future__ import annotations

import resource

import pytest
from programs import run_python

from kvemb.backends import open_files

MANY_TABLES = """
import resource, sys
import numpy as np
import kvemb

soft, hard, tables = (int(given) for given in sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with kvemb.open(sys.argv[1], memory_budget="64MiB") as store:
    variables = [store.get_variable(f"table{number}", dim=2) for number in range(tables)]
    for point in range(4):
        for variable in variables:
            variable.upsert(np.arange(point, point + 3), np.full((3, 2), point, np.float32))
        store.flush()
with kvemb.open(sys.argv[1], memory_budget="64MiB") as store:
    for variable in store.variables.values():
        assert variable.lookup(np.arange(6))[:, 0].tolist() == [0, 1, 2, 3, 3, 3]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("soft", "hard"), [(60, 4096), (160, 160)])
def test_many_tables_under_a_low_limit(tmp_path, soft, hard):
    """Each has a file a sorted run and a folder handle: the soft limit is raised; below a low hard one few are open."""
    run_python(MANY_TABLES, tmp_path / "store", soft, hard, 40, check=True)


@pytest.fixture
def limits(monkeypatch):
    """The soft and the hard limit of a system that has no more than 10,240 files, as macOS does."""
    now = [256, resource.RLIM_INFINITY]

    def set_limit(_what: int, wanted: tuple[int, int]) -> None:
        if not 0 <= wanted[0] <= 10_240:
            raise ValueError("current limit exceeds maximum limit")
        now[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _what: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    return now


def test_the_soft_limit_is_raised_as_far_as_the_system_allows(limits, tmp_path, caplog):
    assert open_files.raise_limit() == 10_240
    assert limits == [10_240, resource.RLIM_INFINITY]
    assert open_files.most_open(tmp_path) == 2560
    limits[:] = 10_240, 12_000
    assert open_files.raise_limit() == 10_240
    limits[:] = resource.RLIM_INFINITY, resource.RLIM_INFINITY  # what a user has set is never lowered
    assert open_files.most_open(tmp_path) is None
    assert limits[0] == resource.RLIM_INFINITY
    assert not caplog.records


def test_fewer_files_than_there_are_is_said(limits, tmp_path, caplog):
    limits[:] = 256, 300
    for number in range(80):
        (tmp_path / f"{number:06}.sst").touch()
    assert open_files.most_open(tmp_path) == 75
    assert "has 80 files, but this process may open only 300" in caplog.text
    limits[:] = 20_000, 20_000
    assert open_files.most_open(tmp_path) is None


def test_a_few_files_are_opened_on_one_thread_and_many_on_as_many_as_rocksdb_has(tmp_path):
    found = []
    for number in range(200):
        if number in (0, 7, 8, 40, 199):
            found.append(open_files.opening_threads(tmp_path))
        (tmp_path / f"{number:06}.sst").touch()
    assert found == [1, 1, 2, 6, 16]
