"""Faults to plant into the GPU's kernels, each one change of the text, and what finds them.

python tests/cuda_faults.py prints, as JSON, what each fault came to: each runs in a process of its own, which it may
crash.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from cuda_life import Life
from cuda_on_cpu import CpuDevice

from kvemb.backends.cuda.device import Program

FAULTS = {
    "two warps take one bucket": ("if (head && numbers[order[head - 1]] == number) continue;", ""),
    "of equal scores any row leaves": ("(score == other_score && key < other_key)", "false"),
    "a full bucket evicts whatever the score": ("least = {score, key, slot};\n  }\n  return", "}\n  return"),
    "a lane reads what another lane writes": ("(int)lane_number() == owner &&", "(int)lane_number() == 0 &&"),
    "a new row's digest is forgotten": ("mine = (mine & ~(255u << shift)) | digest_of", "mine = mine | 0 * digest_of"),
    "a digest may be 0": ("return digest ? digest : 1;", "return digest;"),
    "uses of one row at once are lost": ("} while (seen != expected);", "} while (false);"),
    "a use takes the marks off": ("(u8)(relaxed_load(&flags(bucket)[slot]) | DIRTY)", "DIRTY"),
    "of equal keys any is set": ("(p + 1 < n && cells[order[p + 1]] == cells[i])", "false"),
    "rows that moved stay dirty where they were": ("flags(from)[slot] = 0;", ""),
    "a bucket that is merged keeps its place": ("bucket & mask >> 1", "0"),
    "a sum begins before all lanes have written": ("double total = 0.0;\n  __syncwarp();", "double total = 0.0;"),
    "a row's count is read after it is set": ("__syncwarp();\n    if (lane_ == 0) slots_[", "if (lane_ == 0) slots_["),
    "gradients of a key are not summed": ("q_ >= 0; q_ = following_[q_]", "false;"),
    "gradients of an array go to one sum": ("all ? p : p >> 1", "0 * p"),
    "a key's first entry is any of its entries": (
        "heads[i] = later ? -1 : cells[i];",
        "heads[i] = more ? -1 : cells[i];",
    ),
    "an array's rows go to their own places": (
        "from + i * bytes, bytes, unit);",
        "from + chosen[i] * 0, bytes, unit);",
    ),
    "what is left out is changed": ("if (!without[i]) cells[i] = -1;", ""),
    "an array's keys are told to exist": ("exists[i] = slot >= 0;", "exists[i] = true;"),
    "clean rows that were asked for are forgotten": ("(clean_too || flags(bucket)", "(flags(bucket)"),
    "bags are summed backwards": ("const Wide element = wide(row[j]);", "const Wide element = -wide(row[j]);"),
}


class FaultyDevice(CpuDevice):
    """A device whose kernels have one fault. planted: whether the text was there."""

    def __init__(self, seed: int, right: str, wrong: str) -> None:
        super().__init__(seed)
        self._right, self._wrong, self.planted = right, wrong, False

    def load(self, source: str) -> Program:
        self.planted |= self._right in source
        return super().load(source.replace(self._right, self._wrong))


def outcome_of(fault: str) -> str:
    """Return "found", "crashed", "not found", or "not planted" if the kernels lack the text."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a crash says
        os._exit(["found", "not found", "not planted"].index(_tried(fault)))
    status = os.waitpid(child, 0)[1]
    return "crashed" if os.WIFSIGNALED(status) else ["found", "not found", "not planted"][os.WEXITSTATUS(status)]


def _tried(fault: str) -> str:
    planted = False
    for seed in (1, 0, 4, 2, 3):
        device = FaultyDevice(seed, *FAULTS[fault])
        try:
            with np.errstate(all="ignore"):
                Life(seed, device).run(30)
        except Exception:
            return "found"
        planted |= device.planted
    return "not found" if planted else "not planted"


if __name__ == "__main__":
    json.dump({fault: outcome_of(fault) for fault in FAULTS}, sys.stdout)
