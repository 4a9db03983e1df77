"""A device on the CPU that counts the host's waits and copies, and checks the order of work on streams."""

from __future__ import annotations

from typing import Any

from cuda_on_cpu import CpuDevice

from kvemb.backends.cuda.device import Program, Workspace


class CountingDevice(CpuDevice):
    """The device of one hot table. uploads, downloads: bytes of each copy since start(). waits: of the host.

    ran: each kernel and its stream. pinned_sizes: bytes of each piece of pinned memory so far. All work must be ordered
    after all earlier work: on the same stream, or by an event. As this device does work when it is submitted, a missing
    order would not show otherwise.
    """

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self._done = 0
        self._known: dict[int, int] = {}  # how much of the work precedes each stream's next work
        self._events: dict[int, tuple[Any, int]] = {}
        self.pinned_sizes: list[int] = []
        self.start()

    def start(self) -> None:
        """Start to count."""
        self.uploads: list[int] = []
        self.downloads: list[int] = []
        self.ran: list[tuple[str, int]] = []
        self.waits = 0

    def _work(self, stream: int) -> None:
        assert self._known.get(stream, 0) == self._done, f"work on stream {stream} does not wait for what came before"
        self._done += 1
        self._known[stream] = self._done

    def record(self, event: Any, stream: int) -> None:
        self._events[id(event)] = event, self._known.get(stream, 0)

    def wait(self, stream: int, event: Any) -> None:
        self._known[stream] = max(self._known.get(stream, 0), self._events[id(event)][1])

    def finish(self, event: Any) -> None:
        assert id(event) in self._events
        self.waits += 1

    def pinned(self, nbytes: int) -> Any:
        self.pinned_sizes.append(nbytes)
        return super().pinned(nbytes)

    def upload(self, address: int, array: Any, stream: int) -> None:
        self._work(stream)
        self.uploads.append(array.nbytes)
        super().upload(address, array, stream)

    def download(self, array: Any, address: int, stream: int) -> None:
        self._work(stream)
        self.downloads.append(array.nbytes)
        super().download(array, address, stream)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self._work(stream)
        super().copy(address, source, nbytes, stream)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        self._work(stream)
        super().zero(address, nbytes, stream)

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        self._work(stream)
        super().order(numbers, count, out, workspace, stream)

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        self._work(stream)
        super().sort(numbers, count, workspace, stream)

    def load(self, source: str) -> Program:
        run = super().load(source)

        def run_in_order(stream: int, name: str, threads: int, *arguments: Any) -> None:
            self._work(stream)
            self.ran.append((name, stream))
            run(stream, name, threads, *arguments)

        return run_in_order
