"""The learning rates of an optimizer's variables: each variable's own optimizer gets the rate of its parameter group.

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from kvemb.checks.numeric import as_number
from kvemb.frameworks.rates import rate_of, with_rate
from kvemb.handle import inside
from kvemb.optimizers import Optimizer as Rule
from kvemb.variable import Variable


class Rates:
    """See the module. groups: one for each variable, in the order of `variables`, with its rate in "lr".

    Raises ValueError for a variable without an optimizer.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        self.groups: list[dict[str, Any]] = []
        self._rules: dict[Variable, Rule] = {}
        for variable in variables:
            if variable.optimizer is None:
                raise ValueError(
                    f"variable {variable.name!r} has no optimizer; make it with optimizer=kvemb.optimizers.Adagrad(); "
                    "kvemb migrate --optimizer adds one to a stored variable"
                )
            self._rules[variable] = variable.optimizer
        self.variables: list[Variable] = list(self._rules)

    def first(self, lr: Any) -> list[float]:
        """Return each variable's first rate: lr, or if that is None its own. Raises TypeError, ValueError."""
        rules = self._rules.values()
        return [rate_of(rule if lr is None else with_rate(rule, _number(lr))) for rule in rules]

    def set(self, variables: Iterable[Variable], here: bool = False) -> None:
        """Set the rates of variables to those of their groups. Variables of other optimizers are ignored.

        here: on this rank alone (kvemb.torch.in_step). Raises TypeError if a rate is not a number; ValueError if it is
        below 0 or not finite, or if a variable's optimizer was changed elsewhere. No rate is changed then.
        """
        rules = {variable: self._rule(variable) for variable in variables if variable in self._rules}
        for variable, rule in rules.items():
            if rule is not self._rules[variable]:
                if here:
                    inside(variable).operations.optimizer = rule
                else:
                    variable.optimizer = rule
                self._rules[variable] = rule

    def checked(self) -> list[float]:
        """Return the rate of each variable. Raises as set() does."""
        return [rate_of(self._rule(variable)) for variable in self.variables]

    def _rule(self, variable: Variable) -> Rule:
        """Return the optimizer of a variable with the rate of its group."""
        known = self._rules[variable]
        rate = _number(self.groups[self.variables.index(variable)]["lr"])
        if variable.optimizer != known:
            raise ValueError(
                f"variable {variable.name!r} now has the optimizer {variable.optimizer!r}, but this "
                f"kvemb.torch.Optimizer trains it with {known!r}; change its rate in param_groups; if modules share "
                "the variable, make one Optimizer for all of them, as in Optimizer(first, second)"
            )
        return known if rate == rate_of(known) else with_rate(known, rate)


def _number(lr: Any) -> float:
    """Return a learning rate as float; it may be a tensor of one element. Raises TypeError if it is not a number."""
    return float(as_number(lr.item() if isinstance(lr, torch.Tensor) else lr, "lr"))
