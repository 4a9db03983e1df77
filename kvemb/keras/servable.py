"""export: a model with its rows as files of its framework, for processes without kvemb."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from kvemb.checks.brief import brief, there_are
from kvemb.initializers import as_initializer
from kvemb.keras.exporting import with_rows
from kvemb.keras.static_tables import StaticTable, in_place_of_stores
from kvemb.variable import Variable


def export(
    model: keras.Model,
    filepath: Any,
    format: str | None = None,
    *,
    keys: Mapping[str, Any] | None = None,
    missing: Any = "initializer",
    input_signature: Any = None,
    **options: Any,
) -> None:
    """Export a model with its rows, for a process without kvemb, such as TensorFlow Serving.

    The rows become tables of the framework: keys, sorted, and rows, as weights. Predictions in float32 are those of
    ``model.predict``, bit for bit. The file has the rows of now, and does not change when the store does. The rows are
    read into memory; of a large table export those of the keys that will be asked for. To serve rows that change, keep
    a follower beside the model.

    Args:
        model: A built model.
        filepath: Where to write.
        format: A format of ``keras.Model.export``. None: ``"tf_saved_model"`` with TensorFlow and JAX, ``"torch"`` with
            PyTorch. Others, such as ``"onnx"``, are Keras' own, and not tested.
        keys: Of tables by the names of their variables, the keys whose rows are exported. Tables that are not named are
            exported whole.
        missing: The rows of keys that have none in the file: ``"initializer"``, those of the variable's initializer, or
            a number or a row of numbers, such as 0. float16 rows of an initializer may differ in the last bit.
        input_signature: Dtypes and shapes of the inputs, such as ``[keras.InputSpec("int64", (None, 3))]``. None: those
            of a functional or sequential model. A subclassed model needs it.
        **options: Other arguments of ``keras.Model.export``.

    Raises:
        TypeError: ``model`` is not a model, or ``missing`` is of another type.
        ValueError: The model is not built or has no layers of kvemb.keras; ``keys`` names another variable;
            ``input_signature`` is missing; or JAX has no 64-bit integers for the keys.
        KvembError: What ``kvemb.Variable.export_batches`` and ``kvemb.Variable.lookup`` raise.

    Example:
        >>> import keras, kvemb.keras as kk
        >>> words = kk.Embedding("words", 4, key_dtype="int32")
        >>> model = keras.Sequential([keras.Input((3,), dtype="int32"), words])
        >>> kk.export(model, "served", verbose=False)  # doctest: +SKIP
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model, got {brief(model)}")
    variables = _variables_of(model)
    if other := sorted(set(keys or {}) - {variable.name for variable in variables}):
        raise ValueError(
            f"keys names {other[0]!r}, but of the model's variables {there_are([each.name for each in variables])}"
        )
    if input_signature is None and not hasattr(model, "inputs"):
        raise ValueError(
            "a subclassed model does not say the dtypes of its inputs; give input_signature, such as "
            "[keras.InputSpec('int64', (None, 3))]"
        )
    kind = format or ("torch" if keras.backend.backend() == "torch" else "tf_saved_model")
    place = filepath if isinstance(filepath, str) else str(Path(filepath))
    with with_rows(), in_place_of_stores(_tables_of(variables, keys or {}, missing)):
        model.export(place, format=kind, input_signature=input_signature, **options)


def _variables_of(model: keras.Model) -> list[Variable]:
    found = [variable for layer in model._flatten_layers() for variable in getattr(layer, "variables_of_rows", ())]
    if not found:
        raise ValueError("the model has no layers of kvemb.keras: export it with model.export")
    if not model.built:
        raise ValueError("the model is not built; call it on a batch first")
    return list(dict.fromkeys(found))


def _tables_of(variables: list[Variable], keys: Mapping[str, Any], missing: Any) -> dict[Variable, StaticTable]:
    tables = {}
    for variable in variables:
        given = variable.initializer
        if not (isinstance(missing, str) and missing == "initializer"):
            given = as_initializer(missing, variable.dim, variable.value_dtype)
        tables[variable] = StaticTable(variable, keys.get(variable.name), given)
    return tables
