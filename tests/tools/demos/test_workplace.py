"""The demo's directory is gone afterwards, nothing of the user's is touched, and interrupts wait for `check`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kvemb.tools.demos.workplace import workplace
from kvemb.tools.failures import BadInput
from kvemb.tools.stopping import Terminated, check, deferred, signals_handled


def fill(place: Path) -> None:
    (place / "store").mkdir()
    (place / "store" / "rows").write_text("x")
    (place / "file").write_text("x")


def test_a_temporary_directory_is_removed() -> None:
    with workplace(None, keep=False) as place:
        fill(place)
    assert not place.exists()


def test_it_is_removed_after_an_error_too(tmp_path: Path) -> None:
    def work() -> None:
        with workplace(tmp_path / "new", keep=False) as place:
            fill(place)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_keep_leaves_everything(tmp_path: Path) -> None:
    with workplace(tmp_path / "a" / "b", keep=True) as place:
        fill(place)
    assert (tmp_path / "a" / "b" / "store" / "rows").exists()


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


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_waits_for_the_check_and_a_second_one_does_not(number: int, error: type[BaseException]) -> None:
    reached = []
    with signals_handled():
        with deferred():
            check()
            os.kill(os.getpid(), number)
            reached.append(True)
            with pytest.raises(error):
                check()
            with pytest.raises(error):
                os.kill(os.getpid(), number)
        with pytest.raises(error):
            os.kill(os.getpid(), number)
    assert reached
