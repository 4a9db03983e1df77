"""Faults to inject into the GPU's kernels, each a change of the source text, and the tests that find them.

python tests/cuda_faults.py prints the outcome of each fault as JSON, or of those that are named. Each runs in a
separate process, which it may crash.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from cuda_life import Life
from cuda_on_cpu import CHECKED_FLAGS, CpuDevice

from kvemb.backends.cuda.device import Program

FAULTS = {
    "two warps take one bucket": ("if (head && (u32)(entries[head - 1] >> 32) == number) continue;", ""),
    "of equal scores any row leaves": ("if (!more && !(having & (having - 1)))", "if (true)"),
    "of a lane's equal scores the first leaves": ("&& keys(bucket)[next] < key)", "&& false)"),
    "of equal scores any is merged": ("(score == other_score && key < other_key)", "false"),
    "a full bucket evicts whatever the score": ("    least = score < least ? score : least;", ""),
    "a new row's score counts from the next call": ("held.set(slot, score);", ""),
    "a lane reads what another lane writes": ("(int)lane == victim.slot / 4 ? keys(to)", "lane == 0 ? keys(to)"),
    "a row leaves with the next one's score": (
        "leaving.scores()[place] = old_score;",
        "leaving.scores()[place] = score;",
    ),
    "a row takes the marks of its neighbours": ("marks = (marks & ~(255u << shift)) |", "marks ="),
    "of a long row the beginning is exchanged": ("if ((at += 32) < words)", "if ((at += words) < words)"),
    "a new row's digest is forgotten": ("mine = (mine & ~(255u << shift)) | digest_of", "mine = mine | 0 * digest_of"),
    "a digest may be 0": ("return digest ? digest : 1;", "return digest;"),
    "a tile takes another one's answer": (">> tile_start() & ((1u << TILE) - 1)", "& 255u"),
    "digests of some cells are not compared": ("& 0x80402010u", "& 0u"),
    "a cell with the key's digest is taken for the key's": ("[candidate] == key", "[candidate] * 0 == 0"),
    "of a cell's digests alike the first alone is tried": ("candidates &= candidates - 1)", "candidates = 0)"),
    "a warp's missing keys take one place": (
        "missing[place + __popc(lost & ((1u << lane_number()) - 1))]",
        "missing[place]",
    ),
    "a tile finds what is behind the keys": ("const bool given = i < n,", "const bool given = true,"),
    "of a long row every other unit is copied": ("if (next < count) ((Unit*)to)[next] = second;", ""),
    "uses of one row at once are lost": (
        "atomicAdd(score, counts ? (double)counts[i] : 1.0)",
        "relaxed_store(score, relaxed_load(score) + (counts ? (double)counts[i] : 1.0))",
    ),
    "a use takes the marks off": ("(u8)(relaxed_load(&flags(bucket)[slot]) | DIRTY)", "DIRTY"),
    "of equal keys any is set": ("(p + 1 < n && cells[order[p + 1]] == cells[i])", "false"),
    "rows that moved stay dirty where they were": ("flags(from)[slot] = 0;", ""),
    "a bucket that is merged keeps its place": ("bucket & mask >> 1", "0"),
    "a sum begins before all lanes have written": ("double total = 0.0;\n  __syncwarp();", "double total = 0.0;"),
    "a row's count is read after it is set": ("__syncwarp();\n    if (lane_ == 0) slots_[", "if (lane_ == 0) slots_["),
    "gradients of a key are not summed": ("total = of.add(total, next);", ""),
    "gradients of an array go to one sum": ("all ? p : p >> 1", "0 * p"),
    "a key's first entry is any of its entries": (
        "!(p && cells[order[p - 1]] == cell)",
        "!(p + 1 < n && cells[order[p + 1]] == cell)",
    ),
    "an array's rows go to their own places": (
        "from + i * bytes, (u32)bytes,",
        "from + chosen[i] * 0, (u32)bytes,",
    ),
    "what is left out is changed": ("if (!without[i]) cells[i] = -1;", ""),
    "an array's keys are told to exist": ("exists[i] = slot >= 0;", "exists[i] = true;"),
    "clean rows that were asked for are forgotten": ("(clean_too || marks", "(marks"),
    "bags are summed backwards": ("const Wide element = wide(each[k]);", "const Wide element = -wide(each[k]);"),
    "a run of equal cells ends too early": ("i64 high = low + step <= n ? low + step - 1 : n;", "i64 high = low;"),
}


class FaultyDevice(CpuDevice):
    """A device whose kernels have one fault. planted: whether the text to change was found."""

    def __init__(self, seed: int, right: str, wrong: str) -> None:
        super().__init__(seed, ("-O0", *CHECKED_FLAGS[1:]))
        self._right, self._wrong, self.planted = right, wrong, False

    def load(self, source: str) -> Program:
        self.planted |= self._right in source
        return super().load(source.replace(self._right, self._wrong))


def outcome_of(fault: str) -> str:
    """Return "found", "crashed", "not found", or "not planted" if the kernels lack the text."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the output of a crash
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
    json.dump({fault: outcome_of(fault) for fault in sys.argv[1:] or FAULTS}, sys.stdout)
