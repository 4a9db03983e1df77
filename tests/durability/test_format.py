"""Golden bytes: the dumps of FORMAT.md are made again, and a store on disk holds what the page says."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb import initializers, optimizers, restrict
from kvemb.durability.admission_counters.counter_file import CounterFile, read_counters, write_counters
from kvemb.durability.keyfile import read_keys, write_keys
from kvemb.durability.manifest import Epoch, EpochChanges, FileEntry, Manifest
from kvemb.durability.variable_entry import VariableEntry
from kvemb.handle import inside
from kvemb.journal.journal import Journal
from kvemb.offline.delta_file import DeltaFile, DeltaPart
from kvemb.operations.admission_counters import AdmissionCounters
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.codec import decode_keys, decode_records, encode_keys, encode_records, order_keys, record_dtype
from kvemb.rows.schema import KEY_DTYPES, VALUE_DTYPES, Schema, SlotShape, dtype_of

PAGE = (Path(__file__).parents[2] / "FORMAT.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HEX = r"((?:[0-9a-f]{2} )*[0-9a-f]{2})"
KEYS = re.findall(rf"^(\w+) +(-?\d+)   {HEX}$", BLOCKS[-6], re.MULTILINE)


def dump(block: str) -> bytes:
    """The bytes of a commented dump."""
    return bytes.fromhex("".join(re.match(HEX, line)[1] for line in block.splitlines()))


def noted(block: str, what: str) -> list[str]:
    """The numbers that the comments give for a part."""
    return [number for line in block.splitlines() if f"   {what} " in line for number in line.split(what)[1].split()]


RECORDS = {
    "float16": (BLOCKS[-5], Schema(dtype_of("int64"), dtype_of("float16"), 3, (SlotShape("accumulator", 3),))),
    "int8": (BLOCKS[-4], Schema(dtype_of("int64"), dtype_of("int8"), 2)),
}


@pytest.mark.parametrize(("dtype", "key", "encoded"), KEYS)
def test_keys_of_the_page(dtype, key, encoded):
    schema = Schema(dtype_of(dtype), dtype_of("float32"), 1)
    internal = np.array([int(key)], dtype)
    internal = internal.view(np.int64) if dtype == "uint64" else internal.astype(np.int64)
    assert encode_keys(internal, schema) == [bytes.fromhex(encoded)]
    assert decode_keys([bytes.fromhex(encoded)], schema).tolist() == internal.tolist()


def test_the_page_has_keys_of_every_dtype():
    assert {dtype for dtype, _, _ in KEYS} == set(KEY_DTYPES)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_the_page(name):
    block, schema = RECORDS[name]
    row = RowBlock(schema, 1)
    row.scores[0], row.steps[0] = float(noted(block, "score")[0]), int(noted(block, "step")[0])
    row.flags[0] = DIRTY
    embedding = np.array([[float(number) for number in noted(block, "embedding")]]).astype(schema.value_dtype)
    row.values[:, : schema.dim] = embedding.view(schema.kernel_dtype)
    for number in range(len(schema.slots)):
        row.slot(number)[:] = [float(value) for value in noted(block, schema.slots[number].name)]
    assert encode_records(row) == [dump(block)]
    back = decode_records(np.zeros(1, np.int64), [dump(block)], schema)
    assert back.embeddings().tolist() == embedding.tolist()
    assert back.scores.tolist() == row.scores.tolist()
    np.testing.assert_array_equal(back.words, row.words)


def test_the_header_is_as_the_page_says():
    offsets = re.findall(r"^\| (\d+) \| .+? \| (\w+)", PAGE, re.MULTILINE)
    fields = record_dtype(RECORDS["int8"][1]).fields
    names = {"score": "score", "step": "step", "flags": "flags", "the": "row"}
    assert [(fields[names[word]][1], word) for _, word in offsets] == [(int(offset), word) for offset, word in offsets]
    assert len(offsets) == 4


def test_the_page_names_every_field_and_dtype():
    described = (VariableEntry, Manifest, Epoch, EpochChanges, CounterFile, FileEntry)
    fields = [field.name for each in described for field in dataclasses.fields(each)]
    for name in (*fields, "format", "checksum"):
        assert f"`{name}`" in PAGE
    for name in (*VALUE_DTYPES, *KEY_DTYPES):
        assert f'`"{name}"`' in PAGE


def test_the_page_names_every_kind_and_its_parameters():
    rows = [set(re.findall(r"`(\w+)`", line)) for line in PAGE.splitlines() if line.startswith("| ")]
    kinds = {**initializers._KINDS, **optimizers.KINDS, **restrict._KINDS}
    for name, kind in kinds.items():
        of_many = {"clip_value", "clip_norm", "weight_decay", "decoupled", "bias_correction"}
        known = {field.name for field in dataclasses.fields(kind)}
        assert any({name, *known - of_many} <= row for row in rows), name
        for one in known & of_many - {"clip_value", "clip_norm"}:
            assert any({name, one} <= row for row in rows), (name, one)
    assert {"clip_value", "clip_norm"} in rows


def test_the_page_names_the_slots_of_every_optimizer():
    rows = [set(re.findall(r"`(\w+)`", line)) for line in PAGE.splitlines() if line.startswith("| ")]
    for name, kind in optimizers.KINDS.items():
        assert any({name, *(slot.name for slot in kind().slots if slot.name != "steps")} <= row for row in rows), name
    assert {field.name for field in dataclasses.fields(kvemb.RocksDBCreator)} in rows


def tree_of(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*")}


def test_a_store_on_disk_is_as_the_page_says(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    table = store.get_variable("users", dim=3, value_dtype="float16", optimizer=kvemb.optimizers.Adagrad(0.5))
    table.upsert([-2], np.array([[1, -2, 0.5]], np.float16))
    store.checkpoint(tmp_path / "checkpoint")
    assert {"LOCK", "CURRENT", "points", "live", "points/000002", "points/000002/rows"} <= tree_of(store.path)
    store.close()
    names = {name for name in tree_of(store.path) if "/rows/" not in name and ".keys" not in name}
    point = "points/000003"
    folders = {f"{point}/{name}" for name in ("rows", "changes", "hot")}
    assert names == {"LOCK", "CURRENT", "points", point, f"{point}/manifest.json", *folders}
    assert (store.path / "CURRENT").read_bytes() == b"000003\n"
    assert (store.path / "LOCK").read_bytes() == b""
    names = {name for name in tree_of(tmp_path / "checkpoint") if "/" not in name}
    assert names == {"manifest.json", "rows", "changes", "hot"}
    data = json.loads((tmp_path / "checkpoint" / "manifest.json").read_text())
    assert set(data) == {"checksum", "format", *Manifest.__dataclass_fields__} - {
        "left_out",
        "extra",
        "tiers",
        "sightings",
    }
    assert (data["format"], data["point"], data["parent"]) == (5, 2, None)
    assert re.fullmatch("[0-9a-f]{32}", data["store"])
    assert re.fullmatch("[0-9a-f]{32}", data["id"])
    assert set(data["files"]) | {"manifest.json"} == {
        name for name in tree_of(tmp_path / "checkpoint") if (tmp_path / "checkpoint" / name).is_file()
    }
    assert set(data["variables"]["users"]) == set(VariableEntry.__dataclass_fields__) - {
        "optimizer_steps",
        "max_rows",
        "ttl",
        "ages",
        "name_bytes",
    }
    restored = kvemb.restore(tmp_path / "checkpoint", tmp_path / "copy")
    assert inside(restored).opened_manifest.store == data["store"]
    restored.close()


def test_the_cold_database_is_as_the_page_says(open_store, tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    store = open_store(tmp_path / "store")
    table = store.get_variable("users", dim=3, value_dtype="float16", optimizer=kvemb.optimizers.Adagrad(0.5))
    store.get_variable("out", checkpoint=False).upsert([1], [[1.0]])
    table.upsert([-2, 5], np.array([[1, -2, 0.5]] * 2, np.float16))
    table.remove([5])
    store.checkpoint(tmp_path / "checkpoint")
    rows = str(tmp_path / "checkpoint" / "rows")
    assert sorted(rocksdict.Rdict.list_cf(rows)) == ["default", "users"]
    columns = {"users": rocksdict.Options(raw_mode=True)}
    access = rocksdict.AccessType.read_only(False)
    database = rocksdict.Rdict(rows, rocksdict.Options(raw_mode=True), columns, access)
    assert list(database.items()) == []
    ((key, record),) = database.get_column_family("users").items()
    assert key == bytes.fromhex("7fff ffff ffff fffe")
    assert record[17:25] == dump(RECORDS["float16"][0])[17:25]
    assert len(record) == len(dump(RECORDS["float16"][0]))
    database.close()
    assert [log.stat().st_size for log in Path(rows).glob("*.log")] in ([], [0])


def test_the_key_file_of_the_page(tmp_path):
    given, schema = dump(BLOCKS[-3]), RECORDS["int8"][1]
    (tmp_path / "given").write_bytes(given)
    keys = order_keys(np.array([-2, 5, 6]), schema)
    assert [batch.tolist() for batch in read_keys(tmp_path / "given")] == [keys.tolist()]
    write_keys(tmp_path / "made", [keys])
    made = (tmp_path / "made").read_bytes()
    # The deflater is the machine's; all else is ours.
    assert (made[:16], made[20:28], made[-20:]) == (given[:16], given[20:28], given[-20:])


def test_the_counter_file_of_the_page(tmp_path):
    counting, keys = AdmissionCounters(kvemb.Admission(3, 1024)), np.array([-2, 5])
    counting.count(keys, np.array([1, 2]))
    counting.freeze()
    made = counting.frozen()
    assert made is not None
    places = re.search(r"Key -2 has the counters (.*) of the four rows, and key 5 (.*):", PAGE)
    assert places is not None
    for key, (listed, count) in enumerate(zip(places.groups(), (1, 2), strict=True)):
        for row, at in enumerate(map(int, re.findall(r"\d+", listed))):
            assert made.values[row, at] == count, (key, row)
    given = dump(BLOCKS[-2])
    (tmp_path / "given").write_bytes(given)
    entry = write_counters(tmp_path / "made", made)
    np.testing.assert_array_equal(read_counters(tmp_path, replace(entry, file="given")).values, made.values)
    assert (tmp_path / "made").read_bytes()[:12] == given[:12]


def test_the_delta_of_the_page(tmp_path):
    (tmp_path / "given").write_bytes(dump(BLOCKS[-7]))
    found = DeltaFile(tmp_path / "given", "the delta")
    assert (found.id, found.since) == ("b" * 32, "a" * 32)
    assert found.parts == {"users": DeltaPart("users", False, 25)}
    ((rows),) = found.rows("users", RECORDS["int8"][1])
    assert (rows.keys.tolist(), rows.scores.tolist(), rows.steps.tolist()) == ([-2, 5], [1, 0], [7, 0])
    assert (rows.values[0, :2].tolist(), rows.flags.tolist()) == ([127, -128], [0, REMOVED])


def test_the_log_of_the_page(tmp_path):
    given, schema = dump(BLOCKS[-1]), RECORDS["int8"][1]
    log = Journal(tmp_path, 7)
    row = RowBlock(schema, 1)
    row.keys[0], row.scores[0], row.steps[0] = -2, 1.0, 7
    row.values[:, :2] = np.array([[127, -128]], np.int8)
    log.rows("users", row, 7)
    log.commit()
    log.removed("users", order_keys(row.keys, schema), 8)
    log.close()
    assert (tmp_path / "000007.log").read_bytes() == given


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(params=[2, 3, 5])
def examples(tmp_path, request) -> Path:
    """A copy of what a format's first release wrote: a store that was not closed, and two checkpoints of it."""
    shutil.copytree(EXAMPLES / f"format-{request.param}", tmp_path / "examples")
    return tmp_path / "examples"


