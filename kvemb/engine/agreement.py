"""What get_variable accepts for a variable that is open: each argument is left out, or as the variable has it.

An argument that the variable cannot take on while it is open is refused, never ignored. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvemb.checks.brief import brief
from kvemb.engine.arguments import AnyArguments, Arguments, is_given
from kvemb.engine.specification import specify
from kvemb.engine.table import Table
from kvemb.optimizers import Optimizer
from kvemb.restrict import MissingPolicy
from kvemb.tiers.partition import default_partitioner

# The arguments that take effect when a variable is opened, and the fields of its specification that they become.
_FIELDS = {
    "trainable": "trainable", "checkpoint": "checkpointed", "bp_v2": "bp_v2", "devices": "devices",
    "partitioner": "partitioner", "init_size": "first_rows", "hot_rows": "hot_rows", "kv_creator": "creator",
    "admission": "admission", "constraint": "constraint", "regularizer": "regularizer", "collections": "collections",
}  # fmt: skip


def agreed_optimizer(known: Table, arguments: AnyArguments) -> Optimizer | None:
    """Check get_variable's arguments for an open variable; return the new optimizer, or None to keep the present one.

    Raises what get_variable raises.
    """
    wanted, mine = specify(arguments, known.entry()), known.specification
    if isinstance(known.policy, MissingPolicy) and not isinstance(wanted.policy, MissingPolicy):
        raise known.policy.error()
    if wanted.policy is not None and known.policy is not None and wanted.policy.to_json() != known.policy.to_json():
        raise _differs(arguments.name, "restrict_policy", wanted.policy, known.policy)
    for name, field in _FIELDS.items():
        if is_given(arguments, name) and getattr(wanted, field) != getattr(mine, field):
            raise _differs(arguments.name, name, getattr(wanted, field), getattr(mine, field))
    return None if arguments.optimizer is None else wanted.optimizer


def completed(arguments: Arguments, opened: Mapping[str, Any]) -> Arguments:
    """Return a client's arguments, with the devices and the functions of the client that opened the variable.

    opened: that client's arguments; empty: no client has it open. Functions of two processes are compared by their
    names. Raises ValueError for another function.
    """
    if not opened:
        return arguments
    for name, left_out in (("partitioner", default_partitioner), ("constraint", None)):
        given, mine = getattr(arguments, name), opened[name]
        if given is not left_out and _name_of(given) != _name_of(mine):
            raise _differs(arguments.name, name, given, mine)
    devices = opened["devices"] if arguments.devices is None else arguments.devices
    return replace(arguments, devices=devices, partitioner=opened["partitioner"], constraint=opened["constraint"])


def _name_of(function: object) -> tuple[object, object]:
    named = function if hasattr(function, "__qualname__") else type(function)
    return named.__module__, named.__qualname__


def _differs(variable: str, name: str, given: object, mine: object) -> ValueError:
    return ValueError(
        f"variable {variable!r} is open with {name}={_shown(mine)}, got {name}={_shown(given)}; leave it out, or give "
        "it in the call that opens the variable first"
    )


def _shown(value: object) -> str:
    return brief(list(value) if isinstance(value, tuple) else value)
