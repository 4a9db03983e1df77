"""`python tests/stress random`: draw a table and calls at random, make the calls on table and model, tell the outcome.

The seed determines everything: the table's dtypes, policy, optimizer and devices, and every call. One thread draws and
makes the calls; prefetches and spills run in the background.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from stress.load import LIMITS
from stress.lockstep import Difference, LockstepChecker
from stress.model import Keys, Model
from stress.rounds import Run

BUDGET = "64MiB"
DIM = 8


class Stress:
    """A table in a folder, its model, and the random generator that drives both."""

    def __init__(self, folder: Path, seed: int, hot: float, keys: int, batch: int) -> None:
        self.folder, self.batch = folder, batch
        self.chance = np.random.default_rng(seed)
        self.copies = 0
        self.called: Counter[str] = Counter()
        self.touched = 0
        self.arguments = self._draw_arguments(hot, keys)
        universe = self._draw_universe(keys)
        self.store = kvemb.open(folder / "store", memory_budget=BUDGET, limits=LIMITS)
        variable = self._variable()
        self.model = Model(
            universe, variable.value_dtype, DIM, initializer=variable.initializer, optimizer=variable.optimizer,
            policy=self.arguments["restrict_policy"],
        )  # fmt: skip
        self.twin = LockstepChecker(variable, self.model)
        self.durable = self.model.copy()

    def _draw_arguments(self, hot: float, keys: int) -> dict[str, Any]:
        pick: Callable[[list[Any]], Any] = lambda choices: choices[self.chance.integers(len(choices))]  # noqa: E731
        dtype = pick(["float32", "float64", "float16", "int32", "float32", "float32", "int64", "int8"])
        whole = dtype.startswith("int")
        kinds = kvemb.optimizers.KINDS.values()
        optimizers: list[Any] = [kind(learning_rate=0.1) for kind in kinds]  # type: ignore[call-arg]
        policies = [
            kvemb.TimestampRestrictPolicy(clock="steps"), kvemb.FrequencyRestrictPolicy(),
            kvemb.FrequencyRestrictPolicy(half_life=100.0),
        ]  # fmt: skip
        return {
            "key_dtype": pick(["int64", "int32", "uint64"]),
            "value_dtype": dtype,
            "dim": DIM,
            "devices": ["cpu"] * int(pick([1, 1, 2, 3])),
            "initializer": kvemb.Constant(3) if whole else kvemb.RandomNormal(seed=int(self.chance.integers(1000))),
            "optimizer": None if whole else pick(optimizers),
            "restrict_policy": pick(policies),
            "hot_rows": max(1, int(hot * keys)),
        }

    def _draw_universe(self, keys: int) -> Keys:
        """Return keys, sorted: half of them consecutive, as assigned ids are, half from the whole dtype."""
        kind = np.iinfo(self.arguments["key_dtype"])
        ends = np.array([kind.min, kind.max, 0], kind.dtype)
        anywhere = self.chance.integers(kind.min, kind.max, keys // 2, kind.dtype, endpoint=True)
        return np.unique(np.concatenate([ends, np.arange(keys - keys // 2, dtype=kind.dtype), anywhere]))

    def _variable(self) -> kvemb.Variable:
        return self.store.get_variable("table", **self.arguments)

    def step(self) -> None:
        """Make one random call, and compare."""
        calls = _WITH_KEYS | _WITHOUT_KEYS
        weights = np.array([weight for weight, _ in calls.values()], float)
        name = list(calls)[self.chance.choice(len(calls), p=weights / weights.sum())]
        if name in ("apply_gradients", "step") and self.model.optimizer is None:
            name = "upsert"
        if name in _WITH_KEYS:
            keys = self._draw_keys()
            _WITH_KEYS[name][1](self, keys)
            self.touched += len(keys)
        else:
            _WITHOUT_KEYS[name][1](self)
        self.called[name] += 1
        self.twin.check_size()

    def _draw_keys(self) -> Keys:
        """Return a batch of popular, of arbitrary or of consecutive keys, with duplicates."""
        n, size = int(self.chance.integers(self.batch + 1)), len(self.model.universe)
        kind = self.chance.integers(3)
        if kind == 0:
            positions = (size * self.chance.random(n) ** 4).astype(np.int64) * 7919 % size
        elif kind == 1:
            positions = self.chance.integers(0, size, n)
        else:
            positions = (self.chance.integers(size) + self.chance.permutation(n)) % size
        return self.model.universe[positions]

    def _draw_values(self, count: int, dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "i":
            kind = np.iinfo(dtype)
            return self.chance.integers(kind.min, kind.max, (count, DIM), dtype, endpoint=True)
        return self.chance.standard_normal((count, DIM)).astype(dtype)

    def lookup(self, keys: Keys) -> None:
        """Look up, sometimes after a prefetch."""
        if self.chance.random() < 0.3:
            self.twin.variable.prefetch(keys)
        self.twin.lookup(keys, touch=True)

    def upsert(self, keys: Keys) -> None:
        """Set rows."""
        self.twin.upsert(keys, self._draw_values(len(keys), self.model.dtype))

    def accum(self, keys: Keys) -> None:
        """Accumulate, with `exists` wrong for a tenth of the keys."""
        right = self.model.present[self.model.positions(keys)]
        old, new = (self._draw_values(len(keys), self.model.dtype) for _ in range(2))
        self.twin.accum(keys, old, new, right ^ (self.chance.random(len(keys)) < 0.1))

    def train(self, keys: Keys) -> None:
        """Take a training step without a lookup before it."""
        self.twin.apply_gradients(keys, self._draw_values(len(keys), self.model.state_dtype))

    def training_step(self, keys: Keys) -> None:
        """Look up, make another call, one time in four, and take a training step."""
        self.twin.lookup(keys, touch=True)
        if self.chance.random() < 0.25:
            _BETWEEN[self.chance.integers(len(_BETWEEN))](self, self._draw_keys())
        self.train(keys)

    def restrict(self) -> None:
        """Drop up to a fifth of the rows."""
        keep = int(self.model.size * self.chance.uniform(0.8, 1.05))
        self.twin.restrict(keep, None if self.chance.random() < 0.5 else int(self.chance.integers(2 * keep + 1)))

    def export(self) -> None:
        """Compare every row."""
        self.twin.check_export(int(self.chance.integers(1000, 100_000)))
        self.twin.check_shard_sizes()

    def flush(self) -> None:
        """Make a durable point."""
        self.store.flush()
        self.durable = self.model.copy()

    def reopen(self) -> None:
        """Close the store and open it again."""
        self.store.close()
        self._continue_with(kvemb.open(self.store.path, memory_budget=BUDGET, limits=LIMITS), self.model)

    def restore(self) -> None:
        """Continue with a store restored from a checkpoint."""
        checkpoint = self.store.checkpoint(self._new_path("checkpoint"))
        self.store.close()
        shutil.rmtree(self.store.path)
        store = kvemb.restore(checkpoint, self._new_path("store"), memory_budget=BUDGET, limits=LIMITS)
        shutil.rmtree(checkpoint)
        self._continue_with(store, self.model)

    def crash(self) -> None:
        """Continue with a copy of the open store's files, as a crash would leave them."""
        copy = self._new_path("store")
        shutil.copytree(self.store.path, copy, copy_function=_copy_if_there)
        self.store.close()
        shutil.rmtree(self.store.path)
        self._continue_with(kvemb.open(copy, memory_budget=BUDGET, limits=LIMITS), self.durable)

    def clear(self) -> None:
        """Drop every row, one time in four."""
        if self.chance.random() < 0.25:
            self.twin.clear()

    def _new_path(self, name: str) -> Path:
        self.copies += 1
        return self.folder / f"{name}{self.copies}"

    def _continue_with(self, store: kvemb.Store, model: Model) -> None:
        self.store, self.model = store, model
        self.twin = LockstepChecker(self._variable(), model)
        self.durable = model.copy()
        self.twin.check_export()


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file of an open store, unless RocksDB has deleted it meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)


