"""DistMult (Yang et al., ICLR 2015) and ComplEx (Trouillon et al., ICML 2016) over two variables of a store.

The score of a triple is the sum of head * relation * conj(tail): in DistMult of real numbers, in ComplEx the real part
of a sum of complex numbers, where a row is d/2 pairs of real and imaginary part. A relation has one vector for each
direction of a question ("reciprocal relations", Lacroix, Usunier, Obozinski, ICML 2018), side by side in its row.
Trained with a softmax of the right answer against sampled entities shared by the whole batch, and with the N3
regulariser of the same paper. ln((entities - 1) / sampled) is added to the scores of the sampled entities, so that the
loss estimates that of the softmax over all entities. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

import kvemb
from kvemb.tools.demos.ranking import Floats, Ints
from kvemb.tools.demos.triple_files import Graph


@dataclass(frozen=True)
class Tuning:
    """Hyperparameters: dim of an entity in float32, triples and negatives per batch, weight of the N3 term (its
    gradient by an occurrence x is n3 |x| x), standard deviation of new rows, passes over the triples.

    numbers: what a row is read as: np.float32 (DistMult) or np.complex64 (ComplEx).
    """

    numbers: type[np.float32] | type[np.complex64]
    dim: int
    batch: int
    negatives: int
    learning_rate: float
    n3: float
    spread: float
    epochs: int

    def __post_init__(self) -> None:
        if self.numbers is np.complex64 and self.dim % 2:
            raise ValueError(f"dim of ComplEx must be even, two for each complex number; got {self.dim}")

    def product(self, x: Floats, y: Floats) -> Floats:
        """Return x * y, rows of numbers."""
        product: Floats = (x.view(self.numbers) * y.view(self.numbers)).view(np.float32)
        return product

    def slope(self, grads: Floats, y: Floats) -> Floats:
        """Return grads * conj(y): the gradient by x, when grads is that by product(x, y)."""
        slope: Floats = (grads.view(self.numbers) * np.conj(y.view(self.numbers))).view(np.float32)
        return slope

    def shrinking(self, x: Floats) -> Floats:
        """Return the gradient of the N3 term by rows x."""
        numbers = x.view(self.numbers)
        shrinking: Floats = (np.float32(self.n3) * np.abs(numbers) * numbers).view(np.float32)
        return shrinking


_DISTMULT = Tuning(np.float32, 200, 512, 4096, learning_rate=0.3, n3=0.3, spread=1e-2, epochs=15)
TUNINGS = {"distmult": _DISTMULT, "complex": replace(_DISTMULT, numbers=np.complex64, spread=1e-3)}


class TripleBatch(NamedTuple):
    """Positions of triples (b, 3) and of negative entities (k,) in the graph's arrays."""

    triples: Ints
    negatives: Ints


def batches(graph: Graph, tuning: Tuning, chance: np.random.Generator) -> Iterator[TripleBatch]:
    """Yield one pass over the training triples, shuffled, with fresh negatives."""
    shuffled = chance.permutation(graph.train)
    for start in range(0, len(shuffled), tuning.batch):
        negatives = chance.integers(0, len(graph.entities), tuning.negatives)
        yield TripleBatch(shuffled[start : start + tuning.batch], negatives)


