"""The value that names a mark."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

from kvemb import Mark


def test_it_is_what_its_id_says_whatever_the_rest():
    mark = Mark("a" * 32, "b" * 32, "best", 1.5, Path("store/points/000007"))
    assert replace(mark, name=None, created=2.5) == mark
    assert replace(mark, id="c" * 32) != mark
    assert pickle.loads(pickle.dumps(mark)) == copy.deepcopy(mark) == mark
    assert {mark: 1}[pickle.loads(pickle.dumps(mark))] == 1
