"""`kvemb demo --triples FILE...`: train DistMult or ComplEx on a knowledge graph, with a share of the entities hot.

Half way a checkpoint is taken, which must rank the validation triples exactly as the model did then (half_way.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvemb.tools.demos import half_way
from kvemb.tools.demos.bilinear import Bilinear, TripleBatch, Tuning, batches
from kvemb.tools.demos.ranking import Filter, filtered_ranks, questions_of, summarise
from kvemb.tools.demos.triple_files import Ints, load_graph
from kvemb.tools.screen import Screen, Summary


@dataclass(frozen=True)
class TripleRun:
    """The settings of a run: files, the model's name, hot share of the entities, tuning, the store's budget (text),
    seed.
    """

    files: tuple[Path, ...]
    model: str
    hot: float
    tuning: Tuning
    budget: str
    seed: int


def run(settings: TripleRun, folder: Path, screen: Screen, kept: Path | None) -> None:
    """Train, check the checkpoint, and print. folder: an empty directory to work in; kept: the same if it is kept,
    otherwise None. Raises Corruption if the reopened checkpoint ranks differently.
    """
    tuning = settings.tuning
    graph = load_graph(settings.files, settings.seed)
    chance = np.random.default_rng(settings.seed)
    known = Filter(np.concatenate([graph.train, graph.valid, graph.test]), len(graph.relations))
    hot_rows = max(1, round(settings.hot * len(graph.entities)))

    def evaluated(model: Bilinear, triples: Ints) -> dict[str, float]:
        ranks = filtered_ranks(questions_of(triples), len(graph.entities), known, model.scorer)
        return summarise(ranks)._asdict()

    def passes(count: int) -> Iterator[TripleBatch]:
        for _ in range(count):
            yield from batches(graph, tuning, chance)

    sizes = f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {len(graph.train):,} triples"
    screen.milestone(sizes)
    first = max(1, tuning.epochs // 2)
    about = f"{settings.model}: {tuning.epochs} passes, dim {tuning.dim}, hot tier {hot_rows:,} rows"
    summary: Summary = {"demo": "triples", "model": settings.model, "kept": kept and str(kept)}
    summary |= {"entities": len(graph.entities), "hot_rows": hot_rows, "triples": len(graph.train)}
    half_way.run(
        "kvemb demo --triples",
        folder,
        settings.budget,
        screen,
        lambda store: Bilinear(store, graph, tuning, hot_rows, settings.seed),
        (passes(first), passes(tuning.epochs - first)),
        tuning.epochs * -(-len(graph.train) // tuning.batch),
        lambda model: evaluated(model, graph.valid),
        lambda model: {"valid": evaluated(model, graph.valid), "test": evaluated(model, graph.test)},
        [("trained on", sizes), ("model", about)],
        {**summary, "epochs": tuning.epochs, "dim": tuning.dim},
    )
