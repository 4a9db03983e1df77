"""The shared code of the tools that read."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.bulk import Rows
from kvemb.tools.failures import BadInput
from kvemb.tools.reading import chosen, selected, with_progress


@pytest.mark.parametrize("index", [slice(1, 3), np.array([False, True, True]), np.array([1, 2])])
def test_selected_rows_have_what_the_rows_had(index):
    keys, values = np.arange(3), np.arange(6.0).reshape(3, 2)
    bare = selected(Rows(keys, values), index)
    assert (bare.keys.tolist(), bare.values.tolist()) == ([1, 2], [[2, 3], [4, 5]])
    assert (bare.slots, bare.scores, bare.steps) == (None, None, None)
    whole = selected(Rows(keys, values, {"slot": values + 1}, keys + 0.5, keys + 7), index)
    assert whole.slots["slot"].tolist() == [[3, 4], [5, 6]]
    assert (whole.scores.tolist(), whole.steps.tolist()) == ([1.5, 2.5], [8, 9])


def test_the_only_variable_need_not_be_named():
    assert chosen("here", ["users"], None) == "users"
    assert chosen("here", ["ads", "users"], "ads") == "ads"
    with pytest.raises(BadInput, match="here has the variables ads, users; name one: --variable ads"):
        chosen("here", ["ads", "users"], None)
    with pytest.raises(BadInput, match=r"name one: --variable ads, or give --all$"):
        chosen("here", ["ads", "users"], None, or_all=True)
    with pytest.raises(BadInput, match="here has no variable 'other'; it has ads, users"):
        chosen("here", ["ads", "users"], "other")
    with pytest.raises(BadInput, match=r"a and b have no variable$"):
        chosen("a and b", [], None, has="have")


def test_what_is_dealt_with_is_told():
    rows = [Rows(np.arange(count), np.zeros((count, 1))) for count in (2, 3)]
    told: list[tuple[int, int]] = []
    for number, _ in enumerate(with_progress(rows, lambda *said: told.append(said), 5)):
        assert len(told) == number, "a batch is told once it was dealt with"
    assert told == [(2, 5), (5, 5)]