def rows_of(store: kvemb.Store) -> dict[str, object]:
    """All that a store holds, as JSON can say it."""
    told: dict[str, object] = {}
    for name, variable in store.variables.items():
        keys, values, slots, scores = variable.export(with_slots=True, with_scores=True)
        told[name] = {
            "keys": keys.tolist(),
            "values": values.astype(np.float64).tolist(),
            "slots": {slot: array.astype(np.float64).tolist() for slot, array in slots.items()},
            "scores": scores.tolist(),
            "dtypes": [str(variable.key_dtype), str(variable.value_dtype)],
            "step": inside(variable).storage.step,
        }
    return told


def test_what_was_written_once_is_read_for_ever(examples):
    expected = json.loads((examples / "expected.json").read_text())
    for name in ("checkpoint-1", "checkpoint-2", "store"):
        assert kvemb.verify(examples / name, deep=True).findings == []
    for name in ("checkpoint-1", "checkpoint-2"):
        with kvemb.open(examples / name, read_only=True, memory_budget="4MiB") as store:
            assert rows_of(store) == expected[name]
    changes = kvemb.Checkpoint(examples / "checkpoint-2").changes(examples / "checkpoint-1")
    told = [[change.variable, change.keys.tolist(), change.removed.tolist()] for change in changes]
    assert told == expected["changes"]
    with kvemb.restore(examples / "checkpoint-2", examples / "restored", memory_budget="4MiB", warm=True) as store:
        assert rows_of(store) == expected["checkpoint-2"]
    with kvemb.open(examples / "store", memory_budget="4MiB") as store:
        assert store.recovery is not None
        assert store.recovery.rows == expected["recovered"]
        assert rows_of(store) == expected["store"]
        store.check(deep=True)


