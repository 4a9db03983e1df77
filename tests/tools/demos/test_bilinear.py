"""DistMult and ComplEx on a store: gradients, that the hot tier changes nothing, and that they learn real triples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.demos.bilinear import TUNINGS, Bilinear, TripleBatch, Tuning, batches
from kvemb.tools.demos.triple_files import Graph

SMALL = {
    model: replace(tuning, dim=4, batch=8, negatives=6, learning_rate=1.0, n3=0.1, spread=0.5)
    for model, tuning in TUNINGS.items()
}
both_models = pytest.mark.parametrize("model", list(TUNINGS))


def made_up(entities: int, triples: int) -> Graph:
    chance = np.random.default_rng(0)
    found = np.stack([chance.integers(0, top, triples) for top in (entities, 3, entities)], 1)
    parts = (found[: triples // 2], found[triples // 2 : -8], found[-8:])
    return Graph(np.arange(entities) * 7919 - 50, np.array([5, 6, 7]), *parts)


def loss_of(rows: np.ndarray, relations: np.ndarray, batch: TripleBatch, tuning: Tuning) -> float:
    """The loss as its definition says, one question at a time, in double precision."""
    dim, total = rows.shape[1], 0.0
    correction = np.log((len(rows) - 1) / len(batch.negatives))
    numbers = np.complex128 if tuning.numbers is np.complex64 else np.float64

    def vector(row: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(row).view(numbers)

    for head, relation, tail in batch.triples:
        for asked, answer, columns in ((head, tail, slice(0, dim)), (tail, head, slice(dim, 2 * dim))):
            parts = vector(rows[asked]), vector(relations[relation, columns]), vector(rows[answer])
            query = parts[0] * parts[1]
            rivals = [
                (query @ vector(rows[other]).conj()).real + correction for other in batch.negatives if other != answer
            ]
            scores = np.array([(query @ parts[2].conj()).real, *rivals])
            total += np.log(np.exp(scores).sum()) - scores[0]
            total += sum(tuning.n3 / 3 * (np.abs(part) ** 3).sum() for part in parts)
    return float(total)


@both_models
def test_a_step_follows_the_slope_of_the_loss(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tuning = made_up(entities=10, triples=40), SMALL[model]
    # SGD takes a step proportional to the gradient, so the step shows it.
    monkeypatch.setattr(kvemb.optimizers, "Adagrad", kvemb.optimizers.SGD)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        trained = Bilinear(store, graph, tuning, None, seed=0)
        names = [store.variables[name] for name in ("entity", "relation")]
        before = [v.lookup(k).astype(np.float64) for v, k in zip(names, (graph.entities, graph.relations), strict=True)]
        batch = next(batches(graph, tuning, np.random.default_rng(1)))
        assert trained.train(batch) == 8 + 8 + 6
        after = [v.lookup(k).astype(np.float64) for v, k in zip(names, (graph.entities, graph.relations), strict=True)]
    for which, (old, new) in enumerate(zip(before, after, strict=True)):
        for at in itertools.product(*map(range, old.shape)):
            nudged = [part.copy() for part in before]
            nudged[which][at] += 1e-5
            slope = (loss_of(*nudged, batch, tuning) - loss_of(*before, batch, tuning)) / 1e-5
            assert old[at] - new[at] == pytest.approx(slope, abs=2e-3), (which, at)


@both_models
def test_the_scorer_gives_the_scores_of_the_definition(model: str, tmp_path: Path) -> None:
    graph, tuning = made_up(entities=10, triples=40), SMALL[model]
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        trained = Bilinear(store, graph, tuning, None, seed=0)
        rows = trained.entities.lookup(graph.entities).view(tuning.numbers)
        relations = store.variables["relation"].lookup(graph.relations).reshape(3, 2, 4).view(tuning.numbers)
        ask = np.array([[1, 2, 0], [3, 0, 1]])
        found = trained.scorer(ask)(0, 10)
    for (entity, relation, direction), scores in zip(ask, found, strict=True):
        wanted = ((rows[entity] * relations[relation, direction]) @ rows.conj().T).real
        np.testing.assert_allclose(scores, wanted, rtol=1e-5)


def test_the_dim_of_complex_is_even() -> None:
    with pytest.raises(ValueError, match="dim of ComplEx must be even, two for each complex number; got 7"):
        replace(TUNINGS["complex"], dim=7)
