"""The largest number noted lately: in the present period and the one before."""

from __future__ import annotations

from kvemb.memory.recent_most import RecentMost


def test_the_largest_number_of_the_last_one_to_two_periods():
    now = [0.0]
    most = RecentMost(60, lambda: now[0])
    assert most.value == 0
    for when, number, value in [
        (0, 5, 5), (30, 9, 9), (59, 1, 9), (60, 2, 9), (119, 3, 9), (120, 1, 3), (180, 4, 4), (301, 1, 1),
    ]:  # fmt: skip
        now[0] = when
        most.note(number)
        assert most.value == value, when
    now[0] = 360.5
    assert most.value == 1
    now[0] = 361
    assert most.value == 0
