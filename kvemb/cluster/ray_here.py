"""Connects the processes of one job to Ray, which the first of them starts if it runs nowhere.

A Ray that a process started ends with that process.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from typing import NamedTuple

from kvemb.cluster.ray_transport import TOKEN_ADVICE, ray_here, ray_package
from kvemb.errors import BackendUnavailable

# Ray's mode of authentication, in the environment. A process that starts Ray sets it, and keeps the token in a file.
_MODE = "RAY_AUTH_MODE"


class RayAddress(NamedTuple):
    """Where Ray is, for other processes. host: of the process that says so. mode: of authentication, "" if not set.

    started: whether that process started it, so that it runs on that host alone.
    """

    address: str
    host: str
    mode: str
    started: bool


def connect_or_start() -> tuple[RayAddress, bool]:
    """Connect to the Ray that RAY_ADDRESS names or that runs on this machine, or start it if there is none.

    RAY_ADDRESS=local starts another one. Also returns whether this call has connected this process. Raises
    BackendUnavailable.
    """
    ray, started = ray_package(), False
    if already := ray.is_initialized():
        pass
    elif (named := os.environ.get("RAY_ADDRESS", "")) and named not in ("auto", "local"):
        ray_here()
    else:
        with suppress(BackendUnavailable):
            if named != "local":
                ray_here()
        if started := not ray.is_initialized():
            ray.init(address="local", include_dashboard=False, log_to_driver=False)
    address = str(ray.get_runtime_context().gcs_address)
    return RayAddress(address, platform.node(), os.environ.get(_MODE, ""), started), not already


def join(there: RayAddress) -> bool:
    """Connect to the Ray of another process; returns False if this one was connected before.

    Raises BackendUnavailable.
    """
    if there.started and there.host != platform.node():
        raise BackendUnavailable(
            f"rank 0 started Ray on {there.host}, which {platform.node()} cannot join: run `ray start --head` on one "
            "machine and `ray start --address=HEAD:6379` on the others before torchrun"
        )
    loaded = "ray" in sys.modules
    if there.mode and _MODE not in os.environ:
        os.environ[_MODE] = there.mode  # Ray itself does so only where no address is given
        if loaded:
            with suppress(ImportError, AttributeError):
                from ray._raylet import Config  # type: ignore[attr-defined,unused-ignore]

                Config.initialize("")  # it has read the environment when it was imported
    ray = ray_package()
    if ray.is_initialized():
        return False
    try:
        ray.init(address=there.address, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        text = f"the Ray cluster of rank 0 at {there.address} cannot be reached: {str(error).rstrip('.')}"
        raise BackendUnavailable(f"{text}; run `ray start` on this machine; {TOKEN_ADVICE}") from error
    return True


def leave() -> None:
    """Disconnect this process from Ray, which ends if this process has started it."""
    ray_package().shutdown()
