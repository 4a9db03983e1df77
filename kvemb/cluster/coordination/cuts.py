"""Cuts: moments at which every call of every client is on all of its shards or on none.

A client calls shards without asking the coordinator. So the shards have gates (kvemb.cluster.ledger), and a cut has
three steps:

1. Every shard closes its gate: it refuses calls that it has not begun, and waits for those that it has. Then it reports
   which calls it has executed. A client repeats a refused call until it is executed.
2. A call names its shards. If some of them have executed it and others have not, the others are told to admit it, and
   the cut waits until they have executed it.
3. The work of the cut is done, and the gates are opened.

Why a call is atomic. Let it go to the shards A and B. If neither had begun it when its gate was closed, neither
executes it before the gates open. If one of them, say A, had begun it, then A reports it in step 1, and step 2 waits
for B. Step 2 admits only calls that were begun before, so it adds none, and it ends. A shard forgets only calls of
which the client has all answers; these are on all of their shards.

Why order is kept. Let call Y be executed on some shard before the cut, and let X be a call that was answered before Y
was sent, by the same client or another. When Y arrived, that shard's gate was open, so no gate had been opened after
this cut; by then X had been executed on all of its shards, so before the cut.

A step that a shard has accepted counts as executed: a snapshot, like every other call, waits until the step is taken
(kvemb.cluster.in_flight).

A client that ends during a call never sends the rest of it. After ABSENT_SECONDS the cut gives up: the rows contain
half a call, which no checkpoint may contain, so the cluster counts as lost, and can only go back to its last
checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvemb.cluster.calls import ADVICE, Calls
from kvemb.cluster.ledger import CallId, ExecutedCalls
from kvemb.errors import ShardLost

# How long a cut waits for the rest of a call.
ABSENT_SECONDS = 30.0
# How long one call of a shard waits for it.
_TURN_SECONDS = 0.1


@contextmanager
def cut(calls: Calls, number: int, absent_seconds: float = ABSENT_SECONDS, *, last: bool = False) -> Iterator[None]:
    """Make a cut, and run the block inside it; only `calls` may call shards there.

    number: larger than that of every earlier cut. absent_seconds: how long it waits for the rest of a call. last: the
    gates stay closed if the block succeeds, as the cluster is closed next. REQUIRES: no other cut at the same time.
    Raises ShardLost.
    """
    opens = True
    try:
        _complete(calls, number, calls.all("hold", number, calls.client), absent_seconds)
        yield
        opens = not last
    finally:
        if opens and calls.lost is None:  # of a lost cluster they stay closed: the shards' states do not fit together
            calls.all("release", number)


def _complete(calls: Calls, number: int, made: list[dict[str, ExecutedCalls]], absent_seconds: float) -> None:
    """Admit the rest of calls that some shards have executed and others have not. made: of each shard, by client."""
    waiting = missing(made)
    deadline = time.monotonic() + absent_seconds
    while waiting:
        late = calls.each("admit", {shard: (number, each, _TURN_SECONDS) for shard, each in waiting.items()})
        waiting = {shard: each for shard, each in late.items() if each}
        if waiting and time.monotonic() > deadline:
            ((shard, ((client, _), *_)), *_) = waiting.items()
            lost = ShardLost(
                f"the client {client} ended during a call: shard {shard} waited {absent_seconds:.0f} seconds for its "
                f"part; {ADVICE}"
            )
            calls.lose(lost)
            raise lost


def missing(made: list[dict[str, ExecutedCalls]]) -> dict[int, list[CallId]]:
    """Return, by shard, the calls that it lacks and other shards have executed. made: of each shard, by client."""
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
