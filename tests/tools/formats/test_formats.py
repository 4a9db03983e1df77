"""Tables out and in: bit for bit where a format carries everything, and read by the libraries others use."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick

import kvemb
from kvemb import bulk
from kvemb.bulk import Rows
from kvemb.rows.schema import KEY_DTYPES, VALUE_DTYPES, dtype_of
from kvemb.tools.cli import run
from kvemb.tools.export import export
from kvemb.tools.exported_rows import RowWriter
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.known import FORMATS
from kvemb.tools.importing import import_table

pytest.importorskip("pyarrow")
BUDGET = "4MiB"
WHOLE = [kind.name for kind in FORMATS.values() if kind.describes]
OTHERS = [kind.name for kind in FORMATS.values() if not (kind.imported_only or kind.describes)]


def dump(path: Any, name: str = "table") -> tuple[dict[str, Any], list[Any]]:
    """A variable: what it is, and every byte of its rows."""
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        variable = store.variables[name]
        columns: list[Any] = []
        for rows in bulk.scan(variable):
            slots = {slot: array.tobytes() for slot, array in (rows.slots or {}).items()}
            arrays = (rows.keys, rows.values, rows.scores, rows.steps)
            columns.append([*(array.tobytes() for array in arrays), slots])
        return bulk.described(variable), columns


def make(path: Path, *, rows: int = 500, dim: int = 3, **kwargs: Any) -> Path:
    """A store of one variable of float32 rows, closed."""
    kwargs.setdefault("optimizer", kvemb.optimizers.Adagrad(0.5))
    with kvemb.open(path, memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=dim, **kwargs)
        keys = (np.arange(rows) - rows // 3).astype(table.key_dtype)
        values = np.random.default_rng(0).standard_normal((rows, dim)).astype(table.value_dtype)
        table.upsert(keys, values)
        table.lookup(keys[: rows // 2])
        if table.optimizer is not None:
            table.apply_gradients(keys[:10], np.ones((min(10, rows), dim), bulk.slot_dtype(table)))
    return path


def random_rows(chance: np.random.Generator, variable: kvemb.Variable, count: int) -> Rows:
    """Rows of any bits: NaNs of every kind, infinities, the least and the greatest key."""
    limits = np.iinfo(variable.key_dtype)
    keys = chance.integers(limits.min, limits.max, count, variable.key_dtype, endpoint=True)
    keys[: min(3, count)] = [limits.min, limits.max, 0][: min(3, count)]

    def bits(dtype: np.dtype[Any], width: int = variable.dim) -> Any:
        raw = chance.integers(0, 256, (count, width * dtype.itemsize), np.uint8)
        return np.ascontiguousarray(raw).view(dtype)

    shapes = variable.optimizer.shapes(variable.dim) if variable.optimizer else ()
    slots = {slot.name: bits(bulk.slot_dtype(variable), slot.width) for slot in shapes} or None
    scores = chance.choice([0.0, -0.0, 1.5, np.inf, -np.inf, 1e-310], count)
    return Rows(keys, bits(variable.value_dtype), slots, scores, chance.integers(0, 2**61, count))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    format=st.sampled_from(WHOLE),
    key=st.sampled_from(sorted(KEY_DTYPES)),
    value=st.sampled_from(sorted(VALUE_DTYPES)),
    dim=st.sampled_from([1, 3, 16]),
    count=st.sampled_from([0, 1, 700]),
    optimizer=st.none() | st.sampled_from([kind(learning_rate=0.25) for kind in kvemb.optimizers.KINDS.values()]),
    seed=st.integers(0, 2**32),
)
def test_a_format_that_carries_everything_brings_back_every_bit(
    tmp_path_factory, format, key, value, dim, count, optimizer, seed
):
    place = tmp_path_factory.mktemp("whole")
    trains = dtype_of(value).kind not in "iu"
    with kvemb.open(place / "store", memory_budget=BUDGET) as store:
        table = store.get_variable(
            "table",
            key,
            value,
            dim,
            optimizer=optimizer if trains else None,
            initializer=kvemb.RandomUniform(-1, 1, seed=3) if trains else None,
            restrict_policy=kvemb.FrequencyRestrictPolicy(half_life=7),
        )
        bulk.load(table, [random_rows(np.random.default_rng(seed), table, count)])
    out = place / f"out{FORMATS[format].suffix}"
    made = export(place / "store", out, with_slots=True, with_scores=True, batch_rows=256)
    assert made.rows == dump(place / "store")[0]["rows"]
    import_table(out, place / "copy")
    assert dump(place / "copy") == dump(place / "store")


@pytest.mark.parametrize("format", OTHERS)
def test_formats_of_others_bring_back_keys_and_values(tmp_path, format):
    store = make(tmp_path / "store")
    export(store, tmp_path / "out", format=format)
    how = {} if format == "tfra" else {"variable": "copy", "value_dtype": "float32"}
    done = import_table(tmp_path / "out", tmp_path / "copy", format=format, **how)
    assert (done.added, done.rows) == (500, 500)
    (mine,), (theirs,) = dump(store)[1], dump(tmp_path / "copy", done.variable)[1]
    assert mine[:2] == theirs[:2]


# Read by the libraries that others use.


@pytest.fixture
def rows(tmp_path: Path) -> tuple[Path, Any, Any]:
    """A store, its keys and its values."""
    store = make(tmp_path / "store")
    with kvemb.open(store, read_only=True, memory_budget=BUDGET) as reader:
        return store, *reader.variables["table"].export()


@pytest.mark.needs("duckdb", "pandas")
def test_parquet_is_read_by_duckdb_and_pandas(rows, tmp_path):
    import duckdb
    import pandas

    store, keys, values = rows
    export(store, tmp_path / "out.parquet", with_slots=True, with_scores=True)
    frame = pandas.read_parquet(tmp_path / "out.parquet")
    assert frame["key"].tolist() == keys.tolist()
    np.testing.assert_array_equal(np.stack(frame["value"]), values)
    assert list(frame.columns) == ["key", "value", "accumulator", "score", "step"]
    query = f"select key, value[1], score from '{tmp_path}/out.parquet' where key between 5 and 9 order by key"
    found = duckdb.sql(query).fetchall()
    at = int(np.searchsorted(keys, 5))
    assert [row[0] for row in found] == [5, 6, 7, 8, 9]
    np.testing.assert_array_equal(np.array([row[1] for row in found], np.float32), values[at : at + 5, 0])
    export(store, tmp_path / "parts", format="parquet", partitions=4)
    assert duckdb.sql(f"select count(*) from '{tmp_path}/parts/*.parquet'").fetchall() == [(500,)]


def test_parquet_has_statistics_of_keys(rows, tmp_path):
    import pyarrow.parquet as pq

    store, keys, _ = rows
    export(store, tmp_path / "out.parquet", with_scores=True)
    group = pq.ParquetFile(tmp_path / "out.parquet").metadata.row_group(0)
    statistics = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    assert (statistics["key"].min, statistics["key"].max) == (keys[0], keys[-1])
    assert statistics["score"] is not None
    kind = pq.read_schema(tmp_path / "out.parquet").field("value").type
    assert str(kind) == "fixed_size_list<element: float>[3]"


def test_safetensors_and_npy_are_read_by_their_libraries(rows, tmp_path):
    numpy_tensors = pytest.importorskip("safetensors.numpy")
    store, keys, values = rows
    export(store, tmp_path / "out.safetensors", with_slots=True)
    tensors = numpy_tensors.load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(tensors["key"], keys)
    np.testing.assert_array_equal(tensors["value"], values)
    assert tensors["accumulator"].shape == (500, 3)
    export(store, tmp_path / "out.npy")
    mapped = np.load(tmp_path / "out.npy" / "value.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, values)


@pytest.mark.slow
@pytest.mark.needs("gensim")
@pytest.mark.parametrize(("format", "binary"), [("word2vec", False), ("word2vec-binary", True)])
def test_word2vec_is_read_by_gensim(rows, tmp_path, format, binary):
    import gensim.models as gensim

    store, keys, values = rows
    export(store, tmp_path / "out", format=format)
    read = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "out"), binary=binary)
    assert read.index_to_key == [str(key) for key in keys]
    np.testing.assert_array_equal(read.vectors, values)
    read.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    import_table(tmp_path / "theirs", tmp_path / "copy", format=format, variable="table")
    assert dump(tmp_path / "copy")[1][0][:2] == dump(store)[1][0][:2]


def test_hugectr_and_tfra_are_laid_out_as_theirs(rows, tmp_path):
    store, keys, values = rows
    export(store, tmp_path / "out.model")
    assert (tmp_path / "out.model" / "key").read_bytes() == struct.pack(f"<{len(keys)}q", *keys.tolist())
    numbers = values.reshape(-1).tolist()
    assert (tmp_path / "out.model" / "emb_vector").read_bytes() == struct.pack(f"<{len(numbers)}f", *numbers)
    export(store, tmp_path / "saved", format="tfra", with_slots=True)
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    stem = "mht_1of1_rank0_size1"
    assert names == {
        f"{table}_{stem}-{what}" for table in ("table", "table-accumulator") for what in ("keys", "values")
    }
    assert (tmp_path / "saved" / f"table_{stem}-keys").read_bytes() == keys.astype("<i8").tobytes()
    assert (tmp_path / "saved" / f"table_{stem}-values").read_bytes() == values.astype("<f4").tobytes()
    slots = (tmp_path / "saved" / f"table-accumulator_{stem}-values").read_bytes()
    assert slots == dump(store)[1][0][4]["accumulator"]


def tfra_files(folder, name, width, rows=3):
    folder.mkdir(exist_ok=True)
    stem = f"{name.replace('/', '_')}_mht_1of1_rank0_size1"
    np.arange(rows, dtype="<i8").tofile(folder / f"{stem}-keys")
    np.full(rows * width, len(name), "<f4").tofile(folder / f"{stem}-values")


def test_slots_and_policies_of_tfra_are_told_from_tables(tmp_path):
    """Only kvemb's own slots were: with those of TFRA the table had to be named."""
    saved = tmp_path / "saved"
    beside = ["Adam/m", "Adam/v", "embedding_lookup/Ftrl_1/linear", "accumulator", "a/b/accumulated_delta_var"]
    for name in ("tower/words", *(f"tower/words/{slot}" for slot in beside), "tower/words-accumulator"):
        tfra_files(saved, name, 4)
    for name in ("status/tower/words/timestamp", "scope/status_1/tower/words/frequency"):
        tfra_files(saved, name, 1)
    done = import_table(saved, tmp_path / "one", format="tfra")
    assert (done.variable, done.rows) == ("tower_words", 3)
    assert import_table(saved, tmp_path / "slot", format="tfra", variable="tower_words_Adam_m").rows == 3
    # These have names like slots of the table, but rows of another width, or none of an optimizer's names.
    tfra_files(saved, "tower/words/history/m", 2)
    tfra_files(saved, "tower/words/tags", 4)
    with pytest.raises(WrongUsage, match="has the tables tower_words, tower_words_history_m, tower_words_tags; name"):
        import_table(saved, tmp_path / "several", format="tfra")


