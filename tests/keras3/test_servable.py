"""export: files from which a process without kvemb has the predictions of the model, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from keras_models import classifier, subclassed

import kvemb
import kvemb.keras as kk

BACKEND = keras.backend.backend()
LONG = BACKEND != "jax"  # whose integers have 32 bits

# Without kvemb: of each line of its input, a Python list, the export, the file of ids, and that of the results.
WITHOUT_KVEMB = """
import ast, sys
sys.modules["kvemb"] = None
import numpy as np

def torch_exported(path, ids):
    import torch
    return torch.export.load(path).module()(torch.from_numpy(ids)).detach().numpy()

def saved_model(path, ids):
    import tensorflow as tf
    model = tf.saved_model.load(path)
    found = model.signatures["serving_default"](tf.constant(ids))
    (found,) = [each.numpy() for each in found.values()]
    assert sum(each.name.startswith("rows_") for each in model.variables) == 0
    return found

for line in sys.stdin:
    path, ids, out = ast.literal_eval(line)
    np.save(out, (torch_exported if path.endswith(".pt2") else saved_model)(path, np.load(ids)))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def served():
    """A function that returns the predictions of an exported model in a process that has no kvemb.

    It is one process for all tests, as importing TensorFlow takes longer than most of them.
    """
    command = [sys.executable, "-c", WITHOUT_KVEMB]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def predictions(path, ids, place):
            np.save(place / "ids.npy", ids)
            hangs = threading.Timer(300, process.kill)
            hangs.start()
            process.stdin.write(f"{[str(path), str(place / 'ids.npy'), str(place / 'out.npy')]}\n")
            process.stdin.flush()
            # Loading may print lines of its own.
            assert "done\n" in iter(process.stdout.readline, ""), "the process has ended; its error is above"
            hangs.cancel()
            return np.load(place / "out.npy")

        yield predictions


def check(found, expected):
    """Predictions are the same bits; with XLA and torch.export, whose dense layers are other kernels, near them."""
    if BACKEND == "tensorflow":
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def exported(model, place, **options):
    """Where kk.export has written a model."""
    path = place / ("model.pt2" if BACKEND == "torch" else "model")
    if BACKEND == "torch":
        import torch

        options.setdefault("dynamic_shapes", {0: torch.export.Dim("batch", min=1, max=4096)})
    kk.export(model, path, verbose=False, **options)
    return path


def layers_of(words, store):
    """Layers of every kind: all combiners, padding, masks, two variables, one of them of float16 rows."""
    rule = kvemb.optimizers.SGD(0.5)
    other = store.get_variable("tower/other", dim=4, key_dtype="int32", value_dtype="float16", optimizer=rule)
    other.upsert(np.arange(50, dtype=np.int32), np.random.default_rng(5).normal(0, 1, (50, 4)))
    return [
        kk.Embedding(words),
        kk.Embedding(words, padding_idx=7),
        kk.EmbeddingBag(words, combiner="mean", mask_zero=True),
        kk.EmbeddingBag(words, combiner="sum"),
        kk.EmbeddingBag(other, combiner="sqrtn", padding_idx=3),
    ]


@pytest.fixture
def ids():
    """Ids (300, 3), of which some have no row, some are 0, and a whole bag is."""
    found = np.random.default_rng(9).integers(-20, 140, (300, 3)).astype(np.int32)
    found[:40] %= 2
    found[0] = 0
    return found


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_a_process_without_kvemb_predicts_the_same_bits(words, store, ids, tmp_path, served):
    model = classifier(*layers_of(words, store))
    model.fit(ids, (ids.sum(1) % 2)[:, None], epochs=1, verbose=0)
    before = words.export()
    path = exported(model, tmp_path)
    expected = model.predict(ids, batch_size=len(ids), verbose=0)
    np.testing.assert_array_equal(words.export()[1], before[1])
    check(served(path, ids, tmp_path), expected)
    assert len(model.trainable_variables) == 6  # as before: the anchors, and the dense part's


