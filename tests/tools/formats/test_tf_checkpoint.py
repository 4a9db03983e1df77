"""Tables of TFRA in checkpoints that TensorFlow wrote (tests/tfra_checkpoints.py), kept in tests/examples/tfra."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tfra_checkpoints
from tfra_checkpoints import KEYS, NAME, STEPS, VALUES

import kvemb
from kvemb import bulk
from kvemb.tools.cli import run
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.importing import import_table

SAVED = Path(__file__).parents[2] / "examples" / "tfra"
BUDGET = "4MiB"
WORDS = ["one", "zwölf", ""]


@pytest.fixture
def saved(tmp_path):
    """Copies of the checkpoints, to be changed."""
    return Path(shutil.copytree(SAVED, tmp_path / "saved"))


def check(place, tmp_path):
    """Both kinds of checkpoints are imported whole, with their slots."""
    objects = import_table(place / "objects", tmp_path / "row", format="tf-checkpoint", optimizer="adam:0.1")
    assert (objects.variable, objects.rows, objects.slots) == (NAME, len(KEYS), ("m", "v", "steps"))
    names = import_table(place / "names" / "model.ckpt-5.index", tmp_path / "names", optimizer="adagrad:0.1")
    assert (names.variable, names.rows, names.slots) == ("tower_words", len(KEYS), ("accumulator",))
    with kvemb.open(tmp_path / "row", read_only=True, memory_budget=BUDGET) as store:
        keys, values, slots = store.variables[NAME].export(with_slots=True)
    np.testing.assert_array_equal(keys, KEYS)
    np.testing.assert_array_equal(values, VALUES)
    stepped = keys != 8  # which has no row in one of the slots: it has those of a new row
    np.testing.assert_array_equal(slots["m"], np.where(stepped[:, None], VALUES * 10, 0))
    np.testing.assert_array_equal(slots["v"], np.where(stepped[:, None], VALUES * 100, 0))
    np.testing.assert_array_equal(slots["steps"][:, 0], np.where(stepped, STEPS, 0))
    with kvemb.open(tmp_path / "names", read_only=True, memory_budget=BUDGET) as store:
        keys, values, slots = store.variables["tower_words"].export(with_slots=True)
    np.testing.assert_array_equal(values, VALUES)
    np.testing.assert_array_equal(slots["accumulator"], VALUES * 5)


def test_both_kinds_of_checkpoints_are_imported_with_slots(tmp_path):
    check(SAVED, tmp_path)


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_they_are_as_tensorflow_writes_them_now(tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    subprocess.run([sys.executable, tfra_checkpoints.__file__, str(written)], check=True, timeout=600)
    check(written, tmp_path)


def test_steps_that_the_variable_counts_are_those_of_the_optimizer(tmp_path):
    prefix = SAVED / "objects" / "ckpt-1"
    how = {"format": "tf-checkpoint", "optimizer": "adam:0.1,bias_correction=global"}
    assert import_table(prefix, tmp_path / "store", variable=NAME, **how).slots == ("m", "v")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        assert bulk.described(store.variables[NAME])["optimizer_steps"] == STEPS


def test_slots_go_into_a_variable_that_exists_if_it_has_them(tmp_path):
    for rule, slots in ((kvemb.optimizers.SGD(0.1), ()), (kvemb.optimizers.Lion(), ("m",)), (None, ())):
        place = tmp_path / type(rule).__name__
        with kvemb.open(place, memory_budget=BUDGET) as store:
            store.get_variable(NAME, dim=3, optimizer=rule)
        done = import_table(SAVED / "objects", place, format="tf-checkpoint")
        assert (done.rows, done.slots) == (len(KEYS), slots)


def test_a_saved_model_is_read_by_its_folder(saved, tmp_path):
    variables = saved / "model" / "variables"
    variables.mkdir(parents=True)
    for path in (saved / "objects").glob("ckpt-1.*"):
        path.rename(variables / path.name.replace("ckpt-1", "variables"))
    assert import_table(saved / "model", tmp_path / "store", format="tf-checkpoint").rows == len(KEYS)


def test_a_slot_is_imported_as_a_table_if_it_is_named(tmp_path):
    named = f"{NAME}/Adam/m"
    assert import_table(SAVED / "objects", tmp_path / "m", format="tf-checkpoint", variable=named).variable == named
    with pytest.raises(WrongUsage, match=f"has no table 'nope'; it has {NAME}, {NAME}/Adam/m, {NAME}/Adam/v"):
        import_table(SAVED / "objects", tmp_path / "store", format="tf-checkpoint", variable="nope")


def test_parts_that_are_missing_are_named(saved, tmp_path):
    store = tmp_path / "store"
    with pytest.raises(BadInput, match=r"lacks parts of the table 'tower_words': shard 2; get the whole checkpoint"):
        import_table(saved / "some_shards", store, format="tf-checkpoint")
    data = saved / "objects" / "ckpt-1.data-00000-of-00001"
    whole = data.read_bytes()
    data.unlink()
    with pytest.raises(BadInput, match=r"lacks 1 of 1 data files: ckpt-1.data-00000-of-00001"):
        import_table(saved / "objects", store, format="tf-checkpoint")
    data.write_bytes(whole[:600])
    with pytest.raises(BadInput, match=r"is too short for .*; get it again"):
        import_table(saved / "objects", store, format="tf-checkpoint")
    index = saved / "names" / "model.ckpt-5.index"
    index.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        import_table(saved / "names" / "model.ckpt-5", store, format="tf-checkpoint")
    with pytest.raises(BadInput, match=r"index is missing"):
        import_table(saved / "names", store, format="tf-checkpoint")
    assert not store.exists()


def test_damage_is_told(saved, tmp_path):
    """Each byte of the index and of the tables is part of something that has a checksum, or a meaning."""
    for path in sorted((saved / "names").glob("model.*")):
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
            try:
                import_table(saved / "names", tmp_path / "store", format="tf-checkpoint", variable="tower_words")
            except BadInput:
                continue
            # What only slots are read for, and the padding of the footer.
            assert path.suffix != ".index" or at >= len(whole) - 48
            shutil.rmtree(tmp_path / "store")
        path.write_bytes(whole)


def test_keys_that_are_strings_are_words(tmp_path):
    with pytest.raises(BadInput, match="row 0: the key 'one' is not an integer"):
        import_table(SAVED / "strings", tmp_path / "store", format="tf-checkpoint")
    import_table(SAVED / "strings", tmp_path / "new", format="tf-checkpoint", key_dtype="string")
    with kvemb.open(tmp_path / "made", memory_budget=BUDGET) as store:
        store.get_variable("texts", key_dtype="string", dim=3)
    import_table(SAVED / "strings", tmp_path / "made", format="tf-checkpoint")
    import_table(SAVED / "strings", tmp_path / "hashes", format="tf-checkpoint", hash_keys=True)
    for place, keys in (("new", WORDS), ("made", WORDS), ("hashes", kvemb.hash_strings(WORDS))):
        with kvemb.open(tmp_path / place, read_only=True, memory_budget=BUDGET) as store:
            np.testing.assert_array_equal(store.variables["texts"].lookup(keys), VALUES[:3])


def test_what_is_no_checkpoint_with_tables_is_told(saved, tmp_path):
    with pytest.raises(BadInput, match=r"no table of TFRA; its tables were written by a FileSystemSaver: kvemb import"):
        import_table(saved / "of_files", tmp_path / "store", format="tf-checkpoint")
    with pytest.raises(BadInput, match="there is no file called checkpoint"):
        import_table(saved, tmp_path / "store", format="tf-checkpoint")
    for path in saved.glob("objects/ckpt-1.*"):
        shutil.copy(path, saved / "names")
    (saved / "names" / "checkpoint").unlink()
    with pytest.raises(WrongUsage, match="has several checkpoints: name one, such as"):
        import_table(saved / "names", tmp_path / "store", format="tf-checkpoint")


def test_the_command_says_which_slots_it_read(tmp_path, capsys):
    source = str(SAVED / "objects" / "ckpt-1")
    arguments = ["--format", "tf-checkpoint", "--optimizer", "adam:0.1"]
    assert run(["import", source, str(tmp_path / "store"), *arguments]) == 0
    assert "those of the source: m, v, steps" in capsys.readouterr().out
