"""The report of a recovery, and its effect on variables."""

from __future__ import annotations

import pytest

from kvemb.cluster.coordination.recovery import Recovery
from kvemb.errors import Closed, ShardLost


def test_it_says_to_which_checkpoint_and_how_long_it_took():
    told = str(Recovery(7, 1.7e9, {"table": 9}, 2.34, "shard 1 did not answer"))
    assert told.startswith("the cluster went back to checkpoint 7, of 2023-11-1")
    assert told.endswith("in 2.3 s; lost: shard 1 did not answer")
    told = str(Recovery(None, None, {}, 0.2, "shard 0"))
    begin = "the cluster went back to its beginning, without rows, as there is no checkpoint"
    assert told == f"{begin}, in 0.2 s; lost: shard 0"


def test_a_name_that_was_made_again_with_another_schema_is_as_in_the_checkpoint(open_cluster, tmp_path, connect):
    first = open_cluster(2, url=tmp_path / "series")
    second = connect()
    first.get_variable("table", dim=2).upsert([1], [[1, 2]])
    first.checkpoint()
    known, kept = second.variables["table"], second.get_variable("kept", dim=1)
    first.drop_variable("table")
    made = first.get_variable("table", dim=3)
    made.upsert([1], [[3, 4, 5]])
    for client in (first, second):
        assert client.recover().number == 1
        assert client.variables["table"].lookup([1]).tolist() == [[1, 2]]
    for gone in (made, known):
        with pytest.raises(Closed, match="dropped"):
            gone.lookup([1])
    kept.upsert([1], [[1]])


def test_the_variable_of_a_client_is_not_another_that_was_made_under_its_name(open_cluster, tmp_path, connect):
    first = open_cluster(2, url=tmp_path / "series")
    second = connect()
    first.get_variable("table", dim=2)
    known = second.variables["table"]
    first.drop_variable("table")
    first.get_variable("table", dim=3).upsert([1], [[3, 4, 5]])
    first.checkpoint()
    for _ in range(2):
        first.recover()
    second.recover()
    with pytest.raises(Closed, match="dropped"):
        known.lookup([1])
    assert second.variables["table"].lookup([1]).tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(
    "call", [lambda _, table: list(table.export_batches()), lambda client, _: client.get_variable("table", dim=2)]
)
def test_a_client_hears_of_a_recovery_whatever_it_calls_and_its_variables_stay_valid(
    open_cluster, tmp_path, call, connect
):
    first = open_cluster(2, url=tmp_path / "series")
    first.get_variable("table", dim=2).upsert([1], [[1, 2]])
    first.checkpoint()
    second = connect()
    known = second.variables["table"]
    first.recover()
    with pytest.raises(ShardLost, match="went back to its last checkpoint"):
        call(second, known)
    second.recover()
    assert known.lookup([1]).tolist() == [[1, 2]]
