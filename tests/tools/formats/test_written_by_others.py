"""Files that other libraries write are imported, exported, and read again by those libraries: nothing differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.tools.export import export
from kvemb.tools.importing import import_table

WORDS = ["the", "Zürich", "東京", "1_2", "12", "0x10", "nan", "-3", "a,b", 'quo"ted', "don't", "</s>", ".", "🦆"]
VECTORS = np.random.default_rng(7).standard_normal((len(WORDS), 5)).astype(np.float32)
IDS = np.array([5, -3, 2**62, 0, 17])
WEIGHT = VECTORS[:5]
Rows = dict[Any, list[float]]
GIVEN: Rows = dict(zip(WORDS, VECTORS.tolist(), strict=True))
NUMBERED: Rows = dict(zip(IDS.tolist(), WEIGHT.tolist(), strict=True))


def rows_of(path: Path) -> Rows:
    with kvemb.open(path, read_only=True) as store:
        (table,) = store.variables.values()
        return rows_in(*table.export())


def rows_in(keys: Any, values: Any) -> Rows:
    found = dict(zip(list(keys), [[float(number) for number in row] for row in values], strict=True))
    assert len(found) == len(keys)
    return found


def through(tmp_path: Path, source: Path, out: str, expected: Rows, **how: Any) -> Path:
    """Import a source to a new store, compare its rows, and export them; return the file."""
    import_table(source, tmp_path / "store", **how)
    assert rows_of(tmp_path / "store") == expected
    export(tmp_path / "store", tmp_path / out, format=how.get("format"))
    return tmp_path / out


# Word vectors.


@pytest.mark.slow
@pytest.mark.needs("gensim")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # gensim leaves open what has no header
@pytest.mark.parametrize(
    ("ending", "how"),
    [("txt", {}), ("vec", {}), ("bin", {"binary": True}), ("glove", {"no_header": True}), ("txt.gz", {})],
    ids=["word2vec", "fastText's", "word2vec binary", "GloVe", "compressed"],
)
def test_word_vectors_of_gensim(tmp_path: Path, ending: str, how: dict[str, bool]):
    from gensim.models import KeyedVectors

    vectors = KeyedVectors(5)
    vectors.add_vectors(WORDS, VECTORS)
    header, binary = not how.get("no_header", False), how.get("binary", False)
    source = tmp_path / f"theirs.{ending}"
    vectors.save_word2vec_format(str(source), binary=binary, write_header=header)
    kind = "word2vec-binary" if binary else "glove" if not header else "word2vec"
    out = through(tmp_path, source, f"ours.{ending.removesuffix('.gz')}", GIVEN, format=kind, key_dtype="string")
    read = KeyedVectors.load_word2vec_format(str(out), **how)
    assert rows_in(read.index_to_key, read.vectors) == GIVEN


@pytest.mark.slow
@pytest.mark.needs("gensim")
def test_words_that_fasttext_trained(tmp_path: Path):
    from gensim.models import FastText, KeyedVectors

    sentences = [[WORDS[(at * step) % 14] for at in range(20)] for step in range(1, 14)]
    model = FastText(sentences, vector_size=6, min_count=1, epochs=1, bucket=100, workers=1, seed=1)
    expected = {word: model.wv[word].tolist() for word in model.wv.index_to_key}
    model.wv.save_word2vec_format(str(tmp_path / "theirs.vec"))
    out = through(tmp_path, tmp_path / "theirs.vec", "ours.vec", expected, key_dtype="string")
    read = KeyedVectors.load_word2vec_format(str(out))
    assert rows_in(read.index_to_key, read.vectors) == expected


def test_vectors_as_the_program_fasttext_prints_them(tmp_path: Path):
    """Made by hand in its layout: five digits, and a blank at the end of each line but the first."""
    lines = [f"{word} {' '.join(f'{number:.5g}' for number in row)} \n" for word, row in GIVEN.items()]
    (tmp_path / "theirs.vec").write_text(f"{len(lines)} 5\n{''.join(lines)}", encoding="utf-8")
    expected = {
        word: [float(np.float32(f"{number:.5g}")) for number in row] for word, row in zip(WORDS, VECTORS, strict=True)
    }
    through(tmp_path, tmp_path / "theirs.vec", "ours.vec", expected, key_dtype="string")
    import_table(tmp_path / "ours.vec", tmp_path / "again", key_dtype="string")
    assert rows_of(tmp_path / "again") == expected


# Tensors.


@pytest.mark.needs("torch")
@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_weight_of_pytorch(tmp_path: Path, ending: str):
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 5), "dense": torch.nn.Linear(5, 1)})
    model["embed"].weight.data.copy_(torch.from_numpy(WEIGHT))
    save: Callable[..., None] = torch.save if ending == "pt" else safetensors.save_file
    save(model.state_dict(), tmp_path / f"theirs.{ending}")
    np.save(tmp_path / "ids.npy", IDS)
    how = {"value_column": "embed.weight", "keys": tmp_path / "ids.npy"}
    import_table(tmp_path / f"theirs.{ending}", tmp_path / "store", **how)
    assert rows_of(tmp_path / "store") == NUMBERED
    export(tmp_path / "store", tmp_path / "ours.safetensors")
    tensors = safetensors.load_file(tmp_path / "ours.safetensors")
    assert rows_in(tensors["key"].tolist(), tensors["value"].tolist()) == NUMBERED
    torch.save({"weight": tensors["value"]}, tmp_path / "again.pt")
    torch.save(tensors["key"], tmp_path / "keys.pt")
    np.save(tmp_path / "keys.npy", tensors["key"].numpy())
    import_table(tmp_path / "again.pt", tmp_path / "again", keys=tmp_path / "keys.npy")
    assert rows_of(tmp_path / "again") == NUMBERED


# Parquet.

KEYS = [pytest.param(IDS, NUMBERED, {}, id="integers"), pytest.param(WORDS, GIVEN, {"key_dtype": "string"}, id="words")]


@pytest.mark.needs("pandas")
@pytest.mark.parametrize(("keys", "expected", "how"), KEYS)
@pytest.mark.parametrize("wide", [False, True])
def test_parquet_of_pandas(tmp_path: Path, keys: Any, expected: Rows, how: dict[str, str], wide: bool):
    import pandas

    values = VECTORS[: len(keys)]
    columns = {f"v_{at}": values[:, at] for at in range(5)} if wide else {"v": list(values)}
    frame = pandas.DataFrame({"item": keys, "seen": pandas.Timestamp("2026-01-01"), "kind": "a", **columns})
    frame.to_parquet(tmp_path / "theirs.parquet")
    source = tmp_path / "theirs.parquet"
    out = through(tmp_path, source, "ours.parquet", expected, key_column="item", value_column="v", **how)
    read = pandas.read_parquet(out)
    assert rows_in(read["key"].tolist(), read["value"]) == expected


@pytest.mark.slow
@pytest.mark.needs("polars")
@pytest.mark.parametrize(("keys", "expected", "how"), KEYS)
@pytest.mark.parametrize("fixed", [False, True])
def test_parquet_of_polars(tmp_path: Path, keys: Any, expected: Rows, how: dict[str, str], fixed: bool):
    import polars

    values = polars.Series("vector", VECTORS[: len(keys)].tolist(), polars.List(polars.Float32))
    if fixed:
        values = values.cast(polars.Array(polars.Float32, 5))
    polars.DataFrame({"id": keys, "vector": values, "tags": [["x"]] * len(keys)}).write_parquet(tmp_path / "in.parquet")
    how = {"key_column": "id", "value_column": "vector", **how}
    out = through(tmp_path, tmp_path / "in.parquet", "ours.parquet", expected, **how)
    read = polars.read_parquet(out)
    assert rows_in(read["key"].to_list(), read["value"].to_list()) == expected


@pytest.mark.slow
@pytest.mark.needs("duckdb", "pandas")
@pytest.mark.parametrize(("keys", "expected", "how"), KEYS)
@pytest.mark.parametrize("kind", ["FLOAT[]", "FLOAT[5]"])
def test_parquet_of_duckdb(tmp_path: Path, keys: Any, expected: Rows, how: dict[str, str], kind: str):
    import duckdb
    import pandas

    frame = pandas.DataFrame({"id": keys, "v": VECTORS[: len(keys)].tolist()})
    with duckdb.connect() as base:
        base.register("frame", frame)
        base.execute(f"copy (select id, v::{kind} as v, now() as at from frame) to '{tmp_path}/in.parquet'")
        out = through(
            tmp_path, tmp_path / "in.parquet", "ours.parquet", expected, key_column="id", value_column="v", **how
        )
        found = base.execute(f"select key, value from '{out}'").fetchall()
    assert rows_in([key for key, _ in found], [row for _, row in found]) == expected


@pytest.mark.parametrize(("keys", "expected", "how"), KEYS)
def test_a_folder_of_spark(tmp_path: Path, keys: Any, expected: Rows, how: dict[str, str]):
    """Made by hand in its layout, and exported in parts."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "theirs.parquet"
    folder.mkdir()
    vectors = pa.array(VECTORS[: len(keys)].tolist(), pa.list_(pa.field("element", pa.float32())))
    whole = pa.table({"id": pa.array(keys), "features": vectors})
    for at in range(0, len(keys), 4):
        name = f"part-{at // 4:05}-0f7c.c000.snappy.parquet"
        pq.write_table(whole.slice(at, 4), folder / name, compression="snappy", store_schema=False)
        (folder / f".{name}.crc").write_bytes(b"crc")
    (folder / "_SUCCESS").touch()
    import_table(folder, tmp_path / "store", key_column="id", **how)
    assert rows_of(tmp_path / "store") == expected
    export(tmp_path / "store", tmp_path / "parts", format="parquet", partitions=3)
    tables = [pq.read_table(part) for part in (tmp_path / "parts").iterdir() if part.suffix == ".parquet"]
    read = pa.concat_tables(tables)
    assert rows_in(read["key"].to_pylist(), read["value"].to_pylist()) == expected
