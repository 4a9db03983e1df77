"""Modules that are refused make no variable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kvemb
import kvemb.torch as kt

STRINGS = {"key_dtype": "string", "name_bytes": 8}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding_idx": "a"}, "padding_idx must be an integer, as the keys of variable 'words' are, got 'a'"),
        ({"padding_idx": 0, **STRINGS}, "padding_idx must be a string, as the keys of variable 'words' are, got 0"),
        ({"padding_idx": "a" * 9, **STRINGS}, "must have at most name_bytes=8"),
        ({"padding_idx": 0.5}, "padding_idx"),
        ({"fused": True}, "variable 'words' has no optimizer, which fused=True needs"),
        ({"output_dtype": torch.int64}, "output_dtype must be a torch float dtype"),
        ({"value_dtype": "int32"}, "holds int32, but floats are needed"),
        ({"mode": "least"}, "mode"),
        ({"learning_rate": 1}, "there is no argument learning_rate here"),
    ],
)
@pytest.mark.parametrize("kind", [kt.Embedding, kt.EmbeddingBag, kt.EmbeddingBagCollection])
def test_a_module_that_is_refused_makes_no_variable(
    store: kvemb.Store, kind: Any, arguments: dict[str, Any], message: str
) -> None:
    if kind is kt.Embedding and "mode" in arguments:
        message = "no argument 'mode'"
    own = {name: arguments[name] for name in ("padding_idx", "fused", "output_dtype", "mode") if name in arguments}
    others = {name: each for name, each in arguments.items() if name not in own}
    given: list[Any] = ["words", 2]
    if kind is kt.EmbeddingBagCollection:
        given = [{"first": {"dim": 2, "optimizer": kvemb.optimizers.SGD(0.1)}, "words": {"dim": 2, **others}}]
        own |= {"padding_idx": {"words": own["padding_idx"]}} if "padding_idx" in own else {}
        others = {}
    with pytest.raises((TypeError, ValueError), match=message):
        kind(*given, store=store, **own, **others)
    assert not store.variables