def test_strings_of_tfras_files_are_refused_with_the_cure(tmp_path):
    """Its saver writes 24 bytes for a string, of which the most are an address."""
    tfra_files(tmp_path, "words", 4)
    with pytest.raises(BadInput, match=r"cannot have strings: .*import it with --format tf-checkpoint"):
        import_table(tmp_path, tmp_path / "store", format="tfra", key_dtype="string")


def test_half_a_table_of_tfra_is_not_imported(tmp_path):
    """Files of some ranks or shards were taken for a whole table, and another table for the one that was named."""
    saved = tmp_path / "saved"
    tfra_files(saved, "tower/words", 4)

    def renamed(old, new):
        for path in list(saved.iterdir()):
            path.rename(path.with_name(path.name.replace(old, new)))

    assert import_table(saved, tmp_path / "named", format="tfra", variable="tower/words").variable == "tower/words"
    with pytest.raises(WrongUsage, match="has no table 'nope'; it has tower_words"):
        import_table(saved, tmp_path / "store", format="tfra", variable="nope")
    renamed("1of1_rank0_size1", "1of2_rank0_size1")
    with pytest.raises(BadInput, match="lacks 1 of 2 files with keys: _mht_2of2_rank0_size1-keys"):
        import_table(saved, tmp_path / "store", format="tfra")
    renamed("1of2_rank0_size1", "1of1_rank0_size2")
    with pytest.raises(BadInput, match="lacks 1 of 2 files with keys: _mht_1of1_rank1_size2-keys"):
        import_table(saved, tmp_path / "store", format="tfra")
    tfra_files(saved, "tower/words", 4)
    with pytest.raises(BadInput, match="several saves, of 1 shards and 1 ranks and of 1 shards and 2 ranks"):
        import_table(saved, tmp_path / "store", format="tfra")
    assert not (tmp_path / "store").exists()


