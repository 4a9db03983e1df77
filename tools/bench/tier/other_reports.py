"""The results of other benchmarks, as `kvemb bench ... --json` printed them, as a table of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvemb.tools.bench.tier.figures import short
from kvemb.tools.bench.tier.records import Record
from kvemb.tools.failures import BadInput


def read(path: Path) -> Record:
    """Return a report. Raises BadInput if the file is not one."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        return {"bench": report["bench"], "rows": [_cells(line) for line in report["lines"]]}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not what kvemb bench ... --json prints: {error!r}") from error


def table(reports: Sequence[Record]) -> str:
    """Return a line for each line of the reports; nothing without reports."""
    lines = ["| what | kvemb | beside | ratio | bar | command |", "|---|---|---|---|---|---|"]
    for report in reports:
        lines += [f"| {' | '.join(cells)} | `kvemb bench {report['bench']}` |" for cells in report["rows"]]
    return "\n".join(lines) if reports else ""


def _cells(line: Record) -> list[str]:
    cells = [f"{line['name']}, {line['unit']}", short(line["ours"]["median"])]
    cells += [f"{line['peer_name']}: {short(line['peer']['median'])}" if line["peer"] else ""]
    cells += [f"{line['ratio']['median']:.2f}" if line["ratio"] else ""]
    return [*cells, "" if line["met"] is None else f"{line['bar']}: {'met' if line['met'] else 'not met'}"]
