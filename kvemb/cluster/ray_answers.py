"""Answers of Ray's actors to calls, fetched by the thread that asks for them, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kvemb.cluster.transport import GateClosed, ShardFailed, Unanswered
from kvemb.errors import KvembError

# The meaning of Ray's errors, by the names of their classes. Ray's own text has a paragraph.
_MEANINGS = {
    "ActorDiedError": "its process has ended",
    "ActorUnavailableError": "its process cannot be reached",
    "ObjectLostError": "an argument or the result was lost with a process or a node",
    "LocalRayletDiedError": "Ray has ended on this node",
}


class Answer(Future[Any]):
    """The answer to a call, fetched by the thread that asks for it, so that no thread of Ray has to wake it.

    concurrent.futures.wait() does not work with it.
    """

    def __init__(self, ray: Any, ref: Any) -> None:
        super().__init__()
        self._ray, self._ref = ray, ref
        self._arrived: Future[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        try:
            if self._arrived is not None:
                return self._arrived.result()
            return self._ray.get(self._ref, timeout=timeout)
        except self._ray.exceptions.GetTimeoutError:
            raise
        except Exception as error:
            found = cause_of(error)
            raise found from found.__cause__

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result(timeout)
        except self._ray.exceptions.GetTimeoutError:
            raise
        except Exception as error:
            return error
        return None

    def done(self) -> bool:
        return self._arrived is not None or bool(self._ray.wait([self._ref], timeout=0)[0])

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:

        def arrived(future: Future[Any]) -> None:
            self._arrived = future  # this is Ray's thread, which must not wait for the answer that it fetches
            fn(self)

        self._ref.future().add_done_callback(arrived)


def cause_of(error: BaseException) -> BaseException:
    """Return the exception that a shard raised, or Unanswered, whose __cause__ is the error, if Ray lost the call."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return cause
    if isinstance(error, (KvembError, ShardFailed, GateClosed, Unanswered)):
        return error
    names = [kind.__name__ for kind in type(error).__mro__]
    meaning = next((_MEANINGS[name] for name in names if name in _MEANINGS), f"Ray raised {names[0]}")
    found = Unanswered(meaning)
    found.__cause__ = error
    return found
