"""Series of checkpoints, and places elsewhere for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quick import quick

import kvemb

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[kvemb.CheckpointManager]:
    with kvemb.CheckpointManager(tmp_path / "series") as manager:
        yield manager


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """A real S3 server on this machine, with a bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options: dict[str, Any] = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    # One session for all filesystems of a module: each session parses the description of S3's calls again.
    options["session"] = pytest.importorskip("aiobotocore.session").get_session()
    fsspec.filesystem("s3", **options).makedirs("bucket", exist_ok=True)  # servers of one process share what they hold
    yield options
    server.stop()


@pytest.fixture(params=quick(["local", "memory", "s3"], 2))
def place(request, tmp_path) -> tuple[str, dict[str, Any] | None]:
    """A URL where nothing is yet, and the options to reach it."""
    if request.param == "local":
        return str(tmp_path / "remote"), None
    if request.param == "memory":
        return f"memory://{tmp_path.name}", None
    return f"s3://bucket/{tmp_path.name}", request.getfixturevalue("s3")
