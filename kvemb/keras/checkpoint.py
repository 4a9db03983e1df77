"""Checkpoint: a callback that saves rows and the dense model in one checkpoint, and goes on from the newest one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from kvemb.checks.brief import brief, there_are
from kvemb.checks.numeric import as_bool, as_choice
from kvemb.checks.seconds import as_seconds
from kvemb.durability.checkpoint import Checkpoint as Saved
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.handle import inside
from kvemb.keras.state import read_state, set_metrics, write_state
from kvemb.offline.resuming import changed_since
from kvemb.offline.series import CheckpointManager
from kvemb.store import Store

_FILE = "keras.npz"
_EXTRA = "kvemb.keras"


class Checkpoint(keras.callbacks.LambdaCallback):
    """Save rows, weights, the optimizer's state, the epoch and the batch in one checkpoint; resume from the newest one.

    The callback saves at the end of each epoch, or when a checkpoint is due. A checkpoint is complete or absent. When
    ``fit`` starts with a series that has checkpoints, it restores the dense part of the newest one, and goes on after
    the batch at which that was saved. Rows are restored by ``CheckpointManager.resume``, which opens the store.

    Batches before that one are read from the data again, and skipped. For the same losses as without an interruption,
    the data must come in the same order, for example with ``shuffle=False``.

    Args:
        series: The series of checkpoints.
        store: The store of the rows, opened with ``series.resume(path)``.
        every: Seconds from one checkpoint to the next. None: at the end of each epoch.
        monitor: With ``save_best_only``: the value of the logs that says which epoch is the best.
        save_best_only: Whether only an epoch that is better than all before is saved, at its end. So the newest
            checkpoint is the best epoch's, and ``series.resume`` and the next ``fit`` return to it.
        mode: ``"min"`` or ``"max"``: which values are better. ``"auto"``: max for the name of an accuracy, AUC or F
            score, otherwise min.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: If ``every`` is out of range or given with ``save_best_only``, for an unknown ``mode``, or if the
            logs of an epoch lack ``monitor``. ``fit`` raises it if the newest checkpoint is of another model or
            another store, if the store is not in its state, or if no epoch is left to train and the model is not
            built, which TensorFlow does in the first step.

    Example:
        >>> import kvemb, kvemb.keras as kk
        >>> series = kvemb.CheckpointManager("checkpoints", keep=3)
        >>> resumed, last = series.resume("training.kvemb")
        >>> with series, resumed:
        ...     callback = kk.Checkpoint(series, resumed)  # model.fit(..., callbacks=[callback])
    """

    def __init__(
        self,
        series: CheckpointManager,
        store: Store,
        every: float | None = None,
        *,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: str = "auto",
    ) -> None:
        super().__init__(
            on_train_begin=self._restore,
            on_epoch_begin=self._skip_trained,
            on_train_batch_end=self._save_within,
            on_epoch_end=self._save_after,
            on_train_end=self._wait,
        )
        if not isinstance(series, CheckpointManager):
            raise TypeError(f"series must be a kvemb.CheckpointManager, got {brief(series)}")
        if not isinstance(store, Store):
            raise TypeError(f"store must be a kvemb.Store, got {brief(store)}")
        self.series: CheckpointManager = series
        self.store: Store = store
        self.every: float | None = None if every is None else as_seconds(every, "every")
        self.monitor: str = monitor
        self.save_best_only: bool = as_bool(save_best_only, "save_best_only")
        if save_best_only and every is not None:
            raise ValueError("save_best_only saves at the end of epochs: leave out every")
        how = as_choice(mode, "mode", among=("auto", "min", "max"))
        grows = (
            any(word in monitor.lower() for word in ("acc", "auc", "fmeasure", "f1")) if how == "auto" else how == "max"
        )
        self._sign, self._best = -1.0 if grows else 1.0, math.inf
        self._later: Saved | None = None
        self._epoch, self._skip = 0, 0
        self._metrics: dict[str, Any] = {}
        self._begun = time.monotonic()
        self._writing: PendingCheckpoint[Saved] | None = None
        self._restored_epoch = -1

    def _restore(self, logs: Any = None) -> None:
        """Restore the dense part of the newest checkpoint, and have ``fit`` begin there."""
        self._begun, self._skip, self._restored_epoch = time.monotonic(), 0, -1
        newest, model = self.series.latest(), self.model
        model._initial_epoch = None
        if newest is None:
            return
        if _EXTRA not in newest.extra:
            raise ValueError(
                f"the checkpoint {newest.path} was not saved by kvemb.keras.Checkpoint; name another series"
            )
        self._check_state(newest)
        said = newest.extra[_EXTRA]
        self._later = None if all(each.built for each in model._flatten_layers()) else newest
        if self._later is None:
            self._metrics = read_state(model, newest.files[_FILE])
        self._best = float(said.get("best", math.inf))
        self._restored_epoch, self._skip = int(said["epoch"]), int(said["batches"])
        model._initial_epoch = self._restored_epoch

    def _skip_trained(self, epoch: int, logs: Any = None) -> None:
        """Restore the metrics of an epoch that was interrupted, and skip the batches that were trained."""
        self._epoch, model = epoch, self.model
        model._initial_epoch = None  # fit has read it
        if epoch == self._restored_epoch and (self._skip or self._later is not None):
            has_all = self._later is None and set_metrics(model, self._metrics)
            model.train_function = _skipping(model, self._skip, None if has_all else self._build)

    def _build(self, batch: Any) -> None:
        """Build the model for a batch, and set what it has only then: TensorFlow's trainer builds in its first step."""
        self.model._symbolic_build(data_batch=batch)
        if self._later is not None:
            self._metrics, self._later = read_state(self.model, self._later.files[_FILE]), None
        if self._skip:
            set_metrics(self.model, self._metrics)

    def _save_within(self, batch: int, logs: Any = None) -> None:
        """Save a checkpoint if one is due."""
        done = batch + 1
        if self._epoch == self._restored_epoch and done <= self._skip:
            return
        if self.every is not None and time.monotonic() - self._begun >= self.every:
            self._save(self._epoch, done)

    def _save_after(self, epoch: int, logs: Any = None) -> None:
        """Save a checkpoint, unless ``every`` is given and none is due."""
        if self.save_best_only:
            if self.monitor not in (logs or {}):
                raise ValueError(f"the logs of an epoch have no {self.monitor!r}; {there_are(logs or {})}")
            value = self._sign * float(logs[self.monitor])
            if not value < self._best:
                return
            self._best = value
        if self.every is None or time.monotonic() - self._begun >= self.every:
            self._save(epoch + 1, 0)

    def _wait(self, logs: Any = None) -> None:
        """Wait for the checkpoint that is being written. Raises ValueError if the dense part was not restored."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None
        if self._later is not None:  # no epoch is left, and TensorFlow's trainer has built nothing
            later, self._later = self._later, None
            raise ValueError(
                f"fit had no batch to train, so the model was not built, and has not the weights of {later.path}; call "
                "the model on a batch before fit"
            )

    def _save(self, epoch: int, batches: int) -> None:
        model = self.model  # with JAX, this waits for the step
        self._begun = time.monotonic()
        files, extra = (
            {_FILE: partial(write_state, model)},
            {_EXTRA: {"epoch": epoch, "batches": batches, **({"best": self._best} if self.save_best_only else {})}},
        )
        self._writing = self.series.save(self.store, block=False, files=files, extra=extra)

    def _check_state(self, newest: Saved) -> None:
        """Raise ValueError unless the store's rows are those of the checkpoint."""
        self.store.flush()  # writes a durable point if rows have changed
        point = inside(self.store).current_manifest
        if point.store != inside(newest).store or changed_since(point, newest.id):
            raise ValueError(
                f"the rows of {self.store.path} are not those of the checkpoint {newest.path}, whose weights would be "
                "restored; open the store with series.resume(path), or name a new series"
            )


