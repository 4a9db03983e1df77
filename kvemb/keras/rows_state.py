"""The state of the rows with which dense weights belong together.

Rows are not weights of a model, so what sets a model's weights back, such as EarlyStopping(restore_best_weights=True)
or load_weights(), would set back half of it. It raises if the rows are in another state than they were. In a process,
a state is a number, which counts the steps of layers. In files it is also the rows of the last step's first keys: an
earlier state lacks that step, and a later epoch has changed them. Thread-safe.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import keras
import numpy as np

from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable

_dense_only: ContextVar[bool] = ContextVar("kvemb.keras.dense_only", default=False)
_ADVICE = (
    "kvemb.keras.Checkpoint(series, store) saves and restores both, with save_best_only=True those of the best epoch. "
    "To set the dense part alone, and leave the rows as they are: with kvemb.keras.dense_only()"
)


@contextmanager
def dense_only() -> Iterator[None]:
    """Let a block set, load or keep the dense weights of models alone, and leave rows as they are.

    Otherwise ``set_weights``, ``load_weights`` and ``load_model`` raise ValueError if the rows are not in the state
    that they had when the weights were saved, and so do callbacks of Keras that restore weights.

    Yields:
        None.

    Example:
        >>> import kvemb.keras as kk
        >>> with kk.dense_only():
        ...     pass  # model.load_weights("best.weights.h5")
    """
    token = _dense_only.set(True)
    try:
        yield
    finally:
        _dense_only.reset(token)


class _Trained:
    """The steps of layers on a variable in this process: their number, and some keys of the last one."""

    def __init__(self) -> None:
        self.process = int.from_bytes(os.urandom(4), "little") << 32
        self.steps, self.keys = 0, np.empty(0, np.int64)


_SAMPLE = 64
_lock = threading.Lock()
_trained: WeakKeyDictionary[Variable, _Trained] = WeakKeyDictionary()


def count_step(variable: Variable, keys: Any) -> None:
    """Count a step on the rows of keys (n,)."""
    with uninterrupted(), _lock:
        trained = _trained.setdefault(variable, _Trained())
        trained.steps += 1
        if len(keys):
            trained.keys = np.array(keys[:_SAMPLE])


def number_of(variable: Variable) -> np.uint64:
    """Return the number of the rows' state in this process. Raises ValueError if a callback wants to restore it."""
    if not _dense_only.get():
        _refuse_callbacks(variable)
    with uninterrupted(), _lock:
        trained = _trained.setdefault(variable, _Trained())
        return np.uint64(trained.process + trained.steps)


def check_number(variable: Variable, number: Any) -> None:
    """Raise ValueError if the rows are not in the state of a number. Rows of a store that follows may always be."""
    given = np.asarray(number)
    if _is_checked(variable) and (given.dtype != np.uint64 or given != number_of(variable)):
        _refuse(variable, "the weights to set")


def saved_state(variable: Variable) -> tuple[Any, Any, Any]:
    """Return the rows' state for a file: its number, some keys, and their rows. Raises as number_of."""
    number = np.asarray(number_of(variable))
    with uninterrupted(), _lock:
        keys = _trained[variable].keys
    if not len(keys):  # nothing was trained in this process
        keys = next((keys for keys, _ in variable.export_batches(_SAMPLE)), np.empty(0, variable.key_dtype))
    return number, keys, _rows(variable, keys)


def check_saved_state(variable: Variable, state: Sequence[Any], what: str) -> None:
    """Raise ValueError if the rows are not in a state that saved_state returned. what: was saved with it."""
    if not _is_checked(variable):
        return
    number, keys, rows = map(np.asarray, state)
    now = int(number_of(variable))
    if int(number) == now:
        return
    if int(number) >> 32 == now >> 32 or rows.tobytes() != _rows(variable, keys).tobytes():
        _refuse(variable, what)


def _rows(variable: Variable, keys: Any) -> Any:
    rows = variable.lookup(keys.astype(variable.key_dtype), touch=False)
    return rows.astype(np.float64)  # in which all float dtypes are exact


def _is_checked(variable: Variable) -> bool:
    return not (_dense_only.get() or getattr(variable.resource_handle[0], "follows", False))


def _refuse(variable: Variable, what: str) -> NoReturn:
    raise ValueError(
        f"the rows of {variable.name!r} are not those of {what}: they were trained since, or are of another store, and "
        f"do not go back with the dense weights. {_ADVICE}"
    )


def _refuse_callbacks(variable: Variable) -> None:
    """Raise ValueError if a callback of Keras keeps weights to restore them, before it has trained for nothing."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        asking = frame.f_locals.get("self")
        best = isinstance(asking, keras.callbacks.ModelCheckpoint) and asking.save_best_only
        if best or isinstance(asking, (keras.callbacks.EarlyStopping, keras.callbacks.BackupAndRestore)):
            raise ValueError(
                f"{type(asking).__name__} would restore the dense weights of an earlier epoch, but not the rows of "
                f"{variable.name!r}. {_ADVICE}"
            )
        frame = frame.f_back
