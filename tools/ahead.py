"""Reading ahead: what comes next is made ready on another thread while what came is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def ahead(source: Iterator[T], depth: int = 1) -> Iterator[T]:
    """Yield what source yields, at most `depth` ahead of whoever asks. Raises what source raises."""
    ready: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()

    def give(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        failure: BaseException | None = None
        try:
            for item in source:
                if not give(item):
                    return
        except BaseException as error:
            failure = error
        give((_END, failure))

    thread = threading.Thread(target=read, name="kvemb-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, tuple) and len(item) == 2 and item[0] is _END:
                if item[1] is not None:
                    raise item[1]
                return
            yield item
    finally:
        stopped.set()
        thread.join()
