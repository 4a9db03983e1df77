"""Ranking in Keras: ratings of films by users, with several tables, as in MovieLens.

One DistributedEmbedding looks up the user, the film and the film's genres with one call.
model.fit trains rows and dense layers. A checkpoint after each epoch has both: run the
program again, and it goes on where it was. It works with each backend of Keras 3.

    pip install 'kvemb[tools,keras]' tensorflow-cpu
    python examples/keras_ranking.py

The ratings are generated: users and films have hidden vectors, whose product is the rating.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np

import kvemb
import kvemb.keras as kk

USERS, FILMS, GENRES = 2_000, 1_000, 20


def ratings(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return ids of users, films and genres, and ratings. Replace this with your log."""
    fixed, draw = np.random.default_rng(1), np.random.default_rng(seed)
    tastes, traits = fixed.normal(size=(USERS, 4)), fixed.normal(size=(FILMS, 4))
    genres = fixed.integers(1, GENRES + 1, (FILMS, 3))
    genres[fixed.random((FILMS, 3)) < 0.3] = 0  # no genre
    user, film = draw.integers(0, USERS, count), draw.zipf(1.5, count) % FILMS
    rating = 1 / (1 + np.exp(-(tastes[user] * traits[film]).sum(axis=1)))
    ids = {"user": user[:, None], "film": film[:, None], "genres": genres[film]}
    return {name: each.astype(np.int32) for name, each in ids.items()}, rating[
        :, None
    ].astype("f4")


def ranking(dim: int) -> keras.Model:
    """Return a model of a rating. Its tables are in the default store."""
    table = {
        "embedding_dim": dim,
        "combiner": "mean",
        "key_dtype": "int32",  # JAX has no int64 unless JAX_ENABLE_X64=1
        "optimizer": kvemb.optimizers.Adagrad(0.1),
        "initializer": kvemb.RandomNormal(0.0, 0.1),
    }
    features = {
        "user": {"table": {"name": "users", **table}},
        "film": {"table": {"name": "films", **table}},
        "genres": {"table": {"name": "genres", **table}},
    }
    inputs = {
        name: keras.Input((3 if name == "genres" else 1,), dtype="int32", name=name)
        for name in features
    }
    rows = kk.DistributedEmbedding(features)(inputs)
    product = keras.layers.Multiply()([rows["user"], rows["film"]])
    joined = keras.layers.Concatenate()([product, *rows.values()])
    hidden = keras.layers.Dense(32, activation="relu")(joined)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.002), loss="mse")
    return model


def main() -> None:
    """Train, save after each epoch, and print the error on other ratings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--place", type=Path, default=Path("keras_ranking"), help="directory of the store"
    )
    parser.add_argument("--ratings", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dim", type=int, default=16)
    options = parser.parse_args()
    ids, rating = ratings(options.ratings, seed=2)
    unseen = ratings(20_000, seed=3)
    keras.utils.set_random_seed(1)
    with kvemb.CheckpointManager(options.place / "checkpoints", keep=2) as series:
        store, last = series.resume(options.place / "store", memory_budget="128MiB")
        with store:
            model = ranking(options.dim)
            saving = kk.Checkpoint(series, store)
            begun = 0 if last is None else last.extra["kvemb.keras"]["epoch"]
            print(f"epochs done  {begun}")
            model.fit(
                ids,
                rating,
                batch_size=512,
                epochs=options.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[saving],
            )
            error = model.evaluate(*unseen, batch_size=512, verbose=0)
            rows = sum(each.size() for each in store.variables.values())
            print(f"rows         {rows}")
            print(f"variance     {unseen[1].var():.4f}")
            print(f"squared error {error:.4f}")


if __name__ == "__main__":
    main()
