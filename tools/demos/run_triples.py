"""`kvemb demo --triples FILE...`: train DistMult or ComplEx on a knowledge graph, with a share of the entities hot.

As in the demo of clicks, a checkpoint is taken half way. At the end it is opened as a separate store, and must rank the
validation triples exactly as the model did when the checkpoint was taken.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.demos.bilinear import Bilinear, Tuning, batches
from kvemb.tools.demos.figures import memory_figures, speed_figures, tier_figures
from kvemb.tools.demos.ranking import Filter, Ranking, filtered_ranks, questions_of, summarise
from kvemb.tools.demos.training import FIRST_NOTE, Meter, train
from kvemb.tools.demos.triple_files import Ints, load_graph
from kvemb.tools.demos.workplace import DeferredInterrupts
from kvemb.tools.memory import anonymous_bytes
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


def run(settings: TripleRun, folder: Path, screen: Screen, stop: DeferredInterrupts, kept: Path | None) -> None:
    """Train, check the checkpoint, and print a table. folder: an empty directory to work in; kept: the same if it is
    kept, otherwise None. Raises Corruption if the reopened checkpoint ranks differently.
    """
    tuning = settings.tuning
    graph = load_graph(settings.files, settings.seed)
    chance = np.random.default_rng(settings.seed)
    known = Filter(np.concatenate([graph.train, graph.valid, graph.test]), len(graph.relations))
    hot_rows = max(1, round(settings.hot * len(graph.entities)))
    before = anonymous_bytes()

    def evaluated(model: Bilinear, triples: Ints) -> Ranking:
        return summarise(filtered_ranks(questions_of(triples), len(graph.entities), known, model.scorer))

    sizes = f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {len(graph.train):,} triples"
    screen.milestone(sizes)
    with kvemb.open(folder / "store", memory_budget=settings.budget) as store:
        half_way = max(1, tuning.epochs // 2)
        steps = tuning.epochs * -(-len(graph.train) // tuning.batch)
        with screen.progress("training", steps, FIRST_NOTE) as advance:
            model = Bilinear(store, graph, tuning, hot_rows, settings.seed)
            meter = Meter(model.variables, advance)
            for epoch in range(1, tuning.epochs + 1):
                train(model, batches(graph, tuning, chance), meter, stop)
                if epoch == half_way:
                    taken = evaluated(model, graph.valid)
                    store.checkpoint(folder / "checkpoint")
                    screen.milestone(f"half way: checkpoint taken; on validation triples, {_text(taken)}")
        stop.check()
        sections = [speed_figures(meter), tier_figures(model.variables, model.row_bytes)]
        valid, test = evaluated(model, graph.valid), evaluated(model, graph.test)
        table = model.row_bytes * sum(variable.size() for variable in model.variables)
        sections.append(memory_figures(before, store.budget.total, table))
    stop.check()
    with kvemb.restore(folder / "checkpoint", folder / "restored", memory_budget=settings.budget) as restored:
        again = evaluated(Bilinear(restored, graph, tuning, hot_rows, settings.seed), graph.valid)
    shutil.rmtree(folder / "restored")
    same = np.array_equal(taken, again, equal_nan=True)
    lines = [
        ("trained on", sizes),
        ("model", f"{settings.model}: {tuning.epochs} passes, dim {tuning.dim}, hot tier {hot_rows:,} rows"),
        *(line for section, _ in sections for line in section),
        ("valid, half way", f"{_text(taken)} when the checkpoint was taken"),
        ("valid, reopened", f"{_text(again)} from that checkpoint: {'the same' if same else 'DIFFERENT'}"),
        ("valid, at the end", _text(valid)),
        ("test, at the end", _text(test)),
    ]
    summary: dict[str, object] = {
        "demo": "triples",
        "model": settings.model,
        "kept": kept and str(kept),
        "entities": len(graph.entities),
        "hot_rows": hot_rows,
    }
    summary |= {"triples": len(graph.train), "epochs": tuning.epochs, "dim": tuning.dim}
    summary |= {name: value for _, section in sections for name, value in section.items()}
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