def test_dynamicemb_is_laid_out_as_theirs(rows, tmp_path):
    store, keys, _ = rows
    export(store, tmp_path / "dump", format="dynamicemb")
    read = {path.name: path.read_bytes() for path in (tmp_path / "dump").iterdir()}
    assert np.frombuffer(read["table_emb_keys.rank_0.world_size_1"], "<i8").tolist() == keys.tolist()
    assert len(read["table_emb_scores.rank_0.world_size_1"]) == 8 * len(keys)
    assert read["table_emb_opt_values.rank_0.world_size_1"] == dump(store)[1][0][4]["accumulator"]
    assert json.loads(read["table_opt_args.json"])["opt_type"] == "adagrad"
    # And of several ranks.
    for what, size in (("keys", 8), ("values", 12), ("scores", 8), ("opt_values", 12)):
        whole = read[f"table_emb_{what}.rank_0.world_size_1"]
        (tmp_path / "dump" / f"table_emb_{what}.rank_0.world_size_1").unlink()
        for rank, part in enumerate((whole[: 100 * size], whole[100 * size :])):
            (tmp_path / "dump" / f"table_emb_{what}.rank_{rank}.world_size_2").write_bytes(part)
    assert import_table(tmp_path / "dump", tmp_path / "copy", format="dynamicemb").added == 500
    assert dump(tmp_path / "copy")[1][0][1] == dump(store)[1][0][1]


