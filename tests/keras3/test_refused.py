"""Layers that are refused make no variable."""

from __future__ import annotations

from typing import Any

import pytest

import kvemb
import kvemb.keras as kk


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_dtype": "string"}, "variable 'words' has string keys, but tensors of integers are needed here"),
        ({"value_dtype": "int32"}, "holds int32, but floats are needed"),
        ({"padding_idx": "a"}, "padding_idx"),
        ({"dtype": "float9"}, "float9"),
        ({"name": 5}, "name must be a str or None, got 5"),
    ],
)
@pytest.mark.parametrize("kind", [kk.Embedding, kk.EmbeddingBag, kk.DistributedEmbedding])
def test_a_layer_that_is_refused_makes_no_variable(
    store: kvemb.Store, kind: Any, arguments: dict[str, Any], message: str
) -> None:
    given: list[Any] = ["words", 2]
    if kind is kk.DistributedEmbedding:
        of_table = {name: each for name, each in arguments.items() if name.endswith("_dtype")}
        of_feature = {name: each for name, each in arguments.items() if name == "padding_idx"}
        tables = {"name": "first", "dim": 2}, {"name": "words", "dim": 2, **of_table}
        given = [[{"table": tables[0]}, {"table": tables[1], **of_feature}]]
        arguments = {name: each for name, each in arguments.items() if name in ("dtype", "name")}
    with pytest.raises((TypeError, ValueError), match=message):
        kind(*given, store=store, **arguments)
    assert not store.variables
