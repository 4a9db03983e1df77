"""Pinned memory of the host through which arrays cross to and from one device: one for all tables of a process there.

Every array is first copied to this memory: a caller's own may be pinned too, and the device would then read it after
the call has returned. Its size does not depend on the number of tables: it grows up to bounds, which are shares of the
smallest memory_budget that pays for it, and is kept, because the driver takes long to give more. Thread-safe: whoever
uses a lane or a small piece holds its lock, and waits at most for the device's work, which waits for no lock.
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

# Lanes for large arrays, each of two pieces: one is filled or emptied while the device copies the other. A thread takes
# one lane, so this many threads copy at once.
LANES, PIECE_BYTES = 4, 1 << 20
# Small uploads that may be under way at once; the host waits for the oldest before it begins one more.
SMALL_UPLOADS, SMALL_BYTES = 32, 64 << 10
# One part in so many of a memory_budget is the most for: all pieces of lanes, all small pieces, and what is on its way
# to the host.
LANES_PART, SMALL_PART, ARRIVING_PART = 64, 128, 32
_MIN_BYTES = 512


class _Payer:
    """A memory_budget of `total` bytes that pays for pinned memory. use: weakly, the method that it pays by."""

    def __init__(self, use: Callable[[int], None], total: int) -> None:
        self.use, self.total, self._paid = weakref.WeakMethod(use), total, 0
        self._most = total // LANES_PART + total // SMALL_PART + total // ARRIVING_PART

    def owes(self, taken: int) -> int:
        """Return what it has yet to pay, negative for what it gets back, where so much is taken; it then has paid."""
        more = min(taken, self._most) - self._paid
        self._paid += more
        return more


class Staging:
    """The pinned memory of a device. piece_bytes, small_bytes: of each piece at most.

    small_lock: guards next_small()'s piece. nbytes: what is taken; arriving_bytes: of these, for what is on its way to
    the host.
    """

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self._device, self._bounds = device, (piece_bytes, small_bytes)
        self.piece_bytes, self.small_bytes = self._bounds
        self._lanes = [Lane(self, device) for _ in range(LANES)]
        self.small_lock = threading.Lock()
        self._small = deque(Piece(device, self.took) for _ in range(SMALL_UPLOADS))
        self._lock = threading.Lock()
        self._payers: list[_Payer] = []
        self._idle: list[_Parcel] = []
        self.nbytes = self.arriving_bytes = 0
        self._warned = False
        self._max_arriving: float = np.inf

    def account(self, use: Callable[[int], None], total: int) -> None:
        """See contracts.DeviceRows.account_host. use: a bound method, called for as long as its object is there."""
        with self._lock:
            self._payers = [payer for payer in self._payers if payer.use() is not None]
            if not any(payer.use() == use for payer in self._payers):
                self._payers.append(_Payer(use, total))
            least = min(payer.total for payer in self._payers)
            piece_bytes, small_bytes = self._bounds
            self.piece_bytes = min(piece_bytes, _floor(least // LANES_PART // (2 * LANES)))
            self.small_bytes = min(small_bytes, _floor(least // SMALL_PART // SMALL_UPLOADS))
            self._max_arriving = least // ARRIVING_PART
        self.took(0)

    def took(self, nbytes: int) -> None:
        """Add nbytes, which may be negative, to what is taken, and have each budget pay it, up to its own bounds: what
        larger ones had before it came is theirs.
        """
        with self._lock:
            self.nbytes += nbytes
            owed = [(payer.use(), payer.owes(self.nbytes)) for payer in self._payers]
        for use, more in owed:
            if use is not None and more:
                use(more)

    def warn(self, error: MemoryError) -> None:
        """Log the first time that there is no pinned memory."""
        if not self._warned:
            self._warned = True
            _logger.warning("%s; what crosses to or from the GPU through memory that is not pinned takes longer", error)

    def lane(self) -> Lane:
        """Return a lane, one that nobody uses if possible. Use it under its lock; a thread uses one at a time."""
        return next((lane for lane in self._lanes if not lane.lock.locked()), self._lanes[0])

    def next_small(self) -> Piece:
        """Return the small piece that was used longest ago, once it is in use no longer. REQUIRES: small_lock."""
        self._small.rotate()
        self._small[0].finish()
        return self._small[0]

    # What comes to the host while nobody waits.

    def arriving(self, nbytes: int, stream: int) -> Arriving | None:
        """Return memory for so many bytes, which later work of this stream may write to; None: all is in use."""
        parcel = self._parcel(nbytes)
        if parcel is None:
            return None
        if parcel.event is not None:
            self._device.wait(stream, parcel.event)  # a copy to it was given up, and may not have ended
        return Arriving(self._device, parcel, nbytes, self._idle)

    def _parcel(self, nbytes: int) -> _Parcel | None:
        """Return the smallest idle one for so many bytes, or a new one; None if there may be no more."""
        size, idle = _rounded(nbytes), self._idle
        with self._lock:
            fitting = [parcel for parcel in idle if len(parcel.memory) >= nbytes]
            if fitting:
                parcel = min(fitting, key=lambda parcel: len(parcel.memory))
                idle.remove(parcel)
                return parcel
            dropped = list(idle) if self.arriving_bytes + size > self._max_arriving else []
            for parcel in dropped:
                idle.remove(parcel)
            freed = sum(len(parcel.memory) for parcel in dropped)
            fits = self.arriving_bytes - freed + size <= self._max_arriving
            self.arriving_bytes += size * fits - freed
        for parcel in dropped:
            if parcel.event is not None:
                self._device.finish(parcel.event)
        dropped.clear()
        self.took(size * fits - freed)
        if not fits:
            return None
        try:
            return _Parcel(self._device.pinned(size))
        except MemoryError:
            with self._lock:
                self.arriving_bytes -= size
            self.took(-size)
            return None


class Lane:
    """Two pieces that take turns. Use them under the lock."""

    def __init__(self, staging: Staging, device: Device) -> None:
        self.lock, self._staging = threading.Lock(), staging
        self._pieces = deque(Piece(device, staging.took) for _ in range(2))

    def next(self, nbytes: int) -> tuple[Piece, npt.NDArray[np.uint8]]:
        """Return the piece that was used longest ago, once it is in use no longer, and up to so many of its bytes."""
        self._pieces.rotate()
        piece = self._pieces[0]
        piece.finish()
        size = self._staging.piece_bytes
        return piece, piece.take(min(nbytes, size), size)


class Uses:
    """How often one table has used pieces. Uses end in the order in which they began.

    begun: how many there were; ended: how many of these are known to have ended.
    """

    def __init__(self) -> None:
        self.begun = self.ended = 0


class Piece:
    """Pinned memory that is used time and again. took: called with the bytes by which it grows.

    It is made at once as large as it may be: whoever frees pinned memory waits for all work on the device.
    """

    def __init__(self, device: Device, took: Callable[[int], None]) -> None:
        self._device, self._took = device, took
        self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._event: Any = None
        self._uses, self._use = Uses(), 0  # the last use: the table's, and its number there
        self._begun_on: int | None = None  # a stream with a copy that was begun, and whose end is not recorded yet

    def take(self, nbytes: int, size: int) -> npt.NDArray[np.uint8]:
        """Return so many of its bytes. If it has fewer, it is made anew with `size`. REQUIRES: it is not in use."""
        if len(self._bytes) < nbytes:
            before = len(self._bytes)
            self._bytes = np.empty(0, np.uint8)  # freed before there is more
            self._took(-before)
            self._bytes = self._made(size)
            self._took(size)
        return self._bytes[:nbytes]

    def _made(self, size: int) -> npt.NDArray[np.uint8]:
        """Return pinned memory, or other memory if there is none: a copy may be in the middle of a change of rows."""
        try:
            return self._device.pinned(size)
        except MemoryError as error:
            self._device.staging.warn(error)
            return np.empty(size, np.uint8)

    def upload(self, address: int, part: npt.NDArray[np.uint8], stream: int, uses: Uses) -> None:
        """Begin to copy some of its bytes to the device, on a table's stream. It is in use until the copy has ended."""
        self._begin(stream)
        self._device.upload(address, part, stream)
        self._end(stream, uses)

    def download(self, part: npt.NDArray[np.uint8], address: int, stream: int, uses: Uses) -> None:
        """Begin to copy to some of its bytes from the device; see upload()."""
        self._begin(stream)
        self._device.download(part, address, stream)
        self._end(stream, uses)

    def _begin(self, stream: int) -> None:
        if self._event is None:
            self._event = self._device.event()
        self._begun_on = stream

    def _end(self, stream: int, uses: Uses) -> None:
        self._device.record(self._event, stream)
        uses.begun += 1
        self._uses, self._use, self._begun_on = uses, uses.begun, None

    def finish(self) -> None:
        """Wait until it is in use no longer. All earlier uses by the same table have ended then, too."""
        uses, use = self._uses, self._use
        if self._begun_on is not None:  # a call was interrupted
            self._device.record(self._event, self._begun_on)
            self._device.finish(self._event)
            self._begun_on = None
        elif use > uses.ended:
            self._device.finish(self._event)
            uses.ended = max(uses.ended, use)


