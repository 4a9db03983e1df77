"""TFRA's demo movielens-1m-keras, with kvemb: a subclassed model of two channels.

A rating of a film by a user, 1 to 5, is a class. The demo's train, export and test are
one program here, without a wrapper of the optimizer and without a train_step. Run it
again, and training goes on after the last epoch. The model is exported for TensorFlow
Serving and tried in a process without kvemb.

    pip install 'kvemb[tools,keras]' tensorflow-cpu
    python examples/movielens_two_channels.py --ratings ml-1m/ratings.dat

Without --ratings they are generated: users and films have hidden vectors.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

import kvemb
import kvemb.keras as kk

USERS, FILMS = 2_000, 1_000
# What a server does: kvemb is not needed.
SERVED = """
import sys
sys.modules["kvemb"] = None
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = {name: tf.constant(ids) for name, ids in np.load(sys.argv[2]).items()}
(found,) = model.signatures["serving_default"](**given).values()
np.save(sys.argv[3], found.numpy())
"""


def ratings(file: Path | None, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return ids and classes (n, 5), of a file of MovieLens 1M, or generated."""
    if file is not None:
        found = np.loadtxt(file, delimiter=":", usecols=(0, 2, 4), dtype=np.int64)
        user, film, rating = np.random.default_rng(2).permutation(found)[:count].T
    else:
        draw = np.random.default_rng(1)
        tastes, traits = draw.normal(size=(USERS, 4)), draw.normal(size=(FILMS, 4))
        user, film = draw.integers(0, USERS, count), draw.zipf(1.5, count) % FILMS
        score = (tastes[user] * traits[film]).sum(axis=1)
        rating = np.digitize(score, [-2, -0.7, 0.7, 2]) + 1
        user = user.astype(np.int64) * 1_000_003  # any integers are keys
    ids = {"user_id": user, "movie_id": film.astype(np.int64)}
    return ids, np.eye(5, dtype=np.float32)[rating - 1]


@keras.saving.register_keras_serializable("examples")
class TwoChannels(keras.Model):
    """The demo's DualChannelsDeepModel."""

    def __init__(self, dim: int = 32, **arguments) -> None:
        super().__init__(**arguments)
        self.dim = dim
        table = {
            "initializer": keras.initializers.RandomNormal(0.0, 0.5),
            "optimizer": keras.optimizers.Adam(1e-3),
        }
        # SquashedEmbedding is an EmbeddingBag with the combiner "sum".
        self.users = kk.EmbeddingBag("user_embedding", dim, "sum", **table)
        self.films = kk.EmbeddingBag("movie_embedding", dim, "sum", **table)

        def dense(units: int, activation: str) -> keras.layers.Dense:
            starts = [keras.initializers.RandomNormal(0.0, 0.1) for _ in range(2)]
            how = {"kernel_initializer": starts[0], "bias_initializer": starts[1]}
            return keras.layers.Dense(units, activation=activation, **how)

        self.deep = [dense(64, "relu"), dense(16, "relu"), dense(5, "softmax")]
        self.bias = dense(5, "softmax")

    def call(self, features):
        """Return the probabilities of the ratings."""
        user, film = (
            keras.ops.expand_dims(features[name], 1) for name in ("user_id", "movie_id")
        )
        latent = keras.ops.concatenate([self.users(user), self.films(film)], axis=1)
        deep = latent
        for layer in self.deep:
            deep = layer(deep)
        return 0.2 * deep + 0.8 * self.bias(latent)

    def get_config(self):
        """Return what the model is made of."""
        return {**super().get_config(), "dim": self.dim}


def served(path: Path, ids: dict[str, np.ndarray]) -> np.ndarray:
    """Return the predictions of the exported model in a process without kvemb."""
    given, out = path / "ids.npz", path / "predictions.npy"
    np.savez(given, **ids)
    arguments = [str(path), str(given), str(out)]
    subprocess.run([sys.executable, "-c", SERVED, *arguments], check=True)
    return np.load(out)


def main() -> None:
    """Train, save after each epoch, export, and compare with the exported model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, default=Path("movielens"))
    parser.add_argument("--ratings", type=Path, help="ratings.dat of MovieLens 1M")
    parser.add_argument("--count", type=int, default=200_000, help="how many ratings")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dim", type=int, default=32)
    options = parser.parse_args()
    ids, classes = ratings(options.ratings, options.count)
    last = len(classes) * 9 // 10
    known = {name: each[:last] for name, each in ids.items()}
    unseen = {name: each[last:] for name, each in ids.items()}
    keras.utils.set_random_seed(1)
    with kvemb.CheckpointManager(options.place / "checkpoints", keep=2) as series:
        store, before = series.resume(options.place / "store", memory_budget="128MiB")
        with store:
            model = TwoChannels(options.dim)
            model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["accuracy"])
            model({name: each[:1] for name, each in known.items()})  # builds it
            begun = 0 if before is None else before.extra["kvemb.keras"]["epoch"]
            print(f"epochs done  {begun}")
            model.fit(
                known,
                classes[:last],
                batch_size=256,
                epochs=options.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[kk.Checkpoint(series, store)],
            )
            found = model.predict(unseen, batch_size=len(classes) - last, verbose=0)
            equal = (found.argmax(axis=1) == classes[last:].argmax(axis=1)).mean()
            print(f"rows         {sum(each.size() for each in store.variables.values())}")
            print(f"accuracy     {equal:.3f}")
            print(f"most common  {classes[last:].mean(axis=0).max():.3f}")
            if keras.backend.backend() == "tensorflow":
                signature = {
                    name: keras.InputSpec("int64", (None,), name=name) for name in ids
                }
                path = options.place / f"served-{options.epochs}"
                kk.export(model, path, input_signature=[signature], verbose=False)
                same = served(path, unseen).tobytes() == found.tobytes()
                print(f"served       {'the same bits' if same else 'OTHER PREDICTIONS'}")


if __name__ == "__main__":
    main()
