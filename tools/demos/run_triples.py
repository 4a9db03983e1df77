"""`kvemb demo --triples FILE...`: train DistMult on a knowledge graph, with a hot tier of a share of its entities.

As the other demo: a checkpoint half way, opened at the end as a store of its own, must rank the validation triples
exactly as the model did when it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.demos.distmult import DistMult, Tuning, batches
from kvemb.tools.demos.figures import memory_figures, speed_figures, tier_figures
from kvemb.tools.demos.ranking import Filter, Ranking, filtered_ranks, questions_of, summarise
from kvemb.tools.demos.training import FIRST_NOTE, Meter, train
from kvemb.tools.demos.triple_files import Ints, load_graph
from kvemb.tools.demos.workplace import PatientInterrupts
from kvemb.tools.memory import resident_bytes
from kvemb.tools.screen import Screen


@dataclass(frozen=True)
class TripleRun:
    """What to train on, and how: files, passes, hot share of the entities, the store's budget (bytes, or text)."""

    files: tuple[Path, ...]
    epochs: int
    hot: float
    tuning: Tuning
    budget: str
    seed: int


def run(asked: TripleRun, place: Path, screen: Screen, stop: PatientInterrupts, kept: Path | None) -> None:
    """Train, check the checkpoint, and close with a table. Works in `place`, an empty directory; kept: if it stays."""
    graph = load_graph(asked.files, asked.seed)
    chance = np.random.default_rng(asked.seed)
    known = Filter(np.concatenate([graph.train, graph.valid, graph.test]), len(graph.relations))
    hot_rows = max(1, round(asked.hot * len(graph.entities)))
    before = resident_bytes()

    def judge(model: DistMult, triples: Ints) -> Ranking:
        return summarise(filtered_ranks(questions_of(triples), len(graph.entities), known, model.scorer))

    screen.say(f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {len(graph.train):,} triples")
    with kvemb.open(place / "store", memory_budget=asked.budget) as store:
        half_way = max(1, asked.epochs // 2)
        steps = asked.epochs * -(-len(graph.train) // asked.tuning.batch)
        with screen.progress("training", steps, FIRST_NOTE) as advance:
            model = DistMult(store, graph, asked.tuning, hot_rows, asked.seed)
            meter = Meter(model.variables, advance)
            for epoch in range(1, asked.epochs + 1):
                train(model, batches(graph, asked.tuning, chance), meter, stop)
                if epoch == half_way:
                    taken = judge(model, graph.valid)
                    store.checkpoint(place / "checkpoint")
                    screen.say(f"half way: checkpoint taken; on validation triples, {_text(taken)}")
        stop.check()
        sections = [speed_figures(meter), tier_figures(model.variables, model.row_bytes)]
        valid, test = judge(model, graph.valid), judge(model, graph.test)
        table = model.row_bytes * sum(variable.size() for variable in model.variables)
        sections.append(memory_figures(before, store.budget.total, table))
    stop.check()
    with kvemb.restore(place / "checkpoint", place / "restored", memory_budget=asked.budget) as restored:
        again = judge(DistMult(restored, graph, asked.tuning, hot_rows, asked.seed), graph.valid)
    same = np.array_equal(taken, again, equal_nan=True)
    sizes = f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {len(graph.train):,} triples"
    lines = [
        ("trained on", f"{sizes}; {asked.epochs} passes, dim {asked.tuning.dim}, hot tier {hot_rows:,} rows"),
        *(line for section, _ in sections for line in section),
        ("valid, half way", f"{_text(taken)} when the checkpoint was taken"),
        ("valid, reopened", f"{_text(again)} from that checkpoint: {'the same' if same else 'DIFFERENT'}"),
        ("valid, at the end", _text(valid)),
        ("test, at the end", _text(test)),
    ]
    summary: dict[str, object] = {
        "demo": "triples",
        "kept": kept and str(kept),
        "entities": len(graph.entities),
        "hot_rows": hot_rows,
    }
    summary |= {"triples": len(graph.train), "epochs": asked.epochs, "dim": asked.tuning.dim}
    summary |= {name: value for _, section in sections for name, value in section.items()}
    for name, ranking in (("checkpoint", taken), ("reopened", again), ("valid", valid), ("test", test)):
        summary[name] = ranking._asdict()
    screen.close("kvemb demo --triples", lines, summary)
    if not same:
        raise kvemb.errors.Corruption(
            f"the reopened checkpoint ranks otherwise: {_text(again)}; before: {_text(taken)}"
        )


def _text(ranking: Ranking) -> str:
    return (
        f"filtered MRR {ranking.mrr:.4f}, Hits@1 {ranking.hits_at_1:.3f}, @3 {ranking.hits_at_3:.3f}, "
        f"@10 {ranking.hits_at_10:.3f}"
    )
