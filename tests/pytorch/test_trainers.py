"""Trainers of other packages save, go back and keep the best as with torch.nn: Lightning, Hugging Face, accelerate.

Each runs twice, with torch.nn.EmbeddingBag and with kvemb.torch.EmbeddingBag of equal rows, and gets the same losses.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import kvemb.torch as kt
from kvemb.optimizers import SGD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of these packages
]
KEYS, RATE = 200, 0.05
torch.manual_seed(0)
WORTH = torch.randn(KEYS)
TRAINED, SEEN = torch.randint(0, KEYS, (256, 4)), torch.randint(0, KEYS, (128, 4))
TRAINED_Y = WORTH[TRAINED].sum(1, keepdim=True) + 0.5 * torch.randn(256, 1)
SEEN_Y = WORTH[SEEN].sum(1, keepdim=True)


# Of Lightning's Trainer.
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "num_sanity_val_steps": 0,
}


class Net(torch.nn.Module):
    """Bags and a linear layer. store: None: those of torch.nn."""

    def __init__(self, store: Any, *, fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bags: torch.nn.Module = torch.nn.EmbeddingBag(KEYS, 8, mode="sum")
        if store is not None:
            weight = self.bags.state_dict()
            self.bags = kt.EmbeddingBag("words", 8, mode="sum", optimizer=SGD(RATE), store=store, fused=fused)
            self.bags.load_state_dict(weight)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.bags(x))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """One for all parameters, or one for the rows and one for the dense part."""
        dense = torch.optim.SGD(self.parameters(), RATE)
        return [kt.Optimizer(self), dense] if isinstance(self.bags, kt.EmbeddingBag) else [dense]


def batches(ids: torch.Tensor, wanted: torch.Tensor, size: int) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, wanted), size)


@pytest.mark.needs("lightning")
def test_lightning(store, tmp_path):
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self, store: Any) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net, self.losses = Net(store), list[float]()

        def training_step(self, batch: Any, _: int) -> None:
            given = self.optimizers()
            optimizers = given if isinstance(given, list) else [given]
            for each in optimizers:
                each.zero_grad()
            self.manual_backward(torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))
            for each in optimizers:
                each.step()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def on_validation_epoch_end(self) -> None:
            self.losses.append(float(self.trainer.callback_metrics["loss"]))

        def configure_optimizers(self) -> Any:
            return self.net.optimizers()

    def run(store: Any, root: Any) -> list[float]:
        training, validation = batches(TRAINED, TRAINED_Y, 64), batches(SEEN, SEEN_Y, 128)
        model, kept = Module(store), ModelCheckpoint(root, monitor="loss", save_top_k=1, save_last=True)
        stopping = EarlyStopping("loss", patience=2, min_delta=0.02)
        trainer = lightning.Trainer(max_epochs=12, callbacks=[kept, stopping], **QUIET)
        trainer.fit(model, training, validation)
        assert len(model.losses) < 12, "it stops early"
        (best,) = trainer.validate(model, validation, ckpt_path="best", verbose=False)
        assert best["loss"] == kept.best_model_score == min(model.losses)
        again = lightning.Trainer(max_epochs=14, enable_checkpointing=False, **QUIET)
        again.fit(model, training, validation, ckpt_path=root / "last.ckpt")
        return model.losses

    assert run(store, tmp_path / "rows") == pytest.approx(run(None, tmp_path / "plain"), rel=1e-5)


def automatic(store: Any, *, fused: bool = False, **settings: Any) -> list[float]:
    """Train with Lightning's automatic optimization; returns the losses after each epoch."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = Net(store, fused=fused), list[float]()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def on_train_epoch_end(self) -> None:
            with torch.no_grad():
                self.losses.append(float(torch.nn.functional.mse_loss(self.net.eval()(SEEN), SEEN_Y)))
            self.net.train()

        def configure_optimizers(self) -> Any:
            dense = torch.optim.SGD(self.net.parameters(), RATE)
            one = dense if store is None or fused else kt.Optimizer(self.net, dense=dense)
            return {"optimizer": one, "lr_scheduler": torch.optim.lr_scheduler.StepLR(one, 1, 0.9)}

    model = Module()
    lightning.Trainer(max_epochs=4, enable_checkpointing=False, **settings, **QUIET).fit(
        model, batches(TRAINED, TRAINED_Y, 64)
    )
    return model.losses


