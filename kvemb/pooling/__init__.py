"""Lookups of bags of keys, whose rows are summed or averaged, and of single keys; and the way back for their gradients.

The names are TensorFlow's; bags are given as PyTorch's EmbeddingBag takes them. The functions here are public.
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
