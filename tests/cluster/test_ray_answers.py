"""Errors of Ray: a shard's exception is raised as it is; every other failure of a call counts as no answer."""

from __future__ import annotations

import pytest

from kvemb.cluster.ray_answers import cause_of
from kvemb.cluster.transport import GateClosed, ShardFailed, Unanswered
from kvemb.errors import Closed


class RayTaskError(Exception):
    """As Ray's: what the actor raised is its cause."""

    def __init__(self, cause):
        super().__init__("a remote traceback of many lines")
        self.cause = cause


@pytest.mark.parametrize("raised", [ValueError("bad"), Closed("closed"), GateClosed(), ShardFailed("its disk is full")])
def test_what_a_shard_raised_is_raised(raised):
    assert cause_of(RayTaskError(raised)) is raised


@pytest.mark.parametrize("raised", [Closed("closed"), GateClosed(), ShardFailed("full"), Unanswered("gone")])
def test_what_the_transport_raised_stays(raised):
    assert cause_of(raised) is raised


def test_ray_s_own_errors_are_calls_without_an_answer_in_one_short_line():
    found = cause_of(RuntimeError("The actor died.\n\n  " + "It is said at length. " * 20))
    assert isinstance(found, Unanswered)
    assert str(found).startswith("The actor died. It is said")
    assert len(str(found)) < 130
