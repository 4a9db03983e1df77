"""What get_variable accepts for a variable that is open: each argument is left out, or as the variable has it.

An argument that the variable cannot take on while it is open is refused, never ignored. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvemb.checks.brief import brief
from kvemb.durability.manifest import VariableEntry
from kvemb.engine.arguments import AnyArguments, Arguments, UnsetFlag
from kvemb.engine.specification import (
    Specification,
    agreed,
    as_collections,
    as_creator,
    as_devices,
    as_first_rows,
    as_hot_rows,
    as_partitioner,
)
from kvemb.engine.table import Table
from kvemb.optimizers import Optimizer
from kvemb.restrict import MissingPolicy
from kvemb.tiers.hot_tables import default_partitioner


def agreed_optimizer(known: Table, arguments: AnyArguments) -> Optimizer | None:
    """Check get_variable's arguments for an open variable; return the new optimizer, or None to keep the present one.

    Raises what get_variable raises.
    """
    entry = known.entry()
    optimizer, policy = agreed(arguments, entry)
    if isinstance(known.policy, MissingPolicy) and policy is not None and not isinstance(policy, MissingPolicy):
        raise known.policy.error()
    for name, given, mine in _given(arguments, known.specification, entry):
        if given != mine:
            raise _differs(arguments.name, name, given, mine)
    return optimizer


def _given(arguments: AnyArguments, mine: Specification, entry: VariableEntry) -> Iterator[tuple[str, object, object]]:
    """Yield those arguments that take effect when a variable is opened, unless they were left out: the name, the value
    given, and the one that the variable has.
    """
    for name, flag, own in (
        ("trainable", arguments.trainable, mine.trainable),
        ("checkpoint", arguments.checkpoint, mine.checkpointed),
        ("bp_v2", arguments.bp_v2, mine.bp_v2),
    ):
        if not isinstance(flag, UnsetFlag):
            yield name, bool(flag), own
    if arguments.devices is not None:
        yield "devices", as_devices(arguments.devices), mine.devices
    if arguments.partitioner is not default_partitioner:
        yield "partitioner", as_partitioner(arguments.partitioner), mine.partitioner
    if first_rows := as_first_rows(arguments.init_size):
        yield "init_size", first_rows, mine.first_rows
    if arguments.hot_rows is not None:
        yield "hot_rows", as_hot_rows(arguments.hot_rows), mine.hot_rows
    if arguments.kv_creator is not None:
        yield "kv_creator", as_creator(arguments.kv_creator, entry), mine.creator
    if arguments.admission is not None:
        yield "admission", arguments.admission, mine.admission
    if arguments.constraint is not None:
        yield "constraint", arguments.constraint, mine.constraint
    if arguments.regularizer is not None:
        yield "regularizer", arguments.regularizer, mine.regularizer
    if arguments.collections is not None:
        yield "collections", as_collections(arguments.collections, trainable=mine.trainable), mine.collections


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
