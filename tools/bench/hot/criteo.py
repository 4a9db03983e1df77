"""`kvemb bench criteo`: a log of strings, as Criteo's, is read by Arrow, hashed to keys, and trained on.

A line has a label, 13 numbers, and 26 words of 8 hexadecimal digits, some of which are missing, separated by tabs. What
is measured is the share of the time that hashing takes. The peer trains the same model on ids from 0, which Arrow's
dictionaries of the whole log give; all losses must be the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

import kvemb
from kvemb.tools.bench.data import Zipf
from kvemb.tools.bench.hot.resident import budget_of_hot
from kvemb.tools.bench.hot.torch import import_torch
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Batch, Dim, Folder, Runs
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import adagrad
from kvemb.tools.limits import MAX_ROWS

MAX_SHARE = 5.0
NUMBERS, WORDS = [f"I{at}" for at in range(1, 14)], [f"C{at}" for at in range(1, 27)]
# From so many words in a column to so many.
_FEWEST, _MOST = 20, 200_000
_MISSING = 0.05
Keys = npt.NDArray[np.int64]


def run(
    lines: Annotated[int, typer.Option(min=100, max=MAX_ROWS, help="Lines of the log.")] = 1_000_000,
    dim: Dim = 16,
    batch: Batch = 4096,
    runs: Runs = 5,
    folder: Folder = None,
) -> Report:
    """Read, hash and train a log of 26 columns of words. Peer: the same training on ids."""
    torch, report = import_torch()
    with scratch(folder) as path:
        parts = list(_written(path, lines, runs))
        ids = _ids([_read(part) for part in parts])
        budget = budget_of_hot(1 + max(int(part.max()) for part in ids), 8 * dim)
        kvemb.hash_strings(["a word"])  # loads the kernels
        spent = {"reading": [], "hashing": [], "training": []}  # type: dict[str, list[float]]

        def hashed() -> Iterator[tuple[Any, Keys]]:
            for part in parts:
                begun = time.perf_counter()
                table = _read(part)
                read = time.perf_counter()
                keys = np.empty((len(WORDS), len(table)), np.int64)
                for name, column in zip(WORDS, keys, strict=True):
                    column[:] = kvemb.hash_strings(table[name], field=name)
                spent["reading"].append(read - begun)
                spent["hashing"].append(time.perf_counter() - read)
                yield table, keys

        losses: list[list[float]] = []
        for name, log in (("hashes", hashed()), ("ids", zip(map(_read, parts), ids, strict=True))):
            with kvemb.open(path / name, memory_budget=budget) as store:
                seconds, found = _trained(torch, store, log, dim, batch)
            losses.append(found)
            if name == "hashes":
                spent["training"] = seconds
    np.testing.assert_array_equal(losses[0], losses[1])
    report.facts |= {"losses_compared": len(losses[0]), "first_loss": losses[0][0], "last_loss": losses[0][-1]}
    in_all = [sum(each) for each in zip(*spent.values(), strict=True)]
    per_run = lines // runs
    for what, taken in spent.items():
        shares = [100 * each / total for each, total in zip(taken, in_all, strict=True)]
        line = compare(what, "% of the time", shares)
        report.lines.append(line.at_most(MAX_SHARE) if what == "hashing" else line)
    report.lines.append(compare("all three", "lines/s", [per_run / each for each in in_all]))
    strings = per_run * len(WORDS)
    report.lines.append(compare("hashing", "strings/s", [strings / each for each in spent["hashing"]]))
    return report


def _written(path: Path, lines: int, parts: int) -> Iterator[Path]:
    """Write a log in several files. A label is more often 1 if the words of the first columns are rare."""
    import pyarrow as pa
    import pyarrow.csv

    chance = np.random.default_rng(7)
    sizes = np.geomspace(_FEWEST, _MOST, len(WORDS)).astype(int)
    drawn = [Zipf(int(size), 1.05, at) for at, size in enumerate(sizes)]
    spelt = [pa.array([f"{word:08x}" for word in chance.integers(0, 2**32, size)]) for size in sizes]
    for part in range(parts):
        count = lines // parts
        ranks = [column.sample(count) for column in drawn]
        rare = sum(np.log1p(column) / np.log1p(size) for column, size in zip(ranks[:4], sizes[:4], strict=True))
        table = {"label": (chance.random(count) < rare / 6).astype(np.int8)}
        table |= {name: chance.integers(0, 1000, count) for name in NUMBERS}
        for name, words, column in zip(WORDS, spelt, ranks, strict=True):
            table[name] = words.take(pa.array(column, mask=chance.random(count) < _MISSING))
        file = path / f"day_{part}.tsv"
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        pyarrow.csv.write_csv(pa.table(table), file, options)
        yield file


def _read(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    names = ["label", *NUMBERS, *WORDS]
    return pyarrow.csv.read_csv(
        file,
        pyarrow.csv.ReadOptions(column_names=names),
        pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(WORDS, pa.string())),
    )


def _ids(whole: list[Any]) -> list[Keys]:
    """Return the ids (columns, lines) of each part: the words of all columns, numbered from 0."""
    import pyarrow as pa

    columns, first = [], 0
    for name in WORDS:
        coded = pa.concat_tables(whole)[name].combine_chunks().dictionary_encode()
        columns.append(np.asarray(coded.indices).astype(np.int64) + first)
        first += len(coded.dictionary)
    return np.split(np.stack(columns), np.cumsum([len(table) for table in whole])[:-1], axis=1)


def _trained(
    torch: Any, store: kvemb.Store, log: Iterable[tuple[Any, Keys]], dim: int, batch: int
) -> tuple[list[float], list[float]]:
    """Train a model on the parts of a log, as they come; return the seconds of each, and all losses."""
    import kvemb.torch as kt

    torch.manual_seed(0)
    # Rows begin with numbers that do not depend on their keys, so that losses do not, either.
    words = kt.Embedding("words", dim, optimizer=adagrad(), initializer=np.linspace(-0.1, 0.1, dim), store=store)
    dense = torch.nn.Sequential(torch.nn.Linear(len(WORDS) * dim, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = kt.Optimizer(words, dense=torch.optim.Adam(dense.parameters()))
    seconds, losses = [], []
    for table, part in log:
        begun = time.perf_counter()
        labels = torch.from_numpy(np.asarray(table["label"]).astype(np.float32))
        for at in range(0, len(table), batch):
            rows = words(torch.from_numpy(part[:, at : at + batch]).T)
            out = dense(rows.flatten(1))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(out, labels[at : at + batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    return seconds, losses
