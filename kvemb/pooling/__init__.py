"""Lookups of single keys, and of bags of keys whose rows are summed or averaged, with the gradients of both.

The functions are public and have TensorFlow's names; bags are given as for PyTorch's EmbeddingBag.
"""

from kvemb.pooling.embeddings import Embeddings
from kvemb.pooling.functions import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
)

__all__ = [
    "Embeddings",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "safe_embedding_lookup_sparse",
]
