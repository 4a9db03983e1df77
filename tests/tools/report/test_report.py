"""The report: whole, without a network, and drawn by a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from quick import quick
from told import json_of

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.diff import diff
from kvemb.tools.report.page import report

pytest.importorskip("pyarrow")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


LONG = "tower/history/" + "feature_" * 23 + "ab"
HOSTILE = "</title><script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a series of five checkpoints over eight days. Tests that damage something copy it first.

    users: counted uses, one row far longer than the others. items: seconds of last uses. bias: one column. Two names
    are hostile, one of a variable that holds NaN.
    """
    chance, place = np.random.default_rng(0), tmp_path_factory.mktemp("made")
    with (
        pytest.MonkeyPatch.context() as patch,
        kvemb.open(place / "store", memory_budget="16MiB") as store,
        kvemb.CheckpointManager(place / "series") as manager,
    ):
        users = store.get_variable(
            "users",
            dim=4,
            optimizer=kvemb.optimizers.Adagrad(learning_rate=0.25),
            initializer=kvemb.RandomNormal(stddev=0.125, seed=1),
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
        )
        items = store.get_variable("items", dim=2, restrict_policy=kvemb.TimestampRestrictPolicy())
        bias, long = store.get_variable("bias", dim=1), store.get_variable(LONG, dim=2)
        store.get_variable(HOSTILE, dim=2).upsert([1, 2], np.array([[np.nan, 1], [1, -np.inf]], np.float32))
        bias.upsert(np.arange(50), chance.standard_normal((50, 1)).astype(np.float32))
        long.upsert([1, 2, 3], np.eye(3, 2).astype(np.float32))
        users.upsert([5000], np.full((1, 4), 1e9, np.float32))
        for day in range(0, 8, 2):
            patch.setattr(time, "time", lambda day=day: datetime(2026, 3, 1 + day, 12).timestamp())
            users.upsert(np.arange(500 + day), chance.standard_normal((500 + day, 4)).astype(np.float32))
            items.upsert(np.arange(300), chance.standard_normal((300, 2)).astype(np.float32))
            manager.save(store)
            users.lookup(chance.integers(0, 400, 900))
            items.lookup(np.arange(40 * day))
        patch.setattr(time, "time", lambda: datetime(2026, 3, 9, 12).timestamp())
        users.upsert(np.arange(7), np.ones((7, 4), np.float32))
        manager.save(store)
    return place


@pytest.fixture(scope="module")
def text(made: Path) -> str:
    """The page about the series."""
    assert run(["report", str(made / "series"), str(made / "page.html"), "--quiet"]) == 0
    return (made / "page.html").read_text()


def section(text: str, name: str) -> str:
    """The part of the page about a variable."""
    found = [part for part in text.split("<h2 ")[1:] if f"<bdi>{escape(name)}</bdi></h2>" in part]
    assert len(found) == 1
    return found[0]


def bars(text: str, title: str) -> list[int]:
    """What the bars of a chart count."""
    (chart,) = re.findall(rf'<svg[^>]*aria-label="{title}".*?</svg>', text)
    return [int(count.replace(",", "")) for count in re.findall(r"<title>[^<]*: ([\d,]+)[^<]*</title>", chart)]


class Page(HTMLParser):
    """Counts elements, and sees that each is closed."""

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


@pytest.mark.slow
def test_a_page_is_whole_needs_no_network_and_its_contents_lead_to_every_variable(text):
    page = Page(text)
    assert page.open == []
    assert "script" not in page.counts
    assert not re.findall(r"(?:src|href=\"[^#]|url\(|@import|http)", text)
    assert "prefers-color-scheme: dark" in text
    links, anchors = re.findall(r'href="#(\w+)"', text), re.findall(r'id="(\w+)"', text)
    assert len(anchors) == len(set(anchors))
    assert set(links) == set(anchors)
    contents = text.partition("<nav>")[2].partition("</nav>")[0]
    for name in ("users", "items", "bias", LONG, HOSTILE):
        assert f"<bdi>{escape(name)}</bdi></a>" in contents


def test_it_says_what_a_variable_is_made_with(text):
    users = section(text, "users")
    for what, value in (
        ("optimizer", "adagrad, learning rate 0.25, "),
        ("policy", "frequency"),
        ("initializer", "random_normal, mean 0, stddev 0.125, seed 1"),
    ):
        assert f"<dt>{what}</dt><dd><bdi>{value}" in users
    assert "<dt>policy</dt><dd><bdi>none</bdi>" in section(text, "bias")


