"""Copies an open store, or what a call changes, as a crash or a kill would leave it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


def copy_of_open(store: Path, target: Path) -> Path:
    """Copy an open store's directory to target, a new one; returns target."""
    shutil.copytree(store, target, copy_function=_copy_if_there)
    return target


def killed_at_each(calls: list[str], run: Callable[[], Any], path: Path, copies: Path) -> list[Path]:
    """What a kill before each of these calls of os leaves at a path, each in a new folder below copies.

    While a copy is made, calls of other threads wait.
    """
    left: list[Path] = []
    copying, lock = list[bool](), threading.RLock()

    def copy(name: str) -> None:
        copying.append(True)
        left.append(copy_of_open(path, copies / name / "store"))
        copying.clear()

    def recorded(call: Any) -> Any:
        def record(*arguments: Any, **how: Any) -> Any:
            with lock:
                if not copying and path.exists():
                    copy(str(len(left)))
                return call(*arguments, **how)

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, recorded(getattr(os, name)))
        run()
        with lock:
            copy("ended")
    return left


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless RocksDB has deleted it meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)