@pytest.mark.needs("torch")
def test_a_weight_of_pytorch_and_any_parquet_come_in(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    weights = np.random.default_rng(1).standard_normal((70, 4)).astype(np.float32)
    lists = pa.array(weights.tolist(), pa.list_(pa.float32()))
    table = pa.table({"id": pa.array(range(70), pa.int32()), "name": ["x"] * 70, "embedding": lists})
    pq.write_table(table, tmp_path / "foreign.parquet")
    with pytest.raises(BadInput, match="no column 'nothing' for the key"):
        import_table(tmp_path / "foreign.parquet", tmp_path / "store", key_column="nothing")
    assert not (tmp_path / "store").exists()
    assert import_table(tmp_path / "foreign.parquet", tmp_path / "store").variable == "foreign"
    import torch

    state = {"embedding.weight": torch.from_numpy(weights), "linear.bias": torch.zeros(3)}
    torch.save(state, tmp_path / "model.pt")
    import_table(tmp_path / "model.pt", tmp_path / "store", variable="model")
    for name in ("foreign", "model"):
        assert dump(tmp_path / "store", name)[1][0][1] == weights.tobytes()


# What is asked for.


def test_only_rows_that_are_meant_are_written(rows, tmp_path):
    store, keys, _ = rows
    with kvemb.open(store, read_only=True, memory_budget=BUDGET) as reader:
        (whole,) = bulk.scan(reader.variables["table"])
    for where, mask in (
        ("key in 5..9", (keys >= 5) & (keys <= 9)),
        ("key > 5 and key <= 9", (keys > 5) & (keys <= 9)),
        ("score >= 1.5", whole.scores >= 1.5),
        ("step = 0", whole.steps == 0),
        ("key != 7 and score < 100", (keys != 7) & (whole.scores < 100)),
        ("key in 9..5", keys < keys),
    ):
        out = io.BytesIO()
        assert export(store, out, format="csv", where=where).rows == int(mask.sum())
        lines = out.getvalue().decode().splitlines()[1:]
        assert [int(line.split(",")[0]) for line in lines] == keys[mask].tolist()
    export(store, tmp_path / "out", format="word2vec", where="key in 5..9")
    assert (tmp_path / "out").read_text().startswith("5 3\n")


def test_values_are_converted_as_asked(rows, tmp_path):
    store, _, values = rows
    numpy_tensors = pytest.importorskip("safetensors.numpy")
    for dtype in ("float16", "bfloat16", "int8"):
        export(store, tmp_path / f"{dtype}.safetensors", dtype=dtype)
        read = numpy_tensors.load_file(tmp_path / f"{dtype}.safetensors")
        assert read["value"].dtype.name == dtype
        found = read["value"].astype(np.float32)
        if dtype == "int8":
            found *= read["scale"][:, None]
            assert np.abs(read["value"]).max(axis=1).tolist() == [127] * len(values)
            assert (np.abs(found - values) <= np.abs(values).max(axis=1, keepdims=True) / 253).all()
        else:
            np.testing.assert_allclose(found, values, rtol=0.01)
    import_table(tmp_path / "int8.safetensors", tmp_path / "copy")
    back = np.frombuffer(dump(tmp_path / "copy")[1][0][1], np.float32).reshape(values.shape)
    np.testing.assert_allclose(back, values, atol=0.02)
    export(store, tmp_path / "unit.safetensors", normalize=True)
    unit = numpy_tensors.load_file(tmp_path / "unit.safetensors")["value"]
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)