SETTINGS = [
    {},
    {"gradient_clip_val": 0.5},
    {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
    {"accumulate_grad_batches": 2},
    {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5},
]


@pytest.mark.needs("lightning")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_lightning_with_automatic_optimization_clips_and_accumulates(store, settings):
    wanted = automatic(None, **settings)
    assert automatic(store, **settings) == pytest.approx(wanted, rel=1e-5)
    assert (wanted == automatic(None)) == (not settings), "the setting matters"


@pytest.mark.needs("lightning")
@pytest.mark.parametrize("settings", SETTINGS[1:], ids=str)
def test_lightning_refuses_settings_that_fused_rows_would_miss(store, settings):
    with pytest.raises(
        RuntimeError, match=r"the rows of 'words' (had taken their step|took a step in each) with fused"
    ):
        automatic(store, fused=True, **settings)


@pytest.mark.needs("transformers", "accelerate")
def test_trainer_of_hugging_face(store, tmp_path):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(Net):
        def forward(self, x: Any = None, labels: Any = None) -> Any:
            out = super().forward(x)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

    def run(store: Any, root: str, epochs: int, resumed: str | None = None) -> list[float]:
        model = Model(store)
        if store is not None:
            kt.ignore_clipping(model)  # the Trainer measures the norm of the dense part alone
        *rows, dense = model.optimizers()

        class Rows(TrainerCallback):
            def on_optimizer_step(self, *_: Any, **__: Any) -> None:
                for each in rows:
                    each.step()
                    each.zero_grad()

        arguments = TrainingArguments(
            root,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=128,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            save_total_limit=2,
            report_to=[],
            seed=3,
            max_grad_norm=0.0,
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
            label_names=["labels"],
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=[{"x": x, "labels": y} for x, y in zip(TRAINED, TRAINED_Y, strict=True)],
            eval_dataset=[{"x": x, "labels": y} for x, y in zip(SEEN, SEEN_Y, strict=True)],
            optimizers=(dense, torch.optim.lr_scheduler.LambdaLR(dense, lambda _: 1.0)),
            callbacks=[Rows()],
        )
        trainer.train(resume_from_checkpoint=resumed)
        losses = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
        best = trainer.evaluate()["eval_loss"]
        assert best == trainer.state.best_metric == min(losses)
        return losses

    losses = []
    for place, kind in ((store, "rows"), (None, "plain")):
        root = str(tmp_path / kind)
        run(place, root, 6)
        newest = max(os.listdir(root), key=lambda name: int(name.rpartition("-")[2]))
        losses.append(run(place, root, 8, f"{root}/{newest}"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.needs("accelerate")
def test_accelerate(store, tmp_path):
    from accelerate import Accelerator

    def run(store: Any, root: str) -> list[float]:
        accelerator, model = Accelerator(cpu=True), Net(store)
        prepared = accelerator.prepare(model, batches(TRAINED, TRAINED_Y, 64), *model.optimizers())
        model, loader, optimizers = prepared[0], prepared[1], prepared[2:]
        losses = []

        def epoch() -> None:
            for x, y in loader:
                for each in optimizers:
                    each.zero_grad()
                accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                for each in optimizers:
                    each.step()
            model.eval()
            with torch.no_grad():
                losses.append(float(torch.nn.functional.mse_loss(model(SEEN), SEEN_Y)))
            model.train()

        epoch()
        accelerator.save_state(root)
        epoch()
        accelerator.load_state(root)
        epoch()
        assert losses[1] == losses[2] != losses[0]
        return losses

    assert run(store, str(tmp_path / "rows")) == pytest.approx(run(None, str(tmp_path / "plain")), rel=1e-5)
