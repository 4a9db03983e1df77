"""A storm of signals: calls on small stores, interrupted at random moments, and every row compared with a model's.

`python tests/storm.py --stores 2000` makes 2,000 stores, in processes of 20 each. Each has a handler that raises,
returns, saves or closes, for each of six signals; or exceptions are raised in the working thread by another thread. A
call that was interrupted has happened or not: then its variables must be in one of these two states, and so must be
what a handler saved.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvemb
from kvemb.handle import inside
from kvemb.limits import Limits

SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGINT")
WAYS = ("raise", "return", "save", "close", "exception")
NAMES, DIM, KEYS = ("users", "items"), 4, np.arange(400)
# Slots of 32 rows: rows leave memory all the time.
SMALL = {"memtable_rows": 128, "min_own_copies": 32, "max_own_copies": 32, "copied_rows": 32, "ahead_rows": 16}
STORES_PER_PROCESS, HANGS_AFTER = 20, 300

# The rows of each variable, NaN where there is none.
State = dict[str, npt.NDArray[np.float32]]


class Interrupted(BaseException):
    """What a handler, or another thread, raises."""


class Model:
    """The state, and what it is if the call in progress has happened. points: the states of which one is durable."""

    def __init__(self) -> None:
        self.now: State = {name: np.full((len(KEYS), DIM), np.nan, np.float32) for name in NAMES}
        self.then = self.now
        self.points = [self.now]

    @property
    def either(self) -> list[State]:
        """The two states between which a call in progress is."""
        return [self.now, self.then]


class Wrong(AssertionError):
    """A row is not the model's."""


