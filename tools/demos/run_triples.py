"""`kvemb demo --triples FILE...`: train DistMult or ComplEx on a knowledge graph, with a share of the entities hot.

As in the demo of clicks, a checkpoint is taken half way. At the end it is opened as a separate store, and must rank the
validation triples exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.demos import half_way
from kvemb.tools.demos.bilinear import Bilinear, TripleBatch, Tuning, batches
from kvemb.tools.demos.ranking import Filter, Ranking, filtered_ranks, questions_of, summarise
from kvemb.tools.demos.triple_files import Ints, load_graph
from kvemb.tools.screen import Screen


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
    """Train, check the checkpoint, and print a table. folder: an empty directory to work in; kept: the same if it is
    kept, otherwise None. Raises Corruption if the reopened checkpoint ranks differently.
    """
    tuning = settings.tuning
    graph = load_graph(settings.files, settings.seed)
    chance = np.random.default_rng(settings.seed)
    known = Filter(np.concatenate([graph.train, graph.valid, graph.test]), len(graph.relations))
    hot_rows = max(1, round(settings.hot * len(graph.entities)))

    def evaluated(model: Bilinear, triples: Ints) -> Ranking:
        return summarise(filtered_ranks(questions_of(triples), len(graph.entities), known, model.scorer))

    def passes(count: int) -> Iterator[TripleBatch]:
        for _ in range(count):
            yield from batches(graph, tuning, chance)

    sizes = f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {len(graph.train):,} triples"
    screen.milestone(sizes)
    first = max(1, tuning.epochs // 2)
    done = half_way.run(
        folder,
        settings.budget,
        screen,
        lambda store: Bilinear(store, graph, tuning, hot_rows, settings.seed),
        (passes(first), passes(tuning.epochs - first)),
        tuning.epochs * -(-len(graph.train) // tuning.batch),
        lambda model: evaluated(model, graph.valid),
        lambda model: (evaluated(model, graph.valid), evaluated(model, graph.test)),
        lambda taken: f"on validation triples, {_text(taken)}",
    )
    taken, again, (valid, test) = done.taken, done.again, done.final
    same = np.array_equal(taken, again, equal_nan=True)
    lines = [
        ("trained on", sizes),
        ("model", f"{settings.model}: {tuning.epochs} passes, dim {tuning.dim}, hot tier {hot_rows:,} rows"),
        *done.lines,
        ("valid, half way", f"{_text(taken)} when the checkpoint was taken"),
        ("valid, reopened", f"{_text(again)} from that checkpoint: {'the same' if same else 'DIFFERENT'}"),
        ("valid, at the end", _text(valid)),
        ("test, at the end", _text(test)),
    ]
    summary: dict[str, object] = {"demo": "triples", "model": settings.model, "kept": kept and str(kept)}
    summary |= {"entities": len(graph.entities), "hot_rows": hot_rows, "triples": len(graph.train)}
    summary |= {"epochs": tuning.epochs, "dim": tuning.dim, **done.summary}
    for name, ranking in (("checkpoint", taken), ("reopened", again), ("valid", valid), ("test", test)):
        summary[name] = ranking._asdict()
    screen.close("kvemb demo --triples", lines, summary)
    if not same:
        raise kvemb.errors.Corruption(
            f"the reopened checkpoint ranks differently: {_text(again)}; before: {_text(taken)}"
        )


def _text(ranking: Ranking) -> str:
    return (
        f"filtered MRR {ranking.mrr:.4f}, Hits@1 {ranking.hits_at_1:.3f}, @3 {ranking.hits_at_3:.3f}, "
        f"@10 {ranking.hits_at_10:.3f}"
    )
