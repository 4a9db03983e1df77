"""ServedModel: a model whose rows and dense part are of one checkpoint, replaced as a whole by that of a newer one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from kvemb import opening
from kvemb.checks.brief import there_are
from kvemb.durability.checkpoint import Checkpoint
from kvemb.errors import CheckpointNotFound, Closed
from kvemb.handle import inside
from kvemb.initializers import as_initializer
from kvemb.offline.series import CheckpointManager
from kvemb.store import Store

Model = TypeVar("Model")


class _Version(Generic[Model]):
    """A model, the checkpoint that it is of, and the store of its rows. users: calls that use it now."""

    def __init__(self, checkpoint: Checkpoint, store: Store, model: Model) -> None:
        self.checkpoint, self.store, self.model = checkpoint, store, model
        self.users, self.retired = 0, False


class ServedModel(Generic[Model]):
    """Serve a model of any framework from the newest checkpoint of a series.

    ``refresh`` opens the newest checkpoint beside the one in use, makes a model of it, and then replaces the model as a
    whole. So a call never sees rows of one checkpoint and dense parameters of another. Calls go on meanwhile, and those
    that have begun end with the old model, whose store is then closed. Thread-safe, if the model is.

    Args:
        checkpoints: The directory of the series: a CheckpointManager's, or where ``kvemb pull`` puts it.
        load: A function that makes the model: ``fn(store, checkpoint)``. The store is read-only, and the default store
            in the call. ``checkpoint.files`` has the dense parameters that were saved.
        memory_budget: As for ``kvemb.open``. While ``refresh`` replaces a model, two stores have this much.
        warm: Whether variables begin with the rows that were hot when the checkpoint was made.
        unknown: What a key without a row reads as: a number, a row, or a dict from some variables' names to these.
            ``unknown=0`` gives zeros. None: the initializer's row, as in training, which for a random initializer is
            noise.

    Raises:
        CheckpointNotFound: The series has no checkpoint.
        KeyError: ``load`` opened no variable of a name in ``unknown``.
        TypeError, ValueError: ``unknown`` does not fit a variable's rows.
        Exception: What ``load`` and ``kvemb.open`` raise.

    Example:
        >>> series = kvemb.CheckpointManager("series")
        >>> with series:
        ...     saved = series.save(store, files={"bias": b"0.5"})
        >>> def load(reader, checkpoint):
        ...     rows, bias = reader.variables["users"], float(checkpoint.files["bias"].read_bytes())
        ...     return lambda keys: rows.lookup(keys).sum(axis=1) + bias
        >>> with kvemb.ServedModel("series", load, memory_budget="64MiB") as model:
        ...     model([1, 3]).tolist(), model.refresh()
        ([2.5, 6.5], False)
    """

    def __init__(
        self,
        checkpoints: str | os.PathLike[str],
        load: Callable[[Store, Checkpoint], Model],
        *,
        memory_budget: int | str = "1GiB",
        warm: bool = True,
        unknown: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        self._series, self._load = CheckpointManager(checkpoints), load
        self._memory_budget, self._warm, self._unknown = memory_budget, warm, unknown
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()  # of _current, and of the versions' users
        self._current: _Version[Model] | None = self._newest_but(None)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is served.

        Raises:
            Closed: After ``close()``.
        """
        return self._in_use().checkpoint

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the model.

        Args:
            *arguments: The model's arguments.
            **named: Named arguments of the model.

        Returns:
            What the model returns.

        Raises:
            Closed: After ``close()``.
        """
        with self.use() as model:
            return model(*arguments, **named)  # type: ignore[operator]

    @contextmanager
    def use(self) -> Iterator[Model]:
        """Use one model for several calls, or for its methods, in a ``with`` block.

        Yields:
            The model that is served at the beginning of the block. It stays usable until the end.

        Raises:
            Closed: After ``close()``.
        """
        with self._lock:
            version = self._in_use()
            version.users += 1
        try:
            yield version.model
        finally:
            with self._lock:
                version.users -= 1
                last = version.retired and version.users == 0
            if last:
                version.store.close()

    def refresh(self) -> bool:
        """Serve the newest checkpoint from now on. If there is none newer, it costs one listing of the directory.

        After an error the old model stays in use, and you may call again.

        Returns:
            Whether there was a newer checkpoint.

        Raises:
            Closed: After ``close()``.
            CheckpointNotFound: The series has no checkpoint any more.
            Exception: What ``load`` and ``kvemb.open`` raise.
        """
        with self._refreshing:
            newer = self._newest_but(self._in_use().checkpoint)
            if newer is None:
                return False
            self._replace(newer)
            return True

    def close(self) -> None:
        """Close the store, once calls that have begun are done. Calling it again does nothing."""
        with self._refreshing:
            self._replace(None)

    def __enter__(self) -> ServedModel[Model]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _in_use(self) -> _Version[Model]:
        if (version := self._current) is None:
            raise Closed(f"the model served from {self._series.root} is closed")
        return version

    def _replace(self, version: _Version[Model] | None) -> None:
        with self._lock:
            old, self._current = self._current, version
            unused = old is not None and old.users == 0
            if old is not None:
                old.retired = True
        if old is not None and unused:
            old.store.close()

    def _newest_but(self, known: Checkpoint | None) -> _Version[Model] | None:
        """Return a version of the newest checkpoint; None if that is the known one."""
        tried: str | None = None
        while True:
            newest = self._series.latest()
            if newest is None:
                raise CheckpointNotFound(f"{self._series.root} has no checkpoint yet; wait for the trainer's first one")
            if known is not None and newest.id == known.id:
                return None
            try:
                return self._version_of(newest)
            except FileNotFoundError:  # a trainer that keeps few checkpoints may have deleted it meanwhile
                if newest.id == tried or newest.path.exists():
                    raise
                tried = newest.id

    def _version_of(self, checkpoint: Checkpoint) -> _Version[Model]:
        with ExitStack() as undo:
            store = opening.open(checkpoint.path, read_only=True, memory_budget=self._memory_budget, warm=self._warm)
            undo.callback(store.close)
            with store.as_default():
                model = self._load(store, checkpoint)
            self._read_unknown(store)
            undo.pop_all()
        return _Version(checkpoint, store, model)

    def _read_unknown(self, store: Store) -> None:
        """Let keys without a row read as the caller said, in the variables that the model opened."""
        tables, given = inside(store).tables, self._unknown
        if given is None:
            return
        rows: Mapping[str, Any] = given if isinstance(given, Mapping) else dict.fromkeys(tables, given)
        for name, row in rows.items():
            if name not in tables:
                raise KeyError(f"unknown has a row for variable {name!r}, which load did not open; {there_are(tables)}")
            schema = tables[name].schema
            tables[name].operations.read_missing_as(as_initializer(row, schema.dim, schema.value_dtype))
