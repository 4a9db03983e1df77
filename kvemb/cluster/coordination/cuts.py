"""Cuts: moments at which every call of every client is on all of its shards or on none.

A client that calls shards asks nobody. So the shards have gates (kvemb.cluster.ledger), and a cut has three steps:

1. Every shard closes its gate: it refuses calls that it has not begun, and waits for those that it has. Then it says
   which calls it has made. A client sends a refused call again until it is made.
2. A call names its shards. If one shard has made it and another has not, the others are told to let it in, and the cut
   waits until they have made it.
3. The work of the cut is done, then the gates open.

Why a call is whole. Let it go to the shards A and B. If neither had begun it when its gate was closed, neither makes
it before the gates open. If one of them, say A, had, then A reports it in step 1, and step 2 waits for B. Step 2 lets
in calls only that were begun before, so it adds none, and it ends. A shard forgets calls only whose client has all
answers; these are on all of their shards.

Why order is kept. Let call Y be made on some shard before the cut, and X be a call that was answered before Y was sent,
by the same client or another. When Y arrived, that shard's gate was open, so no gate had been opened after this cut; X
had been made on all of its shards by then, thus before the cut.

A client that ends in the midst of a call never sends the rest. After ABSENT_SECONDS the cut gives up: rows have half a
call, no checkpoint may have them, and the cluster counts as lost. It can only go back to its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvemb.cluster.calls import ADVICE, Calls
from kvemb.cluster.ledger import CallId, CallsMade
from kvemb.errors import ShardLost

# How long a cut waits for the rest of a call.
ABSENT_SECONDS = 30.0
# How long a shard waits for it at a time.
_TURN_SECONDS = 0.1


@contextmanager
def cut(calls: Calls, number: int, absent_seconds: float = ABSENT_SECONDS) -> Iterator[None]:
    """Make a cut; the block is its work, in which calls of `calls` alone are made.

    number: larger than that of every cut before. absent_seconds: how long it waits for the rest of a call.
    REQUIRES: no other cut is made. Raises ShardLost.
    """
    try:
        _complete(calls, number, calls.all("hold", number, calls.client), absent_seconds)
        yield
    finally:
        if calls.lost is None:  # else the gates stay closed: what is there is half-old
            calls.all("release", number)


def _complete(calls: Calls, number: int, made: list[dict[str, CallsMade]], absent_seconds: float) -> None:
    """Let in the rest of calls that some shards have made and others have not. made: of each shard, by client."""
    waiting = missing(made)
    deadline = time.monotonic() + absent_seconds
    while waiting:
        late = calls.each("admit", {shard: (number, each, _TURN_SECONDS) for shard, each in waiting.items()})
        waiting = {shard: each for shard, each in late.items() if each}
        if waiting and time.monotonic() > deadline:
            ((shard, ((client, _), *_)), *_) = waiting.items()
            lost = ShardLost(
                f"the client {client} ended in the midst of a call: shard {shard} has waited {absent_seconds:.0f} "
                f"seconds for its part; {ADVICE}"
            )
            calls.lose(lost)
            raise lost


def missing(made: list[dict[str, CallsMade]]) -> dict[int, list[CallId]]:
    """Return for each shard that lacks some the calls that other shards have. made: of each shard, by client."""
    answered: dict[str, int] = {}
    having: dict[CallId, int] = {}
    shards: dict[CallId, int] = {}
    for shard, clients in enumerate(made):
        for client, of_client in clients.items():
            answered[client] = max(answered.get(client, 0), of_client.answered)
            for call, to in of_client.calls.items():
                having[client, call] = having.get((client, call), 0) | 1 << shard
                shards[client, call] = shards.get((client, call), 0) | to
    lacking: dict[int, list[CallId]] = {}
    for (client, call), to in shards.items():
        without = to & ~having[client, call]
        if call >= answered[client] and without:
            for shard in range(len(made)):
                if without >> shard & 1:
                    lacking.setdefault(shard, []).append((client, call))
    return lacking
