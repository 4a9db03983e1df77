"""Optimizer: a torch.optim.Optimizer over the variables of a model's modules.

Each variable is one parameter group with the learning rate of its own optimizer, so every scheduler works. step() takes
one step of that optimizer on the rows that have pending gradients. Reading `param_groups` sums the gradients of equal
keys into one tensor for each variable, which appears as a parameter with a `grad`. So the step uses gradients as
clip_grad_norm_ and GradScaler have changed them. With a group, kvemb.torch.in_step has the gradients. An optimizer of
the dense part may be inside: then its groups and its state follow those of the rows. Not thread-safe.

The calls of torch.optim.Optimizer are here, with their docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from kvemb.checks.brief import brief
from kvemb.checks.seconds import as_seconds
from kvemb.torch.eager import never_compiled
from kvemb.torch.gradients import Gradient, check_step, merged, take_step
from kvemb.torch.in_step import InStep, in_step_with
from kvemb.torch.module import RowsModule, rows_modules
from kvemb.torch.rates import Rates

# How long a rank waits for the others by default: as long as NCCL's collectives.
RANK_SECONDS = 600.0


class Optimizer(torch.optim.Optimizer):
    """Train the rows of a model's modules: a torch.optim.Optimizer over their variables.

    Each variable is one parameter group, with the learning rate of its own optimizer, so every scheduler works. The
    other hyperparameters are those of that optimizer, for example of kvemb.optimizers.Adagrad. The model's dense
    parameters need an optimizer of torch.optim: inside this one, with ``dense``, or beside it.

    With ``dense`` there is one optimizer for the whole model: its ``step``, ``zero_grad``, ``param_groups``, schedules,
    ``GradScaler`` and ``state_dict`` are for rows and dense parameters. Do not call the inner optimizer's own.

    - A rate, or another hyperparameter, that you change in ``param_groups`` takes effect at the next step, and for
      fused modules at the next backward pass. One that the variable's optimizer lacks is refused there.
    - If many backward passes go by without a step, a UserWarning says so once.
    - If several Optimizers are made for a module, the last one trains it.
    - Put modules that share a variable into one Optimizer, because a variable has one optimizer with one rate.
    - A frozen module whose variable has no optimizer is left out.

    **Several processes.** By default each rank of a data parallel training takes steps of its own. With ``group``, all
    ranks take one step together, as one process with the batches of all ranks would: ``step()`` waits until every rank
    has called it. The shards add up the ranks' gradients in the order of ranks. Lookups after ``step()`` see its
    result, on every rank. All ranks must then make the same calls: the constructor, ``step``, ``clip_grad_norm_``, and
    ``unscale_`` of a ``GradScaler``. If one rank's gradients are refused, no rank takes the step, and all raise the
    error.

    Not thread-safe.

    Args:
        *modules: Modules whose rows are trained, with their submodules: for example the whole model.
        dense: The optimizer of the model's dense parameters, such as ``torch.optim.AdamW(model.parameters())``. None:
            this one trains the rows alone.
        lr: A learning rate for all variables. None: each variable's own. Dense parameters keep theirs.
        group: The ranks that take each step together, such as ``torch.distributed.group.WORLD``. Their modules must be
            over one cluster on Ray. False: each rank takes its own steps.
        average: With a group, whether gradients are divided by the number of ranks, as DDP divides those of dense
            parameters. False: they are summed.
        timeout: With a group, seconds that one rank waits for the others. A rank whose process ends is noticed at once.

    Raises:
        TypeError: For an argument that is not a module, an ``lr`` that is not a number, or a ``dense`` that is no
            optimizer of torch.optim.
        ValueError: If no module has a trainable variable, if a trained variable has no optimizer, or if ``lr`` is not
            finite and at least 0. With a group of several ranks: if the variables are not in one cluster on Ray, if a
            module is fused, or if the ranks' arguments or variables differ.
        RankLost: A rank of the group has ended, or did not come within ``timeout``.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> sgd = kvemb.optimizers.SGD(0.5)
        >>> words = kt.EmbeddingBag("words", 4, mode="sum", optimizer=sgd)
        >>> model = torch.nn.Sequential(words, torch.nn.Linear(4, 1))
        >>> optimizer = kt.Optimizer(model, dense=torch.optim.Adagrad(model.parameters()))
        >>> loss = model(torch.tensor([[5, 17]])).sum()
        >>> loss.backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
        >>> words.variable.size()
        2
    """

    def __init__(
        self,
        *modules: torch.nn.Module,
        dense: torch.optim.Optimizer | None = None,
        lr: float | None = None,
        group: Any = False,
        average: bool = True,
        timeout: float = RANK_SECONDS,
    ) -> None:
        if dense is not None and (isinstance(dense, Optimizer) or not isinstance(dense, torch.optim.Optimizer)):
            raise TypeError(
                f"dense must be an optimizer of torch.optim, such as torch.optim.AdamW(model.parameters()), got "
                f"{brief(dense)}; rows of several models go into one Optimizer(first, second)"
            )
        found = rows_modules(modules, "Optimizer(model, lr=0.1)")
        # The variable of a frozen module, such as from_pretrained makes, needs no optimizer.
        variables = dict.fromkeys(
            each
            for module in found
            for each in module.variables
            if each.trainable and not (module.frozen and each.optimizer is None)
        )
        if not variables:
            kept = ", ".join(repr(each.name) for module in found for each in module.variables)
            why = f": {kept} cannot be trained or, without an optimizer, are frozen" if kept else ""
            raise ValueError(f"the model has no module of kvemb.torch with a trainable variable{why}")
        self._rates = Rates(variables)
        first = self._rates.first(lr)
        self._modules: list[RowsModule] = []  # the constructor of the base class must find no gradients
        self._summed: list[tuple[Gradient, torch.Tensor]] = []
        self._in_step: InStep | None = None
        self._dense: torch.optim.Optimizer | None = None
        super().__init__(first, {"lr": first[0]["lr"]})
        self._dense = dense
        self._modules = [
            module for module in found if all(each in variables for each in module.variables if each.trainable)
        ]
        for module in self._modules:
            module.pending.rates = self._rates
        seconds = as_seconds(timeout, "timeout")
        if group is not False:
            self._in_step = in_step_with(group, self._modules, self._rates, bool(average), seconds)
        if self._in_step is not None:
            for of_variable, leaf in zip(self._rates.groups, self._in_step.leaves, strict=True):
                of_variable["params"] = [leaf]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups, one for each variable, then those of ``dense``.

        A group of a variable is a dict: the variable's name in "variable", its rate in "lr", the other hyperparameters
        of its optimizer under their names, such as "weight_decay", and in "params" one tensor, whose ``grad`` is the
        pending gradient of its rows, or none. Reading this sums the gradients of equal keys. The next step uses each
        tensor's ``grad`` as it then is. If a backward pass had no rows to train, as with padding alone, one tensor has
        a gradient of zeros, which a ``GradScaler`` needs.

        With a group there is always one tensor. Its ``grad`` stands for the gradient of all ranks, which is on the
        shards: it has a norm, can be multiplied by a number in place, and can be unscaled by a ``GradScaler``.
        Everything else raises TypeError.
        """
        self._sum()
        return self._rates.groups if self._dense is None else [*self._rates.groups, *self._dense.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._rates.groups = groups

    @property
    def state(self) -> Any:
        """The state of ``dense``, or empty: slots are part of the rows."""
        return self._state if self._dense is None else self._dense.state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The pending gradients, for ``clip_grad_norm_``.

        One tensor for each variable that has any; its ``grad`` is that of the variable's rows. With a group, see
        ``param_groups``.
        """
        self._sum()
        return [leaf for group in self._rates.groups for leaf in group["params"]]

    def _gradients(self) -> list[Gradient]:
        """Return the pending gradients: the sums, as their tensors have them now, and what came since."""
        sums = [Gradient(each.variable, each.keys, leaf.grad) for each, leaf in self._summed if leaf.grad is not None]
        return sums + [gradient for module in self._modules for gradient in module.pending.waiting]

    @never_compiled
    def _sum(self) -> None:
        """Add the gradients that came since the last call to the sums of that call."""
        if self._in_step is not None:
            return
        if not any(module.pending.waiting for module in self._modules):
            if any(module.pending.reached for module in self._modules) and not any(
                group["params"] for group in self._rates.groups
            ):  # GradScaler fails for an optimizer without any gradient
                nothing = torch.zeros(1, self._rates.variables[0].dim).requires_grad_()
                nothing.grad = torch.zeros_like(nothing)
                self._rates.groups[0]["params"].append(nothing)
            return
        together = merged(self._gradients())
        self._clear()
        groups = dict(zip(self._rates.variables, self._rates.groups, strict=True))
        for gradient in together:
            # Only the gradient of this tensor is used; its values take no memory.
            leaf = gradient.values.new_zeros(()).expand_as(gradient.values).requires_grad_()
            leaf.grad = gradient.values
            self._summed.append((gradient, leaf))
            groups[gradient.variable]["params"].append(leaf)

    @never_compiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the pending gradients.

        Args:
            set_to_none: For dense parameters, as in torch.optim; ignored for rows.
        """
        self._clear()
        if self._dense is not None:
            self._dense.zero_grad(set_to_none)

    def _clear(self) -> None:
        """Discard the pending gradients of rows."""
        for module in self._modules:
            module.pending.clear()
        if self._in_step is not None:
            self._in_step.clear()
            return
        self._summed.clear()  # Lightning's wrapper of an optimizer shares its objects, and would get a new list alone
        for group in self._rates.groups:
            group["params"] = []

    @never_compiled
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the pending gradients, and discard those of rows. Dense parameters keep theirs.

        Args:
            closure: A function that computes the loss and its gradients. It is called first.

        Returns:
            The result of the closure, or None.

        Raises:
            TypeError: If a hyperparameter has the wrong type. Nothing has changed then.
            ValueError: If a hyperparameter is out of its range, or one that the variable's optimizer lacks, if that
                was changed elsewhere, or if a gradient is not finite and a module has ``check_finite``. Nothing has
                changed then. With a group, also if the ranks' hyperparameters or calls differ.
            RuntimeError: If gradients of the model's parameters were clipped, and those of the rows were not.
                Nothing has changed then.
            RankLost: With a group: a rank has ended, or did not come within ``timeout``.
            KvembError: What ``kvemb.Store.apply_gradients`` raises.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for module in self._modules:
            module.check_not_missed()
        if self._in_step is not None:
            self._in_step.step()
        elif gradients := self._gradients():
            check_step(gradients, [module.pending for module in self._modules])
            self._clear()
            take_step(gradients)
        if self._dense is not None:  # after the rows, whose errors leave it unchanged
            self._dense.step()
        for module in self._modules:
            module.pending.passes = 0
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of dense parameters to ``dense``. There is one group for each variable.

        Args:
            param_group: A group, as the constructor of torch.optim.Optimizer passes it.

        Raises:
            ValueError: Without ``dense``, after the construction.
        """
        if self._dense is not None:
            self._dense.add_param_group(param_group)
            return
        if len(self._rates.groups) >= len(self._rates.variables):
            raise ValueError(
                "there is one group for each variable, so none can be added; make a new Optimizer(model), or give "
                "the optimizer of dense parameters as dense="
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the groups with their rates, and the state of ``dense``.

        Slots are part of the rows, which the store's checkpoints save.

        Returns:
            A dict for ``load_state_dict``. Its "state" is that of ``dense``, or empty.
        """
        inner = {"state": {}, "param_groups": []} if self._dense is None else self._dense.state_dict()
        rows = [{**group, "params": []} for group in self._rates.groups]
        return {**inner, "param_groups": [*rows, *inner["param_groups"]]}

    def __getstate__(self) -> dict[str, Any]:
        """Raise TypeError: a copy would take this optimizer's steps."""
        raise TypeError("a kvemb.torch.Optimizer cannot be copied or pickled: save its state_dict(), make a new one")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the groups of a ``state_dict``, and discard the pending gradients.

        Args:
            state_dict: What ``state_dict`` returned.

        Raises:
            ValueError: If it is of other variables, or of the same ones in another order; or if only one of both has
                ``dense``, or its groups differ. Nothing has changed then.
        """
        rows = [group for group in state_dict["param_groups"] if "variable" in group]
        dense = [group for group in state_dict["param_groups"] if "variable" not in group]
        saved, mine = ([group["variable"] for group in groups] for groups in (rows, self._rates.groups))
        if saved != mine:
            raise ValueError(f"the state_dict is of the variables {saved}, but this optimizer trains {mine}")
        if bool(dense) != (self._dense is not None):
            has, advice = ("no ", "without it") if self._dense is not None else ("", "with it")
            raise ValueError(
                f"the state_dict has {has}groups of dense parameters; make the Optimizer {advice} (dense=)"
            )
        if self._dense is not None:
            self._dense.load_state_dict({**state_dict, "param_groups": dense})
        self._clear()
        for group, found in zip(self._rates.groups, rows, strict=True):
            group.update({name: deepcopy(value) for name, value in found.items() if name != "params"})
