"""The variables of a cluster that are open, as its coordinator knows them, and the tokens that calls say for them.

A token is of one variable, between two recoveries: a call from before a drop or a recovery reaches nothing.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from kvemb.cluster.coordination.counting import Steps, Total
from kvemb.cluster.messages import OpenVariable
from kvemb.durability.manifest import VariableEntry
from kvemb.restrict import MissingPolicy


class Open(NamedTuple):
    """A variable that is open. arguments: by which shards make it."""

    token: str
    arguments: dict[str, Any]
    total: Total

    def told(self) -> OpenVariable:
        """Return what clients must know of it."""
        admits = self.arguments["admission"] is not None
        scores = not isinstance(self.arguments["restrict_policy"], MissingPolicy)
        return OpenVariable(self.token, self.total.steps(), admits, scores)


def new_token() -> str:
    """Return what calls say for a variable that is made now: no other has it."""
    return f"{uuid.uuid4().hex} 0"


def next_token(token: str) -> str:
    """Return what calls say for the same variable after a recovery, so that those from before it reach nothing."""
    variable, recoveries = token.split()
    return f"{variable} {int(recoveries) + 1}"


def are_of_one_variable(token: str, other: str) -> bool:
    """Whether two tokens are of one variable, before and after recoveries: it was not dropped, and made again."""
    return token.split()[0] == other.split()[0]


def steps_of(entry: VariableEntry | None) -> Steps:
    """Return the steps that a variable begins with. entry: as it is stored; None: it is not."""
    return Steps() if entry is None else Steps(entry.step, entry.optimizer_steps)
