"""TFRA's demo movielens-1m-keras-ps, with kvemb: the training has several workers.

The model is that of movielens_two_channels.py. Each batch is divided over the workers,
which are devices of JAX in one process, and all train the same tables and dense weights.
So the losses are those of one worker, up to rounding. There are no parameter servers to
start: the tables are in the process, and their cold rows on its disk. Run it again, and
training goes on after the last epoch, with any number of workers.

    pip install 'kvemb[tools,keras]' jax tensorflow-cpu
    python examples/movielens_workers.py --workers 2 --ratings ml-1m/ratings.dat

Without --ratings they are generated. The model is exported for TensorFlow Serving.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_ENABLE_X64"] = "1"  # ids of 64 bits
# XLA warns that ids are gathered for a lookup, which is in the memory of the host.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import keras
import numpy as np

import kvemb
import kvemb.keras as kk
from movielens_two_channels import TwoChannels, ratings, served


def main() -> None:
    """Train, save after each epoch, export, and compare with the exported model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, default=Path("movielens_workers"))
    parser.add_argument("--ratings", type=Path, help="ratings.dat of MovieLens 1M")
    parser.add_argument("--count", type=int, default=200_000, help="how many ratings")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.workers)  # GPUs are there already
    workers = jax.devices()[: options.workers]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=workers))
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
            print(f"epochs done  {before.extra['kvemb.keras']['epoch'] if before else 0}")
            model.fit(
                known,
                classes[:last],
                batch_size=256,
                epochs=options.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[kk.Checkpoint(series, store)],
            )
            loss, accuracy = model.evaluate(
                unseen, classes[last:], batch_size=500, verbose=0
            )
            print(f"workers      {len(workers)}")
            print(f"rows         {sum(each.size() for each in store.variables.values())}")
            print(f"loss         {loss}")
            print(f"accuracy     {accuracy:.3f}")
            print(f"most common  {classes[last:].mean(axis=0).max():.3f}")
            signature = {name: keras.InputSpec("int64", (None,), name=name) for name in ids}
            path = options.place / f"served-{options.epochs}"
            kk.export(model, path, input_signature=[signature], verbose=False)
            found = model.predict(unseen, batch_size=500, verbose=0)
            difference = np.abs(served(path, unseen) - found).max()
            print(f"served       differs by {difference:.1e}")


if __name__ == "__main__":
    main()
