"""`kvemb bench train --against VERSION`: the training steps of `bench train`, of this version and of another one.

Each version runs in its own process, on its own table with the same rows, and takes the same steps; they take turns,
one window each. The rows are compared at the end. The bar applies to the CPU time of all windows together, because only
some windows contain merges of files.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.tools.bench.against import steps as script
from kvemb.tools.bench.against.versions import environment, unpack
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.failures import BadInput
from kvemb.tools.stopping import check

MAX_CPU = 0.5
WARM_UP = 2


def run(
    version: str,
    rows: int,
    dim: int,
    hot_rows: int,
    batch: int,
    steps: int,
    runs: int,
    exponent: float,
    budget_mib: int,
    folder: Path | None,
) -> Report:
    """Time `runs` windows of `steps` steps with prefetch and as many without, of both versions.

    Raises BadInput if the version cannot be found or does not run; AssertionError if the rows differ.
    """
    settings: dict[str, object] = {"against": version, "rows": rows, "dim": dim, "hot_rows": hot_rows, "batch": batch}
    settings |= {"steps": steps, "runs": runs, "zipf": exponent, "budget_mib": budget_mib}
    report = Report("train", settings)
    with scratch(folder) as place, ExitStack() as stack:
        unpack(version, place / "version")
        _draw(place, rows, batch, steps, 2 * runs + WARM_UP, exponent)
        given = {"folder": str(place), "dim": dim, "hot_rows": hot_rows, "budget": budget_mib << 20}
        sides = [
            stack.enter_context(
                _Version({**given, "store": str(place / name)}, version if where else "this one", where)
            )
            for name, where in (("ours", None), ("theirs", environment(place / "version")))
        ]
        report.facts = {"paths": [side.ask("load")["path"] for side in sides]}
        if len(set(report.facts["paths"])) == 1:  # type: ignore[call-overload]
            raise BadInput(f"the processes of both versions import {report.facts['paths']}; set no PYTHONPATH")
        for window in range(WARM_UP):
            for side in sides:
                side.ask(f"run {window} {'prefetch' if window % 2 == 0 else ''}")
        taken: list[list[dict[str, float]]] = [[], []]
        for at in range(2 * runs):
            order = (0, 1) if at // 2 % 2 == 0 else (1, 0)
            for which in order:
                command = f"run {WARM_UP + at} {'prefetch' if at % 2 == 0 else ''}"
                taken[which].append(sides[which].ask(command))
        mine, other = (np.load(side.ask("values")["path"]) for side in sides)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(mine)
    for name, windows, bar in (
        ("all steps, mean", slice(None), MAX_CPU),
        ("step, with prefetch", slice(0, None, 2), None),
        ("step, no prefetch", slice(1, None, 2), None),
    ):
        for what, unit in (("cpu", "ms CPU a step"), ("wall", "ms a step")):
            ours, theirs = ([1000 * one[what] / steps for one in side[windows]] for side in taken)
            if bar is not None:
                ours, theirs = [statistics.fmean(ours)], [statistics.fmean(theirs)]
            most = bar if what == "cpu" else None
            report.lines.append(compare_cost(name, unit, ours, version, theirs, most))
    return report


def _draw(place: Path, rows: int, batch: int, steps: int, windows: int, exponent: float) -> None:
    """Save the ids of all rows, and the batches (windows, steps, batch) of all windows."""
    popularity = Zipf(rows, exponent, seed=3)
    np.save(place / "ids.npy", ids_of(np.arange(rows, dtype=np.int64)))
    work = [[ids_of(popularity.sample(batch)) for _ in range(steps)] for _ in range(windows)]
    np.save(place / "work.npy", np.array(work))


class _Version:
    """The process of one version; it ends with the block. environment: None for this version's own."""

    def __init__(self, settings: dict[str, object], name: str, environment: dict[str, str] | None) -> None:
        self._name = name
        # -P: do not search the script's folder for modules.
        command = [sys.executable, "-P", str(Path(script.__file__)), json.dumps(settings)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> _Version:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the process ended before it read the command
                    pipe.close()

    def ask(self, command: str) -> dict[str, Any]:
        """Return the answer to a command. Raises BadInput if the process has ended."""
        check()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BadInput(f"the process of {self._name} failed at {command!r}; its error is above")
        found: dict[str, Any] = json.loads(answer)
        return found
