"""The calls that read rows of one variable, hot or cold: lookups, scores, reads ahead, warming.

A call is processed in chunks of limits.call_rows distinct keys, and is atomic for each key, not for all of them.
Thread-safe. Arguments have been checked by kvemb.variable: keys are int64 (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask, Values
from kvemb.initializers import Initializer
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.rows.row_copies import spread
from kvemb.tiers.locate import Search, read_together
from kvemb.tiers.located import Located
from kvemb.tiers.partition import Owners
from kvemb.tiers.storage import TieredStorage

_Read = Callable[[Owners, ScoreRule | None, float], Positions]
Read = TypeVar("Read", bound=Callable[..., Any])


def repeat_if_refreshed(read: Read) -> Read:
    """Return a method that repeats `read` if self._storage moved to a later durable point meanwhile.

    For reads that take the lock several times, and must still see one durable point.
    """

    @wraps(read)
    def reading(self: Any, *args: Any, **options: Any) -> Any:
        storage: TieredStorage = self._storage
        while True:
            refreshes = storage.refreshes
            result = read(self, *args, **options)
            if refreshes == storage.refreshes:
                return result

    return cast(Read, reading)


class MissedKeys(NamedTuple):
    """The keys that a lookup did not find hot.

    positions: their positions in the lookup's keys. now: the time of the uses; None: uses are not recorded. counts: the
    number of uses of the key at each position; None: one each.
    """

    positions: Positions
    now: float | None
    counts: Positions | None = None


class PartOfLookup(NamedTuple):
    """Rows of one variable that a lookup did not find in memory, of at most so many keys as a call processes at a time.

    fill: fills in the rows that were located. REQUIRES: storage.reading().
    """

    storage: TieredStorage
    search: Search
    fill: Callable[[Located], None]


def finish_lookups(parts: Sequence[PartOfLookup]) -> list[Exception | None]:
    """Do these parts of lookups of several variables; their cold rows are one job. Returns each one's failure, or None.

    The variables' locks are free during the reads. A job has about as many keys as a call processes at a time.
    """
    failures: list[Exception | None] = [None] * len(parts)
    begin = 0
    while begin < len(parts):
        end, keys = begin, 0
        while end < len(parts) and keys < parts[end].storage.limits.call_rows:
            keys += len(parts[end].search.found.keys)
            end += 1
        read_together([part.search for part in parts[begin:end]])
        for number in range(begin, end):
            storage, search, fill = parts[number]
            try:
                with storage.reading(land=False):
                    storage.counts.seconds_lookup += search.seconds
                    fill(storage.end_locating(search))
            except Exception as error:
                failures[number] = error
        begin = end
    return failures


class TableReads:
    """The calls that read one variable's rows."""

    def __init__(self, storage: TieredStorage, factory: RowFactory, scoring: Scorer) -> None:
        self._storage, self._factory, self._scoring = storage, factory, scoring
        self._schema, self._hot_tables = storage.schema, storage.hot_tables

    def _chunks(self, count: int) -> Iterator[slice]:
        """Return the slices of `count` keys that are processed one after the other."""
        size = self._storage.limits.call_rows  # so that memory is bounded
        return (slice(start, start + size) for start in range(0, count, size))

    @repeat_if_refreshed
    def lookup(
        self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool, counts: Positions | None = None
    ) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing ones, and exists (n,) if given.

        out (n, schema.width): of string keys, also with the names of rows; zeros where there is no row.

        counts (n,): how many uses each occurrence is, at least one. None: one each.
        """
        self._finish(self.begin_lookup(keys, out, exists, touch=touch, counts=counts))
        self._storage.ahead.looked_up()

    def _finish(self, parts: list[PartOfLookup]) -> None:
        for failure in finish_lookups(parts):
            if failure is not None:
                raise failure

    # The beginning of a lookup, of one variable or of several. REQUIRES: the caller does the rest with
    # finish_lookups(), repeats all if storage.refreshes changed meanwhile, and calls storage.ahead.looked_up() at last.

    def begin_lookup(
        self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool, counts: Positions | None = None
    ) -> list[PartOfLookup]:
        """Fill in the rows in memory and record their uses; return what is left."""
        with self._storage.reading():
            return self._begin_lookup(keys, out, exists, touch, counts)

    def begin_lookup_at_once(
        self, keys: Keys, out: Values, *, touch: bool, counts: Positions | None = None
    ) -> list[PartOfLookup] | None:
        """Do what begin_lookup does if the variable's lock is free; else return None.

        REQUIRES: signal handlers are deferred.
        """
        if not self._storage.begin_reading_if_free():
            return None
        try:
            return self._begin_lookup(keys, out, None, touch, counts)
        finally:
            self._storage.end_reading()

    def _begin_lookup(
        self, keys: Keys, out: Values, exists: Mask | None, touch: bool, counts: Positions | None
    ) -> list[PartOfLookup]:
        missed = self._read_hot(keys, touch, self._copying_to(keys, out, counts), counts)
        if exists is not None:
            exists[:] = True
        return [] if missed is None else self._begin_missed(keys, missed, out, exists)

    def _begin_missed(
        self, keys: Keys, missed: MissedKeys, out: Values, exists: Mask | None, *, hot: bool = False
    ) -> list[PartOfLookup]:
        """Fill in the missed rows that are in memory; return what is left.

        hot: whether any of them may be hot; if not, REQUIRES: storage.reading() since they were found not to be.
        """
        storage, distinct = self._storage, Unique(keys[missed.positions])
        counts = distinct.uses(missed.counts)
        left: list[PartOfLookup] = []

        def fill(chunk: slice, found: Located) -> None:
            values, there = self._values_of(found, counts[chunk], missed.now, out.shape[1])
            positions, source = missed.positions, distinct.inverse
            if len(values) < len(distinct.keys):
                chosen = np.flatnonzero((source >= chunk.start) & (source < chunk.stop))
                positions, source = positions[chosen], source[chosen] - chunk.start
            spread(values, source, out, positions)
            if exists is not None:
                exists[positions] = there[source]

        for chunk in self._chunks(len(distinct.keys)):
            search = storage.begin_locating(distinct.keys[chunk], hot=hot)
            if search.reads:
                left.append(PartOfLookup(storage, search, partial(fill, chunk)))
            else:
                fill(chunk, storage.end_locating(search))
        return left

    def _copying_to(self, keys: Keys, out: Values, counts: Positions | None = None) -> _Read:
        """Return the `read` argument of _read_hot that copies hot rows of keys to out (n, dim)."""
        return lambda owners, rule, now: self._hot_tables.lookup(keys, owners, out, rule, now, counts)

    def _read_hot(self, keys: Keys, touch: bool, read: _Read, counts: Positions | None = None) -> MissedKeys | None:
        """Read hot rows and record their uses; return what is not hot. REQUIRES: storage.reading().

        read(owners, rule, now): reads the hot rows and returns the positions of the other keys. counts: see lookup.
        """
        storage, owners = self._storage, self._hot_tables.owners(keys)
        rule, now = self._begin_use(touch)
        if rule is not None:
            storage.snapshot.copy_before_change(keys, None, owners)
        missing = read(owners, rule, now)
        if rule is ScoreRule.CUSTOM:
            self._scoring.use_hot(np.delete(keys, missing), now, None if counts is None else np.delete(counts, missing))
        uses, missed = len(keys), len(missing)
        if counts is not None:
            uses, missed = int(counts.sum()), int(counts[missing].sum())
        storage.counts.hits += uses - missed
        storage.counts.misses += missed
        if len(missing) == 0:
            return None
        return MissedKeys(missing, None if rule is None else now, None if counts is None else counts[missing])

    def _begin_use(self, touch: bool) -> tuple[ScoreRule | None, float]:
        """Return the rule by which a call's uses are recorded (None: they are not), and their time."""
        storage, scoring = self._storage, self._scoring
        if not (touch and storage.state.keeps_uses and scoring.records_uses):
            return None, scoring.now(storage.step)
        storage.count_use()
        return scoring.rule, scoring.now(storage.step)

    @repeat_if_refreshed
    def pool(self, keys: Keys, bags: Bags, out: Values, *, touch: bool) -> None:
        """Fill out (b, dim) with the pooled rows of bags (kvemb.rows.bags); uses are recorded as by lookup.

        Rows that are not hot are read once, into memory beside the hot table, where the kernel finds them.
        """
        with self._storage.reading():
            missed = self._read_hot(
                keys, touch, lambda owners, rule, now: self._hot_tables.pool(keys, owners, bags, None, out, rule, now)
            )
        if missed is not None:
            chosen = bags.holding(missed.positions)
            pooled = np.empty((len(chosen), self._schema.dim), self._schema.value_dtype)
            self._pool_chosen(keys, bags, chosen, missed, pooled)
            out[chosen] = pooled
        self._storage.ahead.looked_up()

    def _pool_chosen(self, keys: Keys, bags: Bags, chosen: Positions, missed: MissedKeys, out: Values) -> None:
        """Fill out with the pooled rows of the chosen bags, which include every bag with a missed key."""
        positions, left = bags.only(chosen)
        missing = np.searchsorted(positions, missed.positions)
        self._pool_beside(keys[positions], left, missing, out, missed.now)

    def _pool_beside(self, keys: Keys, bags: Bags, missing: Positions, out: Values, now: float | None) -> None:
        """Pool bags whose keys at `missing` are not hot. Rows that are evicted meanwhile are then read, too."""
        at, rows = np.full(len(keys), -1, np.int64), out[:0]
        while True:
            found = np.empty((len(missing), out.shape[1]), out.dtype)
            with self._storage.reading():
                missed = MissedKeys(np.arange(len(missing)), now)
                parts = self._begin_missed(keys[missing], missed, found, None, hot=True)
            self._finish(parts)
            at[missing] = len(rows) + missed.positions
            rows, now = np.concatenate([rows, found]), None  # the uses of all keys are recorded by now
            with self._storage.reading(land=False):
                owners, beside = self._hot_tables.owners(keys), RowsBeside(at, rows)
                missing = self._hot_tables.pool(keys, owners, bags, beside, out, None, self._storage.step)
            if not len(missing):
                return

    def _values_of(self, found: Located, counts: Positions, now: float | None, width: int) -> tuple[Values, Mask]:
        """Return located rows (n, width), the initializer's for missing ones, and which of them exist; promote them.

        counts: the number of uses of each key, counted as misses so far. now: their time; None: do not record them.
        REQUIRES: storage.reading().
        """
        storage, keys = self._storage, found.keys
        if now is not None and storage.state.keeps_uses:  # the store may be poisoned by now
            self._scoring.use(found, counts, now)
        else:
            now = None
        absent = found.cold[~found.exists]
        if len(absent):
            storage.counts.absent += (uses := int(counts[absent].sum()))
            storage.counts.misses -= uses
        there = found.present
        if len(absent) == len(keys):
            # Contiguous, because kernels would be compiled for other arrays.
            values = np.ascontiguousarray(self._factory.embeddings(keys)[:, :width])
        else:
            values = np.empty((len(keys), width), self._schema.value_dtype)
            if len(found.cold) < len(keys):
                self._hot_tables.gather(found.cells, found.owners, values)
            if len(absent):
                values[absent] = self._factory.embeddings(keys[absent])[:, :width]
            if len(absent) < len(found.cold):
                cold = found.with_cold(found.exists)
                values[cold.cold] = cold.rows.named_embeddings()[:, :width]
        if len(found.cold):
            storage.keep_or_promote(found, by_score=now is None)
        return values, there

    def read_missing_as(self, initializer: Initializer) -> None:
        """Return this initializer's rows for missing keys from now on. REQUIRES: the store is read-only."""
        with self._storage.access.held(land=False):
            self._factory.set_initializer(initializer)

    @repeat_if_refreshed
    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN for missing keys. Is no use, and keeps no row that it read."""
        distinct = Unique(keys)
        scores = np.empty(len(distinct.keys))
        for chunk in self._chunks(len(distinct.keys)):
            with self._storage.reading():
                found = self._storage.locate(distinct.keys[chunk], changing=False)
                part = self._hot_tables.scores(found.cells, found.owners)
                part[found.cold[found.exists]] = found.rows.scores[found.exists]
                scores[chunk] = part
        return scores[distinct.inverse]

    @repeat_if_refreshed
    def slot(self, keys: Keys, number: int) -> Values:
        """Return a slot of each key's row (n, width), that of a new row for missing keys. Otherwise like scores()."""
        distinct, width = Unique(keys), self._schema.slots[number].width
        values = np.empty((len(distinct.keys), width), self._schema.slot_dtype)
        for chunk in self._chunks(len(distinct.keys)):
            part, wanted = values[chunk], distinct.keys[chunk]
            with self._storage.reading():
                found = self._storage.locate(wanted, changing=False)
                self._hot_tables.read_slot(found.cells, found.owners, number, part)
                part[found.cold[found.exists]] = found.rows.slot(number)[found.exists]
                absent = found.cold[~found.exists]
                if len(absent):
                    embeddings = self._factory.embeddings(wanted[absent])
                    part[absent] = self._factory.rows(wanted[absent], embeddings, 0.0, 0).slot(number)
        return values[distinct.inverse]

    def prefetch(self, keys: Keys, after_lookup: bool = False) -> None:
        """Start reading the cold rows of keys, on another thread, for the call that follows. Changes no result.

        after_lookup: start when the next lookup ends.
        """
        copied = keys.copy()
        self._storage.ahead.start(lambda: copied, after_lookup=after_lookup)

    def warm(self, keys: Keys) -> None:
        """Promote the rows of distinct keys that outscore hot rows; missing keys are ignored."""
        for chunk in self._chunks(len(keys)):
            with self._storage.reading():
                found = self._storage.locate(keys[chunk])
                self._storage.promote(found.with_cold(found.exists), by_score=True)
