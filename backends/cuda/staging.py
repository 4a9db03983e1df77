"""Pinned host memory for copies to and from one device, shared by all tables of a process on that device.

Every array is first copied to this memory, because a caller's array may be pinned, too, and the device would then read
it after the call has returned. The size does not depend on the number of tables: it grows up to bounds, which are
shares of the smallest memory_budget that pays for it, and does not shrink, because the driver takes long to allocate
more. Thread-safe: the user of a lane or a small piece holds its lock, and waits at most for the device's work, which
waits for no lock.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvemb.backends.cuda.device import Device

_logger = logging.getLogger("kvemb")

# Lanes for large arrays, each of two pieces: one is filled or emptied while the device copies the other. A thread uses
# one lane, so this many threads can copy at once.
LANES, PIECE_BYTES = 4, 1 << 20
# Small uploads that may be in progress at once; the host waits for the oldest before it begins another.
SMALL_UPLOADS, SMALL_BYTES = 32, 64 << 10
# Bounds as parts of a memory_budget, 1/PART each: all pieces of lanes, all small pieces, and copies in progress to the
# host.
LANES_PART, SMALL_PART, ARRIVING_PART = 64, 128, 32
_MIN_BYTES = 512


class _Payer:
    """A memory_budget of `total` bytes that pays for pinned memory. use: a weak reference to its paying method."""

    def __init__(self, use: Callable[[int], None], total: int) -> None:
        self.use, self.total, self._paid = weakref.WeakMethod(use), total, 0
        self._most = total // LANES_PART + total // SMALL_PART + total // ARRIVING_PART

    def owes(self, taken: int) -> int:
        """Count as paid, and return, what it still owes if `taken` bytes are taken; negative: it gets bytes back."""
        more = min(taken, self._most) - self._paid
        self._paid += more
        return more


class Staging:
    """The pinned memory of a device. piece_bytes, small_bytes: the most bytes of a piece.

    small_lock: guards next_small()'s piece. nbytes: bytes taken. download_bytes: of these, bytes for copies in progress
    to the host.
    """

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self._device, self._bounds = device, (piece_bytes, small_bytes)
        self.piece_bytes, self.small_bytes = self._bounds
        self._lanes = [DoubleBuffer(self, device) for _ in range(LANES)]
        self.small_lock = threading.Lock()
        self._small = deque(PinnedBuffer(device, self.took) for _ in range(SMALL_UPLOADS))
        self._lock = threading.Lock()
        self._payers: list[_Payer] = []
        self._idle: list[_DownloadBuffer] = []
        self.nbytes = self.download_bytes = 0
        self._warned = False
        self._max_download_bytes: float = np.inf

    def account(self, use: Callable[[int], None], total: int) -> None:
        """See contracts.DeviceRows.account_host. use: a bound method, called as long as its object exists."""
        with self._lock:
            self._payers = [payer for payer in self._payers if payer.use() is not None]
            if not any(payer.use() == use for payer in self._payers):
                self._payers.append(_Payer(use, total))
            least = min(payer.total for payer in self._payers)
            piece_bytes, small_bytes = self._bounds
            self.piece_bytes = min(piece_bytes, _floor(least // LANES_PART // (2 * LANES)))
            self.small_bytes = min(small_bytes, _floor(least // SMALL_PART // SMALL_UPLOADS))
            self._max_download_bytes = least // ARRIVING_PART
        self.took(0)

    def took(self, nbytes: int) -> None:
        """Add nbytes, which may be negative, to the bytes taken, and make each budget pay for them.

        A budget pays up to its own bounds; memory beyond these, taken before it came, is paid by larger budgets.
        """
        with self._lock:
            self.nbytes += nbytes
            owed = [(payer.use(), payer.owes(self.nbytes)) for payer in self._payers]
        for use, more in owed:
            if use is not None and more:
                use(more)

    def warn(self, error: MemoryError) -> None:
        """Log once that there is no pinned memory."""
        if not self._warned:
            self._warned = True
            _logger.warning("%s; transfers to and from the GPU use unpinned memory instead, which is slower", error)

    def lane(self) -> DoubleBuffer:
        """Return a lane, a free one if possible. Use it under its lock; a thread may use only one at a time."""
        return next((lane for lane in self._lanes if not lane.lock.locked()), self._lanes[0])

    def next_small(self) -> PinnedBuffer:
        """Return the small piece that was used longest ago, after waiting for its last use. REQUIRES: small_lock."""
        self._small.rotate()
        self._small[0].finish()
        return self._small[0]

    # Copies to the host in the background.

    def pending_download(self, nbytes: int, stream: int) -> PendingDownload | None:
        """Return memory for nbytes, which later work of this stream may write to; None: all is in use."""
        buffer = self._buffer(nbytes)
        if buffer is None:
            return None
        if buffer.event is not None:
            self._device.wait(stream, buffer.event)  # a copy to it was abandoned, and may still be running
        return PendingDownload(self._device, buffer, nbytes, self._idle)

    def _buffer(self, nbytes: int) -> _DownloadBuffer | None:
        """Return the smallest idle buffer for nbytes, or a new one; None if there may be no more."""
        size, idle = _rounded(nbytes), self._idle
        with self._lock:
            fitting = [buffer for buffer in idle if len(buffer.memory) >= nbytes]
            if fitting:
                buffer = min(fitting, key=lambda buffer: len(buffer.memory))
                idle.remove(buffer)
                return buffer
            dropped = list(idle) if self.download_bytes + size > self._max_download_bytes else []
            for buffer in dropped:
                idle.remove(buffer)
            freed = sum(len(buffer.memory) for buffer in dropped)
            fits = self.download_bytes - freed + size <= self._max_download_bytes
            self.download_bytes += size * fits - freed
        for buffer in dropped:
            if buffer.event is not None:
                self._device.finish(buffer.event)
        dropped.clear()
        self.took(size * fits - freed)
        if not fits:
            return None
        try:
            return _DownloadBuffer(self._device.pinned(size))
        except MemoryError:
            with self._lock:
                self.download_bytes -= size
            self.took(-size)
            return None


class DoubleBuffer:
    """Two pieces that are used alternately. Use them under the lock."""

    def __init__(self, staging: Staging, device: Device) -> None:
        self.lock, self._staging = threading.Lock(), staging
        self._pieces = deque(PinnedBuffer(device, staging.took) for _ in range(2))

    def next(self, nbytes: int) -> tuple[PinnedBuffer, npt.NDArray[np.uint8]]:
        """Return the piece that was used longest ago, after waiting for its last use, and at most nbytes of it."""
        self._pieces.rotate()
        piece = self._pieces[0]
        piece.finish()
        size = self._staging.piece_bytes
        return piece, piece.take(min(nbytes, size), size)


class BufferUses:
    """Counts of one table's uses of pieces. Uses end in the order in which they began.

    begun: the number of uses. ended: how many of these are known to have ended.
    """

    def __init__(self) -> None:
        self.begun = self.ended = 0


class PinnedBuffer:
    """Pinned memory that is reused. took: called with the bytes by which it grows.

    It is made at its largest size at once, because freeing pinned memory waits for all work on the device.
    """

    def __init__(self, device: Device, took: Callable[[int], None]) -> None:
        self._device, self._took = device, took
        self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._event: Any = None
        self._uses, self._use = BufferUses(), 0  # the last use: the table's BufferUses, and its number there
        self._begun_on: int | None = None  # the stream of a copy that was begun, but whose end is not recorded yet

    def take(self, nbytes: int, size: int) -> npt.NDArray[np.uint8]:
        """Return nbytes of it. If it has fewer, it is made again with `size` bytes. REQUIRES: it is not in use."""
        if len(self._bytes) < nbytes:
            before = len(self._bytes)
            self._bytes = np.empty(0, np.uint8)  # freed before more is allocated
            self._took(-before)
            self._bytes = self._made(size)
            self._took(size)
        return self._bytes[:nbytes]

    def _made(self, size: int) -> npt.NDArray[np.uint8]:
        """Return pinned memory, or pageable memory if there is none, because a change of rows may be half done."""
        try:
            return self._device.pinned(size)
        except MemoryError as error:
            self._device.staging.warn(error)
            return np.empty(size, np.uint8)

    def upload(self, address: int, part: npt.NDArray[np.uint8], stream: int, uses: BufferUses) -> None:
        """Begin to copy a part of it to the device, on a table's stream. It is in use until the copy has ended."""
        self._begin(stream)
        self._device.upload(address, part, stream)
        self._end(stream, uses)

    def download(self, part: npt.NDArray[np.uint8], address: int, stream: int, uses: BufferUses) -> None:
        """Begin to copy from the device to a part of it; see upload()."""
        self._begin(stream)
        self._device.download(part, address, stream)
        self._end(stream, uses)

    def _begin(self, stream: int) -> None:
        if self._event is None:
            self._event = self._device.event()
        self._begun_on = stream

    def _end(self, stream: int, uses: BufferUses) -> None:
        self._device.record(self._event, stream)
        uses.begun += 1
        self._uses, self._use, self._begun_on = uses, uses.begun, None

    def finish(self) -> None:
        """Wait until it is no longer in use. All earlier uses by the same table have then ended, too."""
        uses, use = self._uses, self._use
        if self._begun_on is not None:  # a call was interrupted
            self._device.record(self._event, self._begun_on)
            self._device.finish(self._event)
            self._begun_on = None
        elif use > uses.ended:
            self._device.finish(self._event)
            uses.ended = max(uses.ended, use)


