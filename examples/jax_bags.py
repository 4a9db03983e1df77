"""Bags of ids in JAX: lookups outside `jit`, and gradients of the rows that were looked up.

The rows of the distinct keys enter the compiled step, padded to a power of two, so that
`jit` compiles for few shapes. Keys stay in NumPy: JAX without `jax_enable_x64` would turn
int64 keys into int32. The table and the dense parameters are saved in one checkpoint, and
another run continues from it.

    pip install 'kvemb[tools]' jax
    python examples/jax_bags.py

The clicks are generated: a bag of four words is clicked if it has the most frequent word.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import kvemb


def loss_of(
    dense: jax.Array, rows: jax.Array, positions: jax.Array, clicked: jax.Array
) -> jax.Array:
    """Return the mean loss of bags; `positions` (n, m) says where in `rows` theirs are."""
    logits = rows[positions].sum(1) @ dense
    return jnp.mean(jnp.logaddexp(0.0, logits) - clicked * logits)


step = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1)))


def clicks(size: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return bags of words (n, 4), and which were clicked. Replace this with your log."""
    ids = np.minimum(draw.zipf(1.3, (size, 4)), 10**6)
    return ids, (ids.min(axis=1) == 1).astype(np.float32)


def padded_rows(table: kvemb.Variable, keys: np.ndarray) -> np.ndarray:
    """Return the rows of keys, and rows of zeros up to the next power of two."""
    padded = np.zeros((1 << (len(keys) - 1).bit_length(), table.dim), np.float32)
    padded[: len(keys)] = table.lookup(keys)
    return padded


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=300, help="batches to train on")
    option("--batch", type=int, default=256, help="bags in a batch")
    option("--dim", type=int, default=8, help="values in a row")
    option("--memory-budget", default="64MiB", help="for the table")
    option("--path", type=Path, default="jax_bags", help="folder")
    options = parser.parse_args()

    series = kvemb.CheckpointManager(options.path / "checkpoints", keep=2)
    store, last = series.resume(options.path / "store", memory_budget=options.memory_budget)
    with store, series:
        words = store.get_variable(
            "words",
            dim=options.dim,
            optimizer=kvemb.optimizers.Adagrad(0.2),
            initializer=kvemb.RandomNormal(0.0, 0.1),
        )
        dense, done = jnp.ones(options.dim), 0
        if last is not None:
            dense = jnp.asarray(np.load(last.files["dense.npy"]))
            done = last.extra["steps"]
            print(f"continues after step {done}")

        losses, draw = [], np.random.default_rng(done + 1)
        for _ in track(range(options.steps), "training"):
            ids, clicked = clicks(options.batch, draw)
            keys, positions = np.unique(ids, return_inverse=True)
            positions = positions.reshape(ids.shape).astype(np.int32)
            rows = padded_rows(words, keys)
            loss, (dense_grad, rows_grad) = step(dense, rows, positions, clicked)
            # Only the rows of keys are trained, not the padding.
            words.apply_gradients(keys, np.asarray(rows_grad)[: len(keys)])
            dense -= 0.1 * dense_grad
            losses.append(float(loss))

        files = {"dense.npy": lambda file: np.save(file, np.asarray(dense))}
        saved = series.save(store, files=files, extra={"steps": done + options.steps})
        stats = store.stats
    part = max(1, len(losses) // 10)
    print(f"loss   {np.mean(losses[:part]):.3f} -> {np.mean(losses[-part:]):.3f}")
    print(f"rows   {stats.rows:,} words; hot when looked up: {stats.hit_rate:.1%}")
    print(f"saved  {saved.path}")


if __name__ == "__main__":
    main()