@keras.saving.register_keras_serializable("tests")
def thirds(ids):
    return ids % 3


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_rows_that_the_backend_pools_are_exported(words, ids, tmp_path, served):
    layers = [
        kk.EmbeddingBag(words, combiner="max", padding_idx=3),
        kk.EmbeddingBag(words, combiner="min"),
        kk.EmbeddingBag(words, combiner="mean", max_norm=0.5),
        kk.Embedding(words, max_norm=0.5),
        kk.FieldWiseEmbedding(words, nslots=3, slot_map_fn=thirds, combiner="mean"),
    ]
    model = classifier(*layers)
    model.fit(ids, (ids.sum(1) % 2)[:, None], epochs=1, verbose=0)
    expected = model.predict(ids, batch_size=len(ids), verbose=0)
    np.testing.assert_allclose(served(exported(model, tmp_path), ids, tmp_path), expected, atol=1e-6)


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: other backends have no uint64")
def test_a_padding_that_only_uint64_holds_is_left_out(store, tmp_path, served):
    keys = np.array([[1, 2**63 + 5], [2**63 + 5, 2**63 + 6]], np.uint64)
    large = store.get_variable("large", dim=2, key_dtype="uint64", optimizer=kvemb.optimizers.SGD(0.5))
    large.upsert(keys, np.arange(8, dtype=np.float32).reshape(2, 2, 2) + 1)
    layer = kk.Embedding(large, padding_idx=2**63 + 5)
    model = keras.Sequential([keras.Input((2,), dtype="uint64"), layer])
    expected = model.predict(keys, verbose=0)
    assert (expected[0, 1] == 0).all()
    np.testing.assert_array_equal(served(exported(model, tmp_path), keys, tmp_path), expected)


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not LONG, reason="does not apply: JAX draws no rows without 64-bit numbers")
@pytest.mark.parametrize(
    "initializer", [kvemb.RandomUniform(-1, 1), kvemb.RandomNormal(0, 1)], ids=["uniform", "normal"]
)
def test_keys_that_are_missing_have_the_rows_of_the_initializer(store, ids, tmp_path, initializer, served):
    keys = ids.astype(np.int64) * 2**40
    tags = store.get_variable("tags", dim=4, initializer=initializer, optimizer=kvemb.optimizers.SGD(0.5))
    tags.upsert(keys[:9].reshape(-1), np.ones((27, 4), np.float32))
    model = keras.Sequential([keras.Input((3,), dtype="int64"), kk.Embedding(tags), keras.layers.Flatten()])
    path = exported(model, tmp_path)
    assert served(path, keys, tmp_path).tobytes() == model.predict(keys, batch_size=300, verbose=0).tobytes()


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_the_rows_of_some_keys_are_exported(words, tmp_path, served):
    model = keras.Sequential([keras.Input((3,), dtype="int32"), kk.Embedding(words)])
    path = exported(model, tmp_path, keys={"words": [1, 2, 500]}, missing=-1.0)
    found = served(path, np.array([[2, 1, 3], [500, 99, 1]], np.int32), tmp_path)
    expected = np.full((2, 3, 4), -1.0, np.float32)
    expected[0, :2], expected[1, 2] = words.lookup([2, 1]), words.lookup(1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_a_subclassed_model_says_its_inputs(words, ids, tmp_path, served):
    model = subclassed(kk.EmbeddingBag(words, combiner="sum"))
    expected = model.predict(ids, batch_size=len(ids), verbose=0)
    with pytest.raises(ValueError, match=r"input_signature, such as \[keras\.InputSpec\('int64', \(None, 3\)\)\]"):
        exported(model, tmp_path)
    path = exported(model, tmp_path, input_signature=[keras.InputSpec("int32", (None, 3))])
    check(served(path, ids, tmp_path), expected)


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_a_signature_of_floats_is_told(words, ids, tmp_path):
    """The message named an exporter that cannot reach rows."""
    model = subclassed(kk.EmbeddingBag(words, combiner="sum"))
    model.predict(ids, verbose=0)
    with pytest.raises(Exception, match=r"ids must be integers, got float32; input_signature says the dtypes"):
        exported(model, tmp_path, input_signature=[keras.InputSpec("float32", (None, 3))])


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_ids_of_any_lengths_are_exported(words, tmp_path, served):
    """Their number is known to no graph, and that of the last axis neither."""
    bags = kk.EmbeddingBag(words, combiner="mean", mask_zero=True)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), bags])
    if BACKEND == "torch":
        pytest.skip("does not apply: torch.export takes the sizes of one batch")
    path = exported(model, tmp_path)
    ids = np.random.default_rng(1).integers(0, 100, (30, 17)).astype(np.int32)
    assert served(path, ids, tmp_path).tobytes() == model.predict(ids, batch_size=30, verbose=0).tobytes()


def test_what_cannot_be_exported_is_said(words, store, tmp_path):
    with pytest.raises(TypeError, match=r"model must be a keras\.Model"):
        kk.export(words, tmp_path / "model")
    with pytest.raises(ValueError, match=r"no layers of kvemb\.keras"):
        kk.export(classifier(keras.layers.Embedding(100, 4)), tmp_path / "model")
    model = classifier(kk.Embedding(words))
    with pytest.raises(ValueError, match="keys names 'wrds', but of the model's variables there is words"):
        kk.export(model, tmp_path / "model", keys={"wrds": [1]})
    if not LONG:
        tags = store.get_variable("tags", dim=4, optimizer=kvemb.optimizers.SGD(0.5))
        with pytest.warns(UserWarning, match="JAX cuts ids"):
            layer = kk.Embedding(tags)
        with pytest.raises(ValueError, match="export with JAX_ENABLE_X64=1"):
            kk.export(classifier(layer), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: ragged ids are TensorFlow's")
def test_ragged_ids_are_looked_up_in_tables(words):
    import tensorflow as tf

    from kvemb.keras.static_tables import StaticTable, in_place_of_stores

    bags = kk.EmbeddingBag(words, combiner="mean")
    ragged = tf.ragged.constant([[1, 2], [], [500, 3, 3]], dtype=tf.int32)
    expected = bags(ragged)
    with in_place_of_stores({words: StaticTable(words, None, words.initializer)}):
        np.testing.assert_array_equal(bags(ragged), expected)
