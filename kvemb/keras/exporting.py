"""Refuses to trace a lookup for a file: it would call functions of this process, or hold the rows of one batch."""

from __future__ import annotations

import inspect
from types import FrameType

_EXPORTERS = (
    *("keras.src.export", "tensorflow.python.saved_model", "jax.experimental.jax2tf", "jax._src.export"),
    *("torch.export", "torch._export", "torch.onnx", "torch.jit", "litert_torch", "openvino"),
)


class RowsAreNotExported(ValueError):
    """A model is traced for a file, which could not hold the rows of its tables."""


def check_not_exported() -> None:
    """Raise RowsAreNotExported if the call is traced by an exporter. REQUIRES: a trace; reads the stack."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_EXPORTERS):
            refuse()
        frame = frame.f_back


def refuse() -> None:
    """Raise RowsAreNotExported."""
    raise RowsAreNotExported(
        "this exporter cannot reach the rows of layers of kvemb.keras, which are in a store: export the model with "
        "kvemb.keras.export(model, path), which writes rows, too, or save it with model.save and serve it with a store "
        "(kvemb.open(path, follow=True))"
    )