class _Parcel:
    """Memory for what is on its way. event: the end of its last use; None: it is not in use."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory, self.event = memory, None


class Arriving:
    """Bytes on their way to a parcel, which is idle again once copied() has returned, or this is deleted.

    Used by one thread at a time.
    """

    def __init__(self, device: Device, parcel: _Parcel, nbytes: int, idle: list[_Parcel]) -> None:
        self._device, self._idle, self._event = device, idle, device.event()
        self._parcel: _Parcel | None = parcel
        self._memory = parcel.memory[:nbytes]

    def begin(self, address: int, stream: int) -> None:
        """Begin to copy them from the device."""
        assert self._parcel is not None
        self._device.download(self._memory, address, stream)
        self._device.record(self._event, stream)
        self._parcel.event = self._event

    def copied(self) -> npt.NDArray[np.uint8]:
        """Wait until they are there, and return a copy. To be called once."""
        assert self._parcel is not None
        self._device.finish(self._event)
        self._parcel.event, found = None, self._memory.copy()
        self._give_back()
        return found

    def _give_back(self) -> None:
        parcel, self._parcel = self._parcel, None
        if parcel is not None:
            self._idle.append(parcel)  # takes no lock, so that it may be done wherever Python collects garbage

    def __del__(self) -> None:
        self._give_back()


def _rounded(nbytes: int) -> int:
    """Return the smallest power of two from this on, at least _MIN_BYTES: few sizes, each of which is used again."""
    return max(_MIN_BYTES, 1 << (nbytes - 1).bit_length())


def _floor(nbytes: int) -> int:
    """Return the largest power of two up to this, at least _MIN_BYTES."""
    return max(_MIN_BYTES, 1 << nbytes.bit_length() - 1 if nbytes else 0)
