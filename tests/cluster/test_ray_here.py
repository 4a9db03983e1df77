"""Ray for the processes of one job: found, named by RAY_ADDRESS, or on a machine that another one cannot join."""

from __future__ import annotations

import socket

import pytest

from kvemb.cluster import ray_here
from kvemb.cluster.ray_here import RayAddress
from kvemb.errors import BackendUnavailable


def test_ray_that_another_machine_started_for_itself_cannot_be_joined():
    with pytest.raises(
        BackendUnavailable, match=r"rank 0 started Ray on elsewhere, which .* cannot join: run `ray start"
    ):
        ray_here.join(RayAddress("10.0.0.1:6379", "elsewhere", "token", True))


@pytest.mark.needs("ray")
def test_ray_that_is_named_and_does_not_run_is_not_replaced(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(BackendUnavailable, match=rf"RAY_ADDRESS is 127.0.0.1:{port}"):
        ray_here.connect_or_start()
