"""What a recovery tells."""

from __future__ import annotations

from kvemb.cluster.coordination.recovery import Recovery


def test_it_says_to_which_checkpoint_and_how_long_it_took():
    told = str(Recovery(7, 1.7e9, {"table": 9}, 2.34, "shard 1 did not answer"))
    assert told.startswith("the cluster went back to checkpoint 7, of 2023-11-1")
    assert told.endswith("in 2.3 s; lost: shard 1 did not answer")
    told = str(Recovery(None, None, {}, 0.2, "shard 0"))
    begin = "the cluster went back to its beginning, without rows, as there is no checkpoint"
    assert told == f"{begin}, in 0.2 s; lost: shard 0"
