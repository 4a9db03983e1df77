"""One side of `kvemb demo --dlrm`, in a separate process, so that its memory is measured separately.

Run as a module with its Settings as JSON, it trains, and prints a JSON line for every step and one with the results
(kvemb.tools.demos.sides). It may be killed at any time: a side with a store saves the dense part with the tables, and
resumes from the newest checkpoint. It exits when its stdin is closed, as when the process that started it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import kvemb
import kvemb.torch as kt
from kvemb.tools.demos import dlrm
from kvemb.tools.demos.click_log import HELD_OUT, Clicks, auc
from kvemb.tools.demos.figures import tier_figures
from kvemb.tools.demos.sides import FIELDS, Settings
from kvemb.tools.failures import explain
from kvemb.tools.process_memory import Peaks

STATE = "dense.pt"


class TorchSide:
    """PyTorch's tables, in memory. first: the step that training begins with."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.first = 0
        sizes = [1] * FIELDS if settings.alone else list(settings.log.sizes)
        self.model = dlrm.DLRM(dlrm.TorchTables(sizes, settings.dim, settings.seed), settings.dim, settings.seed)
        self.optimizers = dlrm.optimizers_of(self.model)

    def batches(self) -> Iterator[Clicks]:
        """Yield the batches of the steps from `first` on."""
        settings = self._settings
        for step in range(self.first, settings.steps):
            lines = settings.log.part(step * settings.batch, settings.batch)
            if settings.alone:
                lines.ids[:] = 0
            yield lines

    def stepped(self, steps: int) -> None:
        """Called after this many steps. Does nothing."""

    def rows(self) -> Iterator[Any]:
        """Yield arrays of all rows and slots, in one order."""
        for parameter in self.model.tables.parameters():
            yield parameter.detach().numpy()
            yield self.optimizers["tables"].state[parameter]["sum"].numpy()

    def figures(self) -> dict[str, Any]:
        """Return lines and summary for the closing lines."""
        return {"lines": [], "summary": {}}


class StoredSide(TorchSide):
    """Tables in a store of its folder, in the state of the newest checkpoint there."""

    def __init__(self, settings: Settings, opened: ExitStack) -> None:
        self._settings = settings
        folder = Path(settings.folder)
        self._series = opened.enter_context(kvemb.CheckpointManager(folder / "checkpoints", keep=2))
        self._store, last = self._series.resume(folder / "store", memory_budget=settings.budget)
        opened.enter_context(self._store)
        tables = dlrm.kvemb_tables(self._store, settings.dim, settings.seed)
        self.model = dlrm.DLRM(tables, settings.dim, settings.seed)
        self.optimizers = dlrm.optimizers_of(self.model)
        self._variables = tables.tables
        self.first = 0
        if last is not None:
            self.first = last.extra["steps"]
            state = torch.load(last.files[STATE], weights_only=True)
            self.model.load_state_dict(state.pop("model"))
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state[name])

    def batches(self) -> Iterator[Clicks]:
        """Yield the same batches; while one trains, the cold rows of the next one are read."""
        sources = {self._variables[name]: lambda lines, at=at: lines.ids[:, at] for at, name in enumerate(dlrm.NAMES)}
        return kt.prefetching(super().batches(), sources)

    def stepped(self, steps: int) -> None:
        """Save a checkpoint in the background if one is due."""
        if steps % self._settings.every == 0 and steps < self._settings.steps:
            self._series.save(self._store, block=False, files={STATE: self._write}, extra={"steps": steps})

    def _write(self, file: IO[bytes]) -> None:
        state = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        torch.save({"model": self.model.state_dict(), **state}, file)

    def rows(self) -> Iterator[Any]:
        """Yield arrays of all keys, rows and slots, in one order."""
        for variable in self._variables.values():
            for keys, values, slots in variable.export_batches(with_slots=True):
                yield from (keys, values, *slots.values())

    def figures(self) -> dict[str, Any]:
        """Return lines and summary of the rows by tier."""
        lines, summary = tier_figures(self._store.stats, self._settings.row_bytes)
        hit_rate = self._store.stats.hit_rate
        by_table = {name: variable.stats.hit_rate for name, variable in self._variables.items()}
        largest, smallest = (by_table[dlrm.NAMES[at]] for at in (0, -1))
        said = f"{hit_rate:.3f}; of the largest table {largest:.3f}, of the smallest {smallest:.3f}"
        return {
            "lines": [*lines, ("hit rate", said)],
            "summary": {**summary, "hit_rate": hit_rate, "hit_rates": by_table},
        }


def run(settings: Settings, say: Any) -> None:
    """Train one side. say: called with a dict after each step, and at the end."""
    with Peaks() as peaks, ExitStack() as opened:
        side = StoredSide(settings, opened) if settings.folder else TorchSide(settings)
        began = before = time.perf_counter()
        for number, lines in enumerate(side.batches(), side.first):
            loss = dlrm.step(side.model, side.optimizers, lines)
            side.stepped(number + 1)
            if number == side.first:  # the first step compiles kernels
                began = time.perf_counter()
            before = time.perf_counter()
            say({"step": number, "loss": loss})
        seconds, counted = before - began, settings.steps - side.first - 1
        ended = side.figures()
        held_out = settings.log.part(settings.lines - settings.held_out, settings.held_out, HELD_OUT)
        if settings.alone:
            held_out.ids[:] = 0
        ended["auc"] = auc(dlrm.scores(side.model, held_out, settings.batch), held_out.clicked)
        ended["digest"] = _digest([*side.model.networks.state_dict().values()], side.rows())
    rate = counted / seconds if counted > 0 else 0.0
    say({**ended, "steps_per_second": rate, "anonymous": peaks.anonymous})


def _digest(tensors: list[torch.Tensor], arrays: Iterable[Any]) -> str:
    """Return the sha256 of all numbers, in hexadecimal."""
    found = hashlib.sha256()
    for array in chain((tensor.numpy() for tensor in tensors), arrays):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _end_with_parent() -> None:
    """End this process when its stdin is closed. Signals reach the whole group; the parent handles them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, name="kvemb-parent", daemon=True).start()


def main(settings: Settings) -> None:
    """Run a side, and print its dicts as JSON."""

    def say(said: dict[str, Any]) -> None:
        print(json.dumps(said), flush=True)

    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch warns unless this is set explicitly
    try:
        run(settings, say)
    except Exception as error:
        found = explain(error)
        if found is None:
            raise
        say({"failed": found.line})


if __name__ == "__main__":
    _end_with_parent()
    main(Settings(**json.loads(sys.argv[1])))
