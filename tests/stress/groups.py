"""The load of `python tests/stress cluster`: calls that can be counted in the rows afterwards.

The keys are in groups, each with rows on all shards. A call adds 1 to one column of all rows of a group. Each client
has a column; a seed determines the group of each of its calls. So the rows show how many calls of each client they
contain, whether these are its first ones, and whether each call is on all shards. Two more columns are for clients and
for ranks in step that are killed: a step of two ranks adds 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import kvemb
from stress.lockstep import Difference

GROUPS, ROWS = 20, 12
KEYS = np.arange(GROUPS * ROWS).reshape(GROUPS, ROWS)
NAME = "table"
RANKS = 2
Values = npt.NDArray[Any]


def table_of(store: Any, clients: int) -> kvemb.Variable:
    """Return the variable of the load, which is made if it is missing."""
    found: kvemb.Variable = store.get_variable(NAME, dim=clients + 2, optimizer=kvemb.optimizers.SGD(1.0))
    return found


def gradients(column: int, columns: int) -> Values:
    """Return the gradients of a call, (ROWS, columns). columns: the variable's dim."""
    grads = np.zeros((ROWS, columns), np.float32)
    grads[:, column] = -1
    return grads


def group_of(seed: int, client: int, number: int) -> int:
    """Return the group of a client's call with a number."""
    return int(np.random.default_rng([seed, client, number]).integers(GROUPS))


def calls_by_group(seed: int, client: int, count: int) -> npt.NDArray[np.int64]:
    """Return how many of a client's first calls each group has."""
    return np.bincount([group_of(seed, client, number) for number in range(count)], minlength=GROUPS)


def calls_in(variable: kvemb.Variable, seed: int) -> list[int]:
    """Return how many calls of each client the rows contain. Raises Difference unless they are its first and whole."""
    keys, values = variable.export()
    columns = variable.dim
    rows = np.zeros((GROUPS * ROWS, columns), np.float32)
    rows[keys] = values
    groups = rows.reshape(GROUPS, ROWS, columns)
    uneven = np.argwhere((groups != groups[:, :1]).any(axis=1))
    if len(uneven):
        group, column = uneven[0]
        raise Difference(f"half of a call: column {column} of group {group} is {groups[group, :, column].tolist()}")
    if (groups[:, 0, -1] % RANKS).any():
        raise Difference(f"a step of {RANKS} ranks without the part of one: {groups[:, 0, -1].tolist()}")
    counts = []
    for client in range(columns - 2):
        found = groups[:, 0, client].astype(np.int64)
        count = int(found.sum())
        if not np.array_equal(found, calls_by_group(seed, client, count)):
            raise Difference(f"the {count} calls of client {client} are not its first {count}")
        counts.append(count)
    return counts