# The weight of each call, and the call. Calls without keys take the most time, and are rare.
_WITH_KEYS: dict[str, tuple[int, Callable[[Stress, Keys], None]]] = {
    "lookup": (300, Stress.lookup),
    "lookup without touch": (80, lambda stress, keys: stress.twin.lookup(keys, touch=False)),
    "upsert": (150, Stress.upsert),
    "accum": (130, Stress.accum),
    "apply_gradients": (60, Stress.train),
    "step": (150, Stress.training_step),
    "remove": (60, lambda stress, keys: stress.twin.remove(keys)),
    "prefetch": (150, lambda stress, keys: stress.twin.variable.prefetch(keys)),  # the next call need not use them
    "record uses": (40, lambda stress, keys: stress.twin.use(keys)),
    "status": (30, lambda stress, keys: stress.twin.check_status(keys)),
}
_WITHOUT_KEYS: dict[str, tuple[int, Callable[[Stress], None]]] = {
    "restrict": (6, Stress.restrict),
    "export": (3, Stress.export),
    "flush": (4, Stress.flush),
    "reopen": (2, Stress.reopen),
    "restore": (1, Stress.restore),
    "crash": (1, Stress.crash),
    "clear": (1, Stress.clear),
}
# What may come between the lookup and the update of a step.
_BETWEEN: list[Callable[[Stress, Keys], None]] = [
    *(call for name, (_, call) in _WITH_KEYS.items() if name != "step"),
    lambda stress, _: stress.flush(),
]


def run(ops: int, seed: int, hot: float, keys: int, batch: int, *, quiet: bool, as_json: bool) -> bool:
    """Make calls with `ops` keys in total, and print the outcome. Returns whether table and model agreed."""
    replay = f"python tests/stress random --ops {ops} --seed {seed} --hot {hot} --keys {keys} --batch {batch}"
    made = Run(replay, "equal to the model, bit for bit", quiet=quiet, as_json=as_json)
    difference = None
    with tempfile.TemporaryDirectory(prefix="kvemb-stress-") as folder:
        stress = Stress(Path(folder), seed, hot, keys, batch)
        try:
            with made.screen.progress("stress", ops) as advance:
                while stress.touched < ops:
                    stress.step()
                    advance(min(stress.touched, ops), f"{stress.model.size:,} rows")
                stress.export()
        except Difference as error:
            difference = str(error)
        except Exception:
            made.screen.milestone(f"replay: {replay}")
            raise
        finally:
            stress.store.close()
        stats = stress.twin.variable.stats
    table = {name: str(value) for name, value in stress.arguments.items()}
    lines = [
        ("keys touched", f"{stress.touched:,}"),
        ("calls", ", ".join(f"{count:,} {name}" for name, count in stress.called.most_common())),
        ("table", ", ".join(f"{name}={value}" for name, value in table.items())),
        ("rows at the end", f"{stress.model.size:,}"),
        ("since it was last opened", f"{stats.hit_rate_in_words}, {stats.cold_writes:,} rows written"),
    ]
    summary: dict[str, object] = {
        "seed": seed, "keys_touched": stress.touched, "calls": dict(stress.called), "table": table,
        "rows": stress.model.size, "hot_rows": stress.arguments["hot_rows"],
    }  # fmt: skip
    return made.close(difference, lines, summary)
