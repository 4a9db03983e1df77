"""What tests of the PyTorch modules share. Where PyTorch is not installed they are left out (test_missing)."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kvemb
import kvemb.cluster

collect_ignore_glob = [] if find_spec("torch") else ["test_[!m]*.py"]


@pytest.fixture
def loaded(store):
    """A function that makes a variable of keys 0 to n - 1 whose rows are a weight (n, dim), as torch.nn has it."""
    numbers = iter(range(100))

    def make(weight, **arguments) -> kvemb.Variable:
        array = weight.detach().numpy().copy()
        made = {"optimizer": kvemb.optimizers.SGD(0.5), "hot_rows": 16, "value_dtype": array.dtype, **arguments}
        variable = store.get_variable(f"table{next(numbers)}", dim=array.shape[1], **made)
        variable.upsert(np.arange(len(array)), array)
        return variable

    return make


@pytest.fixture
def cluster(tmp_path):
    """A cluster of three shards in this process, with a url."""
    how = {"memory_budget": "4MiB", "scratch": tmp_path, "transport": "local"}
    with kvemb.cluster.open(tmp_path / "series", shards=3, **how) as made:
        yield made
