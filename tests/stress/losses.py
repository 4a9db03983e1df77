"""`python tests/stress cluster`: lose shards, clients and ranks at random instants under load, and compare every row.

Several clients make calls, and compare what they return. One writes checkpoints. All go on until they get ShardLost.
Then the cluster must be at a complete checkpoint: the last acknowledged one, or the one in progress. It must contain
all calls that were acknowledged before that checkpoint began, and none that began after its snapshots were taken, each
on all shards; the same rows as a single store that is restored from it; and the file saved with the rows. Each client
continues with the first call that the checkpoint lacks.
"""

from __future__ import annotations

import ast
import shutil
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb.errors import ColdStoreError, KvembError, ShardLost
from stress.groups import KEYS, NAME, calls_by_group, calls_in, gradients, group_of, table_of
from stress.lockstep import Difference, check_same
from stress.places import PLACES, Place
from stress.rounds import Run, counts

# A loss occurs after at most MAX_SECONDS, but not before MIN_CALLS calls, however busy the machine is; every client
# must get ShardLost at most MAX_UNHEARD seconds after it. There are at most MAX_PAUSE seconds between checkpoints.
MAX_SECONDS, MIN_CALLS, MAX_UNHEARD = 2.0, 20, 120.0
MAX_PAUSE = 0.1
KEPT = 3


class Load:
    """The calls between two losses. begun, done: of each client, how many calls in all. written: checkpoints by number,
    with `done` before their snapshots and `begun` after.
    """

    def __init__(self, rounds: LossRounds, seed: int) -> None:
        self._rounds, self._stop = rounds, threading.Event()
        self.begun, self.done = list(rounds.counts), list(rounds.counts)
        self.written: dict[int, tuple[list[int], list[int]]] = {}
        self.attempted = list(rounds.counts)
        self._made = [calls_by_group(rounds.seed, client, count) for client, count in enumerate(rounds.counts)]
        self.lost: list[float] = []
        self.failures: list[BaseException] = []
        work = [(self._train, number) for number in range(len(self.done))]
        self._threads = [threading.Thread(target=self._until_lost, args=each) for each in work]
        self._threads.append(threading.Thread(target=self._until_lost, args=(self._checkpoint, seed)))
        for thread in self._threads:
            thread.start()

    def _until_lost(self, work: Any, given: int) -> None:
        try:
            while not self._stop.is_set():
                work(given)
        except ShardLost:
            self.lost.append(time.monotonic())
        except BaseException as error:
            self.failures.append(error)

    def _train(self, client: int) -> None:
        number, table = self.begun[client], self._rounds.tables[client]
        self.begun[client] += 1
        group = group_of(self._rounds.seed, client, number)
        table.apply_gradients(KEYS[group], gradients(client, table.dim))
        self.done[client] += 1
        self._made[client][group] += 1
        rows, exists = table.lookup(KEYS[group], return_exists=True, touch=False)
        if not exists.all() or (rows[:, client] != self._made[client][group]).any():
            made = self._made[client][group]
            raise Difference(
                f"a lookup returned {rows[:, client]} of client {client} after {made} calls of group {group}"
            )

    def _checkpoint(self, seed: int) -> None:
        chance = np.random.default_rng([seed, len(self.written)])
        time.sleep(float(chance.random()) * MAX_PAUSE)
        before = list(self.done)
        self.attempted = before
        client = self._rounds.clients[int(chance.integers(len(self._rounds.clients)))]
        with suppress(ColdStoreError):  # the files are being removed: the next checkpoint notices it
            pending = client.checkpoint(keep=KEPT, block=False, files={"before": repr(before).encode()})
            begun = list(self.begun)  # calls that begin later are not in the checkpoint
            self.written[pending.result().number] = before, begun

    def wait_for(self, calls: int) -> None:
        """Wait until so many calls were made since the last loss, or no client makes any."""
        enough = sum(self._rounds.counts) + calls
        while sum(self.done) < enough and any(each.is_alive() for each in self._threads[:-1]):
            time.sleep(0.001)

    def end(self, *, lost: bool) -> None:
        """Wait until all clients have ended. Raises Difference.

        lost: whether they must get ShardLost; otherwise they may, until two more checkpoints are written.
        """
        deadline, enough = time.monotonic() + MAX_UNHEARD, len(self.written) + 2
        while time.monotonic() < deadline and not self.failures and any(each.is_alive() for each in self._threads):
            time.sleep(0.01)
            if not lost and not self.lost and len(self.written) >= enough:
                self._stop.set()
        if self.failures:
            self._stop.set()
            raise Difference(f"a call raised {self.failures[0]!r}") from self.failures[0]
        if any(thread.is_alive() for thread in self._threads):
            self._stop.set()
            raise Difference(f"a client still makes calls {MAX_UNHEARD:.0f} seconds after the loss")


