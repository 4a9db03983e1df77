"""The state of the rows with which dense weights belong together.

Rows are not weights of a model, so what sets a model's weights back would set back half of it. Where a callback of
Keras keeps weights to restore them, such as EarlyStopping(restore_best_weights=True), the store is marked, and goes
back to that mark with the weights. Other weights, such as those of save_weights(), have no mark, and raise if the rows
are in another state than they were. In a process, a state is a number, which counts the steps of layers. In files it is
also the rows of the last step's first keys: an earlier state lacks that step, and a later epoch has changed them.
Thread-safe.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import keras
import numpy as np

from kvemb.durability.marks.mark import Mark
from kvemb.handle import inside
from kvemb.store import Store
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

    Otherwise weights that a callback of Keras kept to restore them take the rows back with them, and others, of
    ``set_weights``, ``load_weights`` and ``load_model``, raise ValueError if the rows are not in the state that they
    had when the weights were saved.

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
    """The steps of layers on a variable in this process: the number of the state now, and keys of the last step.

    The upper half of the number is that of a line of steps, the lower half counts them. A line ends when the rows go
    back: the steps that follow lead to other states than those that were taken there before.
    """

    def __init__(self, number: int | None = None, keys: Any = (), mark: str | None = None) -> None:
        """number: of a state to which the rows went back. mark: the id of the mark that they went back to."""
        self.mark = mark
        self.number = _new_line() if number is None else number
        self.keys = np.array(keys) if len(keys) else np.empty(0, np.int64)

    def count(self) -> None:
        """Count a step."""
        self.number = (self.number if self.mark is None else _new_line()) + 1
        self.mark = None


def _new_line() -> int:
    return int.from_bytes(os.urandom(4), "little") << 32


class _Marked(NamedTuple):
    """A mark that was made for a callback, and the states of the store's variables there: their numbers, and keys."""

    mark: Mark
    callback: str
    states: WeakKeyDictionary[Variable, tuple[int, Any]]


_SAMPLE = 64
_logger = logging.getLogger("kvemb")
_lock = threading.Lock()
_trained: WeakKeyDictionary[Variable, _Trained] = WeakKeyDictionary()
_marked: deque[_Marked] = deque(maxlen=64)


def count_step(variable: Variable, keys: Any) -> None:
    """Count a step on the rows of keys (n,)."""
    with uninterrupted(), _lock:
        trained = _trained.setdefault(variable, _Trained())
        trained.count()
        if len(keys):
            trained.keys = np.array(keys[:_SAMPLE])


def number_of(variable: Variable) -> np.uint64:
    """Return the number of the rows' state in this process. The store is marked if a callback will restore it."""
    _mark_for_callback(variable)
    return _number(variable)


def _number(variable: Variable) -> np.uint64:
    with uninterrupted(), _lock:
        trained = _trained.setdefault(variable, _Trained())
        return np.uint64(trained.number)


def check_number(variable: Variable, number: Any) -> None:
    """Take the rows back to the state of a number, if there is a mark, or raise ValueError if they are in another one.

    number: what number_of returned; for weights of another kind, which raise, anything else. Rows of a store that
    follows may be in any.
    """
    given = np.asarray(number)
    if not _is_checked(variable) or (given.dtype == np.uint64 and given == _number(variable)):
        return
    if given.dtype != np.uint64:
        raise ValueError(
            f"the weights to set do not say to which state of the rows of {variable.name!r} they belong: tensors, and "
            "models in .h5 files, do not. Use model.save('model.keras'), model.save_weights('model.weights.h5') or "
            f"model.get_weights(). {_ADVICE}"
        )
    known = [each for each in _marked if (each.states.get(variable) or (None,))[0] == given]
    if not known or not _went_back(variable, known[-1].mark.id, int(given), ()):
        _refuse(variable, "the weights to set")


def saved_state(variable: Variable) -> tuple[Any, Any, Any, Any]:
    """Return the rows' state for a file: its number, some keys, their rows, and the id of a mark, bytes, if any."""
    mark = _mark_for_callback(variable)
    number = np.asarray(_number(variable))
    with uninterrupted(), _lock:
        keys = _trained[variable].keys
    if not len(keys):  # nothing was trained in this process
        keys = next((keys for keys, _ in variable.export_batches(_SAMPLE)), np.empty(0, variable.key_dtype))
    return number, keys, _rows(variable, keys), np.frombuffer((mark or "").encode(), np.uint8)


