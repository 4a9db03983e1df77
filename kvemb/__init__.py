"""kvemb: embedding tables larger than memory, on disk and crash-safe.

Hot rows are in a hash table in memory or on a GPU, cold rows in RocksDB. Open a store, get a variable, look rows up and
train them:

Example:
    >>> with kvemb.open("my_store") as my_store:
    ...     words = kvemb.get_variable("words", dim=32, optimizer=kvemb.optimizers.Adagrad())
    ...     rows = words.lookup([17, 42])
    ...     words.apply_gradients([17, 42], rows - 1)
    >>> rows.shape
    (2, 32)
"""

import kvemb.pickling  # noqa: F401 -- registers how stores and variables are pickled
from kvemb import bulk, errors, initializers, optimizers
from kvemb.default_store import default_store, get_collection, get_variable, temporary
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.delta import Change
from kvemb.durability.marks.mark import Mark
from kvemb.errors import KvembError
from kvemb.initializers import (
    Constant,
    GlorotUniform,
    Initializer,
    Ones,
    RandomNormal,
    RandomUniform,
    TruncatedNormal,
    Zeros,
)
from kvemb.installed import source_tree
from kvemb.offline.pushing import Transfer
from kvemb.offline.restoring import restore
from kvemb.offline.salvage import Repair, Saved, repair
from kvemb.offline.series import CheckpointManager
from kvemb.offline.serving import ServedModel
from kvemb.offline.verification import Verification, verify
from kvemb.opening import open
from kvemb.options import MemoryCreator, RocksDBCreator
from kvemb.pooling import (
    Embeddings,
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
)
from kvemb.restrict import (
    Admission,
    EpochFrequencyRestrictPolicy,
    EpochTimestampRestrictPolicy,
    FrequencyRestrictPolicy,
    NormRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
    TimeToLiveRestrictPolicy,
)
from kvemb.rows.names import StringKeys, string_keys
from kvemb.rows.words import hash_strings
from kvemb.stats import Stats
from kvemb.store import GraphKeys, Store
from kvemb.variable import Variable
from kvemb.variable_scope import AUTO_REUSE, VariableScope, get_variable_scope, variable_scope
from kvemb.version import VERSION

__version__ = VERSION
__path__ += source_tree(__path__[0])  # of backends and tools

__all__ = [
    "AUTO_REUSE",
    "Admission",
    "Change",
    "Checkpoint",
    "CheckpointManager",
    "Constant",
    "Embeddings",
    "EpochFrequencyRestrictPolicy",
    "EpochTimestampRestrictPolicy",
    "FrequencyRestrictPolicy",
    "GlorotUniform",
    "GraphKeys",
    "Initializer",
    "KvembError",
    "Mark",
    "MemoryCreator",
    "NormRestrictPolicy",
    "Ones",
    "PendingCheckpoint",
    "RandomNormal",
    "RandomUniform",
    "Repair",
    "RestrictPolicy",
    "RocksDBCreator",
    "Saved",
    "ServedModel",
    "Stats",
    "Store",
    "StringKeys",
    "TimeToLiveRestrictPolicy",
    "TimestampRestrictPolicy",
    "Transfer",
    "TruncatedNormal",
    "Variable",
    "VariableScope",
    "Verification",
    "Zeros",
    "bulk",
    "default_store",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "errors",
    "get_collection",
    "get_variable",
    "get_variable_scope",
    "hash_strings",
    "initializers",
    "open",
    "optimizers",
    "repair",
    "restore",
    "safe_embedding_lookup_sparse",
    "string_keys",
    "temporary",
    "variable_scope",
    "verify",
]


def __dir__() -> list[str]:
    """The public names; the modules they come from stay importable."""
    return [*__all__, "__all__", "__doc__", "__version__"]