class LossRounds:
    """Rounds on one cluster. counts: the calls of each client that the rows have. about, totals: see Rounds.

    heard, recovered: seconds until all clients knew and until recovery, for each round, by what was lost.
    """

    def __init__(self, place: Place, seed: int, clients: int) -> None:
        self.place, self.seed, self.about = place, seed, ""
        self._chance = np.random.default_rng(seed)
        self.clients = [place.first, *(place.client() for _ in range(clients - 1))]
        self.tables = [table_of(client, clients) for client in self.clients]
        self.counts = [0] * clients
        self.totals: Counter[str] = Counter()
        self.heard: dict[str, list[float]] = {}
        self.recovered: dict[str, list[float]] = {}
        self.newest = place.first.checkpoint().number

    def round(self) -> None:
        """Lose something, each kind in turn, recover, compare. Raises Difference."""
        kinds = list(self.place.losses)
        kind = kinds[self.totals["rounds"] % len(kinds)]
        self.about = f"{self.place.transport}, {kind}"
        load = Load(self, int(self._chance.integers(1 << 30)))
        time.sleep(float(self._chance.random()) * MAX_SECONDS)
        load.wait_for(MIN_CALLS)
        lost = True
        try:
            lost = self.place.losses[kind](self._chance)
        finally:
            at = time.monotonic()
            load.end(lost=lost)
        self.totals["calls"] += sum(load.done) - sum(self.counts)
        self.totals["checkpoints"] += len(load.written)
        if load.lost:
            self.heard.setdefault(kind, []).append(max(load.lost) - at)
            self._recover(kind, load)
        else:
            self.totals["nothing was lost"] += 1
            self.counts = calls_in(self.tables[0], self.seed)
            if self.counts != load.done:
                raise Difference(f"the rows have {self.counts} calls of the clients, which made {load.done}")
            self.newest = max([self.newest, *load.written])
        self.totals["rounds"] += 1

    def _recover(self, kind: str, load: Load) -> None:
        order = self._chance.permutation(len(self.clients))
        backs = [self.clients[int(client)].recover() for client in order]
        if any(back != backs[0] for back in backs):
            raise Difference(f"clients were told of different recoveries: {backs}")
        back, newest = backs[0], max([self.newest, *load.written])
        assert back.number is not None
        self.recovered.setdefault(kind, []).append(back.seconds)
        found = calls_in(self.tables[0], self.seed)
        if back.number < newest:
            raise Difference(f"it went back to checkpoint {back.number}, but {newest} was acknowledged")
        least, most = load.written.get(back.number, (load.attempted, load.begun))
        if back.number == self.newest:
            least = most = self.counts
        if any(not low <= count <= high for low, count, high in zip(least, found, most, strict=True)):
            raise Difference(f"checkpoint {back.number} has {found} calls, but was made between {least} and {most}")
        self._compare_with_restored(back.number, found)
        self.totals["unacknowledged checkpoints"] += back.number > newest
        self.totals["calls undone"] += sum(load.done) - sum(found)
        self.counts, self.newest = found, back.number

    def _compare_with_restored(self, number: int, least: list[int]) -> None:
        place = self.place.folder / "restored"
        with suppress(KeyError):  # the first checkpoint has no file
            files = kvemb.cluster.pull_files(self.place.url, place, number=number)
            attached = ast.literal_eval(files["before"].read_text())
            if any(count > known for count, known in zip(attached, least, strict=True)):
                raise Difference(f"checkpoint {number} has a file of a later one, which was begun after {attached}")
        shutil.rmtree(place, ignore_errors=True)
        store = kvemb.restore(f"{self.place.url}/{number:08d}", place, memory_budget="4MiB")
        try:
            columns = zip(
                self.tables[0].export(with_scores=True), store.variables[NAME].export(with_scores=True), strict=True
            )
            for name, (mine, restored) in zip(("keys", "values", "scores"), columns, strict=True):
                check_same(f"{name} of checkpoint {number}", mine, restored)
        finally:
            store.close(flush=False)
            shutil.rmtree(place)

    def close(self) -> None:
        """End all clients, and the cluster."""
        for client in self.clients[1:]:
            with suppress(KvembError):
                client.close()
        self.place.close()


def _times_by_loss(made: list[LossRounds]) -> dict[str, dict[str, float]]:
    """Return, by what was lost: how often, and the seconds until all clients knew and until shards could be called."""
    return {
        f"{rounds.place.transport}: {kind}": {
            "losses": len(heard),
            "heard_median_s": median(heard),
            "heard_max_s": max(heard),
            "recovered_median_s": median(rounds.recovered[kind]),
            "recovered_max_s": max(rounds.recovered[kind]),
        }
        for rounds in made
        for kind, heard in rounds.heard.items()
        if kind in rounds.recovered
    }


def run(
    rounds: int, seed: int, shards: int, clients: int, transport: str | None, *, quiet: bool, as_json: bool
) -> bool:
    """Run `rounds` rounds, half on each transport unless one is given, and print. Returns whether nothing was wrong."""
    replay = f"python tests/stress cluster --rounds {rounds} --seed {seed} --shards {shards} --clients {clients}"
    replay += "" if transport is None else f" --transport {transport}"
    made: list[LossRounds] = []

    def opened(folder: Path) -> AbstractContextManager[LossRounds]:
        made.append(LossRounds(PLACES[folder.name](folder, shards), seed, clients))
        return closing(made[-1])

    done = Run(replay, "back to a whole checkpoint after every loss", quiet=quiet, as_json=as_json)
    totals, difference = done.rounds(rounds, list(PLACES) if transport is None else [transport], opened)
    times = _times_by_loss(made)
    lines = [
        (
            f"{kind} lost {figures['losses']:.0f} times",
            f"heard of after {figures['heard_median_s']:.2f} s (most {figures['heard_max_s']:.2f}), back after "
            f"{figures['recovered_median_s']:.2f} s (most {figures['recovered_max_s']:.2f})",
        )
        for kind, figures in times.items()
    ]
    return done.close(difference, [*counts(totals), *lines], {**totals, "losses": times})
