"""The comparison of spills with ingested files, at a tiny size."""

from __future__ import annotations

from spill_or_ingest import THIRDS, run


def test_both_ways_are_measured_and_no_row_is_missing() -> None:
    report = run(rows=3000, batch=500, batches=3, reads=200)
    assert [line.name for line in report.lines] == ["write", *(f"read, {third} third" for third in THIRDS)]
    assert all(line.ratio is not None and line.ratio.min > 0 for line in report.lines)
    assert set(report.facts) == {"max_files_in_l0", "longest_write_s", "write_and_read_s", "seconds_to_compact_all"}
