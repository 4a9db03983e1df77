"""A model served over HTTP by FastAPI, while a trainer writes newer checkpoints.

Rows and the dense part of one checkpoint are replaced together, so no answer mixes two
states. An item or user that training has not seen reads as zeros. Train first, then serve:

    pip install 'kvemb[tools,torch]' fastapi uvicorn
    python examples/http_serving.py --train 200
    python examples/http_serving.py --serve
    curl 'http://127.0.0.1:8000/scores?user=ada&item=tea&item=ink'

The clicks are generated: each user likes the items whose names have the same first letter.
"""

from __future__ import annotations

import argparse
import io
import itertools
import string
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import FastAPI, Query

import kvemb
import kvemb.torch as kt

NAMES = [
    "".join(letters)
    for letters in itertools.product(string.ascii_lowercase[:8], "ai", "dtk")
]


class Scores(torch.nn.Module):
    """The score of a user with an item: a product of rows, and one dense number."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        rule, start = kvemb.optimizers.Adagrad(0.1), kvemb.RandomNormal(0.0, 0.1)
        self.users = kt.Embedding("users", dim, optimizer=rule, initializer=start)
        self.items = kt.Embedding("items", dim, optimizer=rule, initializer=start)
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return a score for each pair."""
        return (self.users(users) * self.items(items)).sum(dim=1) + self.bias


def keys_of(names: list[str], field: str) -> torch.Tensor:
    """Return the keys of names. Replace the names with yours: any strings will do."""
    return torch.from_numpy(kvemb.hash_strings(names, field=field))


def train(folder: Path, steps: int) -> None:
    """Train, and save a checkpoint of rows and dense part. Continues from the last one."""
    draw = np.random.default_rng(0)
    with kvemb.CheckpointManager(folder / "checkpoints", keep=3) as series:
        store, last = series.resume(folder / "store.kvemb", memory_budget="64MiB")
        with store, store.as_default():
            model = Scores()
            if last is not None:
                model.load_state_dict(torch.load(last.files["model.pt"]))
            rows, dense = kt.Optimizer(model), torch.optim.Adam([model.bias], 0.01)
            for _ in range(steps):
                users, items = draw.choice(NAMES, (2, 256)).tolist()
                likes = torch.tensor(
                    [float(u[0] == i[0]) for u, i in zip(users, items, strict=True)]
                )
                found = model(keys_of(users, "user"), keys_of(items, "item"))
                loss = torch.nn.functional.binary_cross_entropy_with_logits(found, likes)
                loss.backward()
                for optimizer in (rows, dense):
                    optimizer.step()
                    optimizer.zero_grad()
            saved = io.BytesIO()
            torch.save(model.state_dict(), saved)
            series.save(store, files={"model.pt": saved.getvalue()})
            print(f"loss {loss.item():.3f}")


def load(store: kvemb.Store, checkpoint: kvemb.Checkpoint) -> Scores:
    """Make the model of a checkpoint. Its rows are in the store, which is read-only."""
    model = Scores().eval()
    model.load_state_dict(torch.load(checkpoint.files["model.pt"]))
    return model


def app_of(folder: Path, every: float = 5.0) -> FastAPI:
    """Return the application. every: seconds between looks for a newer checkpoint."""
    served = kvemb.ServedModel(
        folder / "checkpoints", load, memory_budget="64MiB", unknown=0
    )
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(every):
            try:
                served.refresh()
            except Exception as error:  # the old model goes on
                print(f"refresh: {error}")

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        beside = threading.Thread(target=refresh)
        beside.start()
        yield
        ended.set()
        beside.join()
        served.close()

    app = FastAPI(lifespan=life)

    @app.get("/scores")
    def scores(user: str, item: Annotated[list[str], Query()]) -> dict[str, Any]:
        # FastAPI calls plain functions on threads; lookups release the GIL.
        with torch.inference_mode(), served.use() as model:
            found = model(keys_of([user] * len(item), "user"), keys_of(item, "item"))
        return {"scores": dict(zip(item, found.sigmoid().tolist(), strict=True))}

    @app.get("/checkpoint")
    def checkpoint() -> dict[str, str]:
        return {"id": served.checkpoint.id}

    return app


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train, or serve."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    words.add_argument(
        "--folder",
        type=Path,
        default=Path("http_serving"),
        help="for store and checkpoints",
    )
    words.add_argument(
        "--train", type=int, default=0, metavar="STEPS", help="train so many steps"
    )
    words.add_argument("--serve", action="store_true", help="serve")
    words.add_argument("--port", type=int, default=8000, help="0: any free one")
    given = words.parse_args()
    if given.train:
        train(given.folder, given.train)
    if given.serve:
        import uvicorn

        uvicorn.run(app_of(given.folder), port=given.port)


if __name__ == "__main__":
    main()