class _DownloadBuffer:
    """Memory for a copy in progress. event: the end of its last use; None: it is not in use."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory, self.event = memory, None


class PendingDownload:
    """A copy in progress to a buffer, which is idle again when copied() has returned or this object is deleted.

    Used by one thread at a time.
    """

    def __init__(self, device: Device, buffer: _DownloadBuffer, nbytes: int, idle: list[_DownloadBuffer]) -> None:
        self._device, self._idle, self._event = device, idle, device.event()
        self._buffer: _DownloadBuffer | None = buffer
        self._memory = buffer.memory[:nbytes]

    def begin(self, address: int, stream: int) -> None:
        """Begin the copy from the device."""
        assert self._buffer is not None
        self._device.download(self._memory, address, stream)
        self._device.record(self._event, stream)
        self._buffer.event = self._event

    def copied(self) -> npt.NDArray[np.uint8]:
        """Wait until the copy is complete, and return its bytes in new memory. Call it at most once."""
        assert self._buffer is not None
        self._device.finish(self._event)
        self._buffer.event, found = None, self._memory.copy()
        self._give_back()
        return found

    def _give_back(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._idle.append(buffer)  # takes no lock, so it may run wherever Python collects garbage

    def __del__(self) -> None:
        self._give_back()


def _rounded(nbytes: int) -> int:
    """Return nbytes rounded up to a power of two, at least _MIN_BYTES, so that there are few sizes to reuse."""
    return max(_MIN_BYTES, 1 << (nbytes - 1).bit_length())


def _floor(nbytes: int) -> int:
    """Return nbytes rounded down to a power of two, at least _MIN_BYTES."""
    return max(_MIN_BYTES, 1 << nbytes.bit_length() - 1 if nbytes else 0)