def test_what_changed_since_a_checkpoint_is_written_with_the_keys_that_went(tmp_path):
    import pyarrow.parquet as pq

    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=3)
        table.upsert(np.arange(100), np.ones((100, 3), np.float32))
        store.checkpoint(tmp_path / "1")
        table.upsert([5, 500], np.zeros((2, 3), np.float32))
        table.remove([7, 8])
        store.checkpoint(tmp_path / "2")
    done = export(tmp_path / "2", tmp_path / "delta.parquet", since=tmp_path / "1")
    assert (done.rows, done.removed) == (2, 2)
    assert pq.read_table(tmp_path / "delta.parquet")["key"].to_pylist() == [5, 500]
    assert np.load(tmp_path / "delta.removed.npy").tolist() == [7, 8]
    assert export(tmp_path / "2", tmp_path / "less.parquet", since=tmp_path / "1", where="key > 5").rows == 1


@pytest.mark.parametrize("jobs", quick([1, 2]))
def test_parts_together_are_the_whole(rows, tmp_path, jobs):
    store, keys, _ = rows
    whole: dict[str, Any] = {"with_slots": True, "with_scores": True}
    done = export(store, tmp_path / "parts", format="parquet", partitions=3, jobs=jobs, **whole)
    assert done.rows == len(keys)
    files = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert files == [f"part-{at:05d}-of-00003.parquet" for at in range(3)]
    import_table(tmp_path / "parts", tmp_path / "copy", format="parquet")
    assert dump(tmp_path / "copy") == dump(store)
    (tmp_path / "parts" / files[1]).unlink()
    with pytest.raises(BadInput, match=r"/part-00001-of-00003\.parquet is missing; copy all parts"):
        import_table(tmp_path / "parts", tmp_path / "less", format="parquet")
    alone = import_table(tmp_path / "parts" / files[0], tmp_path / "less")
    assert 0 < alone.rows < done.rows


