"""Checkpoints of a cluster: a cut through all shards, each of which pushes its own; then the manifest. Thread-safe.

The cut holds back calls while every shard takes its snapshot, in memory; the rest runs in a separate thread while later
calls run.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvemb.cluster.calls import Calls
from kvemb.cluster.coordination.counting import StepCounts
from kvemb.cluster.coordination.lease import Lease
from kvemb.cluster.coordination.opened import steps_of
from kvemb.cluster.durability.cluster_series import ClusterSeries, Published
from kvemb.cluster.durability.manifest import ClusterManifest, ShardEntry, following, joined, ranges
from kvemb.cluster.ledger import StoredCalls, joined_calls
from kvemb.cluster.messages import ChangeCounts, PushedPart
from kvemb.durability.lock_file import LockFile
from kvemb.durability.manifest import created_now
from kvemb.durability.variable_entry import VariableEntry, rows_in_words
from kvemb.threads.interrupts import result_of, uninterrupted
from kvemb.threads.pool import Threads

# The token of each open variable, and its steps, by name.
OpenSteps = dict[str, tuple[str, StepCounts]]
# Makes a cut, and runs a block inside it (Coordinator.alone).
Cut = Callable[..., AbstractContextManager[OpenSteps]]
# Checkpoints whose outcome is remembered for clients that have not asked for it yet.
MAX_REMEMBERED = 256


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """Describe a complete checkpoint of a cluster, which ``kvemb.cluster.Store.checkpoint`` wrote.

    Attributes:
        number: Its number in the series.
        id: Its identity, 32 hexadecimal digits.
        created: When the shards took their snapshots, in seconds since 1970.
        variables: A dict from each variable's name to its description, with the rows of all shards (``rows``), ``dim``
            and others.
        nbytes: Bytes sent to the url for it.
        extra: The JSON values saved beside the rows.
        files: The names of the files saved beside the rows, which ``kvemb.cluster.pull_files`` copies.
    """

    number: int
    id: str
    created: float
    variables: dict[str, VariableEntry]
    nbytes: int
    extra: dict[str, Any]
    files: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<kvemb.cluster.Checkpoint {self.number}, {rows_in_words(self.variables)}>"


class Dropped(NamedTuple):
    """Changes that are not saved as the cluster is closed. number: the checkpoint after which they were made.

    steps: the highest number of steps that a variable has taken since.
    """

    number: int
    steps: int


class CheckpointRequest(NamedTuple):
    """The arguments of a checkpoint. keep: how many are kept; None: all. extra: values to save beside the rows.

    files: the name under which the first shard has received files for it (Shard.attach); None: there are none.
    """

    keep: int | None
    extra: dict[str, Any]
    files: str | None


class _Snapshot(NamedTuple):
    """A checkpoint whose cut is made. calls: to the shards that have it. changes: Shard.changes() of each, by then.

    contained: the calls that its rows contain.
    """

    calls: Calls
    number: int
    id: str
    created: float
    request: CheckpointRequest
    changes: list[ChangeCounts]
    contained: StoredCalls


class Checkpointing:
    """The series that one cluster writes. lock: of a directory, or the lease of a URL, held until close().

    last: the number of the checkpoint that it started from or wrote last, None if there is none.
    """

    def __init__(self, series: ClusterSeries, lock: LockFile | Lease) -> None:
        self.series = series
        self.last: int | None = None
        self._lock, self._starting = lock, threading.Lock()
        self._before: ClusterManifest | None = None
        self._begun: Published | None = None
        # Of each shard, when it took its snapshot of the last one; None: that is not the newest, or there is none.
        self._changes: list[ChangeCounts] | None = None
        self._passed = 0  # the newest checkpoint when the cluster started from an earlier one
        self._tried = 0  # the last number begun; shards have files of it even if it failed
        self._background = Threads(1, thread_name_prefix="kvemb-checkpoint")
        self._writing: OrderedDict[int, Future[Checkpoint]] = OrderedDict()

    def created(self) -> float | None:
        """Return when the last checkpoint was made, in seconds since 1970; None if there is none."""
        return None if self._before is None else self._before.created

    def begin_with(self, number: int) -> None:
        """Start from this checkpoint: settled() returns it until another is written. Raises as ClusterSeries.read.

        Later checkpoints are kept.
        """
        self._begun, self._passed = Published(number, self.series.read(number)), max(self.series.numbers())

    def start(self, cut: Cut, calls: Calls, request: CheckpointRequest) -> int:
        """Make the cut of the next checkpoint, and start to write it in the background; returns its number.

        calls: to the shards that the client knows. Raises ShardLost if a recovery has replaced these. Only one
        checkpoint is written at a time: waits for the previous one. Raises what a snapshot raises.
        """
        with self._starting:
            self.wait()
            with cut() as steps:
                snapshot = self._snapshot(steps, calls, request)
                self._write_behind(snapshot)
            return snapshot.number

    def finish(self, cut: Cut, calls: Calls, *, anyway: bool) -> Dropped | None:
        """Make the last cut, and write a checkpoint of it if rows, steps or variables differ from the newest one.

        If the last one has files or values beside the rows, which the next one would lack, none is written unless
        `anyway`; returns the changes since, None if there are none but uses. Returns once the checkpoint is complete;
        if it fails, raises its error, and calls are executed again. Raises ShardLost.
        """
        with self._starting:
            self.wait()
            with cut(last=True) as open_steps:
                changes: list[ChangeCounts] = calls.all("changes")
                steps = self._steps_since(open_steps)
                if changes == self._changes and not steps:
                    return None
                if self.last is not None and not anyway and self._carries(self.last):
                    before = self._changes
                    if before is None or len(before) != len(changes):  # the shards are new
                        before = [ChangeCounts()] * len(changes)
                    changed = any(now.changes != then.changes for now, then in zip(changes, before, strict=True))
                    return Dropped(self.last, steps) if changed else None  # uses alone are not worth a warning
                snapshot = self._snapshot(open_steps, calls, CheckpointRequest(None, {}, None))
                self._write_behind(snapshot)
                self.result(snapshot.number)
                return None

    def _snapshot(self, open_steps: OpenSteps, calls: Calls, request: CheckpointRequest) -> _Snapshot:
        """Let every shard take its snapshot for the next checkpoint. REQUIRES: a cut."""
        number = self._tried = max(self.series.next_number(), self._tried + 1)
        id, created, changes = uuid.uuid4().hex, created_now(), calls.all("changes")
        numbers, steps = range(calls.transport.shards), dict(open_steps.values())
        with calls.stamped(numbers) as stamp:
            given = (stamp, number, id, steps)
            made = calls.each("snapshot", {shard: (*given, None if shard else request.files) for shard in numbers})
        return _Snapshot(calls, number, id, created, request, changes, joined_calls(made.values()))

    def _write_behind(self, snapshot: _Snapshot) -> None:
        with uninterrupted():  # otherwise a snapshot might never be ended
            self._writing[snapshot.number] = self._background.submit(self._write, snapshot)
        if len(self._writing) > MAX_REMEMBERED:
            self._writing.popitem(last=False)

    def result(self, number: int) -> Checkpoint:
        """Wait until a checkpoint that was started here is complete, and return it. Raises its error if it failed."""
        return result_of(self._writing[number])

    def _steps_since(self, open_steps: OpenSteps) -> int:
        """Return the highest number of steps that a variable has taken since the last checkpoint.

        Not all steps change shards: a lookup without keys is one.
        """
        before = {} if self._before is None else self._before.variables
        taken = ((steps, steps_of(before.get(name))) for name, (_, steps) in open_steps.items())
        return max((max(now.uses - then.uses, now.training - then.training) for now, then in taken), default=0)

    def _carries(self, number: int) -> bool:
        """Whether a checkpoint has files or values beside the rows."""
        described = self.series.read(number)
        first = self.series.of_shard(described.shards[0].store)
        return bool(described.extra or first.described(number).attached)

    def wait(self) -> None:
        """Wait until none is being written. Only result() raises errors."""
        wait(list(self._writing.values()))

    def _write(self, snapshot: _Snapshot) -> Checkpoint:
        number, request = snapshot.number, snapshot.request
        parts: list[PushedPart] = snapshot.calls.all_once("push", number)
        buckets = ranges(len(parts))
        shards = tuple(ShardEntry(*range, part.store) for range, part in zip(buckets, parts, strict=True))
        described = ClusterManifest(
            snapshot.id,
            self._before.store if self._before is not None else uuid.uuid4().hex,
            snapshot.created,
            {name: joined([part.variables[name] for part in parts]) for name in parts[0].variables},
            shards,
            following(self._before, shards),
            request.extra,
            snapshot.contained,
        )
        if isinstance(self._lock, Lease):
            self.series.check(self._lock)
        self.series.publish(number, described)
        self.last, self._before, self._changes = number, described, snapshot.changes
        if request.keep is not None:
            self.series.keep_newest(request.keep)
        nbytes = sum(part.nbytes for part in parts)
        how = (number, described.id, described.created, described.variables, nbytes, request.extra)
        return Checkpoint(*how, parts[0].files)

    def settled(self) -> Published | None:
        """Return the last checkpoint, None if there is none. Waits until none is being written."""
        with self._starting:
            self.wait()
            last = newest = self.series.newest()
            if newest is not None and newest.number <= self._passed:
                last = self._begun
            self.last, self._before = last if last else (None, None)
            self._changes = (
                [ChangeCounts()] * len(last.described.shards) if last is not None and last == newest else None
            )
            return last

    def close(self) -> None:
        """Wait until none is being written, and release the directory or the URL. Idempotent."""
        self._background.shutdown(wait=True)
        self._lock.close()
