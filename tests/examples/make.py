"""Makes the stored example of a format: `PYTHONPATH=tests python tests/examples/make.py tests/examples/format-5`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import kvemb

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.durability.test_format import rows_of


def main(place: Path) -> None:
    """Write a store that was not closed, two checkpoints of it, and what they hold."""
    expected: dict[str, object] = {}
    chance = np.random.default_rng(1)
    store = kvemb.open(place / "open", memory_budget="4MiB", durability="write")
    users = store.get_variable(
        "users",
        dim=3,
        initializer=kvemb.RandomUniform(-0.05, 0.05, seed=1),
        optimizer=kvemb.optimizers.Adagrad(0.5),
        restrict_policy=kvemb.FrequencyRestrictPolicy(half_life=100),
        hot_rows=32,
    )
    items = store.get_variable("items", "uint64", "bfloat16", 2)
    ads = store.get_variable("ads", "int32", "float16", 3, optimizer=kvemb.optimizers.RowWiseAdagrad(0.5, 0.25))
    words = store.get_variable("words", dim=2, optimizer=kvemb.optimizers.Adam(0.5), initializer=[1, -1])
    users.upsert([-(2**63), -2, 0, 5, 2**63 - 1], chance.standard_normal((5, 3)).astype(np.float32))
    items.upsert(np.array([0, 2**64 - 1], np.uint64), np.array([[1, -2], [0.5, 3]], items.value_dtype))
    ads.apply_gradients([-7, 3], [[1, 2, 3], [4, 5, 6]])
    words.apply_gradients([1, 2], [[1, 2], [3, 4]])
    store.checkpoint(place / "checkpoint-1")
    users.apply_gradients([5, 6, 5], chance.standard_normal((3, 3)).astype(np.float32))
    users.remove([0])
    ads.apply_gradients([3, 9], [[1, 1, 1], [-1, 0, 1]])
    words.apply_gradients([2, 3], [[1, 2], [3, 4]])
    items.clear()
    items.upsert(np.array([7], np.uint64), np.array([[np.inf, 0]], items.value_dtype))
    store.checkpoint(place / "checkpoint-2", files={"model.pt": b"the dense part\n"}, extra={"step": 7})
    users.upsert([1, 5], np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    users.remove([-2])
    words.apply_gradients([3], [[-1, 0]])
    shutil.copytree(place / "open", place / "store")
    expected["store"] = rows_of(store)
    expected["recovered"] = 4
    for name in ("checkpoint-1", "checkpoint-2"):
        with kvemb.open(place / name, read_only=True, memory_budget="4MiB") as checkpoint:
            expected[name] = rows_of(checkpoint)
    changes = kvemb.Checkpoint(place / "checkpoint-2").changes(place / "checkpoint-1")
    expected["changes"] = [[change.variable, change.keys.tolist(), change.removed.tolist()] for change in changes]
    (place / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    store.close()
    shutil.rmtree(place / "open")
    # Scratch that a store which was not closed leaves; that it is there is all it says.
    shutil.rmtree(place / "store" / "live")
    (place / "store" / "live").mkdir()
    (place / "store" / "live" / "scratch").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
