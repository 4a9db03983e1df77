"""Random operations on the GPU's hot table and on a plain model of it: every operation, every column, bit for bit.

The model has the table's buckets, so it knows which row is evicted. It uses only NumPy, so that ThreadSanitizer can run
it: python tests/cuda_life.py SEED ... (with its library preloaded) runs these seeds.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
from arrays_on_device import ArrayOnDevice
from cuda_on_cpu import TSAN_FLAGS, CpuDevice
from pooled import pooled

from kvemb.backends.cuda.device import Device
from kvemb.backends.cuda.table import CudaTable
from kvemb.optimizers import LAMB, SGD, Adagrad, Adam, Optimizer
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.hashing import Sums
from kvemb.rows.schema import Schema, dtype_of

BUCKET = 128
LEAST, MOST = -(2**63), 2**63 - 1
OPTIMIZERS: list[Optimizer] = [Adagrad(0.1, clip_norm=1.0), Adam(0.1), LAMB(0.1), SGD(0.1, weight_decay=0.1)]
SHAPES = [("float32", 5), ("float32", 33), ("float64", 2), ("float16", 3)]
VERBS = [
    *["insert"] * 4, "lookup", "lookup_on_device", "count", "pool", "upsert", "assign", "add", "apply",
    "apply_on_device", "change_on_device",
    "set_scores", "remove", "grow", "shrink", "mark", "take", "release", "written", "dirty",
]  # fmt: skip


def hashes_of(keys: Any) -> list[int]:
    """Return the hash of each key."""
    h = keys.astype(np.uint64)
    with np.errstate(over="ignore"):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h ^= h >> np.uint64(33)
            h *= np.uint64(factor)
    return (h ^ (h >> np.uint64(33))).tolist()  # type: ignore[no-any-return]


def bucket_of(h: int, buckets: int) -> int:
    """Return the bucket of a hash, given the number of buckets."""
    bits = (buckets - 1).bit_length()
    bucket = h & ((1 << bits) - 1)
    return bucket if bucket < buckets else bucket & ((1 << bits >> 1) - 1)


class Life:
    """A table and its model. rows: the rows of all keys there are, of which those of `hot` are in the table."""

    def __init__(self, seed: int, device: Device, keys: int = 700) -> None:
        self.random = np.random.default_rng(seed)
        self.optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
        dtype, dim = SHAPES[(seed + seed // 4) % len(SHAPES)]
        self.schema = Schema(dtype_of("int64"), dtype_of(dtype), dim, self.optimizer.shapes(dim))
        some = self.random.integers(LEAST, MOST, keys, dtype=np.int64)
        universe = self.random.permutation(np.unique(np.concatenate([some, [0, -1, LEAST, MOST]])))
        self.rows = RowBlock(self.schema, len(universe))
        self.rows.keys[:] = universe
        self.hashes = hashes_of(universe)
        self.hot = np.zeros(len(universe), bool)
        self.buckets, self.step = 3, 0
        kind = type("Table", (CudaTable,), {"open_device": staticmethod(lambda name: device)})
        self.table: Any = kind(self.schema, 3 * BUCKET, 9 * BUCKET)

    def run(self, steps: int) -> None:
        """Make so many random calls, and compare after each."""
        deck: list[str] = []
        for _ in range(steps):
            deck = deck or self.random.permutation(VERBS).tolist()
            self.step += 1
            getattr(self, f"_{deck.pop()}")()
            self.check()
        for _ in range(4):
            self._crowd()
            self.check()

    def check(self) -> None:
        """Assert that the table equals its model."""
        rows = self.table.read(self.table.occupied())
        expected = np.flatnonzero(self.hot)
        assert self.table.size == len(rows) == len(expected), (self.table.size, len(rows), len(expected))
        assert_same(rows, self.rows.select(expected))
        assert self.table.capacity_rows == self.buckets * BUCKET
        cells = self.table.find(self.rows.keys)
        assert ((cells >= 0) == self.hot).all()
        assert (cells[expected] // BUCKET).tolist() == [self._bucket(row) for row in expected.tolist()]

    def _crowd(self) -> None:
        """Merge buckets into one; among equal scores the smallest keys are evicted."""
        for _ in range(2):
            self._grow()
            self._insert()
        self._score(np.flatnonzero(self.hot), np.ones(self.hot.sum()))
        self._give_back(self.table.capacity_rows, 1)

    # The operations. Each is made on the table and on the model.

    def _some(self, count: int) -> Any:
        """Return numbers of rows, hot and not; half of them are from a few."""
        few = self.random.integers(0, len(self.hot), 5)
        return np.where(self.random.random(count) < 0.5, self.random.choice(few, count), self._any(count))

    def _any(self, count: int) -> Any:
        return self.random.integers(0, len(self.hot), count)

    def _distinct(self, count: int, *, hot: bool) -> Any:
        given = np.flatnonzero(self.hot == hot)
        return self.random.permutation(given)[:count]

    def _cells(self, rows: Any) -> Any:
        return self.table.find(self.rows.keys[rows])

    def _values(self, count: int) -> Any:
        return self.random.normal(size=(count, self.schema.dim)).astype(self.schema.value_dtype)

    def _set(self, rows: Any, values: Any) -> None:
        """Set the embeddings of rows that are hot, one after the other."""
        for row, value in zip(rows.tolist(), values, strict=True):
            if self.hot[row]:
                self.rows.values[row, : self.schema.dim] = value.view(self.schema.kernel_dtype)
                self._changed(np.array([row]))

    def _sum(self, rows: Any, old: Any, new: Any) -> None:
        """Add new - old to rows that are hot, one after the other, rounded each time."""
        kind = self.schema.slot_dtype
        for row, a, b in zip(rows.tolist(), old, new, strict=True):
            value = self.rows.select([row]).embeddings()[0].astype(kind) + (b.astype(kind) - a.astype(kind))
            self._set(np.array([row]), value.astype(self.schema.value_dtype)[None])

    def _changed(self, rows: Any) -> None:
        self.rows.steps[rows] = self.step
        self.rows.flags[rows] |= DIRTY

    def _insert(self) -> None:
        new, by_score = self._distinct(int(self.random.integers(1, 150)), hot=False), bool(self.random.integers(2))
        clean_too, together = bool(self.random.integers(2)), not by_score and bool(self.random.integers(2))
        self.rows.words[new] = self.random.integers(0, 1 << 30, (len(new), self.schema.row_words))
        self.rows.values[new, : self.schema.dim] = self._values(len(new)).view(self.schema.kernel_dtype)
        for at in range(len(self.schema.slots)):
            self.rows.slot(at)[new] = self.random.random((len(new), self.rows.slot(at).shape[1]))
        self.rows.scores[new] = self.random.choice([-np.inf, 0.0, 1.0, 2.0, 3.0, np.inf], len(new))
        self.rows.flags[new], self.rows.steps[new] = self.random.integers(0, 2, len(new)), self.step
        given, left = self.rows.select(new), []
        for row in new.tolist():
            mates = self._mates(row)
            if len(mates) == BUCKET:
                spared = {*new.tolist()} if together else set()
                ranks = {mate: self._rank(mate) for mate in mates}
                ranks |= {mate: (np.inf, ranks[mate][1]) for mate in mates if mate in spared}
                victim = min(mates, key=ranks.__getitem__)
                score, key = self.rows.scores[victim], self.rows.keys[victim]
                if by_score and not self.rows.flags[row] & DIRTY and score >= self.rows.scores[row]:
                    continue
                self.hot[victim] = False
                left += [victim] if clean_too or self.rows.flags[victim] & DIRTY else []
                assert key == self.rows.keys[victim]
            self.hot[row] = True
        expected = self.rows.select(np.array(left, np.int64))
        with self.table.device_rows.together() if together else nullcontext():
            assert_same(self.table.insert(given, by_score=by_score, clean_too=clean_too), expected, ordered=True)
        self.rows.flags[~self.hot] = 0

    def _mates(self, row: int) -> list[int]:
        """The hot rows of a row's bucket."""
        return [each for each in np.flatnonzero(self.hot).tolist() if self._bucket(each) == self._bucket(row)]

    def _bucket(self, row: int) -> int:
        return bucket_of(self.hashes[row], self.buckets)

    def _rank(self, row: int) -> tuple[float, int]:
        return float(self.rows.scores[row]), int(self.rows.keys[row])

    def _use(self, rows: Any, rule: ScoreRule | None) -> None:
        for row in rows[self.hot[rows]].tolist() if rule in (ScoreRule.LAST_USE, ScoreRule.COUNT) else []:
            score = self.rows.scores[row]
            self.rows.scores[row] = max(score, self.step) if rule is ScoreRule.LAST_USE else score + 1.0
            self.rows.flags[row] |= DIRTY

    def _rule(self) -> ScoreRule | None:
        return [None, ScoreRule.LAST_USE, ScoreRule.COUNT, ScoreRule.CUSTOM][self.random.integers(4)]

    def _lookup(self) -> None:
        self._look_up(self._some(int(self.random.integers(1, 120))), self._rule())

    def _count(self) -> None:
        """Let all threads use one row at the same time."""
        self._look_up(np.repeat(self._distinct(2, hot=True), 60), ScoreRule.COUNT)

    def _look_up(self, rows: Any, rule: ScoreRule | None) -> None:
        out = np.full((len(rows), self.schema.dim), 7, self.schema.value_dtype)
        expected = np.where(self.hot[rows][:, None], self.rows.embeddings()[rows], out)
        missing = self.table.lookup(self.rows.keys[rows], out, rule, float(self.step))
        assert missing.tolist() == np.flatnonzero(~self.hot[rows]).tolist()
        assert out.tobytes() == expected.tobytes()
        self._use(rows, rule)

    def _there(self, rows: Any) -> Any:
        """Return the keys of rows, on the device. A caller's arrays have separate streams."""
        return self.table.device_rows.given(
            ArrayOnDevice(self.rows.keys[rows].copy(), stream=int(self.random.integers(1, 4)))
        )

    def _lookup_on_device(self) -> None:
        rows, rule = self._some(int(self.random.integers(1, 120))), self._rule()
        out, device_rows = np.full((len(rows), self.schema.dim), 7, self.schema.value_dtype), self.table.device_rows
        expected, flags = np.where(self.hot[rows][:, None], self.rows.embeddings()[rows], out), np.ones(len(rows), bool)
        keys, filled, exists = (
            self._there(rows),
            device_rows.given(ArrayOnDevice(out)),
            device_rows.given(ArrayOnDevice(flags)),
        )
        times = self.random.integers(1, 5, len(rows)) if self.random.integers(2) else np.ones(len(rows), np.int64)
        counts = device_rows.given(ArrayOnDevice(times)) if (times > 1).any() else None
        with device_rows.on(keys, filled, exists):
            missing = device_rows.lookup(keys, filled, exists, rule, float(self.step), counts)
            assert missing.positions.tolist() == np.flatnonzero(~self.hot[rows]).tolist()
            assert (missing.keys == self.rows.keys[rows[missing.positions]]).all()
            values = self._values(len(missing.positions))
            assert device_rows.take(filled, missing.positions).tobytes() == out[missing.positions].tobytes()
            device_rows.spread(filled, missing.positions, values)
        expected[missing.positions] = values
        assert out.tobytes() == expected.tobytes()
        assert (flags == self.hot[rows]).all()
        self._use(np.repeat(rows, times), rule)

    def _change_on_device(self) -> None:
        rows, device_rows = self._some(int(self.random.integers(1, 80))), self.table.device_rows
        values, old = self._values(len(rows)), self._values(len(rows))
        chosen, adding = self.random.random(len(rows)) < 0.7, bool(self.random.integers(2))
        keys, given, before = (
            self._there(rows),
            device_rows.given(ArrayOnDevice(values)),
            device_rows.given(ArrayOnDevice(old)),
        )
        with device_rows.on(keys, given, before):
            assert device_rows.find(keys).positions.tolist() == np.flatnonzero(~self.hot[rows]).tolist()
            if adding:
                device_rows.only(device_rows.given(ArrayOnDevice(chosen)))
                device_rows.add(before, given, self.step)
            else:
                device_rows.assign(given, self.step)
        if adding:
            self._sum(rows[chosen], old[chosen], values[chosen])
        else:
            self._set(rows, values)

    def _apply_on_device(self) -> None:
        rows, device_rows = self._some(int(self.random.integers(1, 80))), self.table.device_rows
        grads = self.random.normal(size=(len(rows), self.schema.dim)).astype(self.schema.slot_dtype)
        keys, given = self._there(rows), device_rows.given(ArrayOnDevice(grads))
        with device_rows.on(keys, given):
            device_rows.find(keys)
            device_rows.apply(self.optimizer, given, self.step, self.step)
        hot = np.array(sorted({row for row in rows.tolist() if self.hot[row]}), np.int64)
        totals = np.zeros((len(hot), self.schema.dim), self.schema.slot_dtype)
        for at, row in enumerate(hot.tolist()):
            first, *rest = np.flatnonzero(rows == row).tolist()
            totals[at] = grads[first]
            for each in rest:
                totals[at] += grads[each]
        self._step(hot, totals)

    def _pool(self) -> None:
        sizes, rule = self.random.integers(0, 9, 12), self._rule()
        rows = self._some(int(sizes.sum()))
        sizes = sizes[: np.searchsorted(np.cumsum(sizes), len(rows), "right")]
        rows = rows[: sizes.sum()]
        kind = self.schema.slot_dtype
        weights = self.random.normal(size=len(rows) * int(self.random.integers(2))).astype(kind)
        divisors = self.random.integers(0, 3, len(sizes) * int(self.random.integers(2))).astype(kind)
        bags = Bags(np.concatenate([[0], np.cumsum(sizes)]), weights, divisors, self.random.choice([np.inf, 1.0]))
        at = np.where(self.hot[rows], -1, np.arange(len(rows)))
        beside = RowsBeside(at, np.ascontiguousarray(self._values(len(rows))))
        found = self.rows.embeddings()[rows]
        found[at >= 0] = beside.values[at[at >= 0]]
        out = np.empty((len(sizes), self.schema.dim), self.schema.value_dtype)
        assert not len(self.table.pool(self.rows.keys[rows], bags, beside, out, rule, float(self.step)))
        assert out.tobytes() == pooled(found, bags).tobytes()
        self._use(rows, rule)
        absent = self.table.pool(self.rows.keys[rows], bags, None, out, None, 0.0)
        assert absent.tolist() == np.flatnonzero(~self.hot[rows]).tolist()

    def _upsert(self) -> None:
        rows = self._some(int(self.random.integers(1, 100)))
        values = self._values(len(rows))
        missing = self.table.upsert(self.rows.keys[rows], values, self.step)
        assert missing.tolist() == np.flatnonzero(~self.hot[rows]).tolist()
        self._set(rows, values)

    def _assign(self) -> None:
        rows = self._some(int(self.random.integers(1, 100)))
        values = self._values(len(rows))
        self.table.assign(self._cells(rows), values, self.step)
        self._set(rows, values)
        out = np.full((len(rows), self.schema.dim), 7, self.schema.value_dtype)
        expected = np.where(self.hot[rows][:, None], self.rows.embeddings()[rows], out)
        self.table.gather(self._cells(rows), out)
        assert out.tobytes() == expected.tobytes()

    def _add(self) -> None:
        rows = self._some(int(self.random.integers(1, 60)))
        old, new = self._values(len(rows)), self._values(len(rows))
        self.table.add(self._cells(rows), old, new, self.step)
        self._sum(rows, old, new)

    def _apply(self) -> None:
        rows = self._distinct(int(self.random.integers(1, 60)), hot=True)
        if not len(rows):
            return
        kind = self.schema.slot_dtype
        given = np.concatenate([rows, self.random.choice(rows, len(rows))])
        grads = self.random.normal(size=(len(given), self.schema.dim)).astype(kind)
        following, totals = np.full(len(given), -1), grads[: len(rows)].copy()
        last = {row: at for at, row in enumerate(rows.tolist())}
        for at in range(len(rows), len(given)):
            row = int(given[at])
            following[last[row]], last[row] = at, at
            totals[np.flatnonzero(rows == row)[0]] += grads[at]
        sums = Sums(np.arange(len(rows)), following)
        cells = self._cells(rows)
        skipped = self.random.random(len(rows)) < 0.2
        cells[skipped] = -1
        self.table.apply(cells, self.optimizer, grads, self.step, sums, self.step)
        self._step(rows[~skipped], totals[~skipped])

    def _step(self, rows: Any, totals: Any) -> None:
        """One step of the model's rows, with these sums of gradients."""
        slots = {slot.name: self.rows.slot(at)[rows] for at, slot in enumerate(self.optimizer.slots)}
        values = self.optimizer.step(self.rows.select(rows).embeddings(), slots, totals, self.step)
        self.rows.values[rows, : self.schema.dim] = np.ascontiguousarray(values).view(self.schema.kernel_dtype)
        for at, slot in enumerate(self.optimizer.slots):
            self.rows.slot(at)[rows] = slots[slot.name]
        self._changed(rows)

    def _set_scores(self) -> None:
        rows = self._distinct(int(self.random.integers(1, 60)), hot=True)
        self._score(rows, self.random.normal(size=len(rows)))

    def _score(self, rows: Any, scores: Any) -> None:
        self.table.set_scores(self._cells(rows), scores)
        self.rows.scores[rows] = scores
        self.rows.flags[rows] |= DIRTY
        assert self.table.scores(self._cells(rows)).tolist() == scores.tolist()

    def _remove(self) -> None:
        rows = self._some(int(self.random.integers(1, 60)))
        self.table.remove(self._cells(rows))
        self.hot[rows], self.rows.flags[rows] = False, 0

    def _grow(self) -> None:
        if self.table.step_rows:
            self.buckets += self.table.step_rows // BUCKET
            self.table.grow()

    def _shrink(self) -> None:
        self._give_back(int(self.random.integers(1, 4 * BUCKET)), int(self.random.integers(1, 2 * BUCKET)))

    def _give_back(self, cells: int, least: int) -> None:
        wanted = max(self.buckets - -(-cells // BUCKET), -(-least // BUCKET), 1)
        left: list[int] = []
        while self.buckets > wanted:
            self.buckets -= 1
            for bucket in range(self.buckets):
                mates = [row for row in np.flatnonzero(self.hot).tolist() if self._bucket(row) == bucket]
                leaving = sorted(mates, key=self._rank)[: max(0, len(mates) - BUCKET)]
                self.hot[leaving] = False
                left += [row for row in leaving if self.rows.flags[row] & DIRTY]
        expected = self.rows.select(np.array(left, np.int64))
        assert_same(self.table.shrink(cells, least), expected)
        self.rows.flags[~self.hot] = 0

    # Marks.

    def _mark(self) -> None:
        dirty = self.hot & (self.rows.flags & DIRTY != 0)
        if self.random.integers(3) == 0:
            self.table.release_all()
            self.rows.flags &= np.uint8(~(PENDING | WRITING) & 0xFF)
        assert sorted(self.table.mark_dirty_pending().tolist()) == sorted(self.rows.keys[dirty].tolist())
        self.rows.flags[dirty] |= np.uint8(PENDING)

    def _take(self) -> None:
        rows = self.random.permutation(len(self.hot))[: self.random.integers(1, 200)]
        positions, taken = self.table.take_pending(self._cells(rows))
        pending = self.hot[rows] & (self.rows.flags[rows] & PENDING != 0)
        assert positions.tolist() == np.flatnonzero(pending).tolist()
        assert_same(taken, self.rows.select(rows[pending]), ordered=True)
        self.rows.flags[rows[pending]] ^= np.uint8(PENDING | WRITING)

    def _release(self) -> None:
        rows = self._some(int(self.random.integers(1, 60)))
        pending = np.unique(rows[self.hot[rows] & (self.rows.flags[rows] & PENDING != 0)])
        assert_same(self.table.release_pending(self._cells(rows)), self.rows.select(pending))
        self.rows.flags[rows] &= np.uint8(~(PENDING | WRITING) & 0xFF)

    def _written(self) -> None:
        rows = self._some(int(self.random.integers(1, 100)))
        self.table.mark_written(self._cells(rows))
        written = np.unique(rows[self.rows.flags[rows] & WRITING != 0])
        self.rows.flags[written] &= np.uint8(~(WRITING | DIRTY) & 0xFF)

    def _dirty(self) -> None:
        batches = list(self.table.dirty_batches(int(self.random.integers(1, 100))))
        cells = np.concatenate([np.empty(0, np.int64), *(cells for cells, _ in batches)])
        assert (np.diff(cells) > 0).all()
        dirty = np.flatnonzero(self.hot & (self.rows.flags & DIRTY != 0))
        assert_same(RowBlock.joined([rows for _, rows in batches], self.schema), self.rows.select(dirty))
        clean = self.random.permutation(dirty)[: len(dirty) // 2]
        self.table.mark_clean(self._cells(clean))
        self.rows.flags[clean] &= np.uint8(~DIRTY & 0xFF)


def assert_same(got: RowBlock, expected: RowBlock, *, ordered: bool = False) -> None:
    """Assert that two blocks have the same rows, in the same order or in any."""
    if not ordered:
        got, expected = got.select(np.argsort(got.keys)), expected.select(np.argsort(expected.keys))
    for column in ("keys", "scores", "steps", "flags", "words"):
        np.testing.assert_array_equal(getattr(got, column), getattr(expected, column), err_msg=column)


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        Life(seed, CpuDevice(seed, TSAN_FLAGS), keys=300).run(25)
    print("passed")
