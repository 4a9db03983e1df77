"""Reading triples: what is accepted, what is refused and how it is named, keys, and splits."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from kvemb.tools.demos import triple_files as under_test
from kvemb.tools.demos.triple_files import keys_of, load_graph, read_triples
from kvemb.tools.failures import BadInput

TEXT = "a\tlikes\tb\nb\tlikes\tc\n"
NAMED = [("a", "likes", "b"), ("b", "likes", "c")]
# Keys reach the disk: a store trained before must find its rows.
PINNED_KEYS = [-6569326470661302050, 5717441744405258058]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n\n")])
@pytest.mark.parametrize("name", ["t.txt.gz", "named_otherwise.txt", "t"])
def test_text_is_read_plain_or_gzipped_whatever_its_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode() if name == "t" else gzip.compress(text.encode()))
    assert read_triples(tmp_path / name) == NAMED


@pytest.mark.parametrize("names", [["7", "007"], ["7", "x"], ["7", "-7"], ["9" * 19, "1"]])
def test_other_names_are_hashed_apart(names: list[str]) -> None:
    keys = keys_of(names, "entities")
    assert keys.dtype == np.int64
    assert len(np.unique(keys)) == len(names)
    assert 7 not in keys


def test_decimal_names_are_their_own_keys_and_the_hash_of_others_never_changes() -> None:
    assert keys_of(["00260881", "7"], "entities").tolist() == [260881, 7]
    assert keys_of(["/m/027rn", "x"], "entities").tolist() == PINNED_KEYS


def test_a_collision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def __init__(self, data: bytes, digest_size: int) -> None:
            self._size = digest_size

        def digest(self) -> bytes:
            return b"\1" * self._size

    monkeypatch.setattr(under_test, "blake2b", Constant)
    with pytest.raises(BadInput, match="'a' and 'b' have the same"):
        keys_of(["a", "b"], "entities")


def test_files_named_for_splits_are_those_splits(tmp_path: Path) -> None:
    contents = {"train.txt": TEXT, "my-valid.txt": "a\tlikes\tc\n", "TEST.txt": "c\thates\td\n"}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    graph = load_graph([tmp_path / name for name in contents], seed=0)
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [2, 1, 1]
    assert (len(graph.entities), len(graph.relations)) == (4, 2)
    # Places follow the sorted names: a b c d, hates likes.
    assert graph.test.tolist() == [[2, 0, 3]]


@pytest.mark.parametrize("name", ["all.txt", "train.txt"])
def test_one_file_is_split_by_seed_without_losing_a_triple(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("".join(f"{i}\tnext\t{i + 1}\n" for i in range(100)))
    graph, same, other = (load_graph([path], seed) for seed in (1, 1, 2))
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [90, 5, 5]
    together = np.concatenate([graph.train, graph.valid, graph.test])
    assert len(np.unique(together, axis=0)) == 100
    np.testing.assert_array_equal(graph.test, same.test)
    assert (graph.test != other.test).any()


PACKED = gzip.compress(TEXT.encode(), mtime=0)
REFUSED: list[tuple[dict[str, bytes], str]] = [
    ({"t.gz": TEXT.encode()}, "t.gz: not a gzip file"),
    ({"t.gz": PACKED[:-9]}, "damaged gzip"),
    ({"t.gz": PACKED[:12] + b"\0\0\0\0"}, "damaged gzip"),
    ({"t.txt": b""}, "t.txt: no triples"),
    ({"t.txt.gz": gzip.compress(b"\n")}, "no triples"),
    *(
        ({"bad.txt": TEXT.encode() + line}, r"bad\.txt, line 3: expected head<TAB>relation<TAB>tail")
        for line in (b"a b c", b"a\tb", b"a\tb\tc\td", b"a\t\tc", b"a\tb\t\xff")
    ),
    ({"train.txt": TEXT.encode(), "more.txt": TEXT.encode()}, "name all of them, or none"),
    ({"test.txt": TEXT.encode()}, "none to train on"),
    ({"train-test.txt": TEXT.encode()}, "both 'train' and 'test'"),
    ({"small.txt": TEXT.encode()}, "at least 3"),
]


@pytest.mark.parametrize(("files", "says"), REFUSED)
def test_files_that_are_no_graph_are_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=says):
        load_graph([tmp_path / name for name in files], seed=0)
