"""`kvemb bench tier` at tiny sizes: what it measures, and that it continues after a stop."""

from __future__ import annotations

import json
import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tier_results import MACHINE, TINY, results
from typer.testing import CliRunner

from kvemb.tools.bench.command import app
from kvemb.tools.bench.tier import kernel
from kvemb.tools.bench.tier.cases import Case, plan
from kvemb.tools.bench.tier.measures import ROLLING, full_speed
from kvemb.tools.bench.tier.records import NAME, Records
from kvemb.tools.bench.tier.run import measured
from kvemb.tools.bench.tier.tables import most_popular
from kvemb.tools.failures import BadInput

OPTIONS = ["--dim", "8", "--batch", "256", "--steps", "3", "--runs", "1", "--seconds", "1", "--checkpoints", "2"]


def test_it_measures_and_continues_after_a_stop(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    cases = plan([3000, 2000], [0.1, 0.5], [1.0])
    assert len(next(iter(measured(cases, TINY, place).parts))) == 2
    first = (place / NAME).read_text()
    assert len(Records.read(place / NAME).found) == 1
    words = ["--rows", "3000", "--rows", "2000", "--hot", "0.1", "--hot", "0.5", "--zipf", "1.0", *OPTIONS]
    words += ["--folder", str(place), "--resume", "--json"]
    result = CliRunner().invoke(app, ["tier", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (place / NAME).read_text().startswith(first)
    assert (place / NAME).read_text().count("\n") == 1 + len(cases), "what is known is not measured again"
    assert [path.name for path in place.iterdir()] == [NAME]  # the tables are deleted
    assert list(Records.read(place / NAME).found) == cases
    report = json.loads(result.stdout)
    assert (report["bench"], len(report["lines"])) == ("tier", 2 * 3 + 2 + 3)
    assert all(line["ours"]["median"] > 0 for line in report["lines"])
    steps = Records.read(place / NAME).found[cases[0]]
    for side in ("kvemb", "by_hand"):
        assert all(value[0] > 0 for value in (steps["warm"][side]["rows_per_s"], steps["warm"][side]["cpu_us"]))
    assert 0 < steps["hit_rate"] < 1


def test_the_first_size_is_measured_in_full_and_the_others_in_the_middle() -> None:
    cases = plan([100, 200], [0.5, 0.1, 0.2], [1.0, 0.8, 1.2])
    assert [case.kind for case in cases] == ["steps"] * 9 + ["series", "restart", "steps"]
    assert cases[-3:] == [Case("series", 100, 0.2, 1.0), Case("restart", 100, 0.2, 1.0), Case("steps", 200, 0.2, 1.0)]


def test_the_most_popular_rows_come_last_and_each_once() -> None:
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
    assert len(kernel.table_files(tmp_path)) == 1
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        kernel.fill(tmp_path)
        before = mapped[:]
        kernel.empty(tmp_path)
        assert mapped[:] == before


# The file of results.


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    results(tmp_path)
    with pytest.raises(BadInput, match="has results; continue it with --resume"):
        Records.opened(tmp_path, TINY, MACHINE)
    with pytest.raises(BadInput, match=r"measured with other options \(dim 8, steps 3\)"):
        Records.opened(tmp_path, replace(TINY, dim=9, steps=4), MACHINE, resume=True)


def test_a_line_that_a_crash_cut_off_is_measured_again(tmp_path: Path) -> None:
    found = results(tmp_path).found
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(text[:-5])
    resumed = Records.opened(tmp_path, TINY, MACHINE, resume=True)
    assert list(resumed.found) == list(found)[:-1]
    resumed.add(list(found)[-1], found[list(found)[-1]])
    assert (tmp_path / NAME).read_text() == text


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"settings": {}, "machine": {}}\n{"case": 1}\n'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadInput, match="is not a file of results"):
        Records.opened(tmp_path, TINY, MACHINE, resume=True)
