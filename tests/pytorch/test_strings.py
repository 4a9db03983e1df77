"""Modules over a variable with string keys give and train what those over the strings' hashes do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvemb
import kvemb.cluster
import kvemb.torch as kt
from kvemb.errors import HashCollision

WORDS = np.array([f"{'é' * (at % 3)}word {at}" for at in range(40)])
FIRST, SECOND = "bg1-kvn", "VzvtA_t%"  # of one hash: tests/rows/test_names.py
PADDING = "word 0"
TRAINED = {"dim": 3, "optimizer": kvemb.optimizers.Adagrad(0.5), "initializer": kvemb.RandomNormal(0.0, 1.0, seed=5)}


def hashed(words):
    return torch.from_numpy(kvemb.hash_strings(words))


def batches(shape, count=12):
    chance = np.random.default_rng(3)
    return [WORDS[chance.integers(0, len(WORDS), shape)] for _ in range(count)]


def rows_by_key(variable):
    keys, rows = variable.export()
    return dict(zip((kvemb.hash_strings(keys) if keys.dtype == object else keys).tolist(), rows.tolist(), strict=True))


def both(store, kind, **arguments):
    """A module over strings, with their optimizers, and one over hashes, with the padding's key."""
    made = []
    for name, key_dtype, padding in (("strings", "string", PADDING), ("hashes", "int64", int(hashed(PADDING)))):
        module = kind(name, key_dtype=key_dtype, padding_idx=padding, store=store, **TRAINED, **arguments)
        made.append((module, kt.Optimizer(module)))
    return made


def check_trained_alike(made, given):
    """Train both on batches; given: the arguments of a module for a batch of ids, of which a step takes two."""
    (strings, first), (hashes, second) = made
    for number, words in enumerate(batches((6, 4))):
        found, expected = strings(*given(words)), hashes(*given(hashed(words)))
        assert torch.equal(found, expected)
        for out in (found, expected):
            out.square().sum().backward()
        if number % 2:
            for optimizer in (first, second):
                torch.nn.utils.clip_grad_norm_(optimizer.leaves, 1.0)
                optimizer.step()
                optimizer.zero_grad()
    trained = rows_by_key(strings.variable)
    assert trained == rows_by_key(hashes.variable)
    assert set(trained) == set(kvemb.hash_strings(WORDS).tolist()) - {int(hashed(PADDING))}
    assert set(strings.variable.export()[0]) == set(WORDS.tolist()) - {PADDING}


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"scale_grad_by_freq": True, "max_norm": 1.0}, marks=pytest.mark.slow)],
    ids=["plain", "with options"],
)
def test_an_embedding_of_strings_is_that_of_their_hashes(store, options):
    check_trained_alike(both(store, kt.Embedding, **options), lambda ids: (ids,))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_strings_are_those_of_their_hashes(store, mode):
    made = both(store, kt.EmbeddingBag, mode=mode)
    check_trained_alike(made, lambda ids: (ids,))
    weights = torch.rand(24) if mode == "sum" else None
    bags = torch.tensor([0, 5, 5, 24])
    (strings, _), (hashes, _) = made
    words = WORDS[:24]
    expected = hashes(hashed(words), bags, weights)
    for given in (words, words.tolist(), tuple(words.tolist()), words.astype(object), kvemb.string_keys(words)):
        assert torch.equal(strings(given, bags, weights), expected)


@pytest.mark.slow
def test_more_passes_than_are_kept_apart_are_summed_by_string(store):
    (strings, first), (hashes, second) = both(store, kt.Embedding)
    for words in batches((6, 4), 20):
        strings(words).sum().backward()
        hashes(hashed(words)).sum().backward()
    first.step()
    second.step()
    assert rows_by_key(strings.variable) == rows_by_key(hashes.variable)


def test_a_collection_takes_strings_beside_integers(store):
    tables = {"words": {**TRAINED, "key_dtype": "string"}, "numbers": TRAINED}
    features = {"shown": "words", "clicked": "words", "user": "numbers"}
    module = kt.EmbeddingBagCollection(tables, features, padding_idx={"words": ""}, allow_absent=True, store=store)
    optimizer = kt.Optimizer(module)
    inputs = {"shown": [["a", "b"], ["a", ""]], "user": torch.tensor([[1], [2]])}
    found = module(inputs)
    assert not found["clicked"].any()
    words = module.tables["words"]
    a, b = torch.from_numpy(words.lookup(["a", "b"]))
    assert torch.equal(found["shown"], torch.stack([a + b, a]))
    pairs = {"shown": (["a", "b", ""], torch.tensor([0, 2])), "clicked": np.array([["a"], ["c"]])}
    found = module({**pairs, "user": torch.tensor([[1], [2]])})
    assert torch.equal(found["shown"], torch.stack([a + b, torch.zeros(3)]))
    assert torch.equal(found["clicked"][0], a)
    keys = module.keys_by_variable({**pairs, **inputs})
    assert keys[words].strings().tolist() == ["a", "b", "a", "a", "c"]
    assert keys[module.tables["numbers"]].tolist() == [1, 2]
    sum(each.sum() for each in found.values()).backward()
    optimizer.step()
    assert sorted(words.export()[0]) == ["a", "b", "c"]


