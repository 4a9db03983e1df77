"""A message as bytes: a header with the lengths, a pickle, then the value's arrays, each aligned to ALIGN bytes.

Arrays are copied once, to where the message is written. A reader's arrays are views of the bytes that it was given.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGN = 64
Bytes = npt.NDArray[np.uint8]


class Message:
    """A value to be sent. nbytes: of the message. The value's arrays must not change before it is written.

    dumps: as pickle.dumps, for values that pickle.dumps refuses.
    """

    def __init__(self, value: Any, dumps: Callable[..., bytes] = pickle.dumps) -> None:
        try:
            self._dump(value, pickle.dumps)
        except (pickle.PicklingError, AttributeError, TypeError):
            self._dump(value, dumps)
        lengths = [len(self._pickled), *(raw.nbytes for raw in self._raw)]
        self._header = np.array([len(self._raw), *lengths], np.int64)
        self._places, self.nbytes = _places(lengths)

    def _dump(self, value: Any, dumps: Callable[..., bytes]) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = dumps(value, protocol=5, buffer_callback=buffers.append)
        self._raw = [buffer.raw() for buffer in buffers]

    def write(self, to: Bytes) -> None:
        """Write the message to the beginning of `to`."""
        into = to.data  # whose parts are set in a fraction of the time that an array's take
        parts = [self._header.data.cast("B"), memoryview(self._pickled), *self._raw]
        for at, part in zip([0, *self._places], parts, strict=True):
            into[at : at + len(part)] = part


def read(message: Bytes) -> Any:
    """Return the value of a message. Its arrays are views of the message, and writable if that is."""
    count = int(message[:8].view(np.int64)[0])
    lengths = message[8 : 16 + 8 * count].view(np.int64).tolist()
    places, _ = _places(lengths)
    pickled, *raw = [message.data[at : at + length] for at, length in zip(places, lengths, strict=True)]
    return pickle.loads(pickled, buffers=raw)


def _places(lengths: list[int]) -> tuple[list[int], int]:
    """Return where the pickle and each array begin, and the end of the message."""
    places, at = [], 8 * (len(lengths) + 1)
    for length in lengths:
        at += -at % ALIGN
        places.append(at)
        at += length
    return places, at
