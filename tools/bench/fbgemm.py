"""FBGEMM's table-batched embeddings on the CPU, a peer of `kvemb bench torch`: one table, fused row-wise Adagrad."""

from __future__ import annotations

from typing import Any

from kvemb.tools.bench.data import Floats, Ids
from kvemb.tools.bench.train import EPSILON, LEARNING_RATE


class FbgemmTable:
    """The same rows and steps in FBGEMM (SplitTableBatchedEmbeddingBagsCodegen), trained in the backward.

    start (rows, dim): the first rows, copied; pull (dim,): see train.train_step. Raises ImportError, and OSError if
    FBGEMM was built for another PyTorch.
    """

    def __init__(self, torch: Any, start: Floats, pull: Floats) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self._torch, self._pull = torch, torch.from_numpy(pull)
        self._table = SplitTableBatchedEmbeddingBagsCodegen(
            [(*start.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
        )
        self._table.split_embedding_weights()[0].copy_(torch.from_numpy(start))

    def train(self, positions: Ids) -> None:
        """Take one step on the rows at these positions."""
        values = self._table(self._torch.from_numpy(positions), self._torch.arange(len(positions) + 1))
        values.backward(values.detach() - self._pull)
