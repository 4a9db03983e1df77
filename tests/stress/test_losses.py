"""`python tests/stress cluster`: losses in this process leave whole checkpoints; and it would see half of a call."""

from __future__ import annotations

import json

import pytest
from quick import quick

import kvemb
from stress import losses
from stress.groups import GROUPS, KEYS, ROWS, calls_in, gradients, group_of, table_of
from stress.lockstep import Difference
from stress.losses import LossRounds
from stress.places import LocalPlace


@pytest.mark.slow
def test_losses_leave_whole_checkpoints(capsys):
    assert losses.run(6, 0, 3, 4, "local", quiet=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"] == 6
    assert told["losses"].keys() == {"local: shard", "local: disk", "local: half a call"}
    assert told["calls"] > 100


def test_half_of_a_call_a_missing_one_and_another_one_are_seen(store):
    table = table_of(store, 2)
    for number in range(9):
        table.apply_gradients(KEYS[group_of(5, 1, number)], gradients(1, 4))
    table.apply_gradients(KEYS[3], gradients(2, 4))
    assert calls_in(table, 5) == [0, 9]
    table.apply_gradients(KEYS[(group_of(5, 1, 9) + 1) % GROUPS], gradients(1, 4))
    with pytest.raises(Difference, match="the 10 calls of client 1 are not its first 10"):
        calls_in(table, 5)
    for column in (0, 2):
        table.apply_gradients(KEYS[0][: ROWS // 2], gradients(column, 4)[: ROWS // 2])
        with pytest.raises(Difference, match=f"half of a call: column {column} of group 0 is"):
            calls_in(table, 5)
        table.apply_gradients(KEYS[0][ROWS // 2 :], gradients(column, 4)[ROWS // 2 :])


@pytest.mark.parametrize("harm", quick(["half", "old"]))
def test_what_is_not_as_promised_is_seen(tmp_path, harm):
    place = LocalPlace(tmp_path, 2)
    place.losses = {"shard": place.losses["shard"]}
    rounds = LossRounds(place, 3, 2)
    recover = rounds.clients[0].recover

    def harmed():
        back = recover()
        table = rounds.tables[0]
        if harm == "half":
            table.apply_gradients(KEYS[0][:5], gradients(0, 4)[:5])
        else:
            table.clear()
        return back

    rounds.clients[0].recover = harmed
    try:
        with pytest.raises(Difference):  # noqa: PT012 -- a checkpoint may be of the beginning
            for _ in range(20):
                rounds.round()
    finally:
        rounds.close()
    assert kvemb.cluster.latest(tmp_path / "series")[0] >= 1
