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


@pytest.mark.needs("keras_rs")
@pytest.mark.filterwarnings("ignore:JAX cuts ids")
def test_the_configs_of_keras_rs(store):
    """The config objects of keras-rs, in a ranking model as its examples have, with three features of two tables."""
    rs = pytest.importorskip("keras_rs")
    initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=3)
    movies = rs.layers.TableConfig(name="movies", vocabulary_size=50, embedding_dim=4, combiner="mean",
                                   optimizer=keras.optimizers.Adagrad(0.5), initializer=initializer)  # fmt: skip
    users = rs.layers.TableConfig(name="users", vocabulary_size=50, embedding_dim=4)
    features = {
        name: rs.layers.FeatureConfig(name=name, table=table, input_shape=(BATCH, 3), output_shape=(BATCH, 4))
        for name, table in {"movie_id": movies, "liked": movies, "user_id": users}.items()
    }

    class Ranking(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.embedding_layer = layer
            self.head = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])

        def call(self, inputs):
            return self.head(keras.ops.concatenate(list(self.embedding_layer(inputs).values()), axis=1))

    with store.as_default():
        layer = kk.DistributedEmbedding(feature_configs=features, table_stacking="auto", name="embedding_layer")
    model = Ranking(layer)
    model.compile(keras.optimizers.Adagrad(0.1), keras.losses.MeanSquaredError())
    data = {"movie_id": IDS, "liked": IDS[::-1], "user_id": IDS}
    history = model.fit(data, IDS[:, :1] / 50, batch_size=BATCH, epochs=4, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert layer.tables["movies"].optimizer == kvemb.optimizers.Adagrad(0.5, 0.1, 1e-7)
    assert layer.tables["users"].optimizer == kvemb.optimizers.Adam(
        0.001, epsilon=1e-7, epsilon_hat=True, bias_correction="global"
    )


def test_wrong_configs_and_inputs_are_said(store):
    ads, people = tables(store, kvemb.optimizers.SGD(0.1))

    def layer(configs, **arguments):
        return kk.DistributedEmbedding(configs, store=store, **arguments)

    with pytest.raises(ValueError, match="placement of table 'ads' must be one of auto, default_device"):
        layer({"a": {"table": {**ads, "placement": "sparsecore"}}})
    with pytest.raises(ValueError, match="of TPUs, and there is nothing to stack"):
        layer({"a": {"table": ads}}, table_stacking=[["ads"]])
    with pytest.raises(ValueError, match="two tables are named 'ads'"):
        layer({"a": {"table": ads}, "b": {"table": {**people, "name": "ads"}}})
    with pytest.raises(TypeError, match="expected a FeatureConfig"):
        layer({"a": 3})
    with pytest.raises(TypeError, match="a table must have a name"):
        layer({"a": {"table": {}}})
    with pytest.raises(ValueError, match="feature_configs has no features"):
        layer({})
    made = layer({"a": {"table": ads}})
    with pytest.raises(ValueError, match="inputs must have the structure of feature_configs: there is nothing at 'a'"):
        made({"b": IDS})
    with pytest.raises(TypeError, match="ids of 'a' must be integers, got float32"):
        made({"a": IDS.astype(np.float32)})
