"""Optimizer: a torch.optim.Optimizer over the variables of a model's modules.

Each variable is one parameter group with the learning rate of its own optimizer, so every scheduler works. step() takes
one step of that optimizer on the rows that have pending gradients. Reading `param_groups` sums the gradients of equal
keys into one tensor for each variable, which appears as a parameter with a `grad`. So the step uses gradients as
clip_grad_norm_ and GradScaler have changed them. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_number
from kvemb.optimizers import Optimizer as Rule
from kvemb.torch.gradients import Gradient, check_step, merged, take_step
from kvemb.torch.module import RowsModule
from kvemb.variable import Variable


class Optimizer(torch.optim.Optimizer):
    """Train the rows of a model's modules: a torch.optim.Optimizer over their variables.

    Each variable is one parameter group, with the learning rate of its own optimizer, so every scheduler works. All
    other hyperparameters are those of the variable's optimizer, for example of kvemb.optimizers.Adagrad. The model's
    dense parameters need an optimizer of torch.optim beside this one.

    - A rate that you change in ``param_groups`` takes effect at the next step, and for fused modules at the next
      backward pass.
    - If several Optimizers are made for a module, the last one trains it.
    - Put modules that share a variable into one Optimizer, because a variable has one optimizer with one rate.
    - A frozen module whose variable has no optimizer is left out.

    Not thread-safe.

    Args:
        *modules: Modules whose rows are trained, with their submodules: for example the whole model.
        lr: A learning rate for all variables. None: each variable's own.

    Raises:
        TypeError: For an argument that is not a module, or an ``lr`` that is not a number.
        ValueError: If no module has a trainable variable, if a trained variable has no optimizer, or if ``lr`` is not
            finite and at least 0.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> sgd = kvemb.optimizers.SGD(0.5)
        >>> words = kt.EmbeddingBag("words", 4, mode="sum", optimizer=sgd)
        >>> model = torch.nn.Sequential(words, torch.nn.Linear(4, 1))
        >>> optimizer = kt.Optimizer(model)
        >>> dense = torch.optim.Adagrad(model.parameters())
        >>> loss = model(torch.tensor([[5, 17]])).sum()
        >>> loss.backward()
        >>> for each in (optimizer, dense):
        ...     each.step()
        ...     each.zero_grad()
        >>> words.variable.size()
        2
    """

    def __init__(self, *modules: torch.nn.Module, lr: float | None = None) -> None:
        found: dict[int, RowsModule] = {}
        for module in modules:
            if not isinstance(module, torch.nn.Module):
                raise TypeError(f"expected modules, as in Optimizer(model, lr=0.1), got {brief(module)}")
            found |= {id(each): each for each in module.modules() if isinstance(each, RowsModule)}
        # The variable of a frozen module, such as from_pretrained makes, needs no optimizer.
        variables = {
            id(each): each
            for module in found.values()
            for each in module.variables
            if each.trainable and not (module.frozen and each.optimizer is None)
        }
        if not variables:
            kept = ", ".join(repr(each.name) for module in found.values() for each in module.variables)
            why = f": {kept} cannot be trained or, without an optimizer, are frozen" if kept else ""
            raise ValueError(f"the model has no module of kvemb.torch with a trainable variable{why}")
        self._rules: dict[int, Rule] = {}
        for variable in variables.values():
            if variable.optimizer is None:
                raise ValueError(
                    f"variable {variable.name!r} has no optimizer; make it with optimizer=kvemb.optimizers.Adagrad(); "
                    "kvemb migrate --optimizer adds one to a stored variable"
                )
            self._rules[id(variable)] = variable.optimizer
        if lr is not None:
            lr = _number(lr)
            for rule in self._rules.values():
                _with_rate(rule, lr)  # raises for a rate that no step accepts
        self._variables = list(variables.values())
        self._modules = [
            module
            for module in found.values()
            if all(id(each) in variables for each in module.variables if each.trainable)
        ]
        self._groups: list[dict[str, Any]] = []
        self._merged: list[tuple[Gradient, torch.Tensor]] = []
        groups = [
            {"params": [], "lr": _rate(rule) if lr is None else lr, "variable": variable.name}
            for variable, rule in zip(self._variables, self._rules.values(), strict=True)
        ]
        super().__init__(groups, {"lr": groups[0]["lr"]})
        for module in self._modules:
            module.pending.optimizer = self

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups, one for each variable.

        A group is a dict: the variable's name in "variable", its rate in "lr", and in "params" one tensor, whose
        ``grad`` is the pending gradient of its rows, or none. Reading this sums the gradients of equal keys. The next
        step uses each tensor's ``grad`` as it then is.
        """
        self._merge()
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._groups = groups

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The pending gradients, for ``clip_grad_norm_``.

        One tensor for each variable that has any; its ``grad`` is that of the variable's rows.
        """
        return [leaf for group in self.param_groups for leaf in group["params"]]

    @torch.compiler.disable
    def _merge(self) -> None:
        """Add the gradients that came since the last call to the sums of that call."""
        made = len(self._groups) == len(self._variables)  # otherwise the base class's constructor is reading them
        if not made or not any(module.pending.waiting for module in self._modules):
            return
        before = [Gradient(each.variable, each.keys, leaf.grad) for each, leaf in self._merged if leaf.grad is not None]
        waiting = [gradient for module in self._modules for gradient in module.pending.waiting]
        together = merged(before + waiting)
        self.zero_grad()
        groups = {id(variable): group for variable, group in zip(self._variables, self._groups, strict=False)}
        for gradient in together:
            # Only the gradient of this tensor is used; its values take no memory.
            leaf = gradient.values.new_zeros(()).expand_as(gradient.values).requires_grad_()
            leaf.grad = gradient.values
            self._merged.append((gradient, leaf))
            groups[id(gradient.variable)]["params"].append(leaf)

    @torch.compiler.disable
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the pending gradients.

        Args:
            set_to_none: Ignored. It is here because torch.optim has it.
        """
        for module in self._modules:
            module.pending.clear()
        self._merged = []
        for group in self._groups:
            group["params"] = []

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the pending gradients, and discard them.

        Args:
            closure: A function that computes the loss and its gradients. It is called first.

        Returns:
            The result of the closure, or None.

        Raises:
            TypeError: If a rate is not a number. Nothing has changed then.
            ValueError: If a rate is below 0 or not finite, if a variable's optimizer was changed elsewhere, or if a
                gradient is not finite and a module has ``check_finite``. Nothing has changed then.
            KvembError: What ``kvemb.Store.apply_gradients`` raises.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [
            Gradient(each.variable, each.keys, leaf.grad) for each, leaf in self._merged if leaf.grad is not None
        ]
        gradients += [gradient for module in self._modules for gradient in module.pending.waiting]
        if gradients:
            check_step(gradients, [module.pending for module in self._modules])
            self.zero_grad()
            take_step(gradients)
        return loss

    def before_step(self, variables: list[Variable]) -> None:
        """Set the rates of variables to those of their groups. ``step`` and fused backward passes call this.

        Args:
            variables: The variables that a step is about to change. Those of other optimizers are ignored.

        Raises:
            TypeError: If a rate is not a number. No rate is changed then.
            ValueError: If a rate is below 0 or not finite, or if a variable's optimizer was changed elsewhere. No rate
                is changed then.
        """
        groups = {id(variable): group for variable, group in zip(self._variables, self._groups, strict=False)}
        changed: list[tuple[Variable, Rule]] = []
        for variable in variables:
            if id(variable) not in groups:
                continue  # it is not trainable, or belongs to another optimizer
            known, rate = self._rules[id(variable)], _number(groups[id(variable)]["lr"])
            if variable.optimizer != known:
                raise ValueError(
                    f"variable {variable.name!r} now has the optimizer {variable.optimizer!r}, but this "
                    f"kvemb.torch.Optimizer trains it with {known!r}; change its rate in param_groups; if modules "
                    "share the variable, make one Optimizer for all of them, as in Optimizer(first, second)"
                )
            if rate != _rate(known):
                changed.append((variable, _with_rate(known, rate)))
        for variable, rule in changed:
            variable.optimizer = rule
            self._rules[id(variable)] = rule

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse another group: there is one for each variable.

        Args:
            param_group: A group, as the constructor of torch.optim.Optimizer passes it.

        Raises:
            ValueError: After the construction.
        """
        if len(self._groups) >= len(self._variables):
            raise ValueError("there is one group for each variable, so none can be added; make a new Optimizer(model)")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the groups with their rates. Slots are part of the rows, which the store's checkpoints save.

        Returns:
            A dict for ``load_state_dict``, with an empty "state".
        """
        return {"state": {}, "param_groups": [{**group, "params": []} for group in self._groups]}

    def __getstate__(self) -> dict[str, Any]:
        """Raise TypeError: a copy would take this optimizer's steps."""
        raise TypeError("a kvemb.torch.Optimizer cannot be copied or pickled: save its state_dict(), make a new one")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the groups of a ``state_dict``, and discard the pending gradients.

        Args:
            state_dict: What ``state_dict`` returned.

        Raises:
            ValueError: If it is of other variables, or of the same ones in another order.
        """
        saved = [group.get("variable") for group in state_dict["param_groups"]]
        mine = [group["variable"] for group in self._groups]
        if saved != mine:
            raise ValueError(f"the state_dict is of the variables {saved}, but this optimizer trains {mine}")
        self.zero_grad()
        for group, found in zip(self._groups, state_dict["param_groups"], strict=True):
            group.update({name: deepcopy(value) for name, value in found.items() if name != "params"})


def _rate(rule: Rule) -> float:
    """Return the learning rate, which every optimizer has."""
    return float(vars(rule)["learning_rate"])


def _number(lr: Any) -> float:
    """Return a learning rate as float; it may be a tensor of one element. Raises TypeError if it is not a number."""
    return float(as_number(lr.item() if isinstance(lr, torch.Tensor) else lr, "lr"))


def _with_rate(rule: Rule, rate: float) -> Rule:
    made: Rule = replace(cast(Any, rule), learning_rate=rate)
    return made
