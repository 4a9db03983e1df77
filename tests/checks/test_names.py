"""Names of variables and paths of files: what could lead out of a directory is none."""

from __future__ import annotations

import pytest

from kvemb.checks.names import is_name, is_path
from kvemb.checks.ranges import MAX_NAME_BYTES

OUTSIDE = ["", "/a", "a/", "a//b", "..", "a/..", "a/../b", "./a", "a\n", "a\0"]


@pytest.mark.parametrize("name", ["a", "users/new", "über", "a b", ".a", "x" * MAX_NAME_BYTES])
def test_a_name_is_a_path_of_plain_names(name):
    assert is_name(name)


@pytest.mark.parametrize("name", [*OUTSIDE, "default", ".", "a\u2028b", "é" * (MAX_NAME_BYTES // 2 + 1), 3, None])
def test_what_could_leave_its_store_is_no_name(name):
    assert not is_name(name)


@pytest.mark.parametrize("path", ["a", "rows/000001.sst", ".a", "x" * 255])
def test_a_path_stays_below_its_folder(path):
    assert is_path(path)


@pytest.mark.parametrize("path", [*OUTSIDE, "ü", "x" * 256, "a/" * 2048 + "a"])
def test_what_could_leave_its_folder_is_no_path(path):
    assert not is_path(path)
