"""The sides of `kvemb demo --dlrm` as processes: their settings, their output, and how they are started and killed.

A side is `python -m kvemb.tools.demos.dlrm_side`. Its argument has the settings. Its stdout has a JSON line for every
step and a last one for the outcome. It ends when its stdin is closed. Not thread-safe.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from kvemb.tools.demos.click_log import ClickLog
from kvemb.tools.failures import BadInput

MODULE = "kvemb.tools.demos.dlrm_side"
MAX_HELD_OUT = 50_000
FIELDS, NUMBERS = 26, 4


@dataclass(frozen=True)
class Settings:
    """The settings of a side. steps, batch: their product is the number of lines. dim: of a row.

    seed: of all randomness. folder: of the store and its checkpoints; "" for PyTorch's tables in memory. budget: the
    store's, in bytes. every: steps between checkpoints. alone: PyTorch's tables have one row each, to measure the
    memory of everything else.
    """

    steps: int
    batch: int
    dim: int
    seed: int
    folder: str = ""
    budget: int = 0
    every: int = 1
    alone: bool = False

    @property
    def lines(self) -> int:
        """The number of lines of the log."""
        return self.steps * self.batch

    @property
    def held_out(self) -> int:
        """The number of lines for the AUC."""
        return min(MAX_HELD_OUT, self.lines)

    @property
    def log(self) -> ClickLog:
        """The log: the first field is the largest, the k-th has a k-th of its ids."""
        sizes = tuple(max(1, self.lines // 2 // (number + 1)) for number in range(FIELDS))
        return ClickLog(self.seed, self.lines, sizes, NUMBERS)

    @property
    def row_bytes(self) -> int:
        """Bytes of a float32 row with its Adagrad slot."""
        return 2 * 4 * self.dim


@dataclass(frozen=True)
class Outcome:
    """The outcome of a side. losses: of each step that this process took, from step `first`. auc: of held-out lines.

    steps_per_second: without the first step. anonymous: the peak, in bytes. digest: of all rows, slots and dense
    parameters. lines, summary: for the closing lines. A process that was killed has only losses.
    """

    first: int
    losses: list[float]
    auc: float = float("nan")
    steps_per_second: float = 0.0
    anonymous: int = 0
    digest: str = ""
    lines: list[tuple[str, str]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def run_side(settings: Settings, stepped: Callable[[int, float], None], kill_at: int | None = None) -> Outcome:
    """Run a side to its end, or kill it (SIGKILL) after `kill_at` steps.

    stepped: called with the number of steps taken so far, and the loss of the last one. Raises BadInput if the process
    fails; what stepped raises, once the process has ended.
    """
    command = [sys.executable, "-P", "-m", MODULE, json.dumps(asdict(settings))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = 0
            losses: list[float] = []
            for line in process.stdout:
                said = json.loads(line)
                if "failed" in said:
                    raise BadInput(said["failed"])
                if "loss" not in said:
                    return Outcome(first, losses, **said)
                first = first if losses else said["step"]
                losses.append(said["loss"])
                if kill_at is not None and said["step"] + 1 >= kill_at:
                    return Outcome(first, losses)
                stepped(said["step"] + 1, said["loss"])
        finally:
            process.kill()
    raise BadInput(f"a process that trains ended with exit code {process.returncode}; its error is above")
