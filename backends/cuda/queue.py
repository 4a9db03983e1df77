"""What one hot table has its device do: in the order of the calls, on its own stream or on a caller's.

Arrays cross to and from the host through pinned memory of the table's own, as the caller's may be pinned, too, and is
then read by the device after the call. Large ones have two pieces, one of which is filled or emptied while the device
copies the other; small ones have more, so that the host need not wait. They grow to a bound and are kept. Not
thread-safe: the table's caller locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.device import Device, Memory

PIECE_BYTES = 4 << 20
SMALL_UPLOAD_BYTES, SMALL_UPLOADS = 64 << 10, 16


class Queue:
    """The order of one table's work. device: where it is done.

    piece_bytes: of each piece of pinned memory, at most. small_bytes: of uploads for which the host does not wait,
    until SMALL_UPLOADS of them are under way.
    """

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES, small_bytes: int = SMALL_UPLOAD_BYTES) -> None:
        self.device, self._small_bytes = device, small_bytes
        self._own = device.stream()
        self._stream = self._last = self._own  # where work goes now; where the last of it went
        self._event = device.event()  # the end of a block of on(), or what its own stream has done
        self._beside = device.event()
        self._pieces = deque(_Piece(device, piece_bytes) for _ in range(2))
        self._small = deque(_Piece(device, small_bytes) for _ in range(SMALL_UPLOADS))
        self._uses = self._ended = 0  # of pieces, in their order, which is that of the device's work

    @contextmanager
    def on(self, stream: int, others: frozenset[int] = frozenset()) -> Iterator[None]:
        """Do the work of the block on a caller's stream, after all that was done before.

        others: streams of which the block uses arrays; it waits for them, and their later work for the block.
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
        """Return the stream for what comes now. The table's own one waits for what was done on a caller's."""
        if self._last != self._stream:
            self.device.wait(self._stream, self._event)
            self._last = self._stream
        return self._stream

    def allocate(self, nbytes: int) -> Memory:
        """See Device."""
        return self.device.allocate(nbytes)

    def run(self, source: str, name: str, threads: int, *arguments: Any) -> None:
        """Run a kernel of a source (Device.load), if any thread has something to do."""
        if threads:
            self.device.load(source)(self._here(), name, threads, *arguments)

    def zero(self, address: int, nbytes: int) -> None:
        """See Device."""
        self.device.zero(address, nbytes, self._here())

    def order(self, numbers: int, count: int, out: int) -> None:
        """See Device."""
        self.device.order(numbers, count, out, self._here())

    def sort(self, numbers: int, count: int) -> None:
        """See Device."""
        self.device.sort(numbers, count, self._here())

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device. The caller may change it afterwards."""
        stream, left = self._here(), array.reshape(-1).view(np.uint8)
        pieces = self._small if len(left) <= self._small_bytes else self._pieces
        while len(left):
            piece = self._next(pieces)
            part = piece.take(len(left))
            part[:] = left[: len(part)]
            self.device.upload(address, part, stream)
            self._record(piece, stream)
            address, left = address + len(part), left[len(part) :]

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy to a contiguous array from the device, and wait for it."""
        stream, left = self._here(), array.reshape(-1).view(np.uint8)
        before: tuple[_Piece, Any, Any] | None = None
        while len(left):
            piece = self._next(self._pieces)
            part = piece.take(len(left))
            self.device.download(part, address, stream)
            self._record(piece, stream)
            if before is not None:
                self._receive(*before)
            before, address, left = (piece, part, left[: len(part)]), address + len(part), left[len(part) :]
        if before is not None:
            self._receive(*before)

    def _receive(self, piece: _Piece, part: Any, to: Any) -> None:
        self._finish(piece)
        to[:] = part

    def _next(self, pieces: deque[_Piece]) -> _Piece:
        """Return the piece that was used longest ago, once it is in use no longer."""
        pieces.rotate()
        self._finish(pieces[0])
        return pieces[0]

    def _record(self, piece: _Piece, stream: int) -> None:
        """A piece is in use until the stream has done its work of now."""
        self.device.record(piece.event, stream)
        self._uses += 1
        piece.use = self._uses

    def _finish(self, piece: _Piece) -> None:
        """Wait until a piece is in use no longer. All uses before its last one have ended then, too."""
        if piece.use > self._ended:
            self.device.finish(piece.event)
            self._ended = piece.use

    def begin_download(self, address: int, nbytes: int) -> Arriving:
        """Begin to copy bytes from the device; nobody waits for them here."""
        arriving = Arriving(self.device, nbytes)
        arriving.begin(address, self._here())
        return arriving


class Arriving:
    """Bytes on their way to pinned memory of their own, which is kept until they are there. For any one thread."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._under_way = False
        self._device, self._event, self._memory = device, device.event(), device.pinned(nbytes)

    def begin(self, address: int, stream: int) -> None:
        """Copy them from the device."""
        self._device.download(self._memory, address, stream)
        self._under_way = True
        self._device.record(self._event, stream)

    def wait(self) -> npt.NDArray[np.uint8]:
        """Wait until they are there, and return them."""
        if self._under_way:
            self._device.finish(self._event)
            self._under_way = False
        return self._memory

    def __del__(self) -> None:
        if self._under_way:
            self.wait()


class _Piece:
    """Pinned memory, of at most so many bytes. use: the number of its last use, at whose end the event is."""

    def __init__(self, device: Device, max_bytes: int) -> None:
        self.event, self.use = device.event(), 0
        self._device, self._most = device, max_bytes
        self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return up to so many of its bytes; the most there may be, if that is less. REQUIRES: it is not in use."""
        if len(self._bytes) < min(nbytes, self._most):
            self._bytes = self._device.pinned(min(self._most, max(256, nbytes + nbytes // 4)))
        return self._bytes[: min(nbytes, self._most)]
