"""Errors of kvemb in graphs: what a backend raises for them, and the way back."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier

import kvemb
import kvemb.keras as kk


def test_the_error_of_a_graph_leads_to_that_of_kvemb(words):
    model = classifier(kk.Embedding(words))
    ids = np.array([[1, 2, 3]], np.int32)
    model.predict(ids, verbose=0)
    words.resource_handle[0].close()
    with pytest.raises(Exception, match=r"Closed|closed") as raised:
        model.predict(ids, verbose=0)
    cause = kk.cause_of(raised.value)
    assert isinstance(cause, kvemb.errors.Closed)
    assert kk.cause_of(cause) is cause
    if keras.backend.backend() != "torch":
        assert not isinstance(raised.value, kvemb.errors.KvembError)


def test_other_errors_are_as_they_are():
    error = RuntimeError("of the model itself")
    assert kk.cause_of(error) is error
