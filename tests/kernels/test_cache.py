"""Compiled code on disk: what is read is what was kept, and where nothing can be kept nothing fails."""

from __future__ import annotations

import logging
import os
import pwd

import pytest

from kvemb.kernels import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """kvemb's folder, as the environment has it; no failure was logged yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warned", [])
    return tmp_path / "cache" / "kvemb"


def test_what_is_kept_is_read_under_its_name_and_environment(folder):
    cache.keep("1.0-gpu", "kernel", b"code")
    assert cache.read("1.0-gpu", "kernel") == b"code"
    assert [cache.read(*place) for place in [("1.0-gpu", "other"), ("1.1-gpu", "kernel")]] == [None, None]
    cache.keep("1.0-gpu", "kernel", b"newer")
    assert cache.read("1.0-gpu", "kernel") == b"newer"
    assert [path.name for path in folder.rglob("*")] == ["1.0-gpu", "kernel"]
    assert (folder / "1.0-gpu").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:33] + b"x" + data[34:]]
)
def test_a_damaged_file_counts_as_absent(folder, damage):
    cache.keep("1.0", "kernel", b"some code")
    path = folder / "1.0" / "kernel"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("1.0", "kernel") is None


def test_a_new_environment_removes_those_that_were_not_used_for_longest(folder):
    for number in range(cache.KEPT_FOLDERS):
        cache.keep(f"{number}", "kernel", b"code")
        os.utime(folder / f"{number}", (number, number))
    cache._mark_used.cache_clear()
    assert cache.read("0", "kernel") == b"code"  # used now
    (folder / "a file").write_text("not ours")
    cache.keep("new", "kernel", b"code")
    expected = {"a file", "new", *map(str, range(cache.KEPT_FOLDERS))} - {"1"}
    assert {path.name for path in folder.iterdir()} == expected


def test_a_folder_that_another_process_removes_is_made_again(folder):
    cache.keep("1.0", "kernel", b"code")
    cache._remove_unused.__globals__["shutil"].rmtree(folder)
    assert cache.read("1.0", "kernel") is None
    cache.keep("1.0", "kernel", b"code")
    assert cache.read("1.0", "kernel") == b"code"


@pytest.mark.parametrize("blocked", ["folder", "rename"])
def test_where_nothing_can_be_written_it_is_said_once(folder, monkeypatch, caplog, blocked):
    if blocked == "folder":
        folder.parent.write_text("a file")
    else:
        folder.mkdir(parents=True)
        monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("no")))
        monkeypatch.setattr(os, "rename", lambda *paths: (_ for _ in ()).throw(OSError("no")))
    with caplog.at_level(logging.WARNING, "kvemb"):
        for name in ("one", "other"):
            cache.keep("1.0", name, b"code")
            assert cache.read("1.0", name) is None
    assert [("NUMBA_CACHE_DIR" in record.message) for record in caplog.records] == [True]
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_cache_that_can_only_be_read_is_used(folder, monkeypatch, caplog):
    cache.keep("1.0", "kernel", b"code")
    cache._mark_used.cache_clear()
    monkeypatch.setattr(os, "utime", lambda *arguments: (_ for _ in ()).throw(PermissionError("no")))
    assert cache.read("1.0", "kernel") == b"code"
    assert caplog.text == ""


def test_it_is_in_the_users_cache_directory_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache._of_user.cache_clear()
    assert cache.root() == tmp_path / "xdg" / "kvemb"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "relative")
    monkeypatch.chdir(tmp_path)
    assert cache.root() == tmp_path / "relative" / "kvemb"
    monkeypatch.chdir("/")
    assert cache.root() == tmp_path / "relative" / "kvemb"
    cache._of_user.cache_clear()


def test_a_user_without_a_home_directory_gets_a_warning_and_no_folder_named_like_a_tilde(tmp_path, monkeypatch, caplog):
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {}[user])
    monkeypatch.chdir(tmp_path)
    cache._of_user.cache_clear()
    cache.keep("1.0", "kernel", b"code")
    assert cache.read("1.0", "kernel") is None
    assert "no home directory" in caplog.text
    assert list(tmp_path.iterdir()) == []
    cache._of_user.cache_clear()
