"""Reads and verifies the checkpoints of a cluster, without opening the cluster."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_SERIES
from kvemb.cluster.durability.cluster_series import ClusterSeries, Published
from kvemb.durability.layout import series_name
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.masking import masked
from kvemb.offline.remote_checking import RemoteChecking
from kvemb.offline.verification import Verification
from kvemb.progress import Progress


def latest(
    url: str | os.PathLike[str], *, number: int | None = None, options: Mapping[str, Any] | None = None
) -> Published:
    """Describe a checkpoint of a cluster, by default the newest, without opening the cluster.

    Args:
        url: Where the cluster's checkpoints are: a directory or a URL.
        number: The number of the checkpoint. None: the newest.
        options: fsspec's options for the url's filesystem, a dict.

    Returns:
        Its number and its description, which has ``id``, ``created`` (seconds since 1970), ``variables``, ``shards``
        and ``extra``.

    Raises:
        CheckpointNotFound: There is no such checkpoint.
        Corruption: Its manifest is damaged.
        UnsupportedFormat: It was written by a kvemb with another format.
        TransferError: The url could not be read.
        TypeError, ValueError: An argument is not valid.

    Example:
        >>> import kvemb.cluster
        >>> with kvemb.cluster.open("series", shards=2, transport="local") as cluster:
        ...     saved = cluster.checkpoint(extra={"epoch": 1})
        >>> number, found = kvemb.cluster.latest("series")
        >>> number, len(found.shards), found.extra
        (1, 2, {'epoch': 1})
    """
    return found(ClusterSeries(url, options), number)


def found(series: ClusterSeries, number: int | None) -> Published:
    """Return a checkpoint of a series; None: the newest. Raises as latest()."""
    if number is not None:
        return Published(number, series.read(as_int(number, "number", 0, MAX_SERIES)))
    if (newest := series.newest()) is None:
        raise CheckpointNotFound(f"there is no checkpoint of a cluster at {masked(series.url)}")
    return newest


def verify(
    url: str | os.PathLike[str],
    *,
    number: int | None = None,
    deep: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verify the checkpoints of a cluster: their manifests, and all files that shards pushed for them.

    It changes nothing.

    Args:
        url: Where the cluster's checkpoints are: a directory or a URL.
        number: The number of the only checkpoint to verify. None: all.
        deep: Whether to read every byte.
        options: fsspec's options for the url's filesystem, a dict.
        progress: ``fn(done, total)``, called with bytes, for one shard after the other.

    Returns:
        The findings. The result is true if there are none.

    Raises:
        CheckpointNotFound: There is no checkpoint of a cluster at the url, or none of this number.
        TransferError: The url could not be read.
        TypeError, ValueError: An argument is not valid.
    """
    series = ClusterSeries(url, options)
    report = Verification(masked(series.url), bool(deep))
    if not (numbers := series.numbers()):
        raise CheckpointNotFound(f"there is no checkpoint of a cluster at {masked(series.url)}")
    needed: dict[str, dict[int, str]] = defaultdict(dict)
    for each in numbers if number is None else [as_int(number, "number", 0, MAX_SERIES)]:
        try:
            described = series.read(each)
        except (Corruption, UnsupportedFormat) as error:
            report.findings.append(str(error))
            continue
        report.rows = {name: entry.rows for name, entry in described.variables.items()}
        for shard in described.shards:
            needed[shard.store][each] = described.id_of(shard)
    for store, wanted in needed.items():
        place = series.place_of_shard(store)
        try:
            checked = RemoteChecking(place, options).check(number=number, deep=bool(deep), progress=progress)
        except CheckpointNotFound as error:
            report.findings.append(str(error))
            continue
        report.findings += checked.findings
        report.files, report.nbytes = report.files + checked.files, report.nbytes + checked.nbytes
        for each, id in wanted.items():
            there = checked.described.get(each)
            if there is None or there.described.id != id:
                what = "is missing" if there is None else "is not the one that the cluster's checkpoint names"
                report.findings.append(f"checkpoint {series_name(each)} at {place} {what}")
    return report