def test_rows_that_are_not_finite_are_emphasized_in_the_contents_and_in_place(text):
    said = "1 row holds NaN; 1 row holds infinity"
    assert f'<span class="bad">{said}</span>' in text.partition("</nav>")[0]
    assert f'<p class="notice"><b>Not finite:</b> {said}. The first keys: 1, 2.</p>' in section(text, HOSTILE)
    assert text.count('class="notice"') == 1


def test_one_long_row_does_not_squeeze_all_norms_into_one_bar(text):
    users = section(text, "users")
    counts = bars(users, "norms")
    assert sum(counts) == 507
    assert max(counts) < 100
    assert "in separate bars: 1 above" in users
    assert "<dt>max</dt><dd><bdi>2G</bdi></dd>" in users
    with_median = re.findall(r"<dt>(min|1%|25%|median|75%|99%|max)</dt>", users)
    assert with_median == ["min", "1%", "25%", "median", "75%", "99%", "max"] * 3  # norms, uses, ages


def test_scores_of_a_clock_are_dates(text):
    items = section(text, "items")
    assert "<h3>Last uses</h3>" in items
    assert "<dt>max</dt><dd><bdi>2026-03-07 12:00</bdi></dd>" in items
    (chart,) = re.findall(r'<svg[^>]*aria-label="last uses".*?</svg>', items)
    labels = re.findall(r'<text class="label" x="[\d.]+%" y="100%"[^>]*>([^<]+)</text>', chart)
    assert len(labels) >= 2
    assert all(re.fullmatch(r"Mar \d\d", label) for label in labels)
    assert "G<" not in chart


@pytest.mark.slow
def test_what_says_nothing_is_left_out_with_a_word(text):
    bias = section(text, "bias")
    for word in ("scores (no policy)", "ages (no calls recorded uses)", "one column only"):
        assert word in bias
    assert "<h3>Ages" not in bias
    assert "<h3>Scores" not in bias
    assert "two dimensions" not in bias
    assert sum(bars(bias, "values")) == 50
    assert "Rows in two dimensions" in section(text, "users")


def test_rows_that_moved_are_apart_from_rows_that_were_only_touched(made, text):
    (chart,) = re.findall(r'<svg[^>]*aria-label="rows changed by checkpoint".*?</svg>', section(text, "users"))
    told = {what: int(count) for count, what in re.findall(r"<title>00000005, [^<]*: (\d+) ([a-z ]+)</title>", chart)}
    (last,) = diff(made / "series" / "00000004", made / "series" / "00000005", variable="users")
    assert told == {"moved": last.moved, "touched only": last.changed - last.moved}
    assert last.moved == 7
    assert told["touched only"] > 100


def test_growth_is_told_by_variable_and_by_date(text):
    series = section(text, "The series")
    (chart,) = re.findall(r'<svg[^>]*aria-label="rows by checkpoint".*?</svg>', series)
    assert "<title>users, 2026-03-03 12:00: 503</title>" in chart
    assert "<title>bias, 2026-03-01 12:00: 50</title>" in chart
    assert len(set(re.findall(r">(Mar \d\d)</text>", chart))) >= 3
    assert "A log scale" in series


def broken(files: str) -> Callable[[Path], None]:
    """Return a function that damages files of a checkpoint, and no others that are the same by a hard link."""

    def damage(checkpoint: Path) -> None:
        for path in checkpoint.rglob(files):
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(bytes(byte ^ 0xFF for byte in data))

    return damage


def lost_table(checkpoint: Path) -> None:
    next(checkpoint.rglob("*.sst")).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", quick([broken("*.sst"), lost_table]), ids=["broken", "lost"])
def test_one_damaged_checkpoint_is_named_and_the_others_are_told(made, tmp_path, capsys, damage):
    series = shutil.copytree(made / "series", tmp_path / "series")
    damage(series / "00000003")
    assert run(["report", str(series), str(tmp_path / "page.html")]) == 1
    assert "00000003 cannot be read" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert "<b>00000003 cannot be read:</b>" in text
    assert text.count('class="notice"') == 2  # the other one tells of NaN
    (chart,) = re.findall(r'<svg[^>]*aria-label="rows changed by checkpoint".*?</svg>', section(text, "users"))
    assert set(re.findall(r"<title>(\d{8}), ", chart)) == {"00000002", "00000004", "00000005"}
    assert sum(bars(section(text, "users"), "norms")) == 507


