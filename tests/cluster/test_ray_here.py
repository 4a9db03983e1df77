"""Ray for the processes of one job: found, named by RAY_ADDRESS, or on a machine that another one cannot join."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def answers(port: int) -> bool:
    """Whether anything listens there."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


_PROGRAM = """
import sys, time
import kvemb.cluster
from kvemb.cluster.ray_transport import ray_here
ray = ray_here()
deadline = time.monotonic() + 120
while sum(node["Alive"] for node in ray.nodes()) < 2 and time.monotonic() < deadline:
    time.sleep(0.1)
with kvemb.cluster.open(sys.argv[1], shards=2, memory_budget="16MiB") as cluster:
    cluster.get_variable("users", dim=1).upsert([1, 2, 3], [[1], [1], [1]])
    nodes = sum(node["Alive"] for node in ray.nodes())
    print(f"{cluster.variables['users'].size()} rows, {nodes} nodes")
"""


@pytest.mark.slow
@pytest.mark.needs("ray")
@pytest.mark.skipif("KVEMB_NODES" not in os.environ, reason="does not apply without KVEMB_NODES: minutes")
@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_nodes_of_two_homes_are_one_cluster_as_the_guide_says(tmp_path, mode):
    """The head has a token file, as every ray.init() leaves one; without RAY_AUTH_MODE, Ray's own commands disagree."""
    ray = str(Path(sys.executable).with_name("ray"))
    head, other = tmp_path / "head", tmp_path / "other"
    short = Path(tempfile.mkdtemp(dir="/tmp"))  # sockets have short paths
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    def at(home: Path, **more: str) -> dict[str, str]:
        home.mkdir(exist_ok=True)
        return {**common, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **more}

    def start(home: Path, *how: str) -> subprocess.Popen[bytes]:
        words = [ray, "start", *how, "--block", "--num-cpus=1", f"--temp-dir={short / home.name}"]
        return subprocess.Popen(
            words, env=at(home, RAY_AUTH_MODE=mode), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )

    def nodes(env: dict[str, str]) -> int:
        words = [ray, "status", f"--address=127.0.0.1:{port}"]
        found = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
        return found.stdout.partition("Active:")[2].partition("Pending:")[0].count(" node_")

    subprocess.run([ray, "get-auth-token", "--generate"], env=at(head), check=True, capture_output=True, timeout=120)
    started = [start(head, "--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false")]
    try:
        if mode == "token":
            (other / ".ray").mkdir(parents=True)
            shutil.copy(head / ".ray" / "auth_token", other / ".ray")
        here = at(other, RAY_AUTH_MODE=mode, RAY_ADDRESS=f"127.0.0.1:{port}")
        deadline = time.monotonic() + 120
        while not answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started.append(start(other, f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1"))
        words = [sys.executable, "-c", _PROGRAM, str(tmp_path / "series")]
        done = subprocess.run(words, env=here, capture_output=True, text=True, timeout=240)
        assert done.stdout.splitlines()[-1:] == ["3 rows, 2 nodes"], done.stderr
        assert nodes(here) == 2
        if mode == "token":
            del here["RAY_AUTH_MODE"]
            done = subprocess.run(words, env=here, capture_output=True, text=True, timeout=240)
            assert "copy ~/.ray/auth_token from there to this machine and set RAY_AUTH_MODE=token" in done.stderr
    finally:
        for each in reversed(started):
            each.send_signal(signal.SIGTERM)
            each.wait(60)
        shutil.rmtree(short, ignore_errors=True)
