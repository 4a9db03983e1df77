"""Admission: only keys that were sighted often enough get a row. A frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from kvemb.checks.declared import Declared, accepts
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_BUDGET_BYTES

MAX_SIGHTINGS = 255


@dataclass(frozen=True)
class Admission(Declared):
    """Only keys that training has seen often enough get a row.

    apply_gradients creates the row of a missing key only at its n-th sighting, where n is `sightings`. Until then the
    key's gradients are dropped. Each occurrence of a key in apply_gradients is one sighting. upsert and accum create
    rows in any case. Lookups of missing keys give the initializer's row, as always.

    Keys share counters, so a key may be admitted early. Whenever the number of sightings reaches the number of
    counters, all counters are halved, so old sightings fade.

    After Variable.remove, keys must be sighted n times again. It sets one counter of each key to 0, so a key that
    shares this counter may be admitted late. A call that removes about as many keys as there are counters makes all
    sightings start again. Variable.clear sets all counters to 0. restrict leaves them: a key whose row it removed is
    admitted at once if it is sighted before its sightings have faded.

    The counters are in every durable point and checkpoint, deflated, also in a cluster's, for any number of shards. A
    store that is opened, restored or resumed continues from them. This also holds for durability="write": after a
    crash, rows are those of the last call, and sightings those of the last durable point. Exports have no sightings.

    Admission itself is not stored. Give it at each opening: without it, all keys are admitted, and the counters stay as
    they are. With another number of sightings the counters continue. With another memory_bytes they start at 0, and a
    warning is logged.

    Variable.stats shows the counters' bytes and the number of dropped gradients.

    Args:
        sightings: n, from 1 to 255.
        memory_bytes: The size of the counters, at least 1,024 bytes. It is taken from the store's budget, and as much
            again for the copy that a durable point writes. Default: 1 MiB.

    Raises:
        TypeError: An argument is not an int.
        ValueError: An argument is out of its range.

    Example:
        >>> rare = store.get_variable(
        ...     "rare", dim=2, optimizer=kvemb.optimizers.SGD(0.5), admission=kvemb.Admission(sightings=2)
        ... )
        >>> rare.apply_gradients([5], [[1.0, 1.0]])
        >>> rare.size()
        0
        >>> rare.apply_gradients([5], [[1.0, 1.0]])
        >>> rare.size()
        1
    """

    sightings: int = accepts(as_int, least=1, most=MAX_SIGHTINGS)
    memory_bytes: int = accepts(as_int, 1 << 20, least=1024, most=MAX_BUDGET_BYTES)
