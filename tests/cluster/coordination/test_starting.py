"""A coordinator that cannot be started leaves nothing behind."""

from __future__ import annotations

import pytest

from kvemb.cluster.coordination.starting import OpenRequest, start

HOW = {"memory_budget": "4MiB"}


def failing(meter, plan):
    raise RuntimeError("no place for shards")


def test_the_number_of_shards_is_asked_for_where_no_checkpoint_has_it(tmp_path):
    for shards, error, message in ((None, ValueError, "so give the number of shards"), (2, RuntimeError, "no place")):
        with pytest.raises(error, match=message):
            start(OpenRequest(str(tmp_path / "series"), {}, shards, HOW), failing, None)
    assert (tmp_path / "series" / "LOCK").read_bytes() == b"", "it is free again"
