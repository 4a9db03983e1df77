"""TFRA's demo amazon-video-games-keras, with kvemb: ids, categories and words of reviews.

Was the game that a review is about a verified purchase? A review has ten fields. Their
texts are hashed to keys of one table, and pooled in each field. The table is bounded:
after each epoch, the rows with the most uses stay. Run it again, and training goes on
after the last epoch. The model is exported for TensorFlow Serving and tried in a process
without kvemb.

    pip install 'kvemb[tools,keras]' tensorflow-cpu
    python examples/video_games.py --reviews amazon_reviews_us_Digital_Video_Games_v1_00.tsv

Without --reviews they are generated: customers, games and words have hidden scores.
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

import keras
import numpy as np

import kvemb
import kvemb.keras as kk
from movielens_two_channels import served

NUMBERS = ("star_rating", "helpful_votes", "total_votes")
NAMES = ("customer_id", "product_category", "product_id", "product_parent", "review_id")
TEXTS = ("product_title", "review_headline")  # several words each
FIELDS = (*NUMBERS, *NAMES, *TEXTS)
WORDS = 8  # of a text; the others are left out
KEYS = 2**59  # of a field
NONE = -1  # the key of no word: of no field


def generated(count: int, seed: int) -> list[dict[str, str]]:
    """Return reviews with the columns of Amazon's files."""
    draw = np.random.default_rng(seed)
    of_customer, of_game, of_word = (draw.normal(size=size) for size in (500, 300, 200))
    titles = draw.integers(0, 200, (300, 3))
    found = []
    for number in range(count):
        customer, game = draw.integers(0, 500), draw.zipf(1.3) % 300
        said, votes = draw.integers(0, 200, 4), draw.poisson(1, 2)
        score = of_customer[customer] + of_game[game] + of_word[said].sum()
        columns = {
            "verified_purchase": "Y" if draw.logistic() < score else "N",
            "star_rating": str(draw.integers(1, 6)),
            "helpful_votes": str(votes[0]),
            "total_votes": str(votes.sum()),
            "customer_id": f"C{customer}",
            "product_category": "Digital_Video_Games",
            "product_id": f"B{game}",
            "product_parent": str(game // 3),
            "review_id": f"R{number}",
            "product_title": " ".join(f"title{word}" for word in titles[game]),
            "review_headline": ", ".join(f"word{word}" for word in said),
        }
        found.append(columns)
    return found


def read(file: Path, count: int) -> list[dict[str, str]]:
    """Return the first reviews of one of Amazon's files."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row, _ in zip(rows, range(count), strict=False)]


def keys_of(reviews: list[dict[str, str]]) -> np.ndarray:
    """Return keys (reviews, n): the number of a field in the upper bits, a hash below."""
    columns = []
    for number, field in enumerate(FIELDS):
        if field in TEXTS:
            found = (re.findall(r"\w+", review[field]) for review in reviews)
            words = np.array([[*each, *[""] * WORDS][:WORDS] for each in found])
        else:
            words = np.array([[review[field]] for review in reviews])
        keys = number * KEYS + kvemb.hash_strings(words) % KEYS
        columns.append(np.where(words == "", NONE, keys))
    return np.concatenate(columns, axis=1)


@keras.saving.register_keras_serializable("examples")
def field_of(keys):
    """Return the numbers of the fields of keys."""
    return keys // KEYS


@keras.saving.register_keras_serializable("examples")
class VideoGames(keras.Model):
    """The demo's VideoGameDnn."""

    def __init__(self, dim: int = 4, **arguments) -> None:
        super().__init__(**arguments)
        self.dim = dim
        self.rows = kk.FieldWiseEmbedding(
            "video_games",
            dim,
            len(FIELDS),
            field_of,
            "mean",
            initializer=keras.initializers.RandomNormal(0.0, 0.05),
            optimizer=keras.optimizers.Adam(0.01),
            restrict_policy=kvemb.FrequencyRestrictPolicy,
        )
        self.deep = keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(1, activation="sigmoid", use_bias=False),
            ]
        )

    def call(self, keys):
        """Return the probability of a verified purchase."""
        return self.deep(self.rows(keys))

    def get_config(self):
        """Return what the model is made of."""
        return {**super().get_config(), "dim": self.dim}


def main() -> None:
    """Train, bound the table and save after each epoch; then test and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, default=Path("video_games"))
    parser.add_argument("--reviews", type=Path, help="a file of Amazon's reviews")
    parser.add_argument("--count", type=int, default=40_000, help="how many reviews")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dim", type=int, default=4)
    parser.add_argument("--max-rows", type=int, default=100_000, help="of the table")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    count, last = options.count, options.count * 9 // 10
    if options.reviews:
        reviews = read(options.reviews, count)
    else:
        reviews = generated(count, options.seed)
    keys = keys_of(reviews)
    bought = np.array([[each["verified_purchase"] == "Y"] for each in reviews], np.float32)
    unseen, answers = keys[last:], bought[last:]
    keras.utils.set_random_seed(options.seed)
    with kvemb.CheckpointManager(options.place / "checkpoints", keep=2) as series:
        store, before = series.resume(options.place / "store", memory_budget="128MiB")
        with store:
            model = VideoGames(options.dim)
            metrics = [keras.metrics.AUC(num_thresholds=1000), "binary_accuracy"]
            model.compile("adam", "binary_crossentropy", metrics=metrics)
            model(keys[:1])  # builds it
            table, most = model.rows.variable, options.max_rows

            def bound(epoch: int, logs: dict) -> None:
                table.restrict(most * 8 // 10, trigger=most)

            print(f"epochs done  {before.extra['kvemb.keras']['epoch'] if before else 0}")
            model.fit(
                keys[:last],
                bought[:last],
                batch_size=128,
                epochs=options.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[
                    keras.callbacks.LambdaCallback(on_epoch_end=bound),
                    kk.Checkpoint(series, store),
                ],
            )
            loss, auc, accuracy = model.evaluate(unseen, answers, batch_size=512, verbose=0)
            print(f"rows         {table.size()}")
            print(f"loss         {loss}")
            print(f"AUC          {auc:.3f}")
            print(f"accuracy     {accuracy:.3f}")
            print(f"most common  {max(answers.mean(), 1 - answers.mean()):.3f}")
            if keras.backend.backend() == "tensorflow":
                signature = [keras.InputSpec("int64", (None, keys.shape[1]), name="keys")]
                path = options.place / f"served-{options.epochs}"
                kk.export(model, path, input_signature=signature, verbose=False)
                expected = model.predict(unseen, batch_size=len(unseen), verbose=0)
                same = served(path, {"keys": unseen}).tobytes() == expected.tobytes()
                print(f"served       {'the same bits' if same else 'OTHER PREDICTIONS'}")


if __name__ == "__main__":
    main()