@pytest.mark.slow
def test_a_newest_checkpoint_whose_tables_are_damaged_leaves_what_its_manifest_says(made, tmp_path, capsys):
    series = shutil.copytree(made / "series", tmp_path / "series")
    broken("*.sst")(series / "00000005")
    assert list(json_of(capsys, "report", series, tmp_path / "page.html", code=1)["damages"]) == ["00000005"]
    users = section((tmp_path / "page.html").read_text(), "users")
    assert "<b>Its rows cannot be read:</b>" in users
    assert "<dt>rows</dt><dd><bdi>507</bdi>" in users
    assert "norms" not in users


def test_a_series_of_which_nothing_can_be_read_has_no_page(made, tmp_path, capsys):
    series = shutil.copytree(made / "series", tmp_path / "series")
    for checkpoint in series.glob("0*"):
        broken("manifest.json")(checkpoint)
    assert run(["report", str(series), str(tmp_path / "page.html")]) == 1
    assert "manifest.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_one_checkpoint_and_stores_have_pages_too(made, tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        store.get_variable("empty", dim=3, restrict_policy=kvemb.TimestampRestrictPolicy())
    for at, path in enumerate((made / "series" / "00000001", made / "store", tmp_path / "store")):
        told: list[tuple[int, int]] = []
        done = report(path, str(tmp_path / f"{at}.html"), progress=lambda *rows, told=told: told.append(rows))
        rows = sum(entry.rows for entry in kvemb.Checkpoint.at(path).variables.values())
        assert told[-1] == (rows, rows)
        text = Path(done.out).read_text()
        assert "The series" not in text
        assert Page(text).open == []
    assert "norms (none is finite)" in section(text, "empty")


# Run in the page, which is in a frame, as no window is narrower than 500 pixels. It tells how wide the page is, how
# wide its window, and how high the least text is as it is drawn, however its chart is scaled.
PROBE = """<script>
const heights = [...document.querySelectorAll("text, p, td, dd, dt")].filter(each => each.textContent.trim())
  .map(each => { const range = document.createRange(); range.selectNodeContents(each);
    return range.getClientRects()[0]?.height ?? 0; }).filter(height => height > 0);
parent.postMessage([document.documentElement.scrollWidth, window.innerWidth, Math.min(...heights)].join(" "), "*");
</script></body>"""
FRAME = """<body style="margin: 0"><script>onmessage = event => { document.title = event.data; }</script>
<iframe src="page.html" style="border: 0; width: WIDTHpx; height: 2400px"></iframe></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_it(text, tmp_path, width):
    """Nothing is wider than a desk's or a phone's page, and every text can be read there."""
    (tmp_path / "page.html").write_text(text.replace("</body>", PROBE))
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    common = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--disable-quic", "--hide-scrollbars"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400", "--virtual-time-budget=3000"),
    ]
    command = [*common, "--dump-dom", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    wide, window, least = map(float, re.search(r"<title>(\d+) (\d+) ([\d.]+)</title>", done.stdout).groups())
    assert window == width
    assert wide <= window
    assert least >= 12


@pytest.mark.slow
def test_lines_that_would_hide_each_other_are_one_and_a_long_fact_has_a_line_of_its_own(tmp_path: Path) -> None:
    names = ["items", "users", "words", *(f"t{number:02}" for number in range(12))]
    rule = kvemb.optimizers.AdamW(learning_rate=0.001, weight_decay=0.01)
    with (
        kvemb.open(tmp_path / "store", memory_budget="32MiB") as store,
        kvemb.CheckpointManager(tmp_path / "series") as manager,
    ):
        tables = [store.get_variable(name, dim=1, optimizer=rule) for name in names]
        for count in (3, 9):
            for at, table in enumerate(tables):
                more = count + (20 if at < 7 else at)
                table.upsert(np.arange(more), np.ones((more, 1), np.float32))
            manager.save(store)
    assert run(["report", str(tmp_path / "series"), str(tmp_path / "page.html"), "--quiet"]) == 0
    page = (tmp_path / "page.html").read_text()
    chart = page.split("Rows by variable")[1].split("</div>")[0]
    lines = re.findall(r"<title>(.*?), 20[-0-9: ]+: ([\d,]+)<", chart)
    assert len(lines) == 2 * 8, "as many lines as there are colours"
    assert lines[:2] == [("items, t00 and 5 others", "23"), ("items, t00 and 5 others", "29")]
    assert lines[-2:] == [("2 others together", str(3 + 7 + 3 + 8)), ("2 others together", str(9 + 7 + 9 + 8))]
    optimizer = re.search(r"<div([^>]*)><dt>optimizer</dt><dd><bdi>([^<]*)", page)
    assert optimizer is not None
    assert (optimizer[1], len(optimizer[2]) > 48) == (' class="long"', True)
