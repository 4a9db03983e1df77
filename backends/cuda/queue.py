"""The work of one hot table on its device: in the order of the calls, on the table's own stream or on a caller's.

Arrays are copied to and from the host through pinned memory that all tables of a device share (staging.py). Only short
results, for which a call may wait long, have a piece of the table's own. Not thread-safe: the table's caller locks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.device import Device, Workspace
from kvemb.backends.cuda.staging import BufferUses, PendingDownload, PinnedBuffer

ANSWER_BYTES = 512


class Queue:
    """The queue of one table's work on a device."""

    def __init__(self, device: Device) -> None:
        self.device, self._staging = device, device.staging
        self._own = _taken_stream(device)
        weakref.finalize(self, device.idle_streams.append, self._own).atexit = False
        self._stream = self._last = self._own  # the stream of new work; the stream of the last work
        self._event = device.event()  # the end of a block of on(), or of work on the own stream
        self._beside = device.event()
        self._answer = PinnedBuffer(device, lambda nbytes: None)
        self._uses = BufferUses()

    @contextmanager
    def on(self, stream: int, others: frozenset[int] = frozenset()) -> Iterator[None]:
        """Run the block's work on a caller's stream, after all earlier work.

        others: streams of other arrays that the block uses. The block waits for them, and their later work for the
        block.
        """
        device = self.device
        for other in others:
            device.record(self._beside, other)
            device.wait(stream, self._beside)
        if self._last == self._own:
            device.record(self._event, self._own)
        device.wait(stream, self._event)
        self._stream = self._last = stream
        try:
            yield
        finally:
            device.record(self._event, stream)
            for other in others:
                device.wait(other, self._event)
            self._stream = self._own

    def _here(self) -> int:
        """Return the stream for new work. The table's own stream first waits for work on a caller's stream."""
        if self._last != self._stream:
            self.device.wait(self._stream, self._event)
            self._last = self._stream
        return self._stream

    def run(self, source: str, name: str, threads: int, *arguments: Any) -> None:
        """Run a kernel of a source (Device.load), unless threads is 0."""
        if threads:
            self.device.load(source)(self._here(), name, threads, *arguments)

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """See Device."""
        self.device.copy(address, source, nbytes, self._here())

    def zero(self, address: int, nbytes: int) -> None:
        """See Device."""
        self.device.zero(address, nbytes, self._here())

    def order(self, numbers: int, count: int, out: int, workspace: Workspace) -> None:
        """See Device."""
        self.device.order(numbers, count, out, workspace, self._here())

    def sort(self, numbers: int, count: int, workspace: Workspace) -> None:
        """See Device."""
        self.device.sort(numbers, count, workspace, self._here())

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device. The caller may change it afterwards."""
        stream, left, staging = self._here(), array.reshape(-1).view(np.uint8), self._staging
        small = staging.small_bytes  # read once, because another thread may open a store that lowers it
        if 0 < len(left) <= small:
            with staging.small_lock:
                piece = staging.next_small()
                part = piece.take(len(left), small)
                part[:] = left
                piece.upload(address, part, stream, self._uses)
            return
        lane = staging.lane()
        with lane.lock:
            while len(left):
                piece, part = lane.next(len(left))
                part[:] = left[: len(part)]
                piece.upload(address, part, stream, self._uses)
                address, left = address + len(part), left[len(part) :]

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy to a contiguous array from the device, and wait for it."""
        stream, left = self._here(), array.reshape(-1).view(np.uint8)
        if 0 < len(left) <= ANSWER_BYTES:
            part = self._answer.take(len(left), ANSWER_BYTES)
            self._answer.download(part, address, stream, self._uses)
            _receive(self._answer, part, left)
            return
        lane, before = self._staging.lane(), None
        with lane.lock:
            while len(left):
                piece, part = lane.next(len(left))
                piece.download(part, address, stream, self._uses)
                if before is not None:
                    _receive(*before)
                before, address, left = (piece, part, left[: len(part)]), address + len(part), left[len(part) :]
            if before is not None:
                _receive(*before)

    def begin_download(self, address: int, nbytes: int) -> PendingDownload | None:
        """Begin to copy bytes from the device, without waiting. Return None if too many copies are in progress."""
        stream = self._here()
        download = self._staging.pending_download(nbytes, stream)
        if download is not None:
            download.begin(address, stream)
        return download


def _taken_stream(device: Device) -> int:
    """Return a stream that no other table uses."""
    try:
        return device.idle_streams.pop()
    except IndexError:
        return device.stream()


def _receive(piece: PinnedBuffer, part: npt.NDArray[np.uint8], to: npt.NDArray[np.uint8]) -> None:
    piece.finish()
    to[:] = part
