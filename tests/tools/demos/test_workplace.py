"""The demo's directory is gone afterwards, and nothing of the user's is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvemb.tools.demos.workplace import workplace
from kvemb.tools.failures import BadInput


def fill(place: Path) -> None:
    (place / "store").mkdir()
    (place / "store" / "rows").write_text("x")
    (place / "file").write_text("x")


def test_it_is_removed_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), workplace(tmp_path / "new", keep=False) as place:  # noqa: PT012
        fill(place)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_of_the_users_is_emptied_and_stays(tmp_path: Path) -> None:
    with workplace(tmp_path, keep=False) as place:
        fill(place)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(BadInput, match="not empty"), workplace(tmp_path, keep=False):
        pass
    with pytest.raises(BadInput, match="is a file"), workplace(tmp_path / "mine", keep=False):
        pass
    assert (tmp_path / "mine").read_text() == "precious"
