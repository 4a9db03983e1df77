"""A device on the CPU that does work as late as a GPU may: not when it is submitted, but when the host waits for it.

So errors show as wrong numbers: host memory that is reused before it is copied, arrays that are read before they are
written, and work on two streams without an event between them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda_on_cpu import CpuDevice, Guarded

from kvemb.backends.cuda.device import Memory, Program, Workspace


class Mark:
    """An event: how often it was recorded, and up to which of these a stream has come."""

    def __init__(self) -> None:
        self.recorded, self.reached = 0, {0}


class _Memory(Guarded):
    """Memory whose freeing waits for all work, as a GPU's does."""

    def __init__(self, nbytes: int, finish: Callable[[], None]) -> None:
        super().__init__(nbytes)
        self._finish = finish

    def __del__(self) -> None:
        self._finish()
        super().__del__()


class LateDevice(CpuDevice):
    """Each stream does its work in order, at a random time, once the events that it waits for were reached."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self._chance = np.random.default_rng(seed)
        self._given: dict[int, deque[tuple[Callable[[], object], Callable[[], bool]]]] = {}
        self._turn = threading.RLock()

    def later(self, stream: int, work: Callable[[], object], ready: Callable[[], bool] = lambda: True) -> None:
        """Submit work to a stream."""
        with self._turn:
            self._given.setdefault(stream, deque()).append((work, ready))
            while self._chance.random() < 0.2:
                self._do_one()

    def _do_one(self) -> bool:
        ready = [waiting for waiting in self._given.values() if waiting and waiting[0][1]()]
        if ready:
            ready[int(self._chance.integers(len(ready)))].popleft()[0]()
        return bool(ready)

    def finish_all(self) -> None:
        with self._turn:
            while self._do_one():
                pass
            assert not any(self._given.values()), "a stream waits for what never comes"

    def event(self, *, timed: bool = False) -> Any:
        return Mark()

    def record(self, event: Any, stream: int) -> None:
        event.recorded += 1
        number = event.recorded
        self.later(stream, lambda: event.reached.add(number))

    def wait(self, stream: int, event: Any) -> None:
        number = event.recorded
        self.later(stream, lambda: None, lambda: number in event.reached)

    def finish(self, event: Any) -> None:
        with self._turn:
            while event.recorded not in event.reached:
                assert self._do_one(), "the host waits for what never comes"

    def allocate(self, nbytes: int) -> Memory:
        return self.lent(_Memory(nbytes, self.finish_all), nbytes)

    def upload(self, address: int, array: Any, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.upload(self, address, array, stream))

    def download(self, array: Any, address: int, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.download(self, array, address, stream))

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.copy(self, address, source, nbytes, stream))

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.zero(self, address, nbytes, stream))

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.order(self, numbers, count, out, workspace, stream))

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        self.later(stream, lambda: CpuDevice.sort(self, numbers, count, workspace, stream))

    def load(self, source: str) -> Program:
        run = super().load(source)

        def run_later(stream: int, name: str, threads: int, *arguments: Any) -> None:
            self.later(stream, lambda: run(stream, name, threads, *arguments))

        return run_later