@pytest.mark.parametrize("examples", [2], indirect=True)
def test_what_format_2_wrote_trains_on_and_is_written_as_format_5(examples, tmp_path):
    old = json.loads((examples / "checkpoint-2" / "manifest.json").read_text())
    assert (old["format"], old["variables"]["users"]["slots"]) == (2, ["accumulator"])
    before = json.loads((examples / "expected.json").read_text())["checkpoint-2"]["users"]
    with kvemb.restore(examples / "checkpoint-2", tmp_path / "restored", memory_budget="4MiB") as store:
        users = store.get_variable("users", dim=3, optimizer=kvemb.optimizers.Adagrad(0.25))
        users.apply_gradients([5, 6], np.full((2, 3), 2, np.float32))
        store.checkpoint(tmp_path / "new")
        slots = rows_of(store)["users"]["slots"]["accumulator"]
    new = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert (new["format"], new["variables"]["users"]["slots"]) == (5, [{"name": "accumulator", "width": 3}])
    assert kvemb.verify(tmp_path / "new", deep=True).findings == []
    trained = [key in (5, 6) for key in before["keys"]]
    expected = [
        (np.array(slot, np.float32) + np.float32(4 * on)).tolist()
        for slot, on in zip(before["slots"]["accumulator"], trained, strict=True)
    ]
    assert (slots, sum(trained)) == (expected, 2)
    (change,) = [
        part for part in kvemb.Checkpoint(tmp_path / "new").changes(examples / "checkpoint-2") if len(part.keys)
    ]
    assert (change.variable, change.keys.tolist()) == ("users", [5, 6])


@pytest.mark.parametrize("examples", [3, 5], indirect=True)
def test_the_example_has_slots_of_several_widths(examples):
    about = kvemb.Checkpoint(examples / "checkpoint-2").variables
    assert {name: [(slot.name, slot.width) for slot in entry.slots] for name, entry in about.items()} == {
        "ads": [("accumulator", 1)],
        "items": [],
        "users": [("accumulator", 3)],
        "words": [("m", 2), ("v", 2), ("steps", 1)],
    }
    words = json.loads((examples / "expected.json").read_text())["store"]["words"]
    assert (words["keys"], words["slots"]["steps"]) == ([1, 2, 3], [[1], [2], [2]])


@pytest.mark.parametrize("examples", [5], indirect=True)
def test_the_example_has_files_and_values_beside_its_rows(examples):
    found = kvemb.Checkpoint(examples / "checkpoint-2")
    assert ({name: path.read_bytes() for name, path in found.files.items()}, found.extra) == (
        {"model.pt": b"the dense part\n"},
        {"step": 7},
    )
    assert (dict(kvemb.Checkpoint(examples / "checkpoint-1").files), found.inventory["files/model.pt"].bytes) == (
        {},
        15,
    )
