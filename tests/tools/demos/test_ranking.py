"""Filtered ranks against a computation one question at a time, ties, and models that are not models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvemb.tools.demos.ranking import Filter, Floats, Ints, filtered_ranks, questions_of, summarise

ENTITIES, RELATIONS = 23, 3


def made_up(seed: int, levels: int) -> tuple[Ints, Floats]:
    """Triples, and scores[direction, relation, asked, answer]; few levels make many ties."""
    chance = np.random.default_rng(seed)
    heads, tails = chance.integers(0, ENTITIES, (2, 60))
    triples = np.unique(np.stack([heads, chance.integers(0, RELATIONS, 60), tails], 1), axis=0)
    return triples, chance.integers(0, levels, (2, RELATIONS, ENTITIES, ENTITIES)).astype(np.float32)


def rank_one_by_one(triples: Ints, of: Ints, scores: Floats) -> list[float]:
    known = {tuple(triple) for triple in triples.tolist()}
    ranks = []
    for direction in (0, 1):
        for head, relation, tail in of.tolist():
            asked, answer = (head, tail) if direction == 0 else (tail, head)
            row = scores[direction, relation, asked]
            rivals = [
                row[other]
                for other in range(ENTITIES)
                if ((head, relation, other) if direction == 0 else (other, relation, tail)) not in known
            ]
            better, same = sum(s > row[answer] for s in rivals), sum(s == row[answer] for s in rivals)
            ranks.append(1 + better + same / 2)
    return ranks


@pytest.mark.parametrize("levels", [2, 5, 10_000])
@pytest.mark.parametrize("at_once", [(1, 1), (7, 5), (4096, 2048)])
def test_ranks_equal_those_found_one_by_one(levels: int, at_once: tuple[int, int]) -> None:
    triples, scores = made_up(seed=levels, levels=levels)
    part = triples[::3]

    def scorer(ask: Ints) -> Callable[[int, int], Floats]:
        return lambda start, stop: scores[ask[:, 2], ask[:, 1], ask[:, 0], start:stop]

    sizes = {"entities_at_once": at_once[0], "questions_at_once": at_once[1]}
    found = filtered_ranks(questions_of(part), ENTITIES, Filter(triples, RELATIONS), scorer, **sizes)
    assert found.tolist() == rank_one_by_one(triples, part, scores)


@pytest.mark.parametrize(("score", "rank"), [(0.0, 51.0), (np.nan, 102.0)])
def test_a_model_that_scores_all_alike_ranks_in_the_middle_and_one_of_nan_last(score: float, rank: float) -> None:
    triples = np.array([[0, 0, 1]])
    alike = lambda ask: lambda start, stop: np.full((len(ask), stop - start), score, np.float32)  # noqa: E731
    ranks = filtered_ranks(questions_of(triples), 101, Filter(triples, 1), alike)
    assert ranks.tolist() == [rank, rank]


def test_the_summary_of_ranks() -> None:
    found = summarise(np.array([1.0, 2.0, 4.0, 20.0]))
    assert found.mrr == pytest.approx((1 + 0.5 + 0.25 + 0.05) / 4)
    assert (found.hits_at_1, found.hits_at_3, found.hits_at_10) == (0.25, 0.5, 0.75)
    assert np.isnan(summarise(np.empty(0))).all()
