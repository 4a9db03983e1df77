"""The report: whole, without a network, and drawn by a real browser."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.report import report

pytest.importorskip("pyarrow")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """A series of three checkpoints of two variables, one of whose names is hostile."""
    chance = np.random.default_rng(0)
    with (
        kvemb.open(tmp_path / "store", memory_budget="8MiB") as store,
        kvemb.CheckpointManager(tmp_path / "series") as manager,
    ):
        table = store.get_variable("users", dim=4, restrict_policy=kvemb.FrequencyRestrictPolicy())
        other = store.get_variable("<script>alert(1)</script>", dim=2)
        other.upsert([1], np.array([[np.nan, 1]], np.float32))
        for _ in range(3):
            keys = chance.zipf(1.5, 500) % 1000
            table.upsert(keys, chance.standard_normal((500, 4)).astype(np.float32))
            table.lookup(keys)
            manager.save(store)
    return tmp_path / "series"


class Page(HTMLParser):
    """Counts elements, and sees that each is closed."""

    VOID = ("meta", "line", "circle", "rect", "polyline", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_and_needs_no_network(series, tmp_path, capsys):
    assert run(["report", str(series), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert "page.html" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.counts["svg"] == 4 + 2 * 3 + 1  # the series; three histograms each; users' projection
    assert "script" not in page.counts
    assert not re.findall(r"(?:src|href|url\(|@import|http)", text)
    for part in (
        "The series",
        "Churn",
        "Moved most since the checkpoint before",
        "1 hold NaN or infinity, such as key 1",
    ):
        assert part in text
    assert "prefers-color-scheme: dark" in text
    assert run(["report", str(series), "--out", str(tmp_path / "page.html")]) == 1
    assert "exists; name a new file" in capsys.readouterr().err


def test_one_checkpoint_and_a_store_have_pages_too(series, tmp_path):
    for name, path in (("1", series / "00000001"), ("2", tmp_path / "store")):
        told: list[tuple[int, int]] = []
        page = report(path, str(tmp_path / f"{name}.html"), progress=lambda *rows, told=told: told.append(rows))
        rows = sum(entry.rows for entry in kvemb.Checkpoint.at(path).variables.values())
        assert told[-1] == (rows, rows)
        text = page.read_text()
        assert "The series" not in text
        assert Page(text).open == []


def test_nothing_is_written_about_nothing(tmp_path, capsys):
    assert run(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "page.html")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("name", "width"), [("desk", 1100), ("phone", 500)])
def test_a_browser_draws_it(series, tmp_path, name, width):
    """Also on a phone nothing is wider than the page: the script says so in the title, which the DOM shows."""
    page = report(series, str(tmp_path / "page.html"))
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script></body>"
    (tmp_path / "probe.html").write_text(page.read_text().replace("</body>", probe))
    common = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--disable-quic", "--hide-scrollbars"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400"),
    ]
    shot = tmp_path / f"{name}.png"
    subprocess.run([*common, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True, timeout=120)
    head = shot.read_bytes()[:24]
    assert struct.unpack(">II", head[16:24]) == (width, 2400)
    assert shot.stat().st_size > 30_000, "a page that is blank takes less"
    uri = (tmp_path / "probe.html").as_uri()
    done = subprocess.run([*common, "--dump-dom", uri], check=True, capture_output=True, text=True, timeout=120)
    wide, window = map(int, re.search(r"<title>(\d+) of (\d+)</title>", done.stdout).groups())
    assert wide <= window
