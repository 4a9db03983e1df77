"""ComplEx (Trouillon and others, ICML 2016) on a knowledge graph, ranked by filtered MRR.

A row is dim/2 complex numbers. The score of (head, relation, tail) is the real part of
sum(head * relation * conj(tail)). A relation has a second row for the question in the other
direction, "which head has this tail?" (Lacroix and others, ICML 2018). The right answer is
compared with sampled entities, which all questions of a batch share. All parameters are
rows of the store, so there is no dense part to save.

    pip install 'kvemb[tools,torch]'
    python examples/knowledge_graph.py
    python examples/knowledge_graph.py --triples train.txt.gz valid.txt.gz test.txt.gz

A file has lines of head<TAB>relation<TAB>tail, as WN18RR has. The generated graph has
groups of entities. A relation connects all entities of a group with all of another group.
"""

from __future__ import annotations

import argparse
import gzip
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

import kvemb
import kvemb.torch as kt


class ComplEx(torch.nn.Module):
    """Two tables: entities, and relations with a row for each direction."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        rule, start = kvemb.optimizers.Adagrad(0.3), kvemb.RandomNormal(0.0, 0.01)
        table = {"dim": dim, "optimizer": rule, "initializer": start}
        # Most keys are samples. By last use, a row stays hot from its lookup to its update.
        policy = kvemb.TimestampRestrictPolicy
        self.entities = kt.Embedding("entities", restrict_policy=policy, **table)
        self.relations = kt.Embedding("relations", **table)

    def queries(self, known: torch.Tensor, relations: torch.Tensor) -> torch.Tensor:
        """Return vectors: the dot product with an entity's row is the entity's score."""
        return torch.view_as_real(as_complex(known) * as_complex(relations)).flatten(-2)


def as_complex(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of pairs of real numbers as complex numbers."""
    return torch.view_as_complex(rows.unflatten(-1, (-1, 2)))


def questions(triples: torch.Tensor) -> torch.Tensor:
    """Return (entity, relation, answer), for the tails and then for the heads."""
    head, relation, tail = triples.T
    tails, heads = [head, relation, tail], [tail, ~relation, head]
    return torch.cat([torch.stack(tails, 1), torch.stack(heads, 1)])


def loss_of(
    model: ComplEx, triples: torch.Tensor, samples: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the summed loss of all questions in a graph of `count` entities."""
    known, relation, answer = questions(triples).T
    rows = model.entities(torch.cat([known, answer, samples]))  # one lookup for all
    asked, answers, negatives = rows.split([len(known), len(answer), len(samples)])
    through = model.relations(relation)
    query = model.queries(asked, through)
    # So that the loss estimates that of the softmax over all entities.
    others = query @ negatives.T + np.log((count - 1) / len(samples))
    # The answer may have been sampled, too.
    others = others.masked_fill(answer[:, None] == samples, -torch.inf)
    scores = torch.cat([(query * answers).sum(1, keepdim=True), others], 1)
    truth = scores.new_zeros(len(scores)).long()
    # The regulariser of Lacroix and others: the cubes of all absolute values.
    cubes = sum((as_complex(part).abs() ** 3).sum() for part in (asked, through, answers))
    return torch.nn.functional.cross_entropy(scores, truth, reduction="sum") + 0.1 * cubes


@torch.no_grad()
def filtered_mrr(
    model: ComplEx, test: torch.Tensor, known: torch.Tensor, entities: torch.Tensor
) -> float:
    """Return the mean of 1 / rank of the answers; other right answers do not count."""
    model.eval()  # lookups record no uses
    place = {key: at for at, key in enumerate(entities.tolist())}
    answers: dict[tuple[int, int], list[int]] = {}
    for asked, relation, answer in questions(known).tolist():
        answers.setdefault((asked, relation), []).append(place[answer])
    candidates, total = model.entities(entities), 0.0  # all entities fit in memory here
    for part in questions(test).split(512):
        query = model.queries(model.entities(part[:, 0]), model.relations(part[:, 1]))
        for row, (asked, relation, answer) in zip(
            query @ candidates.T, part.tolist(), strict=True
        ):
            right = row[place[answer]].item()
            row[answers[asked, relation]] = -torch.inf
            total += 1 / (1 + (row > right).sum().item() + (row == right).sum().item() / 2)
    return total / (2 * len(test))


def generated(groups: int = 60, size: int = 10, relations: int = 5) -> torch.Tensor:
    """Return triples (n, 3) of a graph of groups * size entities."""
    draw = np.random.default_rng(1)
    heads, tails = np.divmod(np.arange(size * size), size)
    triples = []
    for relation in range(relations):
        for group, other in enumerate(draw.permutation(groups)):
            names = np.full(size * size, relation)
            triples.append(np.stack([group * size + heads, names, other * size + tails], 1))
    return torch.from_numpy(np.concatenate(triples))


def read(path: Path) -> torch.Tensor:
    """Return the triples (n, 3) of a file. Names become keys of 63 bits, by a hash."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as lines:
        triples = [line.rstrip(b"\r\n").split(b"\t") for line in lines]
    return torch.tensor([[key_of(name) for name in triple] for triple in triples])


def key_of(name: bytes) -> int:
    """Return the key of a name: at least 0, so that ~key is free for another row."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train, rank the held-out triples, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--triples", type=Path, nargs="+", help="files: to train on, ..., to test")
    option("--steps", type=int, default=600, help="batches to train on")
    option("--batch", type=int, default=256, help="triples in a batch")
    option("--samples", type=int, default=256, help="sampled entities of a batch")
    option("--dim", type=int, default=64, help="values in a row, an even number")
    option("--memory-budget", default="64MiB", help="for both tables")
    option("--path", type=Path, default="knowledge_graph.kvemb", help="store")
    options = parser.parse_args()

    torch.manual_seed(0)
    parts = [read(path) for path in options.triples] if options.triples else [generated()]
    if len(parts) == 1:  # a twentieth is held out
        shuffled = parts[0][torch.randperm(len(parts[0]))]
        parts = [shuffled[len(shuffled) // 20 :], shuffled[: len(shuffled) // 20]]
    train, test, known = parts[0], parts[-1], torch.cat(parts)
    entities = known[:, [0, 2]].unique()

    with kvemb.open(options.path, memory_budget=options.memory_budget) as store:
        model = ComplEx(options.dim)
        rows = kt.Optimizer(model)
        losses = []
        for _ in track(range(options.steps), "training"):
            triples = train[torch.randint(len(train), (options.batch,))]
            samples = entities[torch.randint(len(entities), (options.samples,))]
            loss = loss_of(model, triples, samples, len(entities))
            loss.backward()
            rows.step()
            losses.append(loss.item() / len(triples) / 2)
        store.flush()
        stats = store.stats
        mrr = filtered_mrr(model, test, known, entities)
    part = max(1, len(losses) // 10)
    print(f"loss   {np.mean(losses[:part]):.3f} -> {np.mean(losses[-part:]):.3f}")
    print(f"MRR    {mrr:.3f} of {2 * len(test):,} new questions, filtered")
    print(f"rows   {stats.rows:,}; hot when looked up: {stats.hit_rate:.1%}")
    print(f"saved  {options.path}")


if __name__ == "__main__":
    main()