def test_a_damaged_page_of_parquet_is_refused(rows, tmp_path):
    """Nothing else tells that a number has changed."""
    store, _, _ = rows
    export(store, tmp_path / "out.parquet")
    content = bytearray((tmp_path / "out.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "out.parquet").write_bytes(content)
    with pytest.raises(BadInput, match=r"out\.parquet is damaged: .*CRC"):
        import_table(tmp_path / "out.parquet", tmp_path / "copy")


def test_urls_are_written_to_and_read_from(rows, tmp_path):
    pytest.importorskip("fsspec")
    store, _, _ = rows
    for format in WHOLE:
        url = f"memory://{tmp_path.name}/{format}{FORMATS[format].suffix}"
        export(store, url, with_slots=True, with_scores=True)
        import_table(url, tmp_path / format)
        assert dump(tmp_path / format) == dump(store)
        with pytest.raises(FileExistsError, match="exists"):
            export(store, url)


def test_rows_that_are_there_are_replaced_kept_or_refused(rows, tmp_path):
    store, keys, _ = rows
    export(store, tmp_path / "out.npy")
    before = dump(store)
    with pytest.raises(ValueError, match="is in 'table' already"):
        import_table(tmp_path / "out.npy", store)
    assert dump(store) == before
    assert import_table(tmp_path / "out.npy", store, on_conflict="keep").kept == len(keys)
    assert dump(store)[1] == before[1]
    assert import_table(tmp_path / "out.npy", store, on_conflict="replace").replaced == len(keys)


def test_a_trainer_does_not_notice(tmp_path):
    """Exporting from its newest checkpoint, and from the live store, changes no byte of either."""
    store = kvemb.open(tmp_path / "store", memory_budget=BUDGET)
    table = store.get_variable("table", dim=3)
    table.upsert(np.arange(100), np.ones((100, 3), np.float32))
    checkpoint = store.checkpoint(tmp_path / "1")
    table.upsert([1], np.zeros((1, 3), np.float32))

    def files(path: Path) -> dict[str, Any]:
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}

    for path in (checkpoint.path, store.path):
        before = files(path)
        assert export(path, tmp_path / f"{path.name}.parquet").rows == 100
        assert files(path) == before
    table.upsert([2], np.zeros((1, 3), np.float32))
    assert table.lookup([1, 2]).tolist() == [[0, 0, 0]] * 2
    store.close()


# Bad input.


@pytest.mark.parametrize("format", WHOLE)
def test_a_truncated_file_is_one_line_and_does_no_damage(rows, tmp_path, capsys, format):
    store, _, _ = rows
    out = tmp_path / f"out{FORMATS[format].suffix}"
    export(store, out)
    file = out / "value.npy" if out.is_dir() else out
    data = file.read_bytes()
    for length in (0, 5, 40, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        assert run(["import", str(out), str(tmp_path / "new"), "--quiet"]) == 1
        told = capsys.readouterr().err
        assert str(file) in told
        assert told.count("\n") == 1
        assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_nothing(rows, tmp_path, monkeypatch):
    store, _, _ = rows

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RowWriter, "batch", full)
    for format in WHOLE:
        with pytest.raises(OSError, match="No space left"):
            export(store, tmp_path / "out", format=format)
    assert sorted(os.listdir(tmp_path)) == ["store"]
