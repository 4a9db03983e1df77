"""The open variables of a cluster, as its coordinator knows them, and the tokens that identify them in calls.

A token identifies one variable between two recoveries: a call that was sent before a drop or a recovery reaches no
variable.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from kvemb.cluster.coordination.counting import StepCounts, TotalSteps
from kvemb.cluster.messages import OpenVariable
from kvemb.durability.variable_entry import VariableEntry
from kvemb.restrict import MissingPolicy


class OpenedVariable(NamedTuple):
    """An open variable. arguments: those with which shards make it."""

    token: str
    arguments: dict[str, Any]
    total: TotalSteps

    def having(self, **arguments: Any) -> OpenedVariable:
        """Return the variable with other arguments, which may change while it is open."""
        return self._replace(arguments={**self.arguments, **arguments})

    def told(self) -> OpenVariable:
        """Return what clients must know of the variable."""
        admits = self.arguments["admission"] is not None
        scores = not isinstance(self.arguments["restrict_policy"], MissingPolicy)
        return OpenVariable(self.token, self.total.steps(), admits, scores)


def compared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return those arguments of a client that must be those with which another one opened the variable.

    Functions cannot be compared here: the client has compared their names (kvemb.engine.agreement.completed). Flags may
    differ: whether a client trains it is that client's own.
    """
    own = "constraint", "partitioner", "trainable", "checkpoint", "bp_v2"
    return {name: value for name, value in arguments.items() if name not in own}


def new_token() -> str:
    """Return a unique token for a new variable."""
    return f"{uuid.uuid4().hex} 0"


def next_token(token: str) -> str:
    """Return the token of the same variable after a recovery, so that earlier calls do not reach it."""
    variable, recoveries = token.split()
    return f"{variable} {int(recoveries) + 1}"


def are_of_one_variable(token: str, other: str) -> bool:
    """Whether two tokens are of one variable that was not dropped and made again, before and after recoveries."""
    return token.split()[0] == other.split()[0]


def steps_of(entry: VariableEntry | None) -> StepCounts:
    """Return the initial steps of a variable. entry: its stored entry; None: it is new."""
    return StepCounts() if entry is None else StepCounts(entry.step, entry.optimizer_steps)