class Storm:
    """One store, the calls on it, and what interrupts them."""

    def __init__(self, folder: Path, way: str, chance: np.random.Generator) -> None:
        self.folder, self.way, self.chance = folder, way, chance
        self.model = Model()
        self.saved: list[tuple[Path, list[State]]] = []
        self.marked: dict[str, State] = {}
        self.calm, self.over = True, False  # attributes, which a handler cannot interrupt as they are set
        self.store = self.open()
        self.thread, self.sending = threading.get_ident(), threading.Lock()
        self.interruptions, self.handling = 0, False

    def open(self) -> kvemb.Store:
        self.logs = self.chance.random() < 0.2
        durability = "write" if self.logs else "checkpoint"
        return kvemb.open(self.folder / "store", memory_budget="4MiB", durability=durability, limits=Limits(**SMALL))

    @property
    def closed(self) -> bool:
        return inside(self.store).state.closed

    @property
    def cause(self) -> BaseException | None:
        return inside(self.store).state.cause

    def variables(self) -> list[kvemb.Variable]:
        rule = kvemb.optimizers.SGD(0.5)
        policy = kvemb.FrequencyRestrictPolicy()
        return [
            self.store.get_variable(name, dim=DIM, hot_rows=32, optimizer=rule, restrict_policy=policy)
            for name in NAMES
        ]

    # What interrupts.

    def handle(self, number: int, frame: object) -> None:
        if self.calm or self.handling:  # it was sent before
            return
        self.interruptions += 1
        if self.way == "raise":
            raise Interrupted(number)
        self.handling = True
        try:
            self.save_or_close()
        finally:
            self.handling = False

    def save_or_close(self) -> None:
        if self.way == "save" and not self.closed:
            target = self.folder / f"saved{len(self.saved)}"
            self.saved.append((target, self.model.either))
            try:
                self.store.checkpoint(target)
            except (kvemb.errors.Closed, ValueError):
                self.saved.pop()
            else:
                self.model.points = [*self.model.points, *self.model.either]
        if self.way == "close":
            self.store.close()

    def disturb(self) -> None:
        chance = np.random.default_rng(self.chance.integers(1 << 32))
        while not self.over:
            time.sleep(float(chance.exponential(0.003)))
            with self.sending:
                if self.calm:
                    continue
                if self.way == "exception":
                    self.interruptions += 1
                    interrupt(self.thread)
                else:
                    os.kill(os.getpid(), getattr(signal, chance.choice(SIGNALS)))

    def peace(self) -> bool:
        """Wait until an exception that was sent has arrived; return whether one has."""
        self.calm = True
        arrived = False
        while True:
            try:
                with self.sending:
                    for _ in range(100):
                        pass
                return arrived
            except Interrupted:
                arrived = True

    # The calls.

    def run(self, calls: int) -> None:
        variables = self.variables()
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        disturber = threading.Thread(target=self.disturb, daemon=True)
        disturber.start()
        try:
            for _ in range(calls):
                if self.closed or not self.call(variables):
                    break
        finally:
            self.peace()
            self.over = True
            disturber.join()
            faulthandler.cancel_dump_traceback_later()

    def call(self, variables: list[kvemb.Variable]) -> bool:
        """Make one call, and check what it did; returns whether the store can be used further."""
        work, self.model.then = self.drawn(variables)
        interrupted = True
        try:
            try:
                self.calm = False
                work()
                interrupted = False
            finally:
                self.calm = True
        except Interrupted:
            pass
        except kvemb.errors.Poisoned:
            if self.way != "exception":
                raise
        except kvemb.errors.Closed:
            if self.way != "close":
                raise
        if self.way == "exception":
            interrupted |= self.peace()
        if not interrupted:
            self.model.now = self.model.then
            return True
        if self.closed:
            return False
        if self.cause:
            if self.way != "exception":
                raise Wrong(f"the store is poisoned: {self.cause!r}") from self.cause
            return False
        # A call of several variables may have happened in some of them.
        happened = {}
        for variable in variables:
            here = contents(variable)
            if self.way == "exception":  # a call is atomic for each key
                each = [state[variable.name] for state in self.model.either]
                check_each_row(here, variable.name, each, "after an interruption")
                happened[variable.name] = here
            else:
                happened[variable.name] = the_one(here, variable.name, self.model.either, "after an interruption")
        self.model.now = happened
        return True

    def drawn(self, variables: list[kvemb.Variable]) -> tuple[Callable[[], Any], State]:
        """Draw a call; returns it, and the state that follows from it."""
        chance, then = self.chance, {name: rows.copy() for name, rows in self.model.now.items()}
        variable = variables[int(chance.integers(len(variables)))]
        rows = then[variable.name]
        keys = np.unique(chance.choice(KEYS, chance.integers(1, 90)))
        values = chance.integers(-8, 8, (len(keys), DIM)).astype(np.float32)
        what = chance.choice(
            ["upsert", "lookup", "many", "step", "steps", "accum", "remove", "flush", "checkpoint", "size", "restrict",
             "prefetch", "export", "stats", "background", "clear", "mark", "rollback"],
            p=[0.18, 0.1, 0.08, 0.16, 0.1, 0.06, 0.06, 0.05, 0.03, 0.01, 0.02, 0.03, 0.02, 0.01, 0.02, 0.01, 0.03, 0.03]
        )  # fmt: skip

        def stepped(rows: npt.NDArray[np.float32]) -> None:
            rows[keys] = np.nan_to_num(rows[keys], nan=0.0) - 0.5 * values

        if what == "upsert":
            rows[keys] = values
            return lambda: variable.upsert(keys, values), then
        if what == "lookup":
            return lambda: self.compare(variable.lookup(keys), rows[keys]), then
        if what == "many":
            return lambda: self.store.lookup(dict.fromkeys(variables, keys)), then
        if what == "step":
            stepped(rows)
            return lambda: (variable.lookup(keys), variable.apply_gradients(keys, values)), then
        if what == "steps":
            for each in then.values():
                stepped(each)
            return lambda: self.store.apply_gradients(dict.fromkeys(variables, (keys, values))), then
        if what == "accum":
            old, exists = np.nan_to_num(rows[keys], nan=0.0), ~np.isnan(rows[keys, 0])
            rows[keys] = np.where(exists[:, None], old + values, values)
            return lambda: variable.accum(keys, old, np.where(exists[:, None], old + values, values), exists), then
        if what == "remove":
            rows[keys[:20]] = np.nan
            return lambda: variable.remove(keys[:20]), then
        if what == "clear":
            rows[:] = np.nan
            return variable.clear, then
        if what == "flush":
            return self.durably(self.store.flush), then
        if what == "checkpoint":
            target = self.folder / f"checkpoint{chance.integers(1 << 40)}"
            return self.durably(lambda: self.store.checkpoint(target)), then
        if what == "background":
            target = self.folder / f"checkpoint{chance.integers(1 << 40)}"
            return self.durably(lambda: self.store.checkpoint(target, block=False), complete=False), then
        if what == "mark":
            return self.mark, then
        if what == "rollback" and self.marked:
            return self.going_back(str(chance.choice(list(self.marked))))
        if what == "restrict":
            return lambda: variable.restrict(int(KEYS[-1]) + 1), then
        if what == "prefetch":
            return lambda: variable.prefetch(keys), then
        if what == "export":
            return lambda: variable.export(), then
        return lambda: variable.size() if what == "size" else variable.stats, then

    def mark(self) -> None:
        name = f"{len(self.marked)}"
        self.durably(lambda: self.store.mark(name, block=True))()
        self.marked[name] = self.model.now

    def going_back(self, name: str) -> tuple[Callable[[], Any], State]:
        then = self.marked[name]

        def made() -> None:
            self.model.points = [*self.model.points, then]
            self.store.rollback(name)
            self.model.points = [then]

        return made, then

    def durably(self, call: Callable[[], Any], *, complete: bool = True) -> Callable[[], Any]:
        def made() -> None:
            self.model.points = [*self.model.points, self.model.now]
            call()
            if complete:
                self.model.points = [self.model.now]

        return made

    def compare(self, got: npt.NDArray[np.float32], rows: npt.NDArray[np.float32]) -> None:
        if not (got == np.nan_to_num(rows, nan=0.0)).all():
            raise Wrong("a lookup returned another row")

    # The end.

    def end(self) -> None:
        """Close the store and open it again; every row must be the model's, here and in what handlers saved."""
        sound = not self.cause
        if self.way == "close" and self.closed:
            expected = self.model.either
        else:
            with nullcontext() if sound else suppress(kvemb.errors.Poisoned):  # of a checkpoint behind
                self.store.close()
            expected = [self.model.now] if sound else self.model.either if self.logs else self.model.points
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with kvemb.open(self.folder / "store", memory_budget="8MiB") as again:
                if found := again.check(deep=True):
                    raise Wrong(f"check found {found}")
                compare_one(again, expected, "after opening again", each_row=self.logs and not sound)
        for target, states in self.saved:
            if target.exists():
                with kvemb.open(target, read_only=True) as opened:
                    compare_one(opened, states, "in a checkpoint of a handler")


