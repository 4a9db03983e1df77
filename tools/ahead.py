"""Reading ahead: what comes next is made ready on another thread while what came is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def ahead(source: Iterator[T], depth: int = 1) -> Iterator[T]:
    """Yield what source yields, at most `depth` ahead of whoever asks. Raises what source raises."""
    # Ctrl-C leaves no lock of a SimpleQueue taken, as it may one of a Queue.
    ready: SimpleQueue[Any] = SimpleQueue()
    room: SimpleQueue[bool] = SimpleQueue()  # True: for one more; False: stop

    def read() -> None:
        failure: BaseException | None = None
        try:
            for item in source:
                if not room.get():
                    return
                ready.put(item)
        except BaseException as error:
            failure = error
        ready.put((_END, failure))

    for _ in range(depth):
        room.put(True)
    thread = threading.Thread(target=read, name="kvemb-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, tuple) and len(item) == 2 and item[0] is _END:
                if item[1] is not None:
                    raise item[1]
                return
            room.put(True)
            yield item
    finally:
        for _ in range(depth + 1):
            room.put(False)
        thread.join()
