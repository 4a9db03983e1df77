"""Change the optimizer, dtype, dim, key dtype or policy of a variable: in its store, or in a copy in a new store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import atomic_output, local
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.importing import check_dtype, converted, filled
from kvemb.tools.named import have_one_scale, named, policy_text
from kvemb.tools.numbers import rounded
from kvemb.tools.reading import WRITE_BUDGET, Progress, chosen, kind_name, opened, with_progress


@dataclass
class MigrationPlan:
    """What migrate() will do. before, after: descriptions as kvemb.bulk.described. steps: one line for each change,
    with what it loses. resets_slots, resets_scores: whether slots and scores start again. out: the new store; None: the
    variable changes in its own store.
    """

    source: Path
    out: Path | None
    variable: str
    rows: int
    before: dict[str, Any]
    after: dict[str, Any]
    steps: list[str] = field(default_factory=list)
    resets_slots: bool = False
    resets_scores: bool = False


def plan(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    *,
    variable: str | None = None,
    optimizer: str | None = None,
    slots: str = "keep",
    value_dtype: str | None = None,
    dim: int | None = None,
    key_dtype: str | None = None,
    policy: str | None = None,
) -> MigrationPlan:
    """Plan the migration of a variable of a checkpoint or store to a new store, or, if out is None, in its own store.

    None leaves a property unchanged.

    optimizer: a name of kvemb.optimizers.KINDS, such as "adagrad", or "none"; "adagrad:0.1" also sets the learning
    rate, and "adagrad:0.1,clip_norm=1" another parameter. The other parameters are those of the current optimizer if
    the name is the same, otherwise the defaults. slots: "keep" those that the new optimizer also has, with the same
    width, or "reset". value_dtype, key_dtype: as for get_variable. dim: rows are cut, or padded with zeros. policy:
    a name of kvemb.tools.named.POLICIES, such as "frequency", or "none"; "frequency:1000" also gives a half-life. If
    the scale of scores changes, scores start again, as after one use.

    Reads no rows. Raises BadInput, also if no such variable can exist; FileExistsError, and what reading path raises.
    """
    check_dtype(value_dtype)
    point = kvemb.Checkpoint.at(path)
    name = chosen(path, sorted(point.variables), variable)
    if out is not None and local(out, "new store").exists():
        raise FileExistsError(f"{out} exists; name a new directory for the store")
    if out is None and point.path == Path(path):
        raise WrongUsage(f"{path} is a checkpoint, which never changes; name a new directory OUT for a store")
    with opened(point.path, name) as old:
        before, rows = bulk.described(old), old.size()
    found = MigrationPlan(Path(path), None if out is None else Path(out), name, rows, before, dict(before))
    _plan_optimizer(found, optimizer, slots)
    for what, asked in (("value_dtype", value_dtype), ("key_dtype", key_dtype), ("dim", dim)):
        if asked is not None and asked != before[what]:
            found.after[what] = asked
            found.steps.append(f"{what}: {before[what]} becomes {asked}{_loss(what, before[what], asked)}")
    found.after["slots"] = _shapes(found.after)
    if policy is not None:
        _plan_policy(found, policy)
    if not found.steps:
        raise WrongUsage(f"nothing to change in variable {name!r}; give an option such as --optimizer sgd")
    with bulk.scratch("kvemb-plan-") as scratch, kvemb.open(scratch, memory_budget=WRITE_BUDGET) as store:
        _created(store, found)
    return found


def _created(store: kvemb.Store, found: MigrationPlan) -> kvemb.Variable:
    """Create the variable, without rows. Raises BadInput if its properties do not fit together."""
    try:
        return bulk.make(store, found.variable, found.after)
    except kvemb.errors.UnsupportedFormat as error:
        wrong = error.__cause__ or error
        raise BadInput(f"variable {found.variable!r} cannot be migrated like this: {wrong}") from error
    except (TypeError, ValueError) as error:
        raise BadInput(f"variable {found.variable!r} cannot be migrated like this: {error}") from error


def _plan_optimizer(found: MigrationPlan, asked: str | None, slots: str) -> None:
    if slots not in ("keep", "reset"):
        raise WrongUsage(f"--slots must be keep or reset, got {slots!r}")
    if asked is None and slots == "keep":
        return
    if asked is not None:
        _change_optimizer(found, asked)
    before, after = _slots(found.before), _slots(found.after)
    names_before, names_after = ({name for name, _ in each} for each in (before, after))
    for slot in before:
        if slot[0] not in names_after:
            found.steps.append(f"slot {slot[0]!r} is dropped: training cannot continue without it")
    for slot in after:
        if slot not in before:
            told = "has another width: it begins at" if slot[0] in names_before else "is added, with"
            found.steps.append(f"slot {slot[0]!r} {told} its initial value")
        elif slots == "reset":
            found.steps.append(f"slot {slot[0]!r} is reset: its values are lost")
    found.resets_slots = slots == "reset"


def _change_optimizer(found: MigrationPlan, asked: str) -> None:
    was = found.before["optimizer"]
    was = None if was is None else kvemb.optimizers.optimizer_from_json(was).to_json()  # adds parameters that it lacks
    new, given = named("optimizer", asked, was)
    found.after["optimizer"] = new
    if new is None:
        if was is None:
            raise BadInput(f"variable {found.variable!r} has no optimizer already; leave --optimizer out")
        found.steps.append(f"optimizer: {kind_name(was)} becomes none")
        return
    name = new["name"]
    if was is not None and was["name"] == name:
        changed = [field for field in given if new[field] != was[field]]
        if not changed:
            raise BadInput(f"variable {found.variable!r} has the optimizer {asked} already; leave --optimizer out")
        for field in changed:
            found.steps.append(f"{field.replace('_', ' ')}: {_told(was[field])} becomes {_told(new[field])}")
        return
    found.after["optimizer_steps"] = 0
    rest = "" if "learning_rate" in given else f" (the default; {name}:RATE for another)"
    others = "".join(f", {field} {_told(given[field])}" for field in given if field != "learning_rate")
    rate = f"learning rate {_told(new['learning_rate'])}"
    found.steps.append(f"optimizer: {kind_name(was)} becomes {name}, {rate}{rest}{others}")


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value).lower()


def _slots(described: dict[str, Any]) -> list[tuple[str, int | None]]:
    """Return name and width of a variable's slots; width None means dim."""
    if described["optimizer"] is None:
        return []
    return [(slot.name, slot.width) for slot in kvemb.optimizers.optimizer_from_json(described["optimizer"]).slots]


