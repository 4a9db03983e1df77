"""DistMult (Yang et al., ICLR 2015) over two variables of a store: entities, and relations.

The score of a triple is the sum of head * relation * tail. A relation has one vector for each direction of a question
("reciprocal relations", Lacroix, Usunier, Obozinski, ICML 2018), side by side in its row. Trained with a softmax of the
right answer against sampled entities shared by the whole batch, and with the N3 regulariser of the same paper. Not
thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import kvemb
from kvemb.tools.demos.ranking import Floats, Ints
from kvemb.tools.demos.triple_files import Graph


@dataclass(frozen=True)
class Tuning:
    """Hyperparameters: dim of an entity, triples and negatives per batch, weight of the N3 term per occurrence."""

    dim: int = 200
    batch: int = 512
    negatives: int = 1000
    learning_rate: float = 0.3
    n3: float = 0.2
    spread: float = 0.1


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


class DistMult:
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
                # Most of a batch are uniform negatives: rows that were just read must stay hot until their update.
                restrict_policy=kvemb.TimestampRestrictPolicy,
                hot_rows=limit,
            )
            for number, (name, dim, limit) in enumerate(
                [("entity", tuning.dim, hot_rows), ("relation", 2 * tuning.dim, None)]
            )
        )

    @property
    def variables(self) -> tuple[kvemb.Variable]:
        """The large one: entities."""
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
        count, dim, n3 = len(batch.triples), self._tuning.dim, np.float32(self._tuning.n3)
        entity_keys = self._entity_keys(batch)
        relation_keys = self._graph.relations[batch.triples[:, 1]]
        rows, relations = self.entities.lookup(entity_keys), self._relations.lookup(relation_keys)
        heads, tails, negatives = rows[:count], rows[count : 2 * count], rows[2 * count :]
        # First the questions for the tail, then those for the head.
        asked = np.concatenate([heads, tails])
        through = np.concatenate([relations[:, :dim], relations[:, dim:]])
        answers = np.concatenate([tails, heads])
        query = asked * through
        excess = self._excess(query, answers, negatives, batch)
        query_grads = excess[:, :1] * answers + excess[:, 1:] @ negatives
        asked_grads = query_grads * through + n3 * np.abs(asked) * asked
        through_grads = query_grads * asked + n3 * np.abs(through) * through
        answer_grads = excess[:, :1] * query + n3 * np.abs(answers) * answers
        grads = np.concatenate([
            asked_grads[:count] + answer_grads[count:],
            asked_grads[count:] + answer_grads[:count],
            excess[:, 1:].T @ query,
        ])  # fmt: skip
        self.entities.apply_gradients(entity_keys, grads)
        self._relations.apply_gradients(relation_keys, np.hstack([through_grads[:count], through_grads[count:]]))
        return len(entity_keys)

    @staticmethod
    def _excess(query: Floats, answers: Floats, negatives: Floats, batch: TripleBatch) -> Floats:
        """Return softmax over (answer, negatives) minus the truth (2b, 1 + k): the gradient of the loss by score."""
        scores = np.hstack([np.einsum("qd,qd->q", query, answers)[:, None], query @ negatives.T])
        truth = np.concatenate([batch.triples[:, 2], batch.triples[:, 0]])
        scores[:, 1:][truth[:, None] == batch.negatives] = -np.inf  # the answer, drawn as its own negative
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[:, 0] -= 1.0
        excess: Floats = scores
        return excess

    def _entity_keys(self, batch: TripleBatch) -> Ints:
        positions = np.concatenate([batch.triples[:, 0], batch.triples[:, 2], batch.negatives])
        keys: Ints = self._graph.entities[positions]
        return keys

    def scorer(self, ask: Ints) -> Callable[[int, int], Floats]:
        """Return the function that scores entities [start, stop) as answers to questions (q, 3): (q, stop - start).

        Changes neither rows nor scores.
        """
        dim = self._tuning.dim
        entities = self.entities.lookup(self._graph.entities[ask[:, 0]], touch=False)
        relations = self._relations.lookup(self._graph.relations[ask[:, 1]], touch=False)
        through = np.where(ask[:, 2:] == 0, relations[:, :dim], relations[:, dim:])
        query = entities * through

        def score(start: int, stop: int) -> Floats:
            candidates = self.entities.lookup(self._graph.entities[start:stop], touch=False)
            scores: Floats = query @ candidates.T
            return scores

        return score
