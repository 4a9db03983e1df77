"""The page of `kvemb bench tier` and its charts, written from made-up results and from those in docs/."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tier_charts import drawn
from tier_page import command, write
from tier_results import TINY, results

from kvemb.tools.bench.tier.cases import plan
from kvemb.tools.bench.tier.records import NAME, Records
from kvemb.tools.failures import BadInput


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


def test_the_page_in_docs_is_what_the_command_writes_of_its_results(tmp_path: Path) -> None:
    docs = Path(__file__).parents[1] / "docs" / "inside"
    write(tmp_path / "tier.md", Records.read(docs / NAME))
    assert (tmp_path / "tier.md").read_text(encoding="utf-8") == (docs / "tier.md").read_text(encoding="utf-8")


def test_the_command_has_what_differs_from_the_defaults() -> None:
    said = command(plan([1000], [0.1], [0.8, 1.0, 1.2]), TINY)
    assert said.startswith("kvemb bench tier --rows 1000 --hot 0.1 --dim 8 --batch 256 --steps 3 --runs 1 ")
    assert "--zipf" not in said
