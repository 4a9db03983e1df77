"""PyTorch modules over variables of a store: Embedding, EmbeddingBag, EmbeddingBagCollection, and their optimizer.

    import kvemb.torch as kt

    words = kt.EmbeddingBag("words", dim=16, mode="mean", store=store, optimizer=kvemb.optimizers.Adagrad(0.05))
    optimizer = kt.Optimizer(model)

A forward pass looks up the rows of the batch, a backward pass collects their gradients, and Optimizer.step() takes one
step of each variable's own optimizer on the rows that were used. Rows are not parameters: `model.parameters()` has only
the dense part, for torch.optim. Needs PyTorch: pip install 'kvemb[torch]'. Importing kvemb does not import it.
"""

from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install

try:
    from kvemb.torch.collection import EmbeddingBagCollection
    from kvemb.torch.embedding import Embedding
    from kvemb.torch.embedding_bag import EmbeddingBag
    from kvemb.torch.launching import distributed
    from kvemb.torch.module import ignore_clipping
    from kvemb.torch.optimizer import Optimizer
    from kvemb.torch.prefetching import prefetching
except ImportError as error:
    if error.name != "torch":
        raise
    raise BackendUnavailable(f"kvemb.torch needs PyTorch; install it: {pip_install('torch')}") from error

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Optimizer",
    "distributed",
    "ignore_clipping",
    "prefetching",
]