def check_saved_state(variable: Variable, state: Sequence[Any], what: str) -> None:
    """Take the rows back to a state that saved_state returned, or raise ValueError if they are in another one.

    what: was saved with it.
    """
    if not _is_checked(variable):
        return
    number, keys, rows, *mark = map(np.asarray, state)
    now = int(_number(variable))
    if int(number) == now:
        return
    if mark and mark[0].size and _went_back(variable, mark[0].tobytes().decode(), int(number), keys):
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


# Marks for callbacks of Keras.


def _mark_for_callback(variable: Variable) -> str | None:
    """Return the id of a mark of the present state, if a callback of Keras keeps weights to restore them.

    Raises ValueError if the rows cannot be marked, before the callback has trained for nothing.
    """
    callback = None if _dense_only.get() else _asking()
    if callback is None:
        return None
    _settle()
    store = variable.resource_handle[0]
    kind = type(callback).__name__
    if not isinstance(store, Store) or store.state.read_only or not inside(variable).persistent:
        if isinstance(callback, keras.callbacks.BackupAndRestore):  # what it has begun would be loaded
            shutil.rmtree(callback.backup_dir, ignore_errors=True)
        raise ValueError(
            f"{kind} would restore the dense weights of an earlier epoch, but not the rows of {variable.name!r}, which "
            f"no mark of the store has. {_ADVICE}"
        )
    with uninterrupted(), _lock:
        _trained.setdefault(variable, _Trained())
        states = WeakKeyDictionary(
            {each: (of.number, of.keys) for each, of in _trained.items() if each.resource_handle[0] is store}
        )
    place = getattr(callback, "backup_dir", None) or getattr(callback, "filepath", None) or callback.monitor
    name = f"keras-{kind}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    mine = [each for each in _marked if each.callback == name and each.mark.store == store.id]
    if mine and all(each in states and states[each][0] == number for each, (number, _) in mine[-1].states.items()):
        mine[-1].states.update(states)  # of variables whose first state this is
        return mine[-1].mark.id
    # Of two names the one without a mark, or with the older one: the file of the newer one is still the callback's.
    made = {each.name: each.created for each in store.marks}
    mark = store.mark(min((f"{name}-{number}" for number in (0, 1)), key=lambda each: made.get(each, 0.0)), block=True)
    _marked.append(_Marked(mark, name, states))
    return mark.id


def _settle() -> None:
    """Wait for the steps that JAX takes in the background."""
    if keras.backend.backend() == "jax":
        import jax

        jax.effects_barrier()


def _asking() -> Any:
    """Return the callback of Keras that keeps weights to restore them, if one is asking for them."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        asking = frame.f_locals.get("self")
        best = isinstance(asking, keras.callbacks.ModelCheckpoint) and asking.save_best_only
        if best or isinstance(asking, (keras.callbacks.EarlyStopping, keras.callbacks.BackupAndRestore)):
            return asking
        frame = frame.f_back
    return None


def _went_back(variable: Variable, identity: str, number: int, keys: Any) -> bool:
    """Take the store of a variable back to a mark. Returns whether it has that mark.

    identity: the mark's. number, keys: of the variable's state there.
    """
    store = variable.resource_handle[0]
    mark = next((each for each in store.marks if each.id == identity), None) if isinstance(store, Store) else None
    if mark is None:
        return False
    with uninterrupted(), _lock:
        is_there = _trained[variable].mark == identity  # with another variable of the store
    if not is_there:
        store.rollback(mark)
        _logger.info("the rows of %s went back to those of the weights that are restored", store.path)
    known = next((each.states for each in _marked if each.mark.id == identity), WeakKeyDictionary())
    with uninterrupted(), _lock:
        for each in [variable] if is_there else [each for each in _trained if each.resource_handle[0] is store]:
            at, last = known.get(each) or ((number, keys) if each is variable else (None, ()))
            _trained[each] = _Trained(at, last, identity)
    return True
