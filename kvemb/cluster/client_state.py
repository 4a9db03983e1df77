"""Whether a client may make calls: it is open, and this is not a call of a shard, which its own call could wait for."""

from __future__ import annotations

from collections.abc import Callable

from kvemb.cluster.local import LocalTransport
from kvemb.cluster.transport import Transport
from kvemb.store_state import StoreState


class ClientState(StoreState):
    """The state of a client. shards(): the way to the shards."""

    def __init__(self, name: str, shards: Callable[[], Transport]) -> None:
        super().__init__(name)
        self._shards = shards

    def check_here(self) -> None:
        """Raise Closed in a forked process, RuntimeError in a function of a user that a shard in this process calls.

        A cut waits for the shard's call, and holds back the one that the function makes, so both would wait for ever.
        """
        super().check_here()
        shards = self._shards()
        if isinstance(shards, LocalTransport) and shards.makes_calls_here():
            raise RuntimeError(
                f"a function that a shard calls, such as a constraint or a policy, called the cluster {self.name} "
                "itself; let it use its arguments alone, or another store"
            )
