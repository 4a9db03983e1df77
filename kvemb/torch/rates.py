"""The hyperparameters of an optimizer's variables: each variable's own optimizer gets those of its parameter group.

Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch

from kvemb.checks.numeric import as_number
from kvemb.frameworks.rates import rate_of, with_rate
from kvemb.handle import inside
from kvemb.optimizers import Optimizer as Rule
from kvemb.variable import Variable

# What a group has beside hyperparameters, the last four for torch.optim's schedulers.
_BESIDE = ("params", "variable", "initial_lr", "max_lr", "min_lr", "swa_lr")


class Rates:
    """See the module. groups: one for each variable, in the order of `variables`, with its rate in "lr".

    The other fields of its optimizer are there under their names. warned: whether a warning has said that no step was
    taken. Raises ValueError for a variable without an optimizer.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        self.warned = False
        self.groups: list[dict[str, Any]] = []
        self._rules: dict[Variable, Rule] = {}
        self._texts: dict[Variable, tuple[Rule, str]] = {}  # those that checked() returned last
        for variable in variables:
            if variable.optimizer is None:
                raise ValueError(
                    f"variable {variable.name!r} has no optimizer; make it with optimizer=kvemb.optimizers.Adagrad(); "
                    "kvemb migrate --optimizer adds one to a stored variable"
                )
            self._rules[variable] = variable.optimizer
        self.variables: list[Variable] = list(self._rules)

    def first(self, lr: Any) -> list[dict[str, Any]]:
        """Return the first groups. lr: the rate of all; None: each variable's own. Raises TypeError, ValueError."""
        rules = {each: rule if lr is None else with_rate(rule, _number(lr)) for each, rule in self._rules.items()}
        return [
            {"params": [], "lr": rate_of(rule), "variable": each.name, **_others(rule)} for each, rule in rules.items()
        ]

    def set(self, variables: Iterable[Variable], here: bool = False) -> None:
        """Give variables the hyperparameters of their groups. Variables of other optimizers are ignored.

        here: on this rank alone (kvemb.torch.in_step). Raises TypeError, ValueError for what is no hyperparameter of a
        variable's optimizer or out of its range, and if that was changed elsewhere. Nothing is changed then.
        """
        rules = {variable: self._rule(variable) for variable in variables if variable in self._rules}
        for variable, rule in rules.items():
            if rule is not self._rules[variable]:
                if here:
                    inside(variable).operations.optimizer = rule
                else:
                    variable.optimizer = rule
                self._rules[variable] = rule

    def checked(self) -> list[str]:
        """Return the optimizer of each variable, as text. Raises as set() does."""
        return [self._text(variable, self._rule(variable)) for variable in self.variables]

    def _text(self, variable: Variable, rule: Rule) -> str:
        last = self._texts.get(variable)
        if last is None or last[0] is not rule:
            self._texts[variable] = last = rule, repr(rule)
        return last[1]

    def _rule(self, variable: Variable) -> Rule:
        """Return the optimizer of a variable with the hyperparameters of its group."""
        known = self._rules[variable]
        given = {name: each for name, each in self._group(variable).items() if name not in _BESIDE}
        rate = _number(given.pop("lr"))
        if (now := variable.optimizer) is not known and now != known:
            raise ValueError(
                f"variable {variable.name!r} now has the optimizer {now!r}, but this "
                f"kvemb.torch.Optimizer trains it with {known!r}; change its rate in param_groups; if modules share "
                "the variable, make one Optimizer for all of them, as in Optimizer(first, second)"
            )
        there = _others(known)
        if unknown := [name for name in given if name not in there]:
            raise ValueError(
                f"{unknown[0]!r} in the parameter group of variable {variable.name!r} has no effect on "
                f"{type(known).__name__}, which has {', '.join(['lr', *there])}; take it out"
            )
        changed = {name: each for name, each in given.items() if each is not there[name] and each != there[name]}
        if changed:
            known = replace(cast(Any, known), **changed)
        return known if rate == rate_of(known) else with_rate(known, rate)

    def _group(self, variable: Variable) -> dict[str, Any]:
        return self.groups[self.variables.index(variable)]


def _others(rule: Rule) -> dict[str, Any]:
    """Return the hyperparameters of an optimizer beside its rate."""
    return {name: each for name, each in vars(rule).items() if name != "learning_rate"}


def _number(lr: Any) -> float:
    """Return a learning rate as float; it may be a tensor of one element. Raises TypeError if it is not a number."""
    return float(as_number(lr.item() if isinstance(lr, torch.Tensor) else lr, "lr"))
