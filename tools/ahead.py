"""Reading ahead: another thread produces the next items of an iterator while the caller uses the current one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def ahead(source: Iterator[T]) -> Iterator[T]:
    """Yield what source yields; a thread reads one item ahead. Raises what source raises."""
    # Ctrl-C may leave the lock of a Queue taken, but not that of a SimpleQueue.
    ready: SimpleQueue[Any] = SimpleQueue()
    room: SimpleQueue[bool] = SimpleQueue()  # True: one more item may wait; False: stop

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
        room.put(False)
        room.put(False)  # for the item after the one that may still wait
        thread.join()
