"""Arguments of pooled lookups that are refused: one clear error, and nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb.optimizers import SGD


@pytest.fixture
def table(store):
    variable = store.get_variable("words", dim=2, optimizer=SGD(1.0))
    variable.upsert(np.arange(10), np.ones((10, 2), np.float32))
    return variable


IDS = [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1, 2]], [0]), ValueError, r"ids must have shape \(n,\), got \(1, 2\); embedding_lookup takes"),
        ((["a"], [0]), TypeError, "keys must be int64"),
        ((IDS, [0, 2, 1]), ValueError, "offsets must not descend, got 2, then 1 at index 2"),
        ((IDS, [0, 4]), ValueError, "offsets must be at most 3, the number of ids, got 4"),
        ((IDS, [1, 2]), ValueError, "offsets must begin with 0, got 1"),
        ((IDS, [-1, 2]), ValueError, "offsets must begin with 0, got -1"),
        ((IDS, []), ValueError, "offsets must begin with 0, got none for 3 ids"),
        ((IDS, [[0]]), ValueError, r"offsets must have one dimension, got the shape \(1, 1\)"),
        ((IDS, [0.0]), TypeError, "offsets must be integers, got float64"),
        ((IDS, None), TypeError, "offsets must be integers, got None; give where each bag begins"),
        ((IDS, [0], [1.0, 2]), ValueError, r"weights must have shape ids.shape = \(3,\), got \(2,\)"),
        ((IDS, [0], np.ones(3, complex)), TypeError, "weights must be float32, got complex128"),
        (([], [0], [1.0]), ValueError, r"weights must have shape ids.shape = \(0,\), got \(1,\)"),
        ((IDS, [0], None, "max"), ValueError, "combiner must be one of mean, sum, sqrtn, got 'max'"),
        ((IDS, [0], None, "sum", 0), ValueError, "max_norm must be above 0, got 0; leave it out"),
        ((IDS, [0], None, "sum", float("nan")), ValueError, "max_norm must be above 0, got nan"),
        ((IDS, [0], None, "sum", "1"), TypeError, "max_norm must be a real number"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_looked_up(table, arguments, error, message):
    before = table.stats
    for lookup in (kvemb.embedding_lookup_sparse, kvemb.safe_embedding_lookup_sparse):
        with pytest.raises(error, match=message):
            lookup(table, *arguments)
    assert (table.stats.hits, table.stats.misses) == (before.hits, before.misses)


def test_offsets_ids_and_tables_that_do_not_fit_are_refused(table, store):
    with pytest.raises(
        ValueError, match="with include_last_offset=True, offsets must end with 3, the number of ids, got 2"
    ):
        kvemb.embedding_lookup_sparse(table, IDS, [0, 2], include_last_offset=True)
    with pytest.raises(ValueError, match="offsets must end with 0, the number of ids, got none"):
        kvemb.embedding_lookup_sparse(table, [], [], include_last_offset=True)
    with pytest.raises(ValueError, match=r"default_id must be one id, got \[1, 2\]"):
        kvemb.safe_embedding_lookup_sparse(table, IDS, [0], default_id=[1, 2])
    with pytest.raises(TypeError, match="var must be a Variable, got 'words'"):
        kvemb.embedding_lookup("words", IDS)  # type: ignore[arg-type]
    whole = store.get_variable("whole", value_dtype="int32", dim=2)
    assert kvemb.embedding_lookup(whole, IDS).values.tolist() == [[0, 0]] * 3
    with pytest.raises(ValueError, match="a pooled lookup needs rows of floats; variable 'whole' has int32"):
        kvemb.embedding_lookup_sparse(whole, IDS, [0])
    with pytest.raises(ValueError, match="max_norm needs rows of floats"):
        kvemb.embedding_lookup(whole, IDS, 1.0)


def test_gradients_of_another_shape_are_refused(table):
    pooled = kvemb.embedding_lookup_sparse(table, IDS, [0, 1])
    before = table.lookup(np.arange(10))
    with pytest.raises(ValueError, match=r"grads must have shape values.shape = \(2, 2\), got \(3, 2\)"):
        pooled.apply_gradients(np.ones((3, 2), np.float32))
    with pytest.raises(ValueError, match="only the rows of embedding_lookup without max_norm can be written back"):
        pooled.update(pooled.values)
    np.testing.assert_array_equal(table.lookup(np.arange(10)), before)
