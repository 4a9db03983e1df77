"""`kvemb bench tier` at tiny sizes: what it measures, that it continues after a stop, and the page it writes."""

from __future__ import annotations

import json
import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from kvemb.tools.bench.command import app
from kvemb.tools.bench.tier import page_cache
from kvemb.tools.bench.tier.cases import Case, Settings, plan
from kvemb.tools.bench.tier.charts import drawn
from kvemb.tools.bench.tier.command import command
from kvemb.tools.bench.tier.page import write
from kvemb.tools.bench.tier.records import NAME, Records
from kvemb.tools.bench.tier.restart import ROLLING, full_speed
from kvemb.tools.bench.tier.run import run
from kvemb.tools.bench.tier.tables import most_popular
from kvemb.tools.failures import BadInput
from kvemb.tools.screen import Screen

TINY = Settings(dim=8, batch=256, steps=3, runs=1, seconds=1.0, checkpoints=2)
OPTIONS = ["--dim", "8", "--batch", "256", "--steps", "3", "--runs", "1", "--seconds", "1", "--checkpoints", "2"]
MACHINE: dict[str, Any] = {
    **{"date": "2026-01-02", "cpu": "a CPU", "cores": 2, "memory_bytes": 8 << 30, "disk_free_bytes": 1 << 40},
    **{"system": "Linux 6", "python": "3.12.0", "versions": {"kvemb": "0.1.0", "rocksdict": "0.3"}},
}


class Stopped(Screen):
    """A screen on which somebody presses Ctrl-C when the first case is measured."""

    def milestone(self, line: str) -> None:
        if "left" in line:
            raise KeyboardInterrupt


