"""The base of all modules over variables: pending gradients, refused attributes, and the state_dict.

A module is as thread-safe as torch's own: any number of threads may run forward passes at any time. They may also run
backward passes, but not while another thread takes the optimizer's step, and only one at a time if the module is fused.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kvemb.checks.brief import brief
from kvemb.handle import inside
from kvemb.torch import states
from kvemb.torch.anchor_watch import AnchorWatch
from kvemb.torch.eager import never_compiled
from kvemb.torch.gradients import MAX_PASSES, PendingGradients
from kvemb.torch.lookups import RowRequest, dtype_of_rows, fetch
from kvemb.torch.weights import take_weights
from kvemb.variable import Variable

# Attributes of torch.nn's modules that ported programs may read; the message says what to use instead.
_ABSENT = {
    "weight": "read them with variable.lookup(keys) or variable.export(), write them with variable.upsert(keys, rows), "
    "start new ones with initializer=, such as kvemb.RandomNormal(0.0, 0.05); instead of a product with the whole "
    "weight, look up the rows of sampled keys",
    "num_embeddings": "keys are any int64; variable.size() counts the rows",
}
# The state of a module whose rows are those of a given weight.
_TAKEN: Any = object()
_MEASURED = (
    "If the gradients were only measured, as transformers' Trainer does with max_grad_norm=0, call "
    "kvemb.torch.ignore_clipping(model) once"
)


def processes() -> int:
    """Return how many processes of torch.distributed (DDP) train together."""
    distributed = torch.distributed
    return int(distributed.get_world_size()) if distributed.is_available() and distributed.is_initialized() else 1


def ignore_clipping(*modules: torch.nn.Module) -> None:
    """Let rows take their steps as they are, whatever is done to the gradients of ``model.parameters()``.

    A step raises an error if those gradients were changed in place, as by ``clip_grad_norm_``, and the rows' were not.
    Some trainers call it to measure a norm, with no limit: transformers' ``Trainer`` does with ``max_grad_norm=0``.

    Args:
        *modules: Models with modules of kvemb.torch. It holds for their present modules, in this process.

    Raises:
        TypeError: For an argument that is not a module.
        ValueError: If there is no module of kvemb.torch.
    """
    for module in (found := rows_modules(modules, "ignore_clipping(model)")):
        module.watch.ignored = True
    if not found:
        raise ValueError("the model has no module of kvemb.torch, so there are no rows that clipping would miss")


def rows_modules(modules: Iterable[Any], usage: str) -> list[RowsModule]:
    """Return the modules over variables in these models, each once.

    Args:
        modules: The models; what is not a module raises TypeError.
        usage: A right call, for that error.
    """
    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"expected modules, as in {usage}, got {brief(module)}")
    return list(dict.fromkeys(each for module in modules for each in module.modules() if isinstance(each, RowsModule)))


class RowsModule(torch.nn.Module):
    """The base of the modules over variables, whose rows are no parameters: kvemb.torch.Optimizer trains them.

    Their only parameter is the anchor, one number by which PyTorch knows that rows are trained: requires_grad_ of a
    model, and loops over its parameters, freeze the rows by it. Its gradient is 0, and no state_dict has it.

    variables: of the rows; one may be there several times. The other arguments are those of kvemb.torch.Embedding.
    """

    def __init__(
        self, variables: list[Variable], fused: bool, check_finite: bool, output_dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.variables: list[Variable] = list(dict.fromkeys(variables))
        self.output_dtype = output_dtype
        # The dtype of results, by that of looked-up rows.
        self._dtypes: dict[torch.dtype, torch.dtype] = {dtype: dtype for dtype in map(dtype_of_rows, variables)}
        self.pending: PendingGradients = PendingGradients(bool(fused), bool(check_finite))
        trainable = any(variable.trainable for variable in variables)
        self.anchor: torch.nn.Parameter = torch.nn.Parameter(torch.zeros(1), requires_grad=trainable)
        self.watch: AnchorWatch = AnchorWatch()
        if fused:
            _check_steps()
            _fused.add(self)
        # Where load_state_dict writes the weights of torch.nn's module, by their names there.
        self.destinations: dict[str, Variable] = {}
        self.register_load_state_dict_pre_hook(_take_weights)

    def rows(self, requests: list[RowRequest]) -> list[torch.Tensor]:
        """Look up rows; this module collects their gradients. In eval() uses are not recorded.

        Args:
            requests: The keys of each variable.

        Returns:
            The rows of each request, (n, dim), in its order.

        Raises:
            RuntimeError: Under torch.distributed without a cluster; if gradients are pending and no optimizer takes
                them; and for a fused module during a backward pass.
            KvembError: What ``kvemb.Store.lookup`` raises.
        """
        trained = self.training and torch.is_grad_enabled() and not self.frozen
        if trained and any(variable.trainable for variable in self.variables):
            self._check_can_train()
            self.watch.watch(self.anchor)
        if self.pending.fused and not self.frozen and torch.is_grad_enabled() and _in_backward():
            raise RuntimeError(
                f"a {type(self).__name__} with fused=True was called during a backward pass, as activation "
                "checkpointing does. That pass may have changed the rows already: keep the module out of the "
                "checkpointed part, or make it without fused=True and train it with a kvemb.torch.Optimizer"
            )
        return fetch(requests, None if self.frozen else self.pending, touch=self.training, anchor=self.anchor)

    @property
    def frozen(self) -> bool:
        """Whether lookups collect no gradients. ``requires_grad_`` of this module, or of one that has it, sets it."""
        return not self.anchor.requires_grad

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Follow half(), to(dtype) and the like: fn converts a weight, here an empty tensor that stands for one."""
        super()._apply(fn, recurse)
        self._dtypes = {rows: fn(torch.empty(0, dtype=out)).dtype for rows, out in self._dtypes.items()}
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Raise TypeError: a copy, such as that of torch.optim.swa_utils.AveragedModel, would train the same rows."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied, as the copy would have the same rows of {self._names()}: copy "
            "the dense part alone, as in AveragedModel(model.dense); for a module on the same rows use copy.copy; for "
            "other rows, restore a checkpoint to another store"
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        with states.saving(destination, f"{prefix}{states.KEY}"):
            super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}anchor"]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _ABSENT:
                raise
        raise AttributeError(f"{type(self).__name__} has no {name}, as rows live in the store: {_ABSENT[name]}")

    def _check_can_train(self) -> None:
        if processes() > 1 and not all(
            inside(each.resource_handle[0]).shared for each in self.variables if each.trainable
        ):
            raise RuntimeError(
                f"{type(self).__name__} cannot be trained by {processes()} processes of "
                "torch.distributed (DDP): each would train a store of its own, and they would drift apart; train in "
                "one process, or over a cluster: rank 0 calls kvemb.cluster.open, the others connect"
            )
        for each in self.variables:
            if self.pending.waiting and each.trainable and each.optimizer is None:
                raise RuntimeError(
                    f"variable {each.name!r} has no optimizer, so its rows cannot be trained: make it with "
                    "optimizer=, such as kvemb.optimizers.Adagrad(0.05), or freeze it with requires_grad_(False)"
                )
        if self.pending.waiting and self.pending.rates is None:
            raise RuntimeError(
                f"gradients of {self._names()} are pending, but no optimizer applies them: make a "
                "kvemb.torch.Optimizer(model), or make the module with fused=True"
            )
        rates = None if self.pending.fused else self.pending.rates
        if self.pending.passes > MAX_PASSES and rates is not None and not rates.warned:
            rates.warned = True
            warnings.warn(
                f"{self.pending.passes} backward passes have gone by without a step of the kvemb.torch.Optimizer that "
                f"trains {self._names()}: add optimizer.step() for it, beside that of the dense part; to leave rows as "
                "they are, call requires_grad_(False)",
                stacklevel=2,
            )

    def check_not_missed(self) -> None:
        """Check that no gradients wait here that missed what was done to those of the model's parameters.

        Not in several processes: DDP writes averages into gradients.

        Raises:
            RuntimeError: They missed it.
        """
        if self.pending.waiting and self.watch.changed and processes() == 1:
            raise RuntimeError(
                "gradients of the model's parameters were changed since the backward pass, as by clip_grad_norm_, but "
                f"those of the rows of {self._names()} were not: pass optimizer.leaves of the kvemb.torch.Optimizer, "
                "too, as in clip_grad_norm_([*model.parameters(), *optimizer.leaves], 1.0). In a trainer that clips "
                "model.parameters(), turn that off, and give clip_norm= to the optimizers of the variables. "
                f"{_MEASURED}"
            )

    def before_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Check that the rows of this fused module miss nothing in a step of the dense part's optimizer.

        Args:
            parameters: Those of the optimizer.

        Raises:
            RuntimeError: They do.
        """
        changed, held = self.watch.changed and processes() == 1, any(each is self.anchor for each in parameters)
        if not self.pending.passes or not (changed or held):
            return
        passes, self.pending.passes = self.pending.passes, 0
        if changed:
            raise RuntimeError(
                "gradients of the model's parameters were changed since the backward pass, as by clip_grad_norm_, but "
                f"the rows of {self._names()} had taken their step with fused=True: make the module without it and "
                "train it with a kvemb.torch.Optimizer, or leave its anchor out of what is changed, and give "
                f"clip_norm= to the optimizer of the variable. {_MEASURED}"
            )
        if passes > 1:
            raise RuntimeError(
                f"{passes} backward passes have gone by since the last step of the optimizer of the model's "
                f"parameters, which accumulates their gradients, but the rows of {self._names()} took a step in each "
                "with fused=True: make the module without it and train it with a kvemb.torch.Optimizer, or leave its "
                "anchor out of the other optimizer"
            )

    def _as_output(self, out: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a result (any shape) on a device and in the module's output dtype."""
        return out.to(device, self.output_dtype or self._dtypes[out.dtype])

    # The state_dict has a mark of the store: a small tensor for each module (kvemb.torch.states).

    def get_extra_state(self) -> torch.Tensor:
        """Keep the present rows under a mark of the store, and return what ``state_dict`` saves: which one.

        While a checkpoint of the store is written, which has the rows, and of a cluster or a reader, no mark is made.

        Returns:
            Bytes of JSON, uint8 of shape (n,).
        """
        return states.saved(self.variables)

    def set_extra_state(self, state: Any) -> None:
        """Take the store back to the mark of a state_dict; ``load_state_dict`` does it once all else is loaded.

        Args:
            state: What ``get_extra_state`` returned.

        Raises:
            ValueError: If it is of another store, other variables, or a later state of this store.
            MarkNotFound: The store does not have the mark any more.
        """
        if state is not _TAKEN:
            states.load_rows(state, self.variables)

    def _names(self) -> str:
        return ", ".join(repr(variable.name) for variable in self.variables)

    def extra_repr(self) -> str:
        """Return the module's options, for repr().

        Returns:
            Each variable's name and dim, then "fused=True" and "frozen" where they hold.
        """
        parts = [f"{variable.name!r}, dim={variable.dim}" for variable in self.variables]
        told = {"fused=True": self.pending.fused, "frozen": self.frozen}
        return ", ".join([*parts, *(text for text, true in told.items() if true)])


def _in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def _take_weights(
    module: RowsModule, state_dict: dict[str, Any], prefix: str, _metadata: Any, strict: bool, *told: list[str]
) -> None:
    """Write the weights of torch.nn's modules in a state_dict, which load_state_dict has copied, to rows."""
    missing_keys, _, error_msgs = told
    state_dict[f"{prefix}anchor"] = module.anchor.detach()
    taken, lacking = take_weights(module.destinations, state_dict, prefix, error_msgs)
    if taken:
        missing_keys += lacking if strict else []
        state_dict[f"{prefix}{states.KEY}"] = _TAKEN


states.replace_load(lambda module: module.variables if isinstance(module, RowsModule) else None)


# The modules with fused=True: those whose rows may miss what an optimizer of torch.optim steps with.
_fused: weakref.WeakSet[RowsModule] = weakref.WeakSet()


@functools.cache
def _check_steps() -> None:
    register_optimizer_step_pre_hook(_before_step)


@never_compiled
def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    # A kvemb.torch.Optimizer computes its groups, and has no such attribute; the one inside of it comes by itself.
    groups = vars(optimizer).get("param_groups", [])
    for module in list(_fused):
        module.before_step(each for group in groups for each in group["params"])
