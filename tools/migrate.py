"""Bringing a variable to another optimizer, dtype, dim, key dtype or policy, in a new store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import atomic_directory, local
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.importing import BUDGET, check_dtype, converted
from kvemb.tools.numbers import rounded
from kvemb.tools.reading import Progress, chosen, kind_name, opened, telling

OPTIMIZERS: dict[str, type[kvemb.optimizers.Optimizer] | None] = {"none": None, **kvemb.optimizers.KINDS}
POLICIES = {"none": None, "frequency": kvemb.FrequencyRestrictPolicy, "timestamp": kvemb.TimestampRestrictPolicy}


@dataclass
class Plan:
    """What migrate() will do. steps: a line for each thing that changes; those that lose something say so."""

    source: Path
    out: Path
    variable: str
    rows: int
    before: dict[str, Any]
    after: dict[str, Any]
    steps: list[str] = field(default_factory=list)
    slots_anew: bool = False
    scores_anew: bool = False


def plan(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    variable: str | None = None,
    optimizer: str | None = None,
    slots: str = "keep",
    value_dtype: str | None = None,
    dim: int | None = None,
    key_dtype: str | None = None,
    policy: str | None = None,
) -> Plan:
    """Say what migrating a variable of a checkpoint or store to a new store would do; None leaves a thing as it is.

    optimizer: the name of one of kvemb.optimizers, as "adagrad", or "none"; "adagrad:0.1" with this learning rate
    instead of the default, or the same optimizer with another one. slots: "keep" those the new optimizer has too, as
    wide, or "anew". value_dtype, key_dtype: as for get_variable. dim: rows are cut, or padded with zeros. policy:
    "frequency", "timestamp" or "none"; "frequency:1000" with this half-life, "timestamp:steps" with that clock; scores
    of another scale begin anew, as after one use.

    Reads no rows. Raises BadInput, also where there can be no such variable; FileExistsError, and what reading path
    does.
    """
    check_dtype(value_dtype)
    point = kvemb.Checkpoint.at(path)
    name = chosen(path, sorted(point.variables), variable)
    if local(out, "new store").exists():
        raise FileExistsError(f"{out} exists; name a new directory for the store")
    with opened(point.path, name) as old:
        before, rows = bulk.described(old), old.size()
    found = Plan(Path(path), Path(out), name, rows, before, dict(before))
    _plan_optimizer(found, optimizer, slots)
    for what, asked in (("value_dtype", value_dtype), ("key_dtype", key_dtype), ("dim", dim)):
        if asked is not None and asked != before[what]:
            found.after[what] = asked
            found.steps.append(f"{what}: {before[what]} becomes {asked}{_loss(what, before[what], asked)}")
    found.after["slots"] = _shapes(found.after)
    if policy is not None:
        _plan_policy(found, policy)
    if not found.steps:
        raise WrongUsage(f"nothing is to be changed in {name!r}; say what, such as --optimizer sgd")
    with bulk.scratch("kvemb-plan-") as scratch, kvemb.open(scratch, memory_budget=BUDGET) as store:
        _made(store, found)
    return found


def _made(store: kvemb.Store, found: Plan) -> kvemb.Variable:
    """Make the variable, without rows. Raises BadInput where its properties do not go together."""
    try:
        return bulk.make(store, found.variable, found.after)
    except (TypeError, ValueError) as error:
        raise BadInput(f"variable {found.variable!r} cannot become so: {error}") from error


def _known(what: str, asked: str, known: dict[str, Any]) -> Any:
    if asked not in known:
        raise WrongUsage(f"--{what} must be {', '.join(known)}, got {asked!r}")
    return known[asked]


def _plan_optimizer(found: Plan, asked: str | None, slots: str) -> None:
    if slots not in ("keep", "anew"):
        raise WrongUsage(f"--slots must be keep or anew, got {slots!r}")
    if asked is None and slots == "keep":
        return
    if asked is not None:
        name = asked.partition(":")[0]
        made, was = _known("optimizer", name, OPTIMIZERS), found.before["optimizer"]
        given = _rate(asked) if ":" in asked else None
        if name == kind_name(was) and (given is None or given == was["learning_rate"]):
            raise BadInput(f"variable {found.variable!r} has the optimizer {asked} already; leave --optimizer out")
        if name == kind_name(was):
            found.after["optimizer"] = {**was, "learning_rate": given}
            found.steps.append(f"learning rate: {was['learning_rate']:g} becomes {given:g}")
        elif made is None:
            found.after["optimizer"] = None
            found.steps.append(f"optimizer: {kind_name(was)} becomes none")
        else:
            new = made() if given is None else made(learning_rate=given)
            found.after["optimizer"] = new.to_json()
            rest = f" (the default; {name}:RATE for another)" if given is None else ""
            found.steps.append(f"optimizer: {kind_name(was)} becomes {name}, learning rate {new.learning_rate:g}{rest}")
    before, after = _slots(found.before), _slots(found.after)
    for slot in before:
        if slot not in after:
            found.steps.append(f"slot {slot[0]!r} is dropped: training can not go on from it")
    for slot in after:
        if slot not in before:
            found.steps.append(f"slot {slot[0]!r} is added, as of new rows")
        elif slots == "anew":
            found.steps.append(f"slot {slot[0]!r} starts anew: what it had is lost")
    found.slots_anew = slots == "anew"


def _slots(about: dict[str, Any]) -> list[tuple[str, int | None]]:
    """The slots of a variable by name and width, as the optimizer says it."""
    if about["optimizer"] is None:
        return []
    return [(slot.name, slot.width) for slot in kvemb.optimizers.optimizer_from_json(about["optimizer"]).slots]


def _shapes(about: dict[str, Any]) -> list[dict[str, Any]]:
    """The slots of a variable as kvemb.bulk.described tells them."""
    return [{"name": name, "width": about["dim"] if width is None else width} for name, width in _slots(about)]


def _rate(asked: str) -> float:
    """Return the learning rate of such as "sgd:0.1". Raises BadInput."""
    name, _, rate = asked.partition(":")
    try:
        if OPTIMIZERS[name] is None:
            raise ValueError
        return kvemb.optimizers.SGD(learning_rate=float(rate)).learning_rate
    except ValueError:
        raise WrongUsage(
            f"--optimizer must be none, or one of {', '.join(kvemb.optimizers.KINDS)} with a learning rate such as "
            f"sgd:0.1, got {asked!r}"
        ) from None


def _plan_policy(found: Plan, asked: str) -> None:
    was, wanted = found.before["policy"], _policy(asked)
    if wanted == was:
        raise BadInput(f"variable {found.variable!r} has the policy {asked} already; leave --policy out")
    found.after["policy"] = wanted
    found.scores_anew = _scale(wanted) != _scale(was)
    scores = "scores begin anew" if found.scores_anew else "scores stay as they are"
    found.steps.append(f"policy: {_told(was)} becomes {_told(wanted)}; {scores}")


def _policy(asked: str) -> dict[str, Any] | None:
    """Return the policy of such as "frequency:1000", as kvemb.bulk.described tells it. Raises WrongUsage."""
    name, _, given = asked.partition(":")
    made = _known("policy", name, POLICIES)
    try:
        if made is None or not given:
            if ":" in asked:
                raise ValueError
            return None if made is None else made().to_json()
        chosen: kvemb.RestrictPolicy = made(float(given) if name == "frequency" else given)
        return chosen.to_json()
    except (TypeError, ValueError):
        raise WrongUsage(
            "--policy must be none, frequency or timestamp, or with a half-life in steps or a clock such as "
            f"frequency:1000 or timestamp:steps, got {asked!r}"
        ) from None


def _scale(policy: dict[str, Any] | None) -> dict[str, Any]:
    """What scores mean. Without a policy they are numbers of uses."""
    return kvemb.FrequencyRestrictPolicy().to_json() if policy is None else policy


def _told(policy: dict[str, Any] | None) -> str:
    rest = [] if policy is None else [str(value) for what, value in policy.items() if what != "kind" and value]
    return ":".join([kind_name(policy), *rest])


def _loss(what: str, before: Any, after: Any) -> str:
    if what == "dim":
        gone = f": the last {before - after} values of each row are lost" if after < before else ""
        return gone or f": {after - before} zeros are added to each row"
    if what == "key_dtype":
        return ": keys that do not fit are refused"
    one, other = (np.dtype("float32" if each == "bfloat16" else each) for each in (before, after))
    if other.kind in "iu" and one.kind == "f":
        return ": values that are no whole numbers are refused"
    if other.itemsize < one.itemsize or after == "bfloat16" or (before, after) == ("bfloat16", "float16"):
        return ": digits are lost; numbers that are too great are refused"
    return ""


def migrate(found: Plan, *, progress: Progress | None = None) -> int:
    """Do what plan() said; returns how many rows the new store has. Raises BadInput where a row does not fit.

    Then, and on Ctrl-C, there is no new store.
    """
    source = kvemb.Checkpoint.at(found.source)
    with atomic_directory(str(found.out), folder=True) as made, opened(source.path, found.variable) as old:
        store = kvemb.open(made, memory_budget=BUDGET)
        try:
            target = _made(store, found)
            rows = _rows(old, target, found, progress)
            bulk.load(target, rows, on_conflict="error")
            count = target.size()
        except BaseException:
            store.close(flush=False)
            raise
        store.close()
    return count


def _rows(old: kvemb.Variable, target: kvemb.Variable, found: Plan, progress: Progress | None) -> Iterator[bulk.Rows]:
    before, after = _slots(found.before), _slots(found.after)
    same = [] if found.slots_anew else [slot[0] for slot in after if slot in before]
    for rows in telling(bulk.scan(old), progress, old.size()):
        had = rows.slots or {}
        slots = bulk.new_slots(target, len(rows))
        for slot in same:
            numbers = had[slot]
            part = min(numbers.shape[1], slots[slot].shape[1])
            kind, advice = slots[slot].dtype, "give another --value-dtype, or --slots anew"
            slots[slot][:, :part] = rounded(numbers[:, :part], kind, rows.keys, advice)
        values = np.zeros((len(rows), target.dim), rows.values.dtype)
        part = min(rows.values.shape[1], target.dim)
        values[:, :part] = rows.values[:, :part]
        yield bulk.Rows(
            converted(rows.keys, rows.keys, target.key_dtype, "keys", target.name),
            converted(values, rows.keys, target.value_dtype, "values", target.name),
            slots or None,
            None if found.scores_anew else rows.scores,
            rows.steps,
        )