def test_it_measures_continues_after_a_stop_and_writes_a_page(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    cases = plan([3000, 2000], [0.1, 0.5], [1.0], False)
    with pytest.raises(KeyboardInterrupt):
        run(cases, TINY, Stopped(False, False), place)
    first = (place / NAME).read_text()
    assert len(Records.read(place / NAME).found) == 1
    words = ["--rows", "3000", "--rows", "2000", "--hot", "0.1", "--hot", "0.5", "--zipf", "1.0", *OPTIONS]
    words += ["--folder", str(place), "--resume", "--out", str(tmp_path / "page.md"), "--json"]
    result = CliRunner().invoke(app, ["tier", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (place / NAME).read_text().startswith(first)
    assert [path.name for path in place.iterdir()] == [NAME]  # the tables are deleted
    assert list(Records.read(place / NAME).found) == cases
    report = json.loads(result.stdout)
    assert (report["bench"], len(report["lines"])) == ("tier", 2 * 3 + 2 + 3)
    assert all(line["ours"]["median"] > 0 for line in report["lines"])
    steps = Records.read(place / NAME).found[cases[0]]
    for side in ("kvemb", "by_hand"):
        assert all(value[0] > 0 for value in (steps["warm"][side]["rows_per_s"], steps["warm"][side]["cpu_us"]))
    assert 0 < steps["hit_rate"] < 1
    page = (tmp_path / "page.md").read_text()
    for path in re.findall(r'src="([^"]+)"|\]\((tier[^)]+)\)', page):
        assert (tmp_path / "".join(path)).is_file()
    assert page.count("<img ") == 9


def test_the_first_size_is_measured_in_full_and_the_others_in_the_middle() -> None:
    cases = plan([100, 200], [0.5, 0.1, 0.2], [1.0, 0.8, 1.2], False)
    assert [case.kind for case in cases] == ["steps"] * 9 + ["series", "restart", "steps"]
    assert cases[-3:] == [Case("series", 100, 0.2, 1.0), Case("restart", 100, 0.2, 1.0), Case("steps", 200, 0.2, 1.0)]
    assert len(plan([100, 200], [0.5, 0.1], [1.0], True)) == 2 + 2 + 2


def test_the_max_popular_rows_come_last_and_each_once() -> None:
    batches = list(most_popular(10, 4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert len(np.unique(np.concatenate(batches))) == 10
    assert set(batches[-1].tolist()) == set(np.concatenate(list(most_popular(2, 4))).tolist())


def test_full_speed_is_reached_with_the_first_steps_as_fast_as_before() -> None:
    slow, fast = [3.0] * 4, [1.0] * (ROLLING + 3)
    assert full_speed(1.0, 10.0, slow + fast) == 10.0 + 4 * 3.0 + ROLLING
    assert full_speed(1.0, 0.0, slow) is None


def test_a_mapped_table_file_reads_the_same_after_the_page_cache_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "below" / "1.sst"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "linked.sst").hardlink_to(path)
    assert len(page_cache.table_files(tmp_path)) == 1
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        page_cache.fill(tmp_path)
        before = mapped[:]
        page_cache.empty(tmp_path)
        assert mapped[:] == before


# The file of results.


def results(folder: Path, *, in_page_cache: bool = True) -> Records:
    """Results of two sizes, made up: kvemb is twice as fast as the loop by hand."""
    records = Records.new(folder, TINY, MACHINE)
    for case in plan([1000, 4000], [0.1, 0.2, 0.5], [0.8, 1.2], False):
        if case.kind == "steps":
            sides = {
                name: {
                    "rows_per_s": [speed * case.hot * 1000, speed * case.hot * 3000, speed * case.hot * 2000],
                    "cpu_us": [5.0 / speed] * 3,
                    "read_bytes": [0.0, 300.0, 0.0],
                    "written_bytes": [0.0, 0.0, 600.0],
                }
                for name, speed in (("kvemb", 20.0), ("by_hand", 10.0))
            }
            fits = in_page_cache or case.rows == 1000
            found: dict[str, Any] = {"memory": 1 << 26, "table_bytes": case.rows * 1000, "hit_rate": 0.75}
            found |= {"warm": sides if fits else None, "cold": sides}
        elif case.kind == "series":
            each = {"seconds": [0.1, 0.2], "new_bytes": [2000, 4000], "written_bytes": [3000, 5000]}
            found = {"changed_bytes": [1000, 1000], "kvemb": each, "by_hand": each}
        else:
            side = {"before_s": 0.01, "close_s": 0.5, "open_s": 0.25, "steps": [0.02] * 8 + [0.01] * 8}
            found = {"warm": {**side, "full_speed_s": 0.46}, "not_warm": {**side, "full_speed_s": None}}
            found["by_hand"] = {**side, "full_speed_s": 1.5}
        records.add(case, found)
    return records


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    results(tmp_path)
    with pytest.raises(BadInput, match="has results; continue it with --resume"):
        Records.new(tmp_path, TINY, MACHINE)
    with pytest.raises(BadInput, match=r"measured with other options \(dim 8, steps 3\)"):
        Records.resumed(tmp_path, replace(TINY, dim=9, steps=4), MACHINE)


def test_a_line_that_a_crash_cut_off_is_measured_again(tmp_path: Path) -> None:
    found = results(tmp_path).found
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(text[:-5])
    resumed = Records.resumed(tmp_path, TINY, MACHINE)
    assert list(resumed.found) == list(found)[:-1]
    resumed.add(list(found)[-1], found[list(found)[-1]])
    assert (tmp_path / NAME).read_text() == text


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"settings": {}, "machine": {}}\n{"case": 1}\n'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadInput, match="is not a file of results"):
        Records.resumed(tmp_path, TINY, MACHINE)


# The page.


def test_the_page_tells_the_results(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    write(tmp_path / "page" / "page.md", results(tmp_path))
    page = (tmp_path / "page" / "page.md").read_text()
    assert "2.0 to 2.0 times as fast with a warm page cache and 2.0 to 2.0 times as fast with a cold page cache" in page
    assert "2 cores (a CPU), 8.0 GiB of memory, Linux 6, Python 3.12.0, kvemb 0.1.0, rocksdict 0.3; 2026-01-02" in page
    row = "| 1000 | 10% | 0.8 | 64.0 MiB | 0.750 | 4k / 2k | 2.0 | 0.25 / 0.5 | 200 / 200 | 4k / 2k | 2.0 | 100 / 100 |"
    assert row in page.splitlines()
    assert "kvemb writes 4.0 times the changed rows to the disk, and the loop by\nhand 4.0 times." in page
    assert "| kvemb, warm=True | 0.50 s | 0.25 s | 0.46 s | 10.0 ms |" in page
    assert "| kvemb | 0.50 s | 0.25 s | not reached | 10.0 ms |" in page
    assert (tmp_path / "page" / NAME).read_bytes() == (tmp_path / NAME).read_bytes()


def test_a_size_beyond_the_page_cache_has_no_warm_figures(tmp_path: Path) -> None:
    write(tmp_path / "page.md", results(tmp_path, in_page_cache=False))
    page = (tmp_path / "page.md").read_text()
    assert "At 4,000 rows the files do not fit into 8.0 GiB of memory" in page
    assert "| 4000 | 20% | 1.2 | 64.0 MiB | 0.750 |  |  |  |  | 8k / 4k | 2.0 | 100 / 100 |" in page.splitlines()
    growth = (tmp_path / "tier-growth.svg").read_text()
    assert len(re.findall("<title>kvemb, warm", growth)) == 1
    assert len(re.findall("<title>kvemb, cold", growth)) == 2


def test_without_results_no_page_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no results"):
        write(tmp_path / "page.md", Records(tmp_path / NAME, results(tmp_path).head, {}))
    assert not (tmp_path / "page.md").exists()


def test_charts_have_a_line_for_each_skew_and_side(tmp_path: Path) -> None:
    charts = drawn(results(tmp_path).found, TINY.batch)
    assert len(charts) == 9
    for svg in charts.values():
        ElementTree.fromstring(svg)
    names = ["kvemb, Zipf 0.8", "kvemb, Zipf 1.2", "by hand, Zipf 0.8", "by hand, Zipf 1.2"]
    for name in names:
        assert charts["rows"].count(f"<title>{name}, ") == 3
    assert "<title>kvemb, Zipf 0.8, 50%: 20k</title>" in charts["rows"]


def test_the_command_has_what_differs_from_the_defaults() -> None:
    said = command(plan([1000], [0.1], [0.8, 1.0, 1.2], False), TINY)
    assert said.startswith("kvemb bench tier --rows 1000 --hot 0.1 --dim 8 --batch 256 --steps 3 --runs 1 ")
    assert "--zipf" not in said


def test_the_page_in_docs_is_what_the_command_writes_of_its_results(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs" / "inside"
    write(tmp_path / "tier.md", Records.read(docs / NAME))
    assert (tmp_path / "tier.md").read_text(encoding="utf-8") == (docs / "tier.md").read_text(encoding="utf-8")