def to_keys(words):
    return kvemb.string_keys(words, name_bytes=16)


@pytest.mark.slow
def test_workers_of_a_loader_make_the_keys(store):
    words = kt.Embedding("words", key_dtype="string", name_bytes=16, store=store, **TRAINED)
    optimizer = kt.Optimizer(words)
    loader = torch.utils.data.DataLoader(WORDS.tolist(), 10, collate_fn=to_keys, num_workers=2)
    seen = []
    for keys in kt.prefetching(loader, {words: lambda batch: batch}):
        assert isinstance(keys, kvemb.StringKeys)
        words(keys).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += keys.strings().tolist()
    assert seen == WORDS.tolist()
    assert sorted(words.variable.export()[0]) == sorted(seen)
    plain = torch.utils.data.DataLoader(WORDS.tolist(), 10)  # batches of lists
    assert [words(batch).shape for batch in plain] == [(10, 3)] * 4


@pytest.mark.slow
def test_a_cluster_trains_strings(tmp_path):
    with kvemb.open(tmp_path / "store") as store:
        made = both(store, kt.Embedding)
        check_trained_alike(made, lambda ids: (ids,))
        alone = rows_by_key(made[0][0].variable)
    with kvemb.cluster.open(tmp_path / "series", shards=2, scratch=tmp_path / "s", transport="local") as cluster:
        made = both(cluster, kt.Embedding)
        check_trained_alike(made, lambda ids: (ids,))
        assert rows_by_key(made[0][0].variable) == alone


def test_from_pretrained_writes_rows_under_strings(store):
    cities = kt.Embedding.from_pretrained(
        torch.eye(3), "cities", keys=["Paris", "Rome", "Oslo"], key_dtype="string", name_bytes=8, store=store
    )
    assert cities([["Oslo", "Paris"]]).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    for wrong, kind, message in (
        (None, TypeError, r"keys are missing: .* need a string each, keys=\[...\]"),
        ([1, 2, 3], TypeError, "keys must be strings, got int 1 at position 0"),
        (["a", "b"], ValueError, r"one key for each row of embeddings, \(3,\), got \(2,\)"),
        (["a", "b", "a"], ValueError, "keys must be distinct, got 'a' more than once"),
        (["a", FIRST, SECOND], HashCollision, FIRST),
    ):
        with pytest.raises(kind, match=message):
            kt.Embedding.from_pretrained(torch.eye(3), "others", keys=wrong, key_dtype="string", store=store)
    assert list(store.variables) == ["cities"]
    with pytest.raises(RuntimeError, match=r"weight has rows for the keys 0, 1, 2 and so on, but keys are strings"):
        cities.load_state_dict({"weight": torch.eye(3)})


def test_what_a_variable_of_strings_cannot_look_up_is_refused(store):
    words = kt.Embedding("words", key_dtype="string", name_bytes=8, store=store, **TRAINED)
    for wrong, kind, message in (
        (torch.tensor([1]), TypeError, "ids must be strings, as variable 'words' has string keys, got a tensor of"),
        ([1], TypeError, "ids: keys must be strings, got int 1 at position 0"),
        (["a", None], ValueError, "ids: the key at position 1 is missing"),
        (["a" * 9], ValueError, "ids: .* at most name_bytes=8 bytes"),
        (kvemb.string_keys(["a"]), ValueError, "keys were made with name_bytes=32, but the variable has 8; make them"),
    ):
        with pytest.raises(kind, match=message):
            words(wrong)
    bags = kt.EmbeddingBag(words.variable)
    with pytest.raises(HashCollision, match=FIRST):
        bags([[FIRST, SECOND]])
    with pytest.raises(TypeError, match="padding_idx must be a string, as the keys of variable 'words' are, got 0"):
        kt.Embedding(words.variable, padding_idx=0)
    with pytest.raises(TypeError, match="padding_idx must be an integer, as the keys of variable 'ids' are, got 'a'"):
        kt.EmbeddingBagCollection({"ids": TRAINED}, padding_idx="a", store=store)
    finite = kt.Embedding(words.variable, check_finite=True)
    optimizer = kt.Optimizer(finite)
    (finite(["a", "b"]) * torch.tensor([[1.0], [float("nan")]])).sum().backward()
    with pytest.raises(ValueError, match="the gradient of key 'b' of variable 'words' is not finite"):
        optimizer.step()
