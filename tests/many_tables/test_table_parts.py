"""What a call on many variables refuses, before anything is read or changed, and how it names the variable."""

from __future__ import annotations

import numpy as np
import pytest
from small_tables import make_table


def sizes(tables):
    return [(table.size(), table.stats.hits, table.stats.misses) for table in tables]


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (
            ("c", ([1, 2], [[1.0, 2, 3]] * 2)),
            ValueError,
            r"variable 'c': grads must have shape .* = \(2, 4\), got \(2, 3\)",
        ),
        (("c", ([1.5], np.ones((1, 4), np.float32))), TypeError, "variable 'c': keys must be int64"),
        (("c", [1, 2]), TypeError, r"variable 'c': expected \(keys, grads\), got \[1, 2\]"),
        (("b", ([1], [[1.0, 1, 1]])), ValueError, "variable 'b' is given twice"),
        (("d", ([1], [[1.0]])), KeyError, "there is no variable 'd'; there are a, b, c"),
        ((7, ([1], [[1.0]])), TypeError, "expected a Variable or its name, got 7"),
    ],
)
def test_bad_arguments_change_nothing_and_are_named(store, tables, last, error, message):
    good = {tables[0]: ([500], np.ones((1, 2), np.float32)), tables[1]: ([500], np.ones((1, 3), np.float32))}
    before = sizes(tables)
    with pytest.raises(error, match=message):
        store.apply_gradients({**good, last[0]: last[1]})
    assert sizes(tables) == before


def test_what_cannot_be_looked_up_is_named(store, tables, open_store, tmp_path):
    stranger = make_table(open_store(tmp_path / "other"), "a", 2)
    before = sizes(tables)
    for wanted, error, message in [
        ({tables[0]: [1], stranger: [1]}, ValueError, "'a' belongs to another store"),
        ({tables[0]: [1], "b": ["x"]}, TypeError, "variable 'b': keys must be int64"),
        ([tables[0]], TypeError, "expected a dict"),
    ]:
        with pytest.raises(error, match=message):
            store.lookup(wanted)
        with pytest.raises(error, match=message):
            store.prefetch(wanted)
    assert sizes(tables) == before


def test_a_variable_that_cannot_be_trained_is_named(store, tables):
    fixed = store.get_variable("fixed", dim=2, trainable=False)
    before = sizes(tables)
    with pytest.raises(ValueError, match=r"variable 'fixed': .*not trainable"):
        store.apply_gradients({tables[0]: ([500], [[1.0, 1]]), fixed: ([1], [[1.0, 1]])})
    assert sizes(tables) == before


def test_a_partitioner_that_fails_does_so_first(store, tables):
    broken = []

    def partitioner(keys, shards):
        if broken:
            raise RuntimeError("no such shard")
        return keys % shards

    last = make_table(store, "last", 2, devices=["cpu", "cpu"], partitioner=partitioner)
    broken.append(True)
    before = sizes(tables)
    with pytest.raises(RuntimeError, match="no such shard") as caught:
        store.apply_gradients({tables[0]: ([500], [[1.0, 1]]), last: ([500], [[1.0, 1]])})
    assert caught.value.__notes__ == ["variable 'last'"]
    assert sizes(tables) == before
    broken.clear()


def test_arrays_that_do_not_fit_are_refused_before_anything_is_read(store, tables):
    good, wide = np.empty((1, 2), np.float32), np.empty(4, np.float32)
    before = sizes(tables)
    for out, error, message in [
        ([good], TypeError, "out must be a dict"),
        ({"b": good}, ValueError, "out has 'b', but keys does not"),
        ({tables[0]: good, "b": good}, ValueError, "two arrays of out share memory"),
        ({tables[0]: wide[:2].reshape(1, 2), "b": wide[1:].reshape(1, 3)}, ValueError, "share memory; give each"),
        ({"b": good}, ValueError, r"variable 'b': out must have shape keys.shape \+ \(dim,\) = \(1, 3\), got \(1, 2\)"),
    ]:
        wanted = {tables[0]: [1], "b": [1]} if "keys does not" not in message else {tables[0]: [1]}
        with pytest.raises(error, match=message):
            store.lookup(wanted, out=out)
    assert sizes(tables) == before


def test_an_array_to_fill_apart_from_all_keys(store, tables):
    """The array was filled with one variable's rows while another's keys were still read from it: rows were wrong."""
    memory = np.arange(8, dtype=np.int64)
    out = memory.view(np.float32)[:8].reshape(4, 2)
    with pytest.raises(ValueError, match="out must not share memory with the keys of 'b'"):
        store.lookup({"a": np.arange(4), "b": memory[:4]}, out={"a": out})
    store.lookup({"a": np.arange(4), "b": memory[4:]}, out={"a": out})
