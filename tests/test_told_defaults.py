"""The defaults that docstrings of classes tell are the ones that the classes have."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields

import pytest

import kvemb
from kvemb import initializers
from kvemb.limits import Limits
from kvemb.optimizers import KINDS, Slot
from kvemb.options import format_bytes

POLICIES = [kvemb.FrequencyRestrictPolicy, kvemb.TimestampRestrictPolicy, kvemb.TimeToLiveRestrictPolicy]
INITIALIZERS = [initializers.RandomUniform, initializers.RandomNormal, initializers.TruncatedNormal]
OTHERS = [initializers.GlorotUniform, kvemb.Admission, kvemb.RocksDBCreator, Limits, Slot]


@pytest.mark.parametrize("kind", [*KINDS.values(), *POLICIES, *INITIALIZERS, *OTHERS])
def test_a_default_that_is_told_is_the_default(kind):
    section = re.search(r"^Args:\n((?:    .*\n?)+)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
    assert section is not None
    entries = re.split(r"^(?=    \w+: )", section[1], flags=re.MULTILINE)[1:]
    told = {entry.split(":")[0].strip(): " ".join(entry.split()) for entry in entries}
    for field in fields(kind):
        if field.default is MISSING:
            assert "Default:" not in told[field.name], field.name
            continue
        found = re.search(r"Default: (.+)\.$", told[field.name])
        assert found is not None, field.name
        default, ways = field.default, [repr(field.default)]
        if isinstance(default, int):
            ways += [f"{default:,}", format_bytes(default).replace(".0 ", " ")]
        assert found[1].partition(", 30 days")[0] in ways, field.name
