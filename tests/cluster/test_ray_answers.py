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


class ActorDiedError(Exception):
    """As Ray's."""


class OtherError(Exception):
    """As an error of Ray that has no words here."""


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [
        (ActorDiedError, "its process has ended"),
        (type("Later", (ActorDiedError,), {}), "its process has ended"),
        (OtherError, "Ray raised OtherError"),
    ],
)
def test_ray_s_own_errors_are_calls_without_an_answer_in_words_of_ours(kind, meaning):
    """The message of a lost shard was the beginning of Ray's paragraph. All of it is the cause."""
    error = kind("The actor died.\n\n  " + "It is said at length. " * 20)
    found = cause_of(error)
    assert isinstance(found, Unanswered)
    assert str(found) == meaning
    assert found.__cause__ is error
