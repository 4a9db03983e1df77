"""Ray on this machine, for measurements and demos of clusters."""

from __future__ import annotations

from contextlib import suppress


def start_ray() -> None:
    """Start Ray on this machine, unless this process is connected to a Ray cluster, or Ray is not installed."""
    with suppress(ImportError):  # kvemb.cluster.open says what to install
        import ray

        if not ray.is_initialized():
            ray.init(address="local", include_dashboard=False, log_to_driver=False)
