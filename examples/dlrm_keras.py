"""The DLRM-DCNv2 of keras-rs' example ml_perf, with kvemb: 26 tables in a Keras model.

Numbers go through one network, bags of ids through 26 tables, which are looked up with one
call; crosses of both go through another network. Tables need no placement and no split
into small and large ones: one of three rows and one of forty million are made alike, and a
row takes memory once it is trained. Run it again, and training goes on after the last
epoch. The saved model is loaded, exported for TensorFlow Serving, and tried without kvemb.

    pip install 'kvemb[tools,keras]' tensorflow-cpu
    python examples/dlrm_keras.py

The clicks are generated. They depend on one of the numbers, and on the sines of ids.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np

import kvemb
import kvemb.keras as kk
from movielens_two_channels import served

NUMBERS = 13
# The features of MLPerf: the size of each vocabulary, and the ids of a bag, at most 8 here.
FEATURES = {
    "c14": (40_000_000, 3), "c15": (39_060, 2), "c16": (17_295, 1), "c17": (7_424, 2),
    "c18": (20_265, 6), "c19": (3, 1), "c20": (7_122, 1), "c21": (1_543, 1),
    "c22": (63, 1), "c23": (40_000_000, 7), "c24": (3_067_956, 3), "c25": (405_282, 8),
    "c26": (10, 1), "c27": (2_209, 6), "c28": (11_938, 8), "c29": (155, 5),
    "c30": (4, 1), "c31": (976, 1), "c32": (14, 1), "c33": (40_000_000, 8),
    "c34": (40_000_000, 8), "c35": (40_000_000, 8), "c36": (590_152, 8),
    "c37": (12_973, 3), "c38": (108, 1), "c39": (36, 1),
}  # fmt: skip


def clicks(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return numbers, ids and labels (count, 1). Replace this with your log."""
    draw = np.random.default_rng(seed)
    given = {"numbers": draw.normal(size=(count, NUMBERS)).astype(np.float32)}
    score = given["numbers"][:, 0].astype(np.float64)
    for name, (size, bag) in FEATURES.items():
        ids = (size ** draw.random((count, bag)) ** 2).astype(np.int64)  # many small ones
        score += np.sin(ids).mean(axis=1)
        given[name] = ids
    chance = 1 / (1 + np.exp(2 * (score.mean() - score)))
    return given, (draw.random(count) < chance).astype(np.float32)[:, None]


@keras.saving.register_keras_serializable("examples")
class DLRM(keras.Model):
    """The example's DLRMDCNV2."""

    def __init__(self, dim: int, rank: int, **arguments) -> None:
        super().__init__(**arguments)
        self.dim, self.rank = dim, rank
        table = {
            "embedding_dim": dim,
            "combiner": "sum",
            "initializer": keras.initializers.RandomNormal(0.0, 0.01),
            "optimizer": keras.optimizers.Adagrad(0.2),
        }
        self.tables = kk.DistributedEmbedding(
            {name: {"table": {"name": name, **table}} for name in FEATURES}
        )

        def network(*sizes: int) -> keras.Sequential:
            hidden = [keras.layers.Dense(size, activation="relu") for size in sizes]
            return keras.Sequential(hidden)

        def of_low_rank() -> keras.Sequential:
            width = dim * (len(FEATURES) + 1)
            down = keras.layers.Dense(rank, use_bias=False)
            return keras.Sequential([down, keras.layers.Dense(width)])

        self.bottom = network(64, 32, dim)
        self.crosses = [of_low_rank() for _ in range(3)]  # as keras-rs' FeatureCross
        self.top = network(128, 64)
        self.last = keras.layers.Dense(1, activation="sigmoid")

    def call(self, given):
        """Return the probability of a click."""
        rows = self.tables({name: given[name] for name in FEATURES})
        parts = [self.bottom(given["numbers"]), *rows.values()]
        first = last = keras.ops.concatenate(parts, axis=1)
        for cross in self.crosses:
            last = first * cross(last) + last
        return self.last(self.top(last))

    def get_config(self):
        """Return what the model is made of."""
        return {**super().get_config(), "dim": self.dim, "rank": self.rank}


def main() -> None:
    """Train, save after each epoch; then test, load and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, default=Path("dlrm_keras"))
    parser.add_argument("--count", type=int, default=50_000, help="how many clicks")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dim", type=int, default=16, help="values in a row")
    parser.add_argument("--rank", type=int, default=32, help="of the crosses")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    given, clicked = clicks(options.count, options.seed)
    unseen, answers = clicks(2_000, options.seed + 1_000)
    keras.utils.set_random_seed(options.seed)
    with kvemb.CheckpointManager(options.place / "checkpoints", keep=2) as series:
        store, before = series.resume(options.place / "store", memory_budget="256MiB")
        with store:
            model = DLRM(options.dim, options.rank)
            metrics = [keras.metrics.AUC(), "binary_accuracy"]
            rule = keras.optimizers.Adagrad(0.05)
            model.compile(rule, "binary_crossentropy", metrics=metrics)
            model({name: each[:1] for name, each in unseen.items()})  # builds it
            print(f"epochs done  {before.extra['kvemb.keras']['epoch'] if before else 0}")
            model.fit(
                given,
                clicked,
                batch_size=128,
                epochs=options.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[kk.Checkpoint(series, store)],
            )
            loss, auc, accuracy = model.evaluate(unseen, answers, batch_size=500, verbose=0)
            print(f"rows         {sum(each.size() for each in store.variables.values())}")
            print(f"loss         {loss}")
            print(f"AUC          {auc:.3f}")
            print(f"accuracy     {accuracy:.3f}")
            if keras.backend.backend() == "tensorflow":
                model.save(options.place / "model.keras")
                loaded = keras.saving.load_model(options.place / "model.keras")
                signature = {
                    name: keras.InputSpec(each.dtype, (None, each.shape[1]), name=name)
                    for name, each in unseen.items()
                }
                path = options.place / f"served-{options.epochs}"
                kk.export(loaded, path, input_signature=[signature], verbose=False)
                expected = model.predict(unseen, batch_size=len(answers), verbose=0)
                same = served(path, unseen).tobytes() == expected.tobytes()
                print(f"served       {'the same bits' if same else 'OTHER PREDICTIONS'}")


if __name__ == "__main__":
    main()
