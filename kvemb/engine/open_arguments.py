"""The arguments with which a store is opened: checked in one place, before anything on disk is looked at or changed.

Whatever opens a store (kvemb.open, kvemb.restore, CheckpointManager.resume) makes this value first. kvemb.open explains
the arguments. A frozen value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_bool, as_int
from kvemb.durability.marks.kept import KEEP_MARKS, MAX_MARKS
from kvemb.engine.periodic_flush import as_flush_every
from kvemb.limits import DEFAULT, Limits
from kvemb.options import parse_budget, parse_device_memory


@dataclass(frozen=True, kw_only=True)
class OpenArguments:
    """The arguments of kvemb.open but for the path. Raises TypeError, ValueError."""

    memory_budget: int | str = "1GiB"
    device_memory: int | str | None = None
    read_only: bool = False
    follow: bool = False
    warm: bool = False
    durability: str = "checkpoint"
    flush_every: float | None = None
    limits: Limits = DEFAULT
    keep_marks: int = KEEP_MARKS

    def __post_init__(self) -> None:
        for flag in ("read_only", "follow", "warm"):
            as_bool(getattr(self, flag), flag)
        parse_budget(self.memory_budget)
        parse_device_memory(self.device_memory)
        if self.durability not in ("checkpoint", "write"):
            raise ValueError(f"durability must be 'checkpoint' or 'write', got {self.durability!r}")
        if self.durability == "write" and self.reads:
            raise ValueError(
                "durability='write' needs a writable store; leave it out, or leave out read_only and follow"
            )
        if as_flush_every(self.flush_every) is not None and self.reads:
            raise ValueError("flush_every needs a writable store; leave it out, or leave out read_only and follow")
        as_int(self.keep_marks, "keep_marks", 0, MAX_MARKS)
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits must be a kvemb.limits.Limits, got {brief(self.limits)}")

    @property
    def reads(self) -> bool:
        """Whether the store is only read."""
        return self.read_only or self.follow


def as_names(variables: Collection[str] | None) -> set[str] | None:
    """Return the `variables` argument of a restore, None for all. Raises TypeError."""
    if variables is None:
        return None
    if isinstance(variables, (str, bytes)) or not isinstance(variables, Collection):
        raise TypeError(f"variables must be a list of names such as ['users'], got {brief(variables)}")
    if strange := [name for name in variables if not isinstance(name, str)]:
        raise TypeError(f"variables must be a list of names such as ['users'], got {brief(strange[0])} in it")
    return set(variables)
