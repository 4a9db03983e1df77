"""`kvemb bench keras`: model.fit with bags of kvemb.keras, all rows hot, compared with keras.layers.Embedding.

The model sums the bags' mean rows with weights, and all of it is trained with Adagrad. Keras' backend is the one that
KERAS_BACKEND selects. With PyTorch there is a third side: the same model on kvemb.torch, in a loop of its own. All
sides begin with the same rows and get the same batches, and their rows are compared at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer

import kvemb
from kvemb.installed import pip_install
from kvemb.tools.bench.data import Floats
from kvemb.tools.bench.hot.resident import array_of, budget_of_hot, measure_hot
from kvemb.tools.bench.measure import Work, scratch
from kvemb.tools.bench.options import Dim, Folder, Rows, Runs, Steps
from kvemb.tools.bench.results import Report, compare_costs
from kvemb.tools.bench.trained import LEARNING_RATE, LOAD_BATCH
from kvemb.tools.failures import BadInput
from kvemb.tools.limits import MAX_BATCH

MIN_OF_TORCH = 0.9
START, EPSILON = 0.1, 1e-7  # of Keras' Adagrad, by default


def run(
    rows: Rows = 1_000_000,
    dim: Dim = 32,
    batch: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Bags per step.")] = 8_192,
    bag: Annotated[int, typer.Option(min=1, max=1_000, help="Ids in a bag.")] = 20,
    steps: Steps = 10,
    runs: Runs = 5,
    folder: Folder = None,
) -> Report:
    """Train a Keras model with model.fit, all rows hot. Peers: keras.layers.Embedding, and for PyTorch kvemb.torch."""
    keras, report = import_keras()
    import kvemb.keras as kk

    chance = np.random.default_rng(8)
    work = [chance.integers(0, rows, (steps * batch, bag), np.int32) for _ in range(runs)]
    labels = [(ids[:, :1] % 2).astype(np.float32) for ids in work]
    start, budget = array_of(rows, dim), 2 * budget_of_hot(rows, 8 * dim)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget) as store:
        table = _filled(store, "table", start)
        model = _model(keras, bag, kk.EmbeddingBag(table, combiner="mean"))
        embedding = keras.layers.Embedding(rows, dim)
        embedding.build(None)
        embedding.set_weights([start])
        peer = _model(keras, bag, embedding, keras.layers.GlobalAveragePooling1D())

        def fitting(model: Any) -> Work:
            given: dict[str, Any] = {"batch_size": batch, "shuffle": False, "verbose": 0}
            return lambda i: model.fit(work[i], labels[i], **given)

        sides, names = [fitting(model), fitting(peer)], ["keras.layers.Embedding"]
        if keras.backend.backend() == "torch":
            fit = _torch_loop(_filled(store, "of torch", start), batch)
            sides.append(lambda i: fit(work[i], labels[i]))
            names.append("kvemb.torch")
        taken = measure_hot(store, sides, runs)
        seen = np.unique(work[-1])
        trained = keras.ops.convert_to_numpy(embedding.embeddings.value)[seen]
        for variable in store.variables.values():
            np.testing.assert_allclose(variable.lookup(seen, touch=False), trained, rtol=1e-3, atol=1e-4)
        report.facts["rows_compared"] = len(seen)
    for name, other, least in zip(names, taken[1:], (None, MIN_OF_TORCH), strict=False):
        rate, cpu = compare_costs("step", steps, taken[0], name, other, of="step")
        report.lines += [rate.ratio_at_least(least), cpu]
    return report


def import_keras() -> tuple[Any, Report]:
    """Return the module keras, and a report with its version and backend. Raises BadInput without them."""
    try:
        import keras
    except ImportError as error:
        advice = f"install Keras and the backend that KERAS_BACKEND names: {pip_install('keras')}"
        raise BadInput(f"this benchmark needs {error.name}; {advice}") from error
    return keras, Report(facts={"keras": keras.__version__, "backend": keras.backend.backend()})


def _torch_loop(variable: kvemb.Variable, batch: int) -> Callable[[Any, Floats], None]:
    """Return a function that trains the model on kvemb.torch on ids and labels, a batch at a time."""
    import torch

    import kvemb.torch as kt

    bags, head = kt.EmbeddingBag(variable, mode="mean"), torch.nn.Linear(variable.dim, 1)
    torch.nn.init.constant_(head.weight, 0.1)
    torch.nn.init.zeros_(head.bias)
    rows, loss = kt.Optimizer(bags), torch.nn.BCEWithLogitsLoss()
    dense = torch.optim.Adagrad(head.parameters(), LEARNING_RATE, 0, 0, START, EPSILON)

    def fit(ids: Any, labels: Floats) -> None:
        for at in range(0, len(ids), batch):
            here = slice(at, at + batch)
            out = head(bags(torch.from_numpy(ids[here])))
            dense.zero_grad()
            loss(out, torch.from_numpy(labels[here])).backward()
            dense.step()
            rows.step()

    return fit


def _filled(store: kvemb.Store, name: str, start: Floats) -> kvemb.Variable:
    """Return a new table with the rows of keys from 0."""
    rule = kvemb.optimizers.Adagrad(LEARNING_RATE, START, EPSILON)
    rows, dim = start.shape
    table = store.get_variable(name, dim=dim, key_dtype="int32", optimizer=rule, init_size=rows)
    for at in range(0, rows, LOAD_BATCH):
        part = start[at : at + LOAD_BATCH]
        table.upsert(np.arange(at, at + len(part), dtype=np.int32), part)
    return table


def _model(keras: Any, bag: int, *layers: Any) -> Any:
    head = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1))
    model = keras.Sequential([keras.Input((bag,), dtype="int32"), *layers, head])
    optimizer = keras.optimizers.Adagrad(LEARNING_RATE, START, EPSILON)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model
