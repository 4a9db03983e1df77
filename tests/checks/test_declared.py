"""Fields that say what they accept: what is refused, by which name; and values that are kept as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import KW_ONLY, dataclass, fields

import numpy as np
import pytest

from kvemb.checks.declared import Declared, accepts, arguments, as_json, from_json
from kvemb.checks.numeric import as_bool, as_choice, as_float, as_int
from kvemb.errors import UnsupportedFormat


@dataclass(frozen=True)
class Drawn(Declared):
    """Has a field of every kind."""

    share: float = accepts(as_float, 0.5, least=0, most=1)
    _: KW_ONLY
    word: str = accepts(as_choice, "row", among=("row", "global"))
    count: int = accepts(as_int, least=1, most=255)
    size: float | None = accepts(as_float, None, above=0, hint="it divides by it")
    whole: bool = accepts(as_bool, False)
    free: object = None


KINDS = {"drawn": Drawn}


def test_values_become_pythons_own():
    made = Drawn(np.float32(0.25), count=np.uint8(3), size=np.int64(2), whole=np.True_, free=[1])
    assert made == Drawn(0.25, word="row", count=3, size=2.0, whole=True, free=[1])
    assert [type(each) for each in (made.share, made.count, made.size, made.whole)] == [float, int, float, bool]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"share": -1e-9}, ValueError, r"Drawn share must be finite and at least 0 and at most 1, got -1e-09$"),
        *(({"share": value}, ValueError, "Drawn share must be finite") for value in (1.5, math.nan, math.inf, 10**400)),
        *(({"share": value}, TypeError, "Drawn share must be a number") for value in (True, np.True_, "1", 1j, None)),
        ({"size": 0}, ValueError, r"Drawn size must be finite and above 0, got 0; it divides by it$"),
        ({"size": "1"}, TypeError, r"Drawn size must be a number, got str '1'; it divides by it$"),
        ({"count": 0}, ValueError, "Drawn count must be at least 1, got 0"),
        ({"count": 1.0}, TypeError, "Drawn count must be an int"),
        *(
            ({"word": value}, ValueError, "Drawn word must be 'row' or 'global'")
            for value in ("rows", None, 3, ["row"])
        ),
        *(({"whole": value}, TypeError, "Drawn whole must be True or False") for value in (None, 1, 0.0, "no")),
    ],
)
def test_what_a_field_does_not_accept_is_refused_by_name(given, error, message):
    with pytest.raises(error, match=message):
        Drawn(**{"count": 1, **given})


def test_arguments_are_in_the_order_of_the_call():
    assert [each.name for each in fields(Drawn)][:2] == ["share", "word"]
    assert arguments(Drawn(count=1))[0].name == "share"


def test_json_brings_back_the_value_and_refuses_any_other():
    made = Drawn(0.1, count=7, size=5e-324, free=-math.inf)
    data = json.loads(json.dumps(as_json(made, "kind", "drawn"), allow_nan=False))
    assert from_json(data, "kind", KINDS, "thing") == made
    for wrong in ({}, [], 3, None, {"kind": "other"}, {"kind": 3}, {"kind": []}):
        with pytest.raises(UnsupportedFormat, match=r"thing must be one of drawn, got .*; use the kvemb that wrote it"):
            from_json(wrong, "kind", KINDS, "thing")
    for change in ({"x": 1}, {"share": -1}, {"share": "nan:zz"}, {"share": "inf"}, {"size": [1]}):
        with pytest.raises(UnsupportedFormat, match=r"thing .* cannot be read"):
            from_json({**data, **change}, "kind", KINDS, "thing")
