"""Keras 3 layers over variables of a store: Embedding, EmbeddingBag, DistributedEmbedding, and their callbacks.

    import kvemb.keras as kk

    words = kk.EmbeddingBag("words", 16, combiner="mean", optimizer=kvemb.optimizers.Adagrad(0.05))

The layers work with TensorFlow, PyTorch and JAX, under `model.fit`, without a `train_step` of one's own. A backward
pass takes one step of the variable's own optimizer on the rows that were used; the optimizer of `model.compile` trains
the dense part. Needs Keras 3: pip install 'kvemb[keras]', and its backend. Importing kvemb does not import it.
"""

from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install

try:
    from kvemb.keras.anchors import take_step
    from kvemb.keras.checkpoint import Checkpoint
    from kvemb.keras.distributed import DistributedEmbedding
    from kvemb.keras.embedding import Embedding
    from kvemb.keras.embedding_bag import EmbeddingBag
    from kvemb.keras.field_wise import FieldWiseEmbedding
    from kvemb.keras.keys import split_keys
    from kvemb.keras.learning_rate import LearningRate
    from kvemb.keras.prefetching import prefetching
    from kvemb.keras.raised import cause_of
    from kvemb.keras.rows_state import dense_only
    from kvemb.keras.servable import export
except ImportError as error:
    if error.name not in ("keras", "tensorflow", "jax", "torch"):
        raise
    install = pip_install("keras") if error.name == "keras" else f"pip install {error.name}, or set KERAS_BACKEND"
    raise BackendUnavailable(f"kvemb.keras needs {error.name}; install it: {install}") from error

__all__ = [
    "Checkpoint",
    "DistributedEmbedding",
    "Embedding",
    "EmbeddingBag",
    "FieldWiseEmbedding",
    "LearningRate",
    "cause_of",
    "dense_only",
    "export",
    "prefetching",
    "split_keys",
    "take_step",
]
