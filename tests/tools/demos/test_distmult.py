"""DistMult on a store: its gradients, that its hot tier changes nothing, and that it learns real triples."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.demos.distmult import DistMult, TripleBatch, Tuning, batches
from kvemb.tools.demos.ranking import Filter, filtered_ranks, questions_of, summarise
from kvemb.tools.demos.triple_files import Graph, load_graph

REAL = Path(__file__).parents[4] / "shared" / "data" / "wn18rr"
SMALL = Tuning(dim=4, batch=8, negatives=6, n3=0.1, spread=0.5)


def made_up(entities: int, triples: int) -> Graph:
    chance = np.random.default_rng(0)
    found = np.stack([chance.integers(0, top, triples) for top in (entities, 3, entities)], 1)
    parts = (found[: triples // 2], found[triples // 2 : -8], found[-8:])
    return Graph(np.arange(entities) * 7919 - 50, np.array([5, 6, 7]), *parts)


def loss_of(rows: np.ndarray, relations: np.ndarray, batch: TripleBatch) -> float:
    """The loss as its definition says, one question at a time, in float64."""
    dim, total = rows.shape[1], 0.0
    for head, relation, tail in batch.triples:
        for asked, answer, columns in ((head, tail, slice(0, dim)), (tail, head, slice(dim, 2 * dim))):
            query = rows[asked] * relations[relation, columns]
            rivals = [query @ rows[other] for other in batch.negatives if other != answer]
            scores = np.array([query @ rows[answer], *rivals])
            total += np.log(np.exp(scores).sum()) - scores[0]
            for part in (rows[asked], relations[relation, columns], rows[answer]):
                total += SMALL.n3 / 3 * (np.abs(part) ** 3).sum()
    return float(total)


def test_a_step_follows_the_slope_of_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = made_up(entities=10, triples=40)
    # SGD takes a step proportional to the gradient, so the step shows it.
    monkeypatch.setattr(kvemb.optimizers, "Adagrad", kvemb.optimizers.SGD)
    tuning = Tuning(dim=4, batch=8, negatives=6, learning_rate=1.0, n3=SMALL.n3, spread=0.5)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        model = DistMult(store, graph, tuning, None, seed=0)
        names = [store.variables[name] for name in ("entity", "relation")]
        before = [v.lookup(k).astype(np.float64) for v, k in zip(names, (graph.entities, graph.relations), strict=True)]
        batch = next(batches(graph, tuning, np.random.default_rng(1)))
        assert model.train(batch) == 8 + 8 + 6
        after = [v.lookup(k).astype(np.float64) for v, k in zip(names, (graph.entities, graph.relations), strict=True)]
    for which, (old, new) in enumerate(zip(before, after, strict=True)):
        for at in itertools.product(*map(range, old.shape)):
            nudged = [part.copy() for part in before]
            nudged[which][at] += 1e-5
            slope = (loss_of(*nudged, batch) - loss_of(*before, batch)) / 1e-5
            assert old[at] - new[at] == pytest.approx(slope, abs=2e-3), (which, at)


def test_the_size_of_the_hot_tier_changes_no_bit(tmp_path: Path) -> None:
    graph = made_up(entities=3_000, triples=800)
    found = []
    for hot in (None, 30):
        with kvemb.open(tmp_path / str(hot), memory_budget="16MiB") as store:
            model = DistMult(store, graph, Tuning(dim=8, batch=32, negatives=200), hot, seed=0)
            for batch in batches(graph, Tuning(dim=8, batch=32, negatives=200), np.random.default_rng(2)):
                model.prefetch(batch)
                model.train(batch)
            found.append(model.entities.lookup(graph.entities))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"the WN18RR files are not at {REAL}")
def test_a_few_hundred_batches_of_wn18rr_are_learned(tmp_path: Path) -> None:
    graph = load_graph([REAL / f"{split}.txt.gz" for split in ("train", "valid", "test")], seed=0)
    assert (len(graph.entities), len(graph.relations), len(graph.train)) == (40_943, 11, 86_835)
    known = Filter(np.concatenate([graph.train, graph.valid, graph.test]), len(graph.relations))
    some = questions_of(graph.test[:250])
    tuning = Tuning(dim=32, batch=1024, negatives=200, n3=0.05)

    def mrr(model: DistMult) -> float:
        return summarise(filtered_ranks(some, len(graph.entities), known, model.scorer)).mrr

    with kvemb.open(tmp_path / "store", memory_budget="32MiB") as store:
        model = DistMult(store, graph, tuning, len(graph.entities) // 10, seed=0)
        chance = np.random.default_rng(0)
        untrained = mrr(model)
        for _ in range(3):
            for batch in batches(graph, tuning, chance):
                model.train(batch)
        assert untrained < 0.01
        assert mrr(model) > 0.2
