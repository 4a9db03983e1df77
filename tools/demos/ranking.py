"""Filtered ranks of the right answers among all entities, and the usual metrics of them.

A question is (entity, relation, direction): which entity completes the triple? Other known answers are left out
("filtered", Bordes et al., NIPS 2013). An answer's rank among entities of equal score is the mean of the best and the
worst rank, so that a model that gives all entities the same score is not perfect (Sun et al., ACL 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
# Takes questions (q, 3); returns a function (first entity, one past the last) -> scores (q, entities), a new array.
# Equal embeddings must get equal scores.
Scorer = Callable[[Ints], Callable[[int, int], Floats]]

ENTITIES_AT_ONCE = 2048
QUESTIONS_AT_ONCE = 2048


class Ranking(NamedTuple):
    """Mean reciprocal rank, and the shares of answers ranked in the first 1, 3 and 10."""

    mrr: float
    hits_at_1: float
    hits_at_3: float
    hits_at_10: float


class Questions(NamedTuple):
    """ask (q, 3): positions of entity and relation, and direction: 0 asks for the tail, 1 for the head. answers (q,):
    positions of entities.
    """

    ask: Ints
    answers: Ints


def questions_of(triples: Ints) -> Questions:
    """Return the 2 n questions of triples (n, 3), those for the tail first."""
    heads, relations, tails = triples.T
    zeros = np.zeros(len(triples), np.int64)
    ask = np.concatenate([np.stack([heads, relations, zeros], 1), np.stack([tails, relations, zeros + 1], 1)])
    return Questions(ask, np.concatenate([tails, heads]))


class Filter:
    """All known answers to every question, found by binary search."""

    def __init__(self, known: Ints, relations: int) -> None:
        """known: all triples (n, 3) of all splits. relations: how many there are."""
        self._relations = relations
        questions = questions_of(known)
        codes = self._codes(questions.ask)
        order = np.argsort(codes, kind="stable")
        self._sorted, self._answers = codes[order], questions.answers[order]

    def _codes(self, ask: Ints) -> Ints:
        codes: Ints = (ask[:, 0] * self._relations + ask[:, 1]) * 2 + ask[:, 2]
        return codes

    def pairs(self, ask: Ints) -> tuple[Ints, Ints]:
        """Return (row of ask, entity) of every known answer, ordered by entity."""
        codes = self._codes(ask)
        first, last = np.searchsorted(self._sorted, codes, "left"), np.searchsorted(self._sorted, codes, "right")
        counts = last - first
        rows = np.repeat(np.arange(len(ask)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        entities = self._answers[np.repeat(first, counts) + within]
        order = np.argsort(entities, kind="stable")
        return rows[order], entities[order]


def filtered_ranks(
    questions: Questions,
    entities: int,
    known: Filter,
    scorer: Scorer,
    *,
    entities_at_once: int = ENTITIES_AT_ONCE,
    questions_at_once: int = QUESTIONS_AT_ONCE,
) -> npt.NDArray[np.float64]:
    """Return the rank of each answer (q,), from 1; half-integers are possible if scores tie.

    entities: their number. Scores are computed in blocks, so memory does not grow with questions or entities.
    """
    ranks = np.empty(len(questions.ask))
    blocks = [(at, min(at + entities_at_once, entities)) for at in range(0, entities, entities_at_once)]
    for at in range(0, len(ranks), questions_at_once):
        some = slice(at, at + questions_at_once)
        ranks[some] = _ranks_of(Questions(questions.ask[some], questions.answers[some]), blocks, known, scorer)
    return ranks


def _ranks_of(
    questions: Questions, blocks: list[tuple[int, int]], known: Filter, scorer: Scorer
) -> npt.NDArray[np.float64]:
    ask, answers = questions
    score = scorer(ask)
    wanted = np.empty(len(ask), np.float32)
    # The answer's score is taken from the same products as the others': computed separately, rounding could break ties.
    for start, stop in blocks:
        here = np.flatnonzero((answers >= start) & (answers < stop))
        wanted[here] = score(start, stop)[here, answers[here] - start]
    rows, known_entities = known.pairs(ask)
    above, equal = np.zeros(len(ask)), np.zeros(len(ask))
    for start, stop in blocks:
        scores = score(start, stop)
        low, high = np.searchsorted(known_entities, [start, stop])
        # This excludes the answer too, because it is a known one.
        scores[rows[low:high], known_entities[low:high] - start] = -np.inf
        # Not `scores > wanted`: NaN, from a model that diverged, must rank last and not first.
        above += (~(scores <= wanted[:, None])).sum(axis=1)
        equal += (scores == wanted[:, None]).sum(axis=1)
    return 1.0 + above + equal / 2.0


def summarise(ranks: npt.NDArray[np.float64]) -> Ranking:
    """Return the usual metrics of ranks (q,); all NaN if there are none."""
    if not len(ranks):
        return Ranking(*[float("nan")] * 4)
    return Ranking(float((1.0 / ranks).mean()), *(float((ranks <= most).mean()) for most in (1, 3, 10)))
