"""DistributedEmbedding with keras-rs' configs and with dicts."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import kvemb
import kvemb.keras as kk

BATCH = 64
IDS = np.random.default_rng(5).integers(0, 50, (256, 3)).astype(np.int32)


def tables(store, rule, **arguments):
    common = {"optimizer": rule, "initializer": kvemb.RandomUniform(-0.05, 0.05, seed=1), "key_dtype": "int32"}
    return [{"name": name, "embedding_dim": dim, **common, **arguments} for name, dim in [("ads", 4), ("people", 2)]]


def model_of(layer):
    keras.utils.set_random_seed(1)
    inputs = {name: keras.Input((3,), dtype="int32", name=name) for name in ("clicked", "shown")}
    inputs["user"] = keras.Input((), dtype="int32", name="user")
    rows = layer({"ads": [inputs["clicked"], inputs["shown"]], "user": inputs["user"]})
    hidden = keras.layers.Concatenate()([*rows["ads"], rows["user"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_nested_features_share_tables_and_train_as_layers_of_their_own(store, open_store, tmp_path):
    rule = kvemb.optimizers.Adagrad(0.1)
    ads, people = tables(store, rule, combiner="sqrtn")
    layer = kk.DistributedEmbedding({"ads": [{"table": ads}, {"table": ads}], "user": {"table": people}}, store=store)
    assert sorted(layer.tables) == ["ads", "people"]
    data = {"clicked": IDS, "shown": IDS[::-1], "user": IDS[:, 0]}
    labels = (IDS[:, :1] < 20).astype(np.float32)
    found = model_of(layer).fit(data, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    other = open_store(tmp_path / "other")
    made = [
        other.get_variable(each["name"], dim=each["embedding_dim"], **{k: each[k] for k in each if k in KEPT})
        for each in (ads, people)
    ]
    bag, user = kk.EmbeddingBag(made[0], combiner="sqrtn"), kk.Embedding(made[1])

    def apart(inputs):
        return {"ads": [bag(each) for each in inputs["ads"]], "user": user(inputs["user"])}

    expected = model_of(apart).fit(data, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    keys = np.arange(50, dtype=np.int32)
    for table, each in zip(layer.tables.values(), made, strict=True):
        np.testing.assert_allclose(table.lookup(keys), each.lookup(keys), atol=1e-6)
    packed = layer.preprocess({"ads": [IDS, IDS], "user": IDS[:, 0]}, training=True)
    weighted = layer({"ads": [IDS, IDS], "user": IDS[:, 0]}, {"ads": [np.ones_like(IDS)] * 2, "user": IDS[:, 0]})
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(packed)["ads"][0]), keras.ops.convert_to_numpy(weighted["ads"][0]), atol=1e-6
    )
    assert layer.compute_output_shape({"ads": [(9, 3), (9, 3)], "user": (9,)}) == {"ads": [(9, 4)] * 2, "user": (9, 2)}


KEPT = ("optimizer", "initializer", "key_dtype")


def test_a_feature_that_does_not_reach_the_loss_gets_no_rows(store):
    ads, people = tables(store, kvemb.optimizers.Adam(0.1))
    layer = kk.DistributedEmbedding({"ads": {"table": ads}, "people": {"table": people}}, store=store)
    inputs = {name: keras.Input((3,), dtype="int32", name=name) for name in ("ads", "people")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)["ads"]))
    model.compile("sgd", "mse")
    model.fit({"ads": IDS, "people": IDS}, np.ones((256, 1), np.float32), verbose=0)
    assert [each.size() for each in layer.tables.values()] == [50, 0]


def ranking(rs, distributed_embedding, placement):
    """The ranking example of keras-rs, call by call, with generated ratings: a movie and a user rank a rating.

    Sources: examples/keras_rs/distributed_embedding_jax.py and distributed_embedding_tf.py of keras-team/keras-io.
    Returns the model, the losses of its epochs, and what it was evaluated to.
    """
    keras.utils.set_random_seed(1)
    table = {"vocabulary_size": 51, "embedding_dim": 8, "placement": placement}
    movie_table = rs.layers.TableConfig(name="movie_table", optimizer="adam", **table)
    user_table = rs.layers.TableConfig(name="user_table", optimizer=keras.optimizers.Adam(0.05), **table)
    shapes = {"input_shape": (BATCH,), "output_shape": (BATCH, 8)}
    feature_configs = {
        "movie_id": rs.layers.FeatureConfig(name="movie", table=movie_table, **shapes),
        "user_id": rs.layers.FeatureConfig(name="user", table=user_table, **shapes),
    }

    class EmbeddingModel(keras.Model):
        def __init__(self, feature_configs):
            super().__init__()
            self.embedding_layer = distributed_embedding(feature_configs=feature_configs)
            self.ratings = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])

        def call(self, features):
            embedding = self.embedding_layer(features)
            return self.ratings(keras.ops.concatenate([embedding["user_id"], embedding["movie_id"]], axis=1))

    model = EmbeddingModel(feature_configs)
    metrics = [keras.metrics.RootMeanSquaredError()]
    model.compile(loss=keras.losses.MeanSquaredError(), metrics=metrics, optimizer=keras.optimizers.Adagrad(0.1))
    data = {"user_id": IDS[:, 0], "movie_id": IDS[:, 1]}, IDS[:, 0] / 50 - IDS[:, 1] / 50

    def batches(training):
        for at in 4 * list(range(0, len(IDS), BATCH)):
            inputs = {name: ids[at : at + BATCH] for name, ids in data[0].items()}
            yield model.embedding_layer.preprocess(inputs, training=training), data[1][at : at + BATCH]

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.distribute.get_strategy().scope():
            dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True).cache()
            done = model.fit(dataset, epochs=4, verbose=0)
            return model, done.history["loss"], model.evaluate(dataset, return_dict=True, verbose=0)
    done = model.fit(batches(True), epochs=4, steps_per_epoch=len(IDS) // BATCH, verbose=0)
    return model, done.history["loss"], model.evaluate(batches(False), return_dict=True, verbose=0)


@pytest.fixture
def _over_devices():
    """With JAX, the batches are divided over two devices, as the example of keras-rs divides them over TPUs."""
    if keras.backend.backend() == "jax":
        import jax

        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices("cpu")))
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.needs("keras_rs")
@pytest.mark.usefixtures("_over_devices")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_example_of_keras_rs_runs_with_the_import_changed(store, caplog):
    rs = pytest.importorskip("keras_rs")
    ranking(rs, rs.layers.DistributedEmbedding, "auto")  # without a TPU, theirs refuses sparsecore
    with store.as_default():
        model, losses, evaluated = ranking(rs, kk.DistributedEmbedding, "sparsecore")
    assert "'sparsecore' has no effect, as rows are in the store: tables movie_table, user_table" in caplog.text
    assert losses[-1] < 0.8 * losses[0]
    assert evaluated["loss"] < losses[0]
    tables = model.embedding_layer.tables
    assert {name: table.size() for name, table in tables.items()} == {
        "movie_table": len(np.unique(IDS[:, 1])),
        "user_table": len(np.unique(IDS[:, 0])),
    }
    adam = kvemb.optimizers.Adam(0.001, epsilon=1e-7, epsilon_hat=True, bias_correction="global")
    assert tables["movie_table"].optimizer == adam


def test_tables_are_returned_as_keras_rs_does(store):
    ads, people = tables(store, kvemb.optimizers.SGD(0.1))
    layer = kk.DistributedEmbedding({"a": {"table": {**ads, "vocabulary_size": 7}}}, store=store)
    layer.tables["ads"].upsert([3], np.ones((1, layer.tables["ads"].dim), np.float32))
    (rows,) = layer.get_embedding_tables().values()
    np.testing.assert_array_equal(rows, layer.tables["ads"].lookup(np.arange(7, dtype=np.int32)))
    layer = kk.DistributedEmbedding({"a": {"table": people | {"vocabulary_size": None}}}, store=store)
    with pytest.raises(ValueError, match="has no vocabulary_size"):
        layer.get_embedding_tables()


def test_padding_is_left_out_of_bags_and_kept_by_a_config(store):
    """Against bags of the ids that count, and a layer of the config."""
    ads, _ = tables(store, kvemb.optimizers.SGD(0.1))
    features = {
        "bags": {"table": ads, "padding_idx": 0},
        "ids": {"table": ads, "padding_idx": 0},
        "all": {"table": ads},
    }
    layer = kk.DistributedEmbedding(features, store=store)
    words = layer.tables["ads"]
    words.upsert(np.arange(9, dtype=np.int32), np.random.default_rng(0).normal(size=(9, words.dim)).astype("f4"))
    ids = np.array([[3, 0, 5], [0, 0, 0]], np.int32)
    weights = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    given = {"bags": ids, "ids": ids[:, 1], "all": ids}
    with store.as_default():
        loaded = kk.DistributedEmbedding.from_config(layer.get_config())
    rows = words.lookup(ids)
    for each in (layer, loaded):
        found = {name: keras.ops.convert_to_numpy(tensor) for name, tensor in each(given).items()}
        np.testing.assert_allclose(found["bags"], [rows[0, [0, 2]].mean(axis=0), np.zeros(words.dim)], atol=1e-6)
        np.testing.assert_array_equal(found["ids"], np.zeros((2, words.dim)))
        np.testing.assert_allclose(found["all"], rows.mean(axis=1), atol=1e-6)
        found = each(given, {"bags": weights, "ids": weights[:, 1], "all": weights})["bags"]
        expected = (rows[0, 0] + 3 * rows[0, 2]) / 4
        np.testing.assert_allclose(keras.ops.convert_to_numpy(found), [expected, np.zeros(words.dim)], atol=1e-6)
    inputs = {"bags": keras.Input((3,), dtype="int32", name="bags"), "ids": keras.Input((), dtype="int32", name="ids")}
    words.remove([0])
    model = keras.Model(inputs, keras.layers.Dense(1)(layer({**inputs, "all": inputs["bags"][:, :1]})["bags"]))
    model.compile("sgd", "mse")
    model.fit({"bags": ids, "ids": ids[:, 1]}, np.ones((2, 1), np.float32), verbose=0)
    assert words.size() == 8  # the padding was not made


def test_rows_of_any_lengths_are_padded_by_preprocess(store):
    """As keras-rs pads them, but what is padded is not a key that is trained."""
    ads, people = tables(store, kvemb.optimizers.SGD(0.1))
    features = {"ads": {"table": ads, "input_shape": (3, 4)}, "user": {"table": people}}
    layer = kk.DistributedEmbedding(features, store=store)
    words = layer.tables["ads"]
    ragged = np.array([np.array([5, 7], np.int32), np.array([]), np.array([9], np.int32)], object)
    weights = np.array([np.array([1, 3]), np.array([]), np.array([2])], object)
    user = np.array([1, 2, 3], np.int32)
    rows = words.lookup([5, 7, 9])
    packed = layer.preprocess({"ads": ragged, "user": user}, training=True)
    ids = packed["preprocessed_inputs_per_placement"]["default_device"]["inputs"]["ads"]
    assert (ids.shape, ids.dtype) == ((3, 4), np.int32)  # of the feature's shape, for a graph of one shape
    found = keras.ops.convert_to_numpy(layer(packed)["ads"])
    np.testing.assert_allclose(found, [rows[:2].mean(axis=0), np.zeros(words.dim), rows[2]], atol=1e-6)
    packed = layer.preprocess({"ads": ragged, "user": user}, {"ads": weights, "user": np.ones(3, np.float32)})
    found = keras.ops.convert_to_numpy(layer(packed)["ads"])
    np.testing.assert_allclose(found[0], (rows[0] + 3 * rows[1]) / 4, atol=1e-6)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows, self.out = layer, keras.layers.Dense(1)

        def call(self, inputs):
            return self.out(keras.ops.concatenate(list(self.rows(inputs).values()), axis=1))

    model = Model()
    model.compile("sgd", "mse")
    model.train_on_batch(packed, np.ones((3, 1), np.float32))
    assert words.export()[0].tolist() == [5, 7, 9]
    with pytest.raises(TypeError, match="ids of 'ads' must be integers, got float64"):
        layer.preprocess({"ads": weights * 1.0, "user": user})
    with pytest.raises(ValueError, match="the rows of weights of 'ads' must have the lengths"):
        layer.preprocess({"ads": ragged, "user": user}, {"ads": weights[::-1], "user": np.ones(3, np.float32)})


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="does not apply: ragged tensors are TensorFlow's")
def test_features_may_be_ragged_or_sparse(store):
    import tensorflow as tf

    ads, _ = tables(store, kvemb.optimizers.SGD(0.1))
    layer = kk.DistributedEmbedding({"a": {"table": ads}}, store=store)
    ragged = tf.ragged.constant([[5, 7], [], [9]], dtype=tf.int32)
    rows = layer.tables["ads"].lookup([5, 7, 9])
    weights = tf.ragged.constant([[1.0, 3.0], [], [2.0]])
    for given, weighted in ((ragged, weights), (ragged.to_sparse(), weights.to_sparse())):
        found = layer({"a": given})["a"]
        np.testing.assert_allclose(found, [rows[:2].mean(axis=0), np.zeros(rows.shape[1]), rows[2]], atol=1e-6)
        found = layer({"a": given}, {"a": weighted})["a"]
        np.testing.assert_allclose(found[0], (rows[0] + 3 * rows[1]) / 4, atol=1e-6)


def test_wrong_configs_and_inputs_are_said(store):
    ads, people = tables(store, kvemb.optimizers.SGD(0.1))

    def layer(configs, **arguments):
        return kk.DistributedEmbedding(configs, store=store, **arguments)

    with pytest.raises(ValueError, match="placement of table 'ads' must be one of auto, default_device, sparsecore"):
        layer({"a": {"table": {**ads, "placement": "gpu:0"}}})
    with pytest.raises(TypeError, match="vocabulary_size of table 'ads' must be an int"):
        layer({"a": {"table": {**ads, "vocabulary_size": "50"}}})
    with pytest.raises(ValueError, match="of TPUs, and there is nothing to stack"):
        layer({"a": {"table": ads}}, table_stacking=[["ads"]])
    with pytest.raises(ValueError, match="two tables are named 'ads'"):
        layer({"a": {"table": ads}, "b": {"table": {**people, "name": "ads"}}})
    with pytest.raises(TypeError, match="expected a FeatureConfig"):
        layer({"a": 3})
    with pytest.raises(TypeError, match="a table must have a name"):
        layer({"a": {"table": {}}})
    with pytest.raises(TypeError, match="a feature has no field 'padding'; there are"):
        layer({"a": {"table": ads, "padding": 0}})
    with pytest.raises(ValueError, match="feature_configs has no features"):
        layer({})
    made = layer({"a": {"table": ads}})
    with pytest.raises(ValueError, match="inputs must have the structure of feature_configs: there is nothing at 'a'"):
        made({"b": IDS})
    with pytest.raises(TypeError, match="ids of 'a' must be integers, got float32"):
        made({"a": IDS.astype(np.float32)})