def interrupt(thread: int) -> None:
    """Raise Interrupted in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


def contents(variable: kvemb.Variable) -> npt.NDArray[np.float32]:
    rows, exists = variable.lookup(KEYS, return_exists=True, touch=False)
    if variable.size() != exists.sum():
        raise Wrong(f"size is {variable.size()}, but {exists.sum()} rows exist")
    rows[~exists] = np.nan
    return rows


def same_rows(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return ((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)


def the_one(here: npt.NDArray[np.float32], name: str, states: list[State], when: str) -> npt.NDArray[np.float32]:
    for state in states:
        if same_rows(here, state[name]).all():
            return here
    differing = [int((~same_rows(here, state[name])).sum()) for state in states]
    raise Wrong(f"{when}: {name} differs from every state that it may have, in {differing} rows")


def compare_one(store: kvemb.Store, states: list[State], when: str, *, each_row: bool = False) -> None:
    for name in NAMES:
        if name in store.variables:
            here, each = contents(store.variables[name]), [state[name] for state in states]
            if each_row:
                check_each_row(here, name, each, when)
            else:
                the_one(here, name, states, when)


def check_each_row(here: npt.NDArray[np.float32], name: str, states: list[npt.NDArray[np.float32]], when: str) -> None:
    """Check what a call left of which an exception of another thread stopped a part: a call is atomic for each key."""
    if not np.logical_or.reduce([same_rows(here, rows) for rows in states]).all():
        raise Wrong(f"{when}: a row of {name} is neither as before nor as after the call")


def ride(folder: Path, way: str, seed: int, calls: int) -> int:
    """Make one store and its storm; returns how often it was interrupted. Raises Wrong."""
    if way == "exception":
        compile_kernels()
    chance = np.random.default_rng(seed)
    storm = Storm(folder, way, chance)
    before = {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    start = threading.Thread.start

    def start_undisturbed(thread: threading.Thread) -> None:
        with storm.sending:  # Python gives a new thread its maker's exceptions until it runs, and then waits forever
            start(thread)

    try:
        threading.Thread.start = start_undisturbed  # type: ignore[method-assign]
        for name in SIGNALS:
            signal.signal(getattr(signal, name), storm.handle)
        storm.run(calls)
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    storm.end()
    return storm.interruptions


@cache
def compile_kernels() -> None:
    """Make each call once in peace: an exception in the midst of LLVM's work ends the process."""
    with tempfile.TemporaryDirectory(prefix="storm") as folder:
        ride(Path(folder), "return", seed=0, calls=200)


def in_this_process(seeds: list[int], ways: list[str], calls: int) -> int:
    failed = 0
    for seed in seeds:
        folder, way = Path(tempfile.mkdtemp(prefix="storm")), ways[seed % len(ways)]
        try:
            count = ride(folder, way, seed, calls)
            print(f"seed {seed}, {way}: {count} interruptions, as the model", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED seed {seed}, {way}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--calls", type=int, default=60, help="calls on each store")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    seeds, ways = list(range(options.first, options.first + options.stores)), options.ways.split(",")
    if options.here:
        sys.exit(in_this_process(seeds, ways, options.calls) > 0)
    failed = 0
    for at in range(0, len(seeds), STORES_PER_PROCESS):
        part = seeds[at : at + STORES_PER_PROCESS]
        command = [sys.executable, __file__, "--here", "--first", str(part[0]), "--stores", str(len(part))]
        command += ["--calls", str(options.calls), "--ways", options.ways]
        done = subprocess.run(command, capture_output=True, text=True)
        bad = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        good = sum(line.startswith("seed") for line in done.stdout.splitlines())
        if bad or done.returncode or good < len(part):
            failed += len(part) - good
            print(f"seeds {part[0]} to {part[-1]}, exit {done.returncode}:", *bad, done.stderr[-6000:], sep="\n")
    print(f"{len(seeds)} stores, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
