"""What tests of the Keras layers share. They run in one process for each backend, as KERAS_BACKEND says (.ci/run)."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest

import kvemb

HERE = bool(find_spec("keras")) and "KERAS_BACKEND" in os.environ
# Two devices, over which keras.distribution divides batches. Models are compiled more often than they run.
_COMPILE_QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=2 {_COMPILE_QUICKLY}")
# A folder of tests must not be called keras: where Keras is not installed, it would be imported in its place.
collect_ignore_glob = [] if HERE else ["test_[!m]*.py"]


@pytest.fixture
def words(store):
    """A variable of 100 keys of int32, which JAX has, with random rows (100, 4)."""
    variable = store.get_variable("words", dim=4, key_dtype="int32", hot_rows=64, optimizer=kvemb.optimizers.SGD(0.5))
    variable.upsert(np.arange(100, dtype=np.int32), np.random.default_rng(2).normal(0, 0.1, (100, 4)).astype("f4"))
    return variable


@pytest.fixture
def clicks():
    """Ids (256, 3) of int32, from 0 to 99 and often the same, and labels (256, 1)."""
    ids = np.random.default_rng(3).integers(0, 100, (256, 3)).astype(np.int32) ** 2 // 100
    return ids, (ids.min(axis=1, keepdims=True) < 10).astype(np.float32)
