"""Hard links, and filesystems that refuse them."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb import hard_links
from kvemb.errors import ColdStoreError

NO_LINKS = [errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP]


def refuse(monkeypatch, error):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(error, os.strerror(error))))


def test_a_link_is_made_or_refused(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("x")
    assert hard_links.linked(source, target)
    assert os.path.samefile(source, target)
    with pytest.raises(FileExistsError):
        hard_links.linked(source, target)
    for error in NO_LINKS:
        refuse(monkeypatch, error)
        assert not hard_links.linked(source, tmp_path / "other")
        with pytest.raises(OSError, match=os.strerror(error)):
            hard_links.linked(source, target)


@pytest.mark.parametrize("error", NO_LINKS)
def test_a_store_says_at_its_opening_that_it_needs_links(tmp_path, monkeypatch, error):
    path = tmp_path / "store"
    with monkeypatch.context() as patch:
        refuse(patch, error)
        for _ in range(2):
            told = rf"a store cannot be at .*store, because its filesystem refuses hard links \({os.strerror(error)}\)"
            with pytest.raises(ColdStoreError, match=told):
                kvemb.open(path, memory_budget="4MiB")
    assert [file for file in path.rglob("*") if file.is_file() and file.name != "LOCK"] == []
    with kvemb.open(path, memory_budget="4MiB") as store:
        store.get_variable("table", dim=1).upsert([1], np.ones((1, 1), np.float32))
