"""Steps that several clients count: one client's are exact, and every client learns those of all."""

from __future__ import annotations

import kvemb
from kvemb.cluster.coordination.counting import ClientSteps, StepCounts, TotalSteps


def test_one_client_counts_as_one_store_does():
    clock = ClientSteps(StepCounts(5, 2))
    assert [clock.use(None).step for _ in range(3)] == [6, 7, 8]
    assert clock.now(None).step == 8
    assert clock.train(None, counted=True)[:3:2] == (8, 3)
    assert clock.train(None, counted=False).optimizer_step == 0
    assert clock.steps == (8, 3)
    assert clock.own == (3, 1)


def test_the_epoch_of_a_policy_is_told():
    policy = kvemb.EpochTimestampRestrictPolicy()
    assert ClientSteps(StepCounts()).now(policy).epoch == policy.epoch


def test_clients_hear_of_each_other_and_no_step_goes_back():
    total, clocks = TotalSteps(StepCounts(10)), {name: ClientSteps(StepCounts(10)) for name in "ab"}
    for _ in range(3):
        clocks["a"].use(None)
        clocks["b"].use(None)
        clocks["b"].use(None)
        for name, clock in clocks.items():
            clock.hear(total.told(name, clock.own))
    clocks["a"].hear(total.told("a", clocks["a"].own))
    assert clocks["a"].steps.uses == clocks["b"].steps.uses == total.steps().uses == 19
    assert clocks["a"].use(None).step == 20
    assert total.told("b", StepCounts(1)) == StepCounts(13), "an older count arrives late"
    clocks["b"].hear(StepCounts(2))
    assert clocks["b"].steps.uses == 19