def _skipping(model: Any, batches: int, build: Callable[[Any], None] | None) -> Callable[..., Any]:
    """Return a train_function that takes batches from the data without training, then puts the model's own back.

    build: to call before the first step, with a batch like those of the data; or None.
    """
    own, seen = model.train_function, 0

    def skip(*arguments: Any) -> Any:
        nonlocal seen
        try:
            if seen >= batches:
                model.train_function = own
                if build is not None and not batches:
                    build(_like_next(arguments[-1]))
                return own(*arguments)
            seen += model.steps_per_execution
            last = _taken(arguments[-1], model.steps_per_execution)
            if build is not None and seen >= batches:
                build(last)
        except BaseException:
            model.train_function = own
            raise
        logs: dict[str, Any] = {}
        return (logs, arguments[0]) if len(arguments) == 2 else logs

    return skip


def _taken(batches: Any, count: int) -> Any:
    """Take a step's batches from an iterator; a list has them already. Returns the last one."""
    return batches[-1] if isinstance(batches, list) else [next(batches) for _ in range(count)][-1]


def _like_next(batches: Any) -> Any:
    """Return zeros like the next batch of a list, or of an iterator of TensorFlow."""
    if isinstance(batches, list):
        return batches[-1]
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda spec: tf.zeros([1 if n is None else n for n in spec.shape], spec.dtype), batches.element_spec
    )