class Bilinear:
    """The model. All parameters are in `store`, so a checkpoint of the store is one of the model."""

    def __init__(self, store: kvemb.Store, graph: Graph, tuning: Tuning, hot_rows: int | None, seed: int) -> None:
        adagrad = kvemb.optimizers.Adagrad(tuning.learning_rate)
        self._graph, self._tuning = graph, tuning
        self.entities, self._relations = (
            store.get_variable(
                name,
                dim=dim,
                initializer=kvemb.RandomNormal(0.0, tuning.spread, seed=seed + number),
                optimizer=adagrad,
                # Most keys of a batch are uniform negatives: rows that were just read must stay hot until their update.
                restrict_policy=kvemb.TimestampRestrictPolicy,
                hot_rows=limit,
            )
            for number, (name, dim, limit) in enumerate(
                [("entity", tuning.dim, hot_rows), ("relation", 2 * tuning.dim, None)]
            )
        )

    @property
    def variables(self) -> tuple[kvemb.Variable]:
        """The large variable: entities."""
        return (self.entities,)

    @property
    def row_bytes(self) -> int:
        """Bytes of an entity's float32 row with its Adagrad slot."""
        return 2 * 4 * self._tuning.dim

    def prefetch(self, batch: TripleBatch) -> None:
        """Start reading the rows that training on the batch will need."""
        self.entities.prefetch(self._entity_keys(batch))

    def train(self, batch: TripleBatch) -> int:
        """Take one Adagrad step on the summed loss of both questions of every triple; returns the number of rows."""
        count, dim, tuning = len(batch.triples), self._tuning.dim, self._tuning
        entity_keys = self._entity_keys(batch)
        relation_keys = self._graph.relations[batch.triples[:, 1]]
        rows, relations = self.entities.lookup(entity_keys), self._relations.lookup(relation_keys)
        heads, tails, negatives = rows[:count], rows[count : 2 * count], rows[2 * count :]
        # First the questions for the tail, then those for the head.
        asked = np.concatenate([heads, tails])
        through = np.concatenate([relations[:, :dim], relations[:, dim:]])
        answers = np.concatenate([tails, heads])
        query = tuning.product(asked, through)
        excess, others = self._excess(query, answers, negatives, batch)
        query_grads = excess * answers + others @ negatives
        asked_grads = tuning.slope(query_grads, through) + tuning.shrinking(asked)
        through_grads = tuning.slope(query_grads, asked) + tuning.shrinking(through)
        answer_grads = excess * query + tuning.shrinking(answers)
        grads = np.concatenate([
            asked_grads[:count] + answer_grads[count:],
            asked_grads[count:] + answer_grads[:count],
            others.T @ query,
        ])  # fmt: skip
        self.entities.apply_gradients(entity_keys, grads)
        self._relations.apply_gradients(relation_keys, np.hstack([through_grads[:count], through_grads[count:]]))
        return len(entity_keys)

    def _excess(self, query: Floats, answers: Floats, negatives: Floats, batch: TripleBatch) -> tuple[Floats, Floats]:
        """Return softmax over (answer, negatives) minus the truth, which is the gradient of the loss by score: for the
        answer (2b, 1), and for the negatives (2b, k).
        """
        others: Floats = query @ negatives.T
        others += np.float32(np.log((len(self._graph.entities) - 1) / len(batch.negatives)))
        truth = np.concatenate([batch.triples[:, 2], batch.triples[:, 0]])
        others[truth[:, None] == batch.negatives] = -np.inf  # the answer was drawn as a negative
        answer: Floats = np.einsum("qd,qd->q", query, answers)[:, None]
        highest = np.maximum(answer, others.max(axis=1, keepdims=True))
        np.exp(others - highest, out=others)
        answer = np.exp(answer - highest)
        total = answer + others.sum(axis=1, keepdims=True)
        others /= total
        return answer / total - np.float32(1), others

    def _entity_keys(self, batch: TripleBatch) -> Ints:
        positions = np.concatenate([batch.triples[:, 0], batch.triples[:, 2], batch.negatives])
        keys: Ints = self._graph.entities[positions]
        return keys

    def scorer(self, ask: Ints) -> Callable[[int, int], Floats]:
        """Return a function of start and stop: the scores (q, stop - start) of these entities as answers to questions
        (q, 3).

        Changes neither rows nor scores.
        """
        dim = self._tuning.dim
        entities = self.entities.lookup(self._graph.entities[ask[:, 0]], touch=False)
        relations = self._relations.lookup(self._graph.relations[ask[:, 1]], touch=False)
        query = self._tuning.product(entities, np.where(ask[:, 2:] == 0, relations[:, :dim], relations[:, dim:]))

        def score(start: int, stop: int) -> Floats:
            candidates = self.entities.lookup(self._graph.entities[start:stop], touch=False)
            scores: Floats = query @ candidates.T
            return scores

        return score
