"""distributed(): a cluster for all ranks of a script that torchrun has started, from its opening to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch

import kvemb.cluster
from kvemb.checks.seconds import as_seconds
from kvemb.cluster import ray_here
from kvemb.cluster.ray_here import RayAddress
from kvemb.cluster.store import Store
from kvemb.errors import RankLost
from kvemb.handle import inside
from kvemb.torch.connecting import connected
from kvemb.torch.in_step import CHANNELS
from kvemb.torch.optimizer import RANK_SECONDS
from kvemb.torch.ranks import Message, Ranks, error_of, text_of

# The address of a rank that has no cluster, which only rank 0 is asked for.
_ADDRESS = "127.0.0.1"
# How long the others wait while rank 0 writes the last checkpoint. If its process ends, they notice that at once.
CLOSE_SECONDS = 86_400.0


@contextmanager
def distributed(
    url: str | os.PathLike[str], *, timeout: float = RANK_SECONDS, **arguments: Any
) -> Iterator[kvemb.cluster.Store]:
    """Open a cluster for all ranks of a script, and close it when all have left the ``with`` block.

    Start the script with ``torchrun``, on one machine or several. Without ``torchrun`` it runs as one rank. In the
    block the store is the default store, and ``torch.distributed`` is initialized::

        with kvemb.torch.distributed("checkpoints", shards=2) as store:
            model = Model()
            rows = kvemb.torch.Optimizer(model, group=torch.distributed.group.WORLD)
            train(torch.nn.parallel.DistributedDataParallel(model), rows)

    - Rank 0 connects to the Ray cluster that ``RAY_ADDRESS`` names, or that runs on this machine. If there is none, it
      starts Ray, which ends with the block. Then it opens the cluster, in the state of its newest checkpoint. The other
      ranks connect to it.
    - Several machines need a Ray cluster of all of them: run ``ray start`` on each before.
    - At the end, rank 0 waits for the other ranks. Then it closes the cluster, as ``kvemb.cluster.Store.close`` does.
    - If the block ends with an error on one rank, the cluster is closed without a checkpoint. Other ranks that wait for
      this one raise RankLost, with its message.

    Args:
        url: Where the cluster's checkpoints are: a directory or a URL that all machines reach.
        timeout: Seconds that a rank waits for the others: at the beginning, at the end, and in collectives of
            ``torch.distributed``, such as those of ``DistributedDataParallel`` and barriers. A group that you have
            initialized before keeps its own, which is half an hour by default.
        **arguments: Other arguments of ``kvemb.cluster.open``, such as ``shards``, ``memory_budget``, ``scratch`` and
            ``options``. There is no ``transport``.

    Yields:
        The store, of this rank.

    Raises:
        ValueError: An argument is not valid.
        BackendUnavailable: Ray is missing, or another machine cannot join it.
        RankLost: Another rank has ended, or did not come within ``timeout``.
        KvembError: What ``kvemb.cluster.open`` raises on rank 0. All ranks raise it.
    """
    if "transport" in arguments:
        raise ValueError("ranks are processes, so the shards are on Ray; leave transport out")
    seconds = as_seconds(timeout, "timeout")
    with ExitStack() as last:
        if not torch.distributed.is_initialized():
            _begin_group(seconds)
            last.callback(torch.distributed.destroy_process_group)
        store, ranks, leave_ray = _opened_together(url, seconds, arguments, last)
        try:
            with store.as_default():
                yield store
            _close_together(store, ranks, seconds, leave_ray)
        except BaseException as error:
            first = ranks.told()
            ranks.fail(error)
            with suppress(Exception):  # the first error counts
                store.close(flush=False)
            if first is not None and not isinstance(error, RankLost):
                raise RankLost(first) from error
            raise


def _begin_group(seconds: float) -> None:
    """Initialize torch.distributed as torchrun says, or without it for one process. seconds: for its collectives."""
    if "RANK" in os.environ:
        torch.distributed.init_process_group(timeout=timedelta(seconds=seconds))
    else:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def _opened_together(
    url: str | os.PathLike[str], seconds: float, arguments: dict[str, Any], last: ExitStack
) -> tuple[Store, Ranks, Callable[[], None]]:
    """Return this rank's store, the channel of all ranks, and a function that leaves Ray if this call joined it.

    last: undoes everything but the store. If one rank fails, all raise its error.
    """
    group, first = torch.distributed.group.WORLD, torch.distributed.get_rank() == 0
    undo = last.enter_context(ExitStack())  # leaves Ray, before the others end
    told: list[Any] = [None]

    def connect() -> Store:
        if first:
            there, joined = ray_here.connect_or_start()
            told[0] = there._asdict()
        else:
            joined = ray_here.join(RayAddress(**told[0]))
        if joined:
            undo.callback(ray_here.leave)
        if first:
            return kvemb.cluster.open(url, **arguments)
        return kvemb.cluster.connect(url, options=arguments.get("options"), wait_seconds=seconds)

    store, failure = _tried(connect) if first else (None, None)
    if failure is not None:
        told[0] = {"error": text_of(failure)}
    torch.distributed.broadcast_object_list(told, src=0)
    if failure is not None:
        raise failure
    if "error" in told[0]:
        kind, text = told[0]["error"]
        raise error_of(kind, f"rank 0: {text}")
    if not first:
        store, failure = _tried(connect)
    ranks = connected(group, _ADDRESS if store is None else inside(store).address, seconds)
    last.callback(ranks.close)

    def connected_too() -> Message:
        if failure is not None:
            raise failure
        return {}

    try:
        ranks.meet(connected_too, lambda _: {}, seconds)
    except BaseException:
        if store is not None:
            store.close(flush=False)
        raise
    CHANNELS[group] = ranks
    last.callback(CHANNELS.pop, group)
    assert store is not None
    return store, ranks, undo.close


def _tried(connect: Callable[[], Store]) -> tuple[Store | None, Exception | None]:
    try:
        return connect(), None
    except Exception as error:
        return None, error


def _close_together(store: Store, ranks: Ranks, seconds: float, leave_ray: Callable[[], None]) -> None:
    """End this rank's client; rank 0 closes the cluster when all others have. If that fails, all ranks raise why."""

    def end() -> Message:
        store.close()
        leave_ray()
        return {}

    first = ranks.rank == 0
    ranks.meet(lambda: {} if first else end(), lambda _: end(), seconds, CLOSE_SECONDS)
