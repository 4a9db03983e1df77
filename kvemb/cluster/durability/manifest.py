"""The manifest of a cluster's checkpoint: which checkpoint of each shard belongs to it (FORMAT.md, "A cluster").

It is published last, when every shard's checkpoint is complete; the cluster's checkpoint exists once its manifest does.
Pure values.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from kvemb.checks.brief import brief
from kvemb.checks.fields import OMITTED, Accepted, Id, as_json, integer, number, read, text
from kvemb.checks.names import is_name
from kvemb.checks.ranges import END_OF_TIME, MAX_STEPS
from kvemb.cluster.router import BUCKETS, first_buckets
from kvemb.durability import manifest
from kvemb.durability.variable_entry import VariableEntry, entry_of, rows_in_words
from kvemb.errors import Corruption, UnsupportedFormat

FORMAT = manifest.CLUSTER_FORMAT  # on disk
# As many epochs of changes as a store keeps.
MAX_FOLLOWED = 256
_Bucket = Annotated[int, integer(0, BUCKETS - 1)]
_Client = Annotated[str, text(r"[0-9a-f]{32}", "clients' ids of 32 hexadecimal digits")]
_Numbers = Annotated[
    list[int],
    Accepted(
        "an array of at least one int from 0 to below 2^62",
        lambda given: (
            type(given) is list and given != [] and all(type(each) is int and 0 <= each < MAX_STEPS for each in given)
        ),
    ),
    Accepted("ascending", lambda given: given[1:] == sorted({each for each in given[1:] if each >= given[0]})),
]


@dataclass(frozen=True)
class ShardEntry:
    """A shard's part. store: the identity of its store, which names its folder.

    first, last: its buckets, the last one included.
    """

    first: _Bucket
    last: _Bucket
    store: Id


@dataclass(frozen=True, repr=False)
class ClusterManifest:
    """A checkpoint of a cluster. id: its identity. store: the identity of the cluster, the same in all checkpoints.

    created: seconds since 1970. variables: of all shards together. shards: in the order of their buckets; each bucket
    is in exactly one. follows: the ids of the earlier checkpoints that the same shards made, oldest first. extra: the
    values saved beside the rows. calls: those that its rows contain.
    """

    id: Id
    store: Id
    created: Annotated[float, number(0, END_OF_TIME)]
    variables: dict[str, VariableEntry]
    shards: tuple[ShardEntry, ...]
    follows: tuple[Id, ...] = ()
    extra: Annotated[dict[str, Any], OMITTED] = field(default_factory=dict)
    calls: Annotated[dict[_Client, _Numbers], OMITTED] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<checkpoint of a cluster {self.id}, {len(self.shards)} shards, {rows_in_words(self.variables)}>"

    def id_of(self, shard: ShardEntry) -> str:
        """Return the identity of a shard's part of this checkpoint."""
        return id_of_part(self.id, shard.store)

    def overlapping(self, first: int, last: int) -> list[ShardEntry]:
        """Return the shards that have any of these buckets."""
        return [shard for shard in self.shards if shard.first <= last and shard.last >= first]


def id_of_part(checkpoint: str, store: str) -> str:
    """Return the identity of a shard's checkpoint. checkpoint: that of the cluster's. store: that of the shard's store.

    As it is a function of these, a shard's record of what changed since its checkpoint also holds for the cluster's.
    """
    return hashlib.sha256(f"{checkpoint}{store}".encode()).hexdigest()[:32]


def following(before: ClusterManifest | None, shards: tuple[ShardEntry, ...]) -> tuple[str, ...]:
    """Return `follows` of the checkpoint after `before`, which is None for the first, given its shards."""
    if before is None or before.shards != shards:
        return ()
    return (*before.follows, before.id)[-MAX_FOLLOWED:]


def joined(entries: Collection[VariableEntry]) -> VariableEntry:
    """Return the entry of a variable, given those of all shards."""
    parts = list(entries)
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        step=max(part.step for part in parts),
        optimizer_steps=max(part.optimizer_steps for part in parts),
    )


def ranges(shards: int) -> list[tuple[int, int]]:
    """Return the first and the last bucket of each shard."""
    firsts = first_buckets(shards)
    return [(first, after - 1) for first, after in itertools.pairwise(firsts)]


def text_of(described: ClusterManifest) -> bytes:
    """Return the content of the manifest's file."""
    data = {
        "format": FORMAT,
        "id": described.id,
        "store": described.store,
        "created": described.created,
        "buckets": BUCKETS,
        "variables": {name: as_json(entry) for name, entry in sorted(described.variables.items())},
        "shards": [asdict(shard) for shard in described.shards],
        "follows": list(described.follows),
        **({"extra": described.extra} if described.extra else {}),
        **({"calls": described.calls} if described.calls else {}),
    }
    data = json.loads(json.dumps(data, default=as_json))
    return manifest.text_of({"checksum": manifest.checksum_of(data), **data}).encode()


def parse(text: str, where: str) -> ClusterManifest:
    """Parse a manifest. where: its name in errors. Raises UnsupportedFormat, Corruption."""
    try:
        data = json.loads(text) if len(text) <= manifest.MAX_CHARACTERS else None
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        if data.get("format") != FORMAT:
            raise UnsupportedFormat(f"its format must be a cluster's format {FORMAT}, got {brief(data.get('format'))}")
        if data.pop("checksum", None) != manifest.checksum_of(data):
            raise ValueError("its checksum is wrong")
        del data["format"]
        if type(buckets := data.pop("buckets", None)) is not int or buckets != BUCKETS:
            raise ValueError(f"buckets must be {BUCKETS}, got {brief(buckets)}")
        named: Any = data.get("variables")
        described = read(ClusterManifest, {**data, "variables": {}} if isinstance(named, dict) else data)
        if strange := [name for name in named if not is_name(name)]:
            raise ValueError(f"variables must have names that stay in their folder, got {brief(strange[0])}")
        described = replace(described, variables={name: entry_of(entry, name) for name, entry in named.items()})
        _check_cover(described.shards)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{where} is damaged: {error}; use another checkpoint") from error
    return described


def _check_cover(shards: tuple[ShardEntry, ...]) -> None:
    """Raise ValueError unless each bucket is in one shard, in order."""
    expected = 0
    for at, shard in enumerate(shards):
        if shard.first != expected or shard.last < shard.first:
            raise ValueError(f"shards[{at}] must begin with bucket {expected}, got {shard.first} to {shard.last}")
        expected = shard.last + 1
    if expected != BUCKETS:
        raise ValueError(f"shards must end with bucket {BUCKETS - 1}, got {expected - 1}")
    if len({shard.store for shard in shards}) != len(shards):
        raise ValueError("shards must be of different stores")
