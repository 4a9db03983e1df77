"""What the hot table on the CPU passes to its kernels."""

from __future__ import annotations

import math

import numpy as np
from schemas import schema_of

from kvemb.backends import cpu_bags, cpu_probe
from kvemb.backends.cpu import CpuTable
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags


def test_a_whole_number_as_the_time_compiles_no_kernel_again():
    table = CpuTable(schema_of(), 16, 16)
    keys, out, none = np.arange(2), np.empty((2, 3), np.float32), np.empty(0, np.float32)
    bags = Bags(np.array([0, 1, 2]), none, none, math.inf)
    for rule in (ScoreRule.LAST_USE, None):
        table.lookup(keys, out, rule, 1)
        table.pool(keys, bags, None, out, rule, 1)
    uses = {signature[5] for signature in cpu_probe.lookup.signatures}
    uses |= {signature[6] for signature in cpu_bags._pool.signatures}
    assert {str(each[1]) for each in uses} == {"float64"}
