"""Parts that arrive twice, late or not at all, and what is joined of them."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.cluster.in_step.parts import MAX_GROUPS, JoinedNorm, Joint, Part, Parts
from kvemb.cluster.transport import ShardFailed
from kvemb.timestamp import Timestamp

AT = Timestamp(3, 1.0, 2)


def part(rank, number, keys, grads, group="group"):
    return Part(group, rank, number, {"table": (np.array(keys), np.array(grads, np.float32))})


def joint(*parts, factors=None, tokens=("table",)):
    return Joint("group", list(parts), factors, dict.fromkeys(tokens, AT))


def test_the_latest_part_of_each_rank_is_joined_in_the_order_of_ranks():
    parts = Parts()
    for each in (
        part(1, 1, [5], [[9]]),
        part(0, 2, [1, 2], [[1], [2]]),
        part(1, 2, [2], [[4]]),
        part(1, 1, [5], [[9]]),
    ):
        parts.put(each)
    (change,) = parts.take(joint((0, 2), (1, 2), factors={"table": [1.0, 0.5]}, tokens=("table", "other")))
    assert (change.variable, change.method, change.timestamp) == ("table", "apply_gradients", AT)
    keys, grads = change.arguments
    assert (keys.tolist(), grads.tolist(), grads.dtype) == ([1, 2, 2], [[1], [2], [2]], np.float32)


def test_a_part_that_is_missing_or_was_taken_or_is_another_is_no_part_of_the_step():
    parts = Parts()
    parts.put(part(0, 1, [1], [[1]]))
    for wanted in (joint((1, 1)), joint((0, 2)), Joint("other", [(0, 1)], None, {"table": AT})):
        with pytest.raises(ShardFailed, match="does not have the part of rank"):
            parts.take(wanted)
    assert len(parts.take(joint((0, 1)))) == 1
    parts.put(part(0, 1, [1], [[1]]))  # it arrives again
    assert parts.take(joint((0, 1))) == []


def test_the_norm_is_of_the_sums_of_equal_keys():
    parts = Parts()
    parts.put(part(0, 1, [1, 2], [[1], [2]]))
    parts.put(part(1, 1, [2], [[-6]]))
    assert parts.norms(joint((0, 1), (1, 1), tokens=("table", "other"))) == {"table": JoinedNorm(17.0, 4.0, True)}
    assert JoinedNorm(17.0, 4.0).plus(JoinedNorm(1.0, 5.0, False)) == (18.0, 5.0, False)
    assert JoinedNorm(17.0, 4.0).times(-2.0) == (68.0, 8.0, True)
    parts.put(part(1, 2, [2], [[np.nan]]))
    norm = parts.norms(joint((0, 1), (1, 2)))["table"]
    assert (norm.finite, np.isnan(norm.squares), np.isnan(norm.plus(JoinedNorm()).largest)) == (False, True, True)


def test_groups_that_ended_are_forgotten():
    parts = Parts()
    for number in range(MAX_GROUPS + 1):
        parts.put(part(0, 1, [1], [[1]], group=str(number)))
    with pytest.raises(ShardFailed):
        parts.take(Joint("0", [(0, 1)], None, {"table": AT}))
    assert parts.take(Joint("1", [(0, 1)], None, {"table": AT}))
