"""Refuses to trace a lookup for a file: it would call functions of this process, or hold the rows of one batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_with_rows: ContextVar[bool] = ContextVar("kvemb.keras.exporting", default=False)
_EXPORTERS = (
    *("keras.src.export", "tensorflow.python.saved_model", "jax.experimental.jax2tf", "jax._src.export"),
    *("torch.export", "torch._export", "torch.onnx", "torch.jit", "litert_torch", "openvino"),
)


class RowsAreNotExported(ValueError):
    """A model is traced for a file, which could not hold the rows of its tables."""


def check_not_exported() -> None:
    """Raise RowsAreNotExported if the call is traced by an exporter. REQUIRES: a trace; reads the stack."""
    if _is_called_by(_EXPORTERS):
        refuse()


@contextmanager
def with_rows() -> Iterator[None]:
    """Let a block export models with their rows."""
    token = _with_rows.set(True)
    try:
        yield
    finally:
        _with_rows.reset(token)


def is_with_rows() -> bool:
    """Whether a model is exported with its rows."""
    return _with_rows.get()


def is_signature_of_shapes() -> bool:
    """Whether a model that is exported with its rows is traced, once more, for inputs of assumed dtypes.

    Of a subclassed model Keras keeps the shapes of inputs alone, and has TensorFlow save a function of floats of these
    shapes, which nothing calls, beside the exported one. Reads the stack.
    """
    return _with_rows.get() and _is_called_by("tensorflow.python.trackable")


def _is_called_by(modules: str | tuple[str, ...]) -> bool:
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(modules):
            return True
        frame = frame.f_back
    return False


def refuse() -> None:
    """Raise RowsAreNotExported."""
    raise RowsAreNotExported(
        "this exporter cannot reach the rows of layers of kvemb.keras, which are in a store: export the model with "
        "kvemb.keras.export(model, path), which writes rows, too, or save it with model.save and serve it with a store "
        "(kvemb.open(path, follow=True))"
    )
