"""Whether a client may make calls: it must be open, and not be called from a function that a shard runs."""

from __future__ import annotations

from kvemb.cluster.local import LocalTransport
from kvemb.cluster.transport import Transport
from kvemb.store_state import StoreState


class ClientState(StoreState):
    """The state of a client. shards: the transport to them, once it has joined."""

    shards: Transport | None = None

    def check_here(self) -> None:
        """Raise Closed in a forked process, RuntimeError in a user's function that a shard in this process calls.

        A cut would wait for the shard's call and hold back the call that the function makes: a deadlock.
        """
        super().check_here()
        if isinstance(self.shards, LocalTransport) and self.shards.makes_calls_here():
            raise RuntimeError(
                f"a function that a shard calls, such as a constraint or a policy, called the cluster {self.name}; "
                "such a function may use its arguments and other stores only"
            )

    def _why_forked(self) -> str:
        return (
            f"the cluster {self.name} was opened by process {self.process}, and its clients do not survive a fork; "
            "start workers by spawn, and call kvemb.cluster.connect there, which needs Ray"
        )