def _shapes(described: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the slots of a variable as kvemb.bulk.described gives them."""
    return [{"name": name, "width": described["dim"] if width is None else width} for name, width in _slots(described)]


def _plan_policy(found: MigrationPlan, asked: str) -> None:
    was, (new, _) = found.before["policy"], named("policy", asked)
    if new == was:
        raise BadInput(f"variable {found.variable!r} has the policy {asked} already; leave --policy out")
    found.after["policy"] = new
    found.resets_scores = not have_one_scale(was, new)
    scores = "scores start again" if found.resets_scores else "scores are kept"
    found.steps.append(f"policy: {policy_text(was)} becomes {policy_text(new)}; {scores}")


def _loss(what: str, before: Any, after: Any) -> str:
    if what == "dim":
        gone = f": the last {before - after} values of each row are lost" if after < before else ""
        return gone or f": {after - before} zeros are added to each row"
    if what == "key_dtype":
        return ": keys that do not fit are refused"
    one, other = (np.dtype("float32" if each == "bfloat16" else each) for each in (before, after))
    if other.kind in "iu" and one.kind == "f":
        return ": values that are not integers are refused"
    if other.itemsize < one.itemsize or after == "bfloat16" or (before, after) == ("bfloat16", "float16"):
        return ": values are rounded; numbers that are too large are refused"
    return ""


def migrate(found: MigrationPlan, *, progress: Progress | None = None) -> int:
    """Carry out a plan; returns the number of rows of the new variable. Raises BadInput if a row does not fit.

    If it raises, also on Ctrl-C, there is no new store, or the store is as before.
    """
    if found.out is None:
        return _migrate_in_place(found, progress)
    source = kvemb.Checkpoint.at(found.source)
    with (
        atomic_output(str(found.out), folder=True) as made,
        opened(source.path, found.variable) as old,
        filled(made) as store,
    ):
        target = _created(store, found)
        bulk.load(target, _rows(old, target, found, progress), on_conflict="error")
        bulk.bring_sightings(target, source)
        return target.size()


def _migrate_in_place(found: MigrationPlan, progress: Progress | None) -> int:
    with filled(found.source) as store, opened(found.source, found.variable) as old:
        target = bulk.remake(store, found.variable, found.after)
        bulk.load(target, _rows(old, target, found, progress), on_conflict="error")
        return target.size()


def _rows(
    old: kvemb.Variable, target: kvemb.Variable, found: MigrationPlan, progress: Progress | None
) -> Iterator[bulk.Rows]:
    before, after = _slots(found.before), _slots(found.after)
    same = [] if found.resets_slots else [slot[0] for slot in after if slot in before]
    for rows in with_progress(bulk.scan(old), progress, old.size()):
        had = rows.slots or {}
        values = np.zeros((len(rows), target.dim), rows.values.dtype)
        part = min(rows.values.shape[1], target.dim)
        values[:, :part] = rows.values[:, :part]
        values = converted(values, rows.keys, target.value_dtype, "values", target.name)
        slots = bulk.new_slots(target, values)
        for slot in same:
            numbers = had[slot]
            part = min(numbers.shape[1], slots[slot].shape[1])
            kind, advice = slots[slot].dtype, "give another --value-dtype, or --slots reset"
            slots[slot][:, :part] = rounded(numbers[:, :part], kind, rows.keys, advice)
        if target.optimizer is not None and len(same) < len(after):
            target.optimizer.match_slots(values, slots)
        yield bulk.Rows(
            converted(rows.keys, rows.keys, target.key_dtype, "keys", target.name),
            values,
            slots or None,
            None if found.resets_scores else rows.scores,
            rows.steps,
        )
