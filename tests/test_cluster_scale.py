"""The simulation of large clusters: reproducible, as its page has it, and right where the answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cluster_scale import Assumptions, assumed_text, breaks, figures, step_seconds, text

from kvemb.cluster.session import EXCHANGE_SECONDS

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "cluster_scale.md"


@pytest.mark.slow
def test_the_page_has_the_tables():
    assert text().strip() in PAGE.read_text()
    assert assumed_text() in PAGE.read_text()


def test_clients_exchange_counts_as_often_as_is_assumed():
    assert Assumptions().exchange_seconds == EXCHANGE_SECONDS


def test_one_shard_and_one_trainer_wait_for_what_they_send_and_serve():
    given = replace(Assumptions(), pause_share=0.0, latency=0.001)
    sent = given.keys * 8 / given.link + given.keys * (8 + given.row_bytes) / given.link
    answered = given.keys * given.row_bytes / given.link
    served = 2 * (given.call_cpu + given.key_cpu * given.keys)
    expected = sent + served + answered + 4 * given.latency
    waits = step_seconds(1, given)
    assert waits.min() == waits.max() == pytest.approx(expected, rel=0.02)


def test_more_shards_have_less_each_and_more_calls():
    few, many = (figures(shards, Assumptions()) for shards in (10, 20))
    for name in ("rows of a shard, billions", "disk of a shard, TB", "hours between two lost nodes"):
        assert few[name] == 2 * many[name]
    for name in ("calls of a trainer a step", "calls of the coordinator a second"):
        assert many[name] == 2 * few[name]
    assert many["sent by a trainer a step, MB"] == few["sent by a trainer a step, MB"]


def test_pauses_make_steps_longer_and_only_now_and_then():
    calm, paused = (step_seconds(16, replace(Assumptions(), pause_share=share)) for share in (0.0, 0.002))
    assert calm.min() == calm.max() == paused.min() < paused.max()
    assert 0.02 < (paused > calm).mean() < 0.15


def test_what_breaks_is_told_the_worst_first_with_a_remedy():
    assert breaks(64, replace(Assumptions(), rows=1e9)) == []
    found = breaks(8, replace(Assumptions(), link=1e7))
    assert found[0].startswith("calls take longer")
    assert any(line.startswith("the network is full") for line in found)
    assert any("more shards: at least 36" in line for line in found)
    assert all("; remedy: " in line for line in found)
