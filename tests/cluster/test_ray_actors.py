"""What the process of a shard does beside its calls; test_ray_transport.py has the rest, on Ray."""

from __future__ import annotations

from types import SimpleNamespace

from kvemb.cluster import ray_actors
from kvemb.cluster.ray_actors import PROBE_SECONDS, ShardActor


def test_pings_of_many_clients_write_to_the_disk_once(tmp_path, monkeypatch):
    now, probed = [100.0], []
    monkeypatch.setattr(ray_actors, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def probe(folder):
        probed.append(folder)
        now[0] += 5  # a slow disk: what counts is when it answered

    monkeypatch.setattr(ray_actors, "probe", probe)
    actor = ShardActor()
    actor.folder = tmp_path
    for _ in range(50):
        actor.ping()
    assert probed == [tmp_path]
    now[0] += PROBE_SECONDS
    for _ in range(50):
        actor.ping()
    assert probed == [tmp_path] * 2
