"""A variable's entry in a manifest: its fields fit each other, or what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from manifests import entry_of

from kvemb.checks.fields import as_json
from kvemb.checks.ranges import MAX_STEPS
from kvemb.durability import variable_entry
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import UnsupportedFormat
from kvemb.optimizers import Adagrad
from kvemb.restrict.bounds import Age, Bounds
from kvemb.rows.schema import SlotShape

ADAGRAD = Adagrad().to_json()
SLOTS = [{"name": "accumulator", "width": 2}]


def read(**fields: Any) -> VariableEntry:
    return variable_entry.entry_of({**json.loads(json.dumps(entry_of(), default=as_json)), **fields}, "users")


def test_what_fits_is_read():
    assert read() == entry_of()
    assert read(step=MAX_STEPS - 1, optimizer_steps=MAX_STEPS - 1).optimizer_steps == MAX_STEPS - 1
    assert read(slots=SLOTS, optimizer=ADAGRAD).schema.slots == (SlotShape("accumulator", 2),)
    assert read(max_rows=5, ttl=0.5).bounds == Bounds(5, 0.5)
    assert read(ages=[{"seconds": 1.5, "step": 3}]).ages == (Age(1.5, 3),)
    assert read(slots=["accumulator"], optimizer=ADAGRAD) == read(slots=SLOTS, optimizer=ADAGRAD), "of format 2"


def test_one_of_format_2_without_a_dim_is_refused():
    data = {name: value for name, value in as_json(entry_of()).items() if name != "dim"}
    with pytest.raises(UnsupportedFormat, match="dim is missing"):
        variable_entry.entry_of({**data, "slots": ["accumulator"]}, "users")


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        ("step must be an int", {"step": MAX_STEPS}),
        *(("optimizer_steps must be an int", {"optimizer_steps": count}) for count in (-1, MAX_STEPS, True, 0.5)),
        *(("max_rows must be an int from 1 to", {"max_rows": count}) for count in (0, -1, 2**63, True, 0.5, "5")),
        *(("ttl must be a finite number above 0", {"ttl": ttl}) for ttl in (0, -1, True, "5", float("inf"))),
        (r"ages\[0\].step must be an int", {"ages": [{"seconds": 1.5, "step": -1}]}),
        (r"ages\[0\].seconds must be a number", {"ages": [{"seconds": -1, "step": 1}]}),
        *(
            ("slots must be those of the optimizer", {"slots": slots, "optimizer": ADAGRAD})
            for slots in ([], ["m"], [{"name": "accumulator", "width": 1}], [{"name": "m", "width": 2}], 2 * SLOTS)
        ),
        ("slots must be those of the optimizer", {"slots": SLOTS}),
        (r"slots\[1\] must be an object", {"slots": [*SLOTS, "m"], "optimizer": ADAGRAD}),
        *((r"slots\[0\].name must be a name of a slot", {"slots": [name]}) for name in ("", "a b", "x" * 200)),
        ("null for values of int32", {"value_dtype": "int32", "slots": SLOTS, "optimizer": ADAGRAD}),
        ("initializer: ", {"value_dtype": "int8", "initializer": {"kind": "uniform", "low": 0.0, "high": 1.0}}),
        *((f"{name}: ", {name: {"kind": "new"}}) for name in ("initializer", "optimizer", "policy", "creator")),
        *((f"{name} must be an object", {name: "new"}) for name in ("initializer", "optimizer", "policy", "creator")),
    ],
)
def test_what_does_not_is_named(match, fields):
    with pytest.raises(UnsupportedFormat, match=f"'users' is described in a way this kvemb cannot read: .*{match}"):
        read(**fields)
