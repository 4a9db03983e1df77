"""The stress commands: twenty kills that lose nothing, and that they would see it if something were lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.stress import crash
from kvemb.tools.stress.lockstep import Difference


def test_twenty_kills_lose_nothing(capsys):
    assert run(["stress", "crash", "--rounds", "20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agreed"]
    assert told["rounds"] == 20
    assert told["durable points"] > 20
    assert told["rows compared"] > 1000


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
@pytest.mark.parametrize("harm", ["changed", "gone", "added"])
def test_a_row_that_is_not_as_promised_is_seen(monkeypatch, tmp_path, durability, harm):
    rounds = crash.CrashRounds(tmp_path, durability, seed=3)
    rounds.round()
    while rounds.models["users"].size == 0:  # killed before anything was durable
        rounds.round()
    real = crash.open_variables

    def harmed(store: kvemb.Store) -> dict[str, kvemb.Variable]:
        variables = real(store)
        users = variables["users"]
        keys = users.export()[0][:1]
        if harm == "changed":
            users.upsert(keys, np.full((1, 4), 77, np.float32))
        elif harm == "gone":
            users.remove(keys)
        else:
            absent = np.setdiff1d(crash.UNIVERSE, users.export()[0])[:1]
            users.upsert(absent, np.full((1, 4), 77, np.float32))
        return variables

    monkeypatch.setattr(crash, "open_variables", harmed)
    with pytest.raises(Difference):
        rounds.round()
