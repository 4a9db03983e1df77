"""Tables spread over shards, with the calls and, bit for bit, the results of one store, for any number of shards.

A router maps each key to a shard (router), a transport sends calls to the shards (ray_transport, local), and a shard is
a kvemb.Store (shard). Users hold a Store and Variables of this package, which check arguments as kvemb's do. One
process opens a cluster; other processes connect to it (coordination).

    import kvemb.cluster

    with kvemb.cluster.open("checkpoints", shards=4, memory_budget="1GiB") as store:
        users = store.get_variable("users", dim=32, optimizer=kvemb.optimizers.Adagrad())
"""

from kvemb.cluster.coordination.recovery import Recovery
from kvemb.cluster.durability.checkpointing import Checkpoint
from kvemb.cluster.durability.offline import latest, verify
from kvemb.cluster.durability.resharding import reshard
from kvemb.cluster.durability.restoring import pull_files
from kvemb.cluster.opening import connect, open
from kvemb.cluster.store import Store
from kvemb.cluster.variable import Variable

__all__ = [
    "Checkpoint",
    "Recovery",
    "Store",
    "Variable",
    "connect",
    "latest",
    "open",
    "pull_files",
    "reshard",
    "verify",
]
