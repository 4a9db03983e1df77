"""Messages as Arrow Flight's streams have them: record batches of one column of bytes, of at most PART_BYTES each.

The first part of a message says in its metadata how many bytes the message has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kvemb.cluster.data_plane.encoding import Bytes, Message

PART_BYTES = 4 << 20
MAX_BYTES = 1 << 40
TOKEN = "kvemb-token"
SCHEME = "grpc://"  # of addresses


@cache
def schema() -> Any:
    """Return the streams' schema."""
    import pyarrow

    return pyarrow.schema([("bytes", pyarrow.uint8())])


def send(writer: Any, message: Message) -> None:
    """Write a message to a stream. Raises what pyarrow raises."""
    import pyarrow

    whole = np.empty(message.nbytes, np.uint8)
    message.write(whole)
    for at in range(0, len(whole), PART_BYTES):
        part = whole[at : at + PART_BYTES]
        column = pyarrow.Array.from_buffers(pyarrow.uint8(), len(part), [None, pyarrow.py_buffer(part)])
        batch = pyarrow.RecordBatch.from_arrays([column], schema=schema())
        if at == 0:
            writer.write_with_metadata(batch, pyarrow.py_buffer(np.int64(len(whole)).tobytes()))
        else:
            writer.write_batch(batch)


def receive(reader: Any) -> Bytes:
    """Wait for a message from a stream. Raises StopIteration at its end, ValueError, and what pyarrow raises."""
    first = reader.read_chunk()
    nbytes = int.from_bytes(first.app_metadata.to_pybytes(), "little") if first.app_metadata is not None else -1
    if not 0 < nbytes <= MAX_BYTES:
        raise ValueError(f"the first part of a message has no length, or one of {nbytes}")
    whole, at, part = np.empty(nbytes, np.uint8), 0, first.data
    while True:
        if not 0 < len(part) <= nbytes - at:
            raise ValueError(f"a message of {nbytes} bytes has a part of {len(part)} after {at}")
        whole[at : at + len(part)] = part.column(0).to_numpy()
        at += len(part)
        if at == nbytes:
            return whole
        part = reader.read_chunk().data
