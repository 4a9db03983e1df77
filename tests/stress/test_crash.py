"""The stress commands: kills that lose nothing, and that they would see it if something were lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import kvemb
from stress import crash
from stress.load import open_variables
from stress.lockstep import Difference

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KVEMB_KILLS", "8"))


def test_kills_lose_nothing(capsys):
    assert crash.run(KILLS, 0, None, quiet=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"] == KILLS
    assert told["durable points"] > KILLS
    assert told["rows compared"] > 50 * KILLS


def test_the_command_runs_from_any_folder(tmp_path):
    command = [sys.executable, crash.__file__.rpartition("/")[0], "random", "--ops", "300", "--keys", "100", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["agreed"]
    assert list(tmp_path.iterdir()) == []


class HarmedRounds(crash.CrashRounds):
    """Rounds in which a row of the store is harmed before it is compared. harmed: whether one was."""

    harm, harmed = "", False

    def _replay(self, seed, told):
        before, after, points = super()._replay(seed, told)
        self.allowed = [before, after] if self.durability == "write" else points
        return before, after, points

    def open_and_harm(self, store: kvemb.Store) -> dict[str, kvemb.Variable]:
        variables = open_variables(store)
        users, states = variables["users"], [models["users"].present for models in self.allowed]
        # Of a call that was under way a row may be gone, or new.
        fit = ~np.logical_or.reduce(states) if self.harm == "added" else np.logical_and.reduce(states)
        keys = crash.UNIVERSE[fit][:1]
        self.harmed = len(keys) > 0
        if self.harm == "gone":
            users.remove(keys)
        else:
            users.upsert(keys, np.full((len(keys), 4), 77, np.float32))
        return variables


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
@pytest.mark.parametrize("harm", ["changed", "gone", "added"])
def test_a_row_that_is_not_as_promised_is_seen(monkeypatch, tmp_path, durability, harm):
    rounds = HarmedRounds(tmp_path, durability, seed=3)
    rounds.round()
    rounds.harm = harm
    monkeypatch.setattr(crash, "open_variables", rounds.open_and_harm)
    with pytest.raises(Difference):
        until_harmed(rounds)
    assert rounds.harmed


def until_harmed(rounds: HarmedRounds) -> None:
    """Run rounds until a row was harmed: of a state that is allowed to be empty none can go."""
    while not rounds.harmed:
        rounds.round()
