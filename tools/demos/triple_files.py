"""Read knowledge-graph triples from files: lines of `head<TAB>relation<TAB>tail`, plain or gzipped, UTF-8.

Files named train, valid and test are those splits; otherwise a random share of all triples is held out. Names become
int64 keys: decimal ids are used directly, other names are hashed to 64 bits and checked for collisions.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvemb.tools.failures import BadInput

Ints = npt.NDArray[np.int64]
Named = list[tuple[str, str, str]]

GZIP_MAGIC = b"\x1f\x8b"
SPLITS = ("train", "valid", "test")
# The most bytes of a decompressed file: a gzip file of some megabytes can contain a thousand times as much.
MAX_TEXT_BYTES = 256 << 20
MAX_TRIPLES = 2_000_000
MAX_LINE_BYTES = 64 << 10
HELD_OUT_SHARE = 0.05  # for each of valid and test, if no file has that name


@dataclass(frozen=True)
class Graph:
    """Triples as int64 (n, 3) of positions in `entities` and `relations`, which are distinct int64 keys."""

    entities: Ints
    relations: Ints
    train: Ints
    valid: Ints
    test: Ints


def read_triples(path: Path) -> Named:
    """Read one file. Raises BadInput, which names the file and the line; OSError if it cannot be read."""
    triples: Named = []
    known: dict[str, str] = {}  # so that equal names share one string
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            head, relation, tail = (field.strip() for field in line.decode().split("\t"))
            if not (head and relation and tail):
                raise ValueError("a field is empty")
        except ValueError as error:
            got = repr(line[:60].decode(errors="replace"))
            raise BadInput(f"{path}, line {number}: expected head<TAB>relation<TAB>tail in UTF-8, got {got}") from error
        if len(triples) == MAX_TRIPLES:
            raise BadInput(
                f"{path} has more than {MAX_TRIPLES:,} triples; the demo keeps them in memory, so give fewer"
            )
        triples.append(
            (known.setdefault(head, head), known.setdefault(relation, relation), known.setdefault(tail, tail))
        )
    if not triples:
        raise BadInput(f"{path}: no triples; expected lines of head<TAB>relation<TAB>tail")
    return triples


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain or gzipped file, without a byte order mark. Raises as read_triples does."""
    with open(path, "rb") as raw:
        packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        if path.suffix == ".gz" and not packed:
            raise BadInput(f"{path}: not a gzip file, though its name says so")
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        read = 0
        try:
            while line := file.readline(MAX_LINE_BYTES + 1):
                read += len(line)
                if len(line) > MAX_LINE_BYTES:
                    raise BadInput(
                        f"{path} has a line of more than {MAX_LINE_BYTES:,} bytes, so it is not a file of triples"
                    )
                if read > MAX_TEXT_BYTES:
                    raise BadInput(f"{path} has more than {MAX_TEXT_BYTES:,} bytes of text; give fewer triples")
                yield line.removeprefix(codecs.BOM_UTF8) if read == len(line) else line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadInput(f"{path}: damaged gzip file: {error}") from error


def keys_of(names: Sequence[str], what: str) -> Ints:
    """Return a distinct int64 key for each of distinct names (n,), the same in every process.

    If all names are decimal, the keys are their numbers. Otherwise, or if two names have the same number ("7", "007"),
    the keys are BLAKE2b hashes of the names. Raises BadInput if two names have the same hash.
    """
    if all(re.fullmatch("[0-9]{1,18}", name) for name in names):
        numbers = np.array([int(name) for name in names], np.int64)
        if len(np.unique(numbers)) == len(numbers):
            return numbers
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    keys = np.frombuffer(digests, "<i8").astype(np.int64)
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(same):
        one, other = names[order[same[0]]], names[order[same[0] + 1]]
        raise BadInput(f"{what} {one!r} and {other!r} have the same 64-bit hash; rename one of them")
    return keys


def load_graph(paths: Sequence[Path], seed: int) -> Graph:
    """Read all files and split them. Raises BadInput, or OSError if a file cannot be read."""
    given: dict[str, Named] = {split: [] for split in (*SPLITS, "")}
    for path in paths:
        given[_split_named(path)] += read_triples(path)
    if given[""] and any(given[split] for split in SPLITS):
        raise BadInput("some files are named train, valid or test and some are not; name all of them, or none")
    if (given["valid"] or given["test"]) and not given["train"]:
        raise BadInput("there is a file to test on but none to train on; give one whose name has 'train' in it")
    everything = [triple for triples in given.values() for triple in triples]
    entity_names = sorted({name for head, _, tail in everything for name in (head, tail)})
    relation_names = sorted({relation for _, relation, _ in everything})
    entity_at = {name: at for at, name in enumerate(entity_names)}
    relation_at = {name: at for at, name in enumerate(relation_names)}

    def positions(triples: Named) -> Ints:
        found = [(entity_at[head], relation_at[relation], entity_at[tail]) for head, relation, tail in triples]
        return np.array(found, np.int64).reshape(-1, 3)

    splits = tuple(positions(given[split]) for split in SPLITS)
    if not (len(splits[1]) or len(splits[2])):
        splits = _hold_out(positions(everything), seed)
    return Graph(keys_of(entity_names, "entities"), keys_of(relation_names, "relations"), *splits)


def _split_named(path: Path) -> str:
    """Return the split that a file's name contains, or ""."""
    found = [split for split in SPLITS if split in path.name.lower()]
    if len(found) > 1:
        raise BadInput(f"{path}: its name has both {found[0]!r} and {found[1]!r} in it; rename it")
    return found[0] if found else ""


def _hold_out(triples: Ints, seed: int) -> tuple[Ints, Ints, Ints]:
    count = max(1, int(len(triples) * HELD_OUT_SHARE))
    if len(triples) < 3:
        raise BadInput(f"only {len(triples)} triples; at least 3 are needed to hold some out for testing")
    shuffled = np.random.default_rng(seed).permutation(triples)
    return shuffled[2 * count :], shuffled[:count], shuffled[count : 2 * count]
