"""Variables whose keys are strings: what each call does, compared with a dict of strings, and where the rows go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb import bulk
from kvemb.errors import HashCollision, SchemaMismatch
from kvemb.frameworks.variables import variable_of

Model = dict[str, list[float]]
WORDS = [f"{'é' * (at % 4)}word {at}" for at in range(400)]
FIRST, SECOND = "bg1-kvn", "VzvtA_t%"  # of one hash: tests/rows/test_names.py
WHAT = {"key_dtype": "string", "dim": 2, "optimizer": kvemb.optimizers.SGD(0.5)}


def rows_of(variable: kvemb.Variable) -> Model:
    keys, values = variable.export()
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def filled(variable: kvemb.Variable, seed: int = 1, calls: int = 30) -> Model:
    """Make calls on a variable, and compare each lookup with a dict; return the dict."""
    chance, model = np.random.default_rng(seed), Model()
    for call in range(calls):
        words = [WORDS[at] for at in chance.integers(0, len(WORDS), 50)]
        given = chance.integers(-8, 8, (50, 2)).astype(np.float32)
        if call % 4 == 0:
            variable.upsert(np.array(words), given)
            model.update(zip(words, given.tolist(), strict=True))
        elif call % 4 == 1:
            variable.apply_gradients(words, given)
            for word, grad in zip(words, given.tolist(), strict=True):
                old = model.get(word, [0.0, 0.0])
                model[word] = [old[0] - grad[0] / 2, old[1] - grad[1] / 2]
        elif call % 4 == 2:
            rows, exists = variable.lookup(words, return_exists=True)
            assert exists.tolist() == [word in model for word in words]
            assert rows.tolist() == [model.get(word, [0.0, 0.0]) for word in words]
            words = list(dict.fromkeys(words))
            rows, exists = variable.lookup(words, return_exists=True)
            variable.accum(words, rows, rows + 1, exists)
            model.update({word: [each + 1 for each in model.get(word, [0.0, 0.0])] for word in words})
        else:
            variable.remove(np.array(words[:10], object))
            for word in words[:10]:
                model.pop(word, None)
    assert rows_of(variable) == model
    return model


@pytest.mark.slow
def test_every_call_is_that_on_a_dict_also_after_a_restart(tmp_path: Path):
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        words = store.get_variable("words", **WHAT)
        model = filled(words)
        assert words.key_dtype == np.dtype(object)
        assert "string -> 2 x float32" in repr(words)
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        words = store.variables["words"]
        assert rows_of(words) == model
        words.optimizer = kvemb.optimizers.SGD(0.25)
        out = np.empty((2, 1, 2), np.float32)
        first = next(iter(model))
        some = np.array([[first], ["none"]])
        assert words.lookup(some, out=out) is out
        assert out.tolist() == [[model[first]], [[0.0, 0.0]]]
        assert words.lookup(first).tolist() == model[first]
        words.prefetch(list(model))
        assert store.lookup({"words": list(model)})["words"].tolist() == list(model.values())
        assert store.get_variable("words", key_dtype=str, name_bytes=31) is words
        with pytest.raises(SchemaMismatch, match="name_bytes=32, got name_bytes=40"):
            store.get_variable("words", name_bytes=33, key_dtype="string")
        with pytest.raises(SchemaMismatch, match="key_dtype='string', got key_dtype='int64'"):
            store.get_variable("words", key_dtype="int64")


@pytest.mark.slow
def test_words_that_do_not_fit_in_memory_come_back_from_disk(tmp_path: Path):
    many = [f"word {at}" for at in range(20_000)]
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", durability="write") as store:
        words = store.get_variable("words", **{**WHAT, "dim": 16, "optimizer": kvemb.optimizers.Adagrad(0.1)})
        for at in range(0, len(many), 4000):
            words.upsert(many[at : at + 4000], np.repeat(np.arange(at, at + 4000.0)[:, None], 16, axis=1))
        assert words.tables[0].size < 20_000
        words.apply_gradients([*many[:100], "new"], np.ones((101, 16)))
        assert words.lookup(many[5000:5010])[:, 0].tolist() == list(range(5000, 5010))
        keys, _, slots = words.export(with_slots=True)
        trained = {key for key, slot in zip(keys.tolist(), slots["accumulator"], strict=True) if slot[0] > 0}
        assert sorted(keys) == sorted([*many, "new"])
        assert trained == {*many[:100], "new"}


@pytest.mark.parametrize("hot", [True, False])
def test_strings_of_one_hash_raise_and_change_nothing(store: kvemb.Store, hot: bool):
    words = store.get_variable("words", **{**WHAT, "optimizer": kvemb.optimizers.Adagrad(0.1)})
    words.upsert([FIRST, "other"], [[1, 2], [3, 4]])
    if not hot:
        bulk.load(words, [bulk.Rows(np.array(["third"]), np.ones((1, 2), np.float32))])  # empties the hot tier
    before = rows_of(words)
    calls: list[Callable[[], Any]] = [
        lambda: words.lookup(["other", SECOND]),
        lambda: words.upsert(["other", SECOND], [[9, 9], [9, 9]]),
        lambda: words.accum(["other", SECOND], [[0, 0], [0, 0]], [[9, 9], [9, 9]], [True, True]),
        lambda: words.apply_gradients(["other", SECOND], [[9, 9], [9, 9]]),
        lambda: words.remove(["other", SECOND]),
        lambda: words.lookup_slot("accumulator", [SECOND]),
        lambda: store.lookup({words: [SECOND]}),
        lambda: store.apply_gradients({words: ([SECOND], [[9, 9]])}),
        lambda: bulk.read(words, [SECOND]),
        lambda: bulk.load(words, [bulk.Rows(np.array(["other", SECOND]), np.ones((2, 2), np.float32))]),
        lambda: kvemb.embedding_lookup(words, [SECOND]),
        lambda: kvemb.embedding_lookup_sparse(words, ["other", SECOND], [0]),
    ]
    for call in calls:
        with pytest.raises(HashCollision, match=FIRST):
            call()
        assert rows_of(words) == before
    store.drop_variable("words")
    words = store.get_variable("words", **WHAT)
    for call in (
        lambda: words.upsert([FIRST, SECOND], np.ones((2, 2))),
        lambda: words.apply_gradients([FIRST, SECOND], np.ones((2, 2))),
        lambda: bulk.load(words, [bulk.Rows(np.array([SECOND, FIRST]), np.ones((2, 2), np.float32))]),
    ):
        with pytest.raises(HashCollision):
            call()
    assert words.size() == 0
    assert words.lookup([FIRST, SECOND]).tolist() == [[0, 0], [0, 0]]


def test_restrict_keeps_the_words_of_the_rows_that_stay(store: kvemb.Store):
    words = store.get_variable("words", **WHAT, restrict_policy=kvemb.FrequencyRestrictPolicy)
    words.upsert(WORDS, np.zeros((400, 2)))
    words.lookup(WORDS[:30])
    assert words.restrict(30) == 370
    assert sorted(rows_of(words)) == sorted(WORDS[:30])
    keys, _, scores = words.export(with_scores=True)
    words.restrict_policy.apply_update(keys[:3])
    assert (words.export(with_scores=True)[2] - scores).tolist() == [1.0] * 3 + [0.0] * 27


@pytest.mark.slow
def test_the_calls_on_whole_tables_and_slots_are_those_on_a_dict(store: kvemb.Store):
    words = store.get_variable("words", **{**WHAT, "optimizer": kvemb.optimizers.Adagrad(0.1)})
    model = {word: [float(at), 1.0] for at, word in enumerate(WORDS)}
    words.upsert(list(model), list(model.values()))
    batches = list(words.export_batches(7))
    assert {len(keys) for keys, *_ in batches} == {7, 1}
    assert {word: row for keys, rows in batches for word, row in zip(keys, rows.tolist(), strict=True)} == model
    whole = list(bulk.scan(words, 64))
    assert [word for part in whole for word in part.keys] == words.export()[0].tolist()
    assert words.size() == len(model)
    (slot,) = words.get_slot_variables()
    words.apply_gradients(["word 4", "word 4"], [[1, 0], [1, 0]])
    assert slot.lookup(["word 4", "none"]).tolist() == [[4, 0], [0, 0]]
    assert words.lookup_slot("accumulator", "word 4").tolist() == [4, 0]
    store.apply_gradients({"words": (["word 8"], [[1, 0]])})
    rows = store.lookup({words: [["word 8", "none"]]}, out={words: (out := np.empty((1, 2, 2), np.float32))})
    assert rows[words] is out
    model |= {word: words.lookup(word).tolist() for word in ("word 4", "word 8")}
    assert out.tolist() == [[model["word 8"], [0, 0]]]
    words.remove(WORDS[:10])
    for word in WORDS[:10]:
        del model[word]
    assert rows_of(words) == model
    words.clear()
    assert rows_of(words) == {}


@pytest.mark.slow
def test_an_admission_counts_words(tmp_path: Path):
    with kvemb.open(tmp_path / "store") as store:
        words = store.get_variable("words", **WHAT, admission=kvemb.Admission(2))
        words.apply_gradients(["once", "twice"], np.ones((2, 2)))
        words.apply_gradients(["twice"], np.ones((1, 2)))
        assert words.export()[0].tolist() == ["twice"]
        store.flush()
    with kvemb.open(tmp_path / "store") as store:
        words = store.variables["words"]
        words.apply_gradients(["once"], np.ones((1, 2)))
        assert sorted(words.export()[0]) == ["once", "twice"]


@pytest.mark.slow
def test_marks_followers_readers_and_a_restart_after_a_crash_have_the_words(tmp_path: Path):
    with kvemb.open(tmp_path / "store", durability="write") as store:
        model = filled(store.get_variable("words", **WHAT))
        store.close(flush=False)
    with kvemb.open(tmp_path / "store", durability="write") as store:
        words = store.variables["words"]
        assert rows_of(words) == model
    with kvemb.open(tmp_path / "store") as store, kvemb.open(tmp_path / "store", follow=True) as follower:
        words = store.variables["words"]
        store.mark("before")
        words.upsert(["new"], [[1, 2]])
        store.flush()
        follower.refresh()
        assert rows_of(follower.variables["words"]) == {**model, "new": [1.0, 2.0]}
        store.rollback("before")
        assert rows_of(words) == model
        like = {**bulk.described(words), "value_dtype": "float16"}
        store.drop_variable("words")
        store.flush()
        made = bulk.make(store, "words", like)
        bulk.load(made, [bulk.Rows(np.array(list(model)), np.array(list(model.values()), np.float16))])
        assert rows_of(made) == model


def test_pooled_lookups_take_and_return_words(store: kvemb.Store):
    words = store.get_variable("words", **WHAT)
    words.upsert(["a", "b"], [[1, 1], [2, 2]])
    bags = kvemb.embedding_lookup_sparse(words, ["a", "b", "b"], [0, 2], combiner="sum")
    assert bags.values.tolist() == [[3, 3], [2, 2]]
    ids, grads = bags.row_gradients(np.ones((2, 2)))
    assert (ids.tolist(), grads.tolist()) == (["a", "b"], [[1, 1], [2, 2]])
    bags.apply_gradients(np.ones((2, 2)))
    assert rows_of(words) == {"a": [0.5, 0.5], "b": [1, 1]}
    safe = kvemb.safe_embedding_lookup_sparse(words, ["a", "b"], [0, 1], weights=[1, 0], default_id="a")
    assert safe.values.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    found = kvemb.embedding_lookup_unique(words, [["a"], ["c"]])
    found.update(found.values + 1)
    assert rows_of(words) == {"a": [1.5, 1.5], "b": [1, 1], "c": [1, 1]}


def test_checkpoints_deltas_and_replicas_have_the_words(store: kvemb.Store, tmp_path: Path):
    words = store.get_variable("words", **WHAT)
    model = filled(words)
    store.checkpoint(tmp_path / "one")
    kvemb.restore(tmp_path / "one", tmp_path / "replica").close()
    gone, *_ = model
    words.remove([gone])
    words.upsert(["new", WORDS[7]], [[1, 1], [2, 2]])
    later = store.checkpoint(tmp_path / "two")
    changes = list(later.changes(tmp_path / "one"))
    assert sorted(key for change in changes for key in change.keys) == sorted(["new", WORDS[7]])
    assert [key for change in changes for key in change.removed] == [gone]
    with kvemb.open(tmp_path / "replica", memory_budget="8MiB") as other:
        other.apply_delta(tmp_path / "two")
        assert rows_of(other.variables["words"]) == rows_of(words)


@pytest.mark.limits(sort_bytes=4096)
def test_loads_take_words_in_any_order(store: kvemb.Store):
    words = store.get_variable("words", **WHAT)
    values = np.arange(800, dtype=np.float32).reshape(400, 2)
    batches = [bulk.Rows(np.array(WORDS[at : at + 50]), values[at : at + 50]) for at in range(0, 400, 50)]
    assert bulk.load(words, [*batches, batches[0]]).duplicates == 50
    assert rows_of(words) == dict(zip(WORDS, values.tolist(), strict=True))
    with pytest.raises(ValueError, match=r"key word 0 is in 'words' already"):
        bulk.load(words, [bulk.Rows(np.array(["word 0"]), values[:1])], on_conflict="error")
    assert bulk.read(words, ["none", WORDS[3]]).keys.tolist() == [WORDS[3]]


@pytest.mark.slow
def test_a_cluster_has_string_keys(tmp_path: Path):
    def opened(shards: int) -> kvemb.cluster.Store:
        place = {"scratch": tmp_path / f"{shards}", "memory_budget": "8MiB", "transport": "local"}
        return kvemb.cluster.open(tmp_path / "series", shards=shards, **place)

    with opened(2) as cluster:
        words = cluster.get_variable("words", **WHAT)
        model = filled(words)
        words.upsert([FIRST], [[1, 2]])
        for call in (
            lambda: words.lookup([SECOND]),
            lambda: words.upsert([SECOND], [[1, 2]]),
            lambda: words.remove([SECOND]),
            lambda: (words.apply_gradients([SECOND], [[1, 2]]), cluster.synchronize()),
        ):
            with pytest.raises(HashCollision):
                call()
        bags = kvemb.embedding_lookup_sparse(words, [FIRST, FIRST], [0], combiner="sum")
        assert bags.values.tolist() == [[2, 4]]
        words.remove([FIRST])
        cluster.checkpoint()
    kvemb.cluster.reshard(tmp_path / "series", tmp_path / "resharded", shards=4)
    kvemb.restore(tmp_path / "resharded", tmp_path / "four").close()
    with kvemb.open(tmp_path / "four") as store:
        assert rows_of(store.variables["words"]) == model
    with opened(3) as cluster:
        words = cluster.variables["words"]
        assert rows_of(words) == model
        found = cluster.lookup_async({words: list(model)}).result()
        assert found[words].tolist() == list(model.values())
    with kvemb.restore(tmp_path / "series", tmp_path / "one", memory_budget="8MiB") as store:
        assert rows_of(store.variables["words"]) == model


def test_what_string_keys_cannot_have_is_refused(store: kvemb.Store):
    with pytest.raises(ValueError, match="devices must be 'cpu' for key_dtype='string'"):
        store.get_variable("words", **WHAT, devices="gpu:0")
    with pytest.raises(ValueError, match="name_bytes is for key_dtype='string', got name_bytes=8"):
        store.get_variable("words", dim=2, name_bytes=8)
    with pytest.raises(ValueError, match=r"name_bytes must be .* 4,?096"):
        store.get_variable("words", **WHAT, name_bytes=5000)


def test_layers_that_get_no_strings_take_no_variable_of_them(store: kvemb.Store):
    words = store.get_variable("words", **WHAT)
    with pytest.raises(ValueError, match="variable 'words' has string keys, but tensors of integers are needed here"):
        variable_of(words, None, None, {}, {})


def test_a_string_whose_place_another_of_its_hash_took_is_told_as_removed(tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store") as store:
        words = store.get_variable("words", **WHAT)
        words.upsert([FIRST, "same"], np.ones((2, 2), np.float32))
        before = store.checkpoint(tmp_path / "before")
        words.remove([FIRST])
        words.upsert([SECOND], np.ones((1, 2), np.float32))
        (change,) = store.checkpoint(tmp_path / "after").changes(before)
        assert (change.keys.tolist(), change.removed.tolist()) == ([SECOND], [FIRST])
