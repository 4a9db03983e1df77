"""The steps that the ranks of a group take together: as one process with the batches of all ranks would take them.

Each rank puts its gradients on the shards of the cluster. When all have, the first rank takes the step (see
kvemb.cluster.in_step). Norms of the joined gradients, for clipping, are computed on the shards. Not thread-safe.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from kvemb.checks.brief import brief
from kvemb.cluster.cluster import StepPart
from kvemb.cluster.coordination.counting import StepCounts
from kvemb.cluster.in_step.client import RankClient, RankPart
from kvemb.cluster.in_step.parts import JoinedNorm
from kvemb.cluster.store import Store as ClusterStore
from kvemb.handle import inside
from kvemb.many_tables.table_parts import part_to_train, raise_named
from kvemb.torch.connecting import connected
from kvemb.torch.gradients import Gradient, check_finite, joined
from kvemb.torch.joined_gradient import JoinedGradient
from kvemb.torch.lookups import dtype_of_rows
from kvemb.torch.module import RowsModule
from kvemb.torch.ranks import Message, Ranks, error_of, text_of
from kvemb.torch.rates import Rates
from kvemb.variable import Variable


class _Given(NamedTuple):
    """What this rank has put on the shards. gradients: before they are multiplied by the part's factors.

    trained: which variables have any. generation: of the shards that have them.
    """

    gradients: list[Gradient]
    part: RankPart
    trained: list[int]
    generation: int


class InStep:
    """The steps of a group. modules: whose gradients are pending. rates: of the variables that are trained.

    average: divide by the number of ranks. timeout: how long a rank waits for the others, in seconds. All ranks must
    make it. Raises ValueError if they differ, and RankLost.
    """

    def __init__(self, ranks: Ranks, modules: list[RowsModule], rates: Rates, average: bool, timeout: float) -> None:
        self._ranks, self._modules, self._average = ranks, modules, average
        self._rates, self._timeout = rates, timeout
        # All variables that the modules look up: ranks agree on their steps, too.
        looked_up = [each for module in modules for each in module.variables]
        self._variables = list(dict.fromkeys([*rates.variables, *looked_up]))
        self._places = {variable: at for at, variable in enumerate(self._variables)}
        self._given: _Given | None = None
        self._failure: Exception | None = None  # of the step that this rank took for all
        self._norms: list[JoinedNorm] | None = None  # they change with the gradients, if these are multiplied
        self._read: set[int] = set()
        self._rounds = 0
        self.leaves = [_leaf(self, at, variable) for at, variable in enumerate(rates.variables)]
        tables = [inside(variable) for variable in self._variables]
        store = cast(ClusterStore, self._variables[0].resource_handle[0])
        client = RankClient(inside(store), tables, "", ranks.rank)

        def mine() -> Message:
            names, steps = [table.name for table in tables], [list(each) for each in client.steps()]
            told = {"variables": names, "average": average, "path": store.path}
            return {**told, "rates": rates.checked(), "steps": steps}

        def decide(messages: list[Message]) -> Message:
            for what in ("path", "variables", "average", "rates"):
                self._check_equal(what, [message[what] for message in messages])
            client.agree(client.since())
            return {"group": secrets.token_hex(16), "steps": [list(each) for each in client.steps()]}

        answer = ranks.meet(mine, decide, timeout)
        self._client = RankClient(inside(store), tables, answer["group"], ranks.rank)
        self._follow(answer)

    def _follow(self, answer: Message) -> None:
        if self._ranks.rank > 0:
            self._client.follow([StepCounts(*each) for each in answer["steps"]])

    # The gradients of this rank.

    def clear(self) -> None:
        """Discard the gradients that were put on the shards. Pending ones are discarded by the optimizer."""
        self._given, self._norms = None, None
        self._read.clear()

    def _pending(self) -> list[Gradient]:
        return [gradient for module in self._modules for gradient in module.pending.waiting]

    def _discard_pending(self) -> None:
        for module in self._modules:
            module.pending.clear()

    def _put(self) -> _Given:
        """Put pending gradients on the shards, with those that are there already; returns what is there."""
        waiting, given, generation = self._pending(), self._given, self._client.generation
        if given is None or waiting or given.generation != generation:
            before = [] if given is None else [self._multiplied(each, given.part) for each in given.gradients]
            gradients = joined(before + waiting)
            placed = self._client.put([self._step_part(gradient) for gradient in gradients])
            part = RankPart(self._ranks.rank, *placed, [1.0] * len(self._variables))
            trained = sorted(self._places[each.variable] for each in gradients if len(each.keys))
            self._given = given = _Given(gradients, part, trained, generation)
            self._discard_pending()
        return given

    def _multiplied(self, gradient: Gradient, part: RankPart) -> Gradient:
        factor = part.factors[self._places[gradient.variable]]
        return gradient if factor == 1.0 else gradient._replace(values=gradient.values * factor)

    def _step_part(self, gradient: Gradient) -> StepPart:
        variable, keys, values = gradient
        values = values / self._ranks.size if self._average else values
        try:
            part = part_to_train(inside(variable), (cast(Any, keys), values.numpy()))
        except Exception as error:
            raise_named(variable.name, error)
        return StepPart(part.table, part.keys, part.values)

    # What all ranks do together.

    def norm_of(self, at: int) -> JoinedNorm:
        """Return the norm of a variable's joined gradient. All ranks must call this, in the same order.

        Norms of all variables are computed together, and each is returned once. The next call computes them again.
        """
        norms = self.all_norms() if self._norms is None or at in self._read else self._norms
        self._read.add(at)
        return norms[at]

    def all_norms(self) -> list[JoinedNorm]:
        """Return the norms of all joined gradients as they are now. All ranks must call this."""
        answer = self._together("norms", lambda parts, _: {"norms": [list(norm) for norm in self._client.norms(parts)]})
        self._norms = [JoinedNorm(*norm) for norm in answer["norms"]]
        self._read.clear()
        return list(self._norms)

    def multiply(self, at: int, factor: float) -> None:
        """Multiply a variable's joined gradient by a number. All ranks must call this."""
        if self._norms is None:
            self.all_norms()  # also puts the gradients on the shards
        assert self._norms is not None
        assert self._given is not None
        self._norms[at] = self._norms[at].times(factor)
        self._given.part.factors[at] *= factor

    def step(self) -> None:
        """Take one step with the gradients of all ranks.

        Raises ValueError and TypeError, on all ranks, if a rank's gradients or rates are refused; gradients stay
        pending then. Raises RankLost, ShardLost, and what taking the step raises.
        """
        try:
            answer = self._together("step", self._taken, self._check)
        except (ValueError, TypeError):
            raise
        except Exception:
            self.clear()
            self._discard_pending()
            raise
        self.clear()
        self._follow(answer)
        if self._ranks.rank > 0:
            self._rates.set([self._variables[at] for at in answer["trained"]], here=True)
        failure, self._failure = self._failure, None
        if failure is None and answer["failure"] is not None:
            failure = error_of(*answer["failure"])
        if failure is not None:
            raise failure

    def _check(self) -> None:
        """Raise ValueError if this rank's gradients are not finite, and a module has check_finite."""
        if any(module.pending.check_finite for module in self._modules):
            given = [] if self._given is None else self._given.gradients
            for gradient in [*given, *self._pending()]:
                check_finite(gradient)

    def _taken(self, parts: list[RankPart], messages: list[Message]) -> Message:
        """Take the step, on the first rank."""
        trained = sorted({at for message in messages for at in message["trained"]})
        self._rates.set([self._variables[at] for at in trained])
        self._client.agree([max(uses) for uses in zip(*(message["uses"] for message in messages), strict=True)])
        failures = self._client.step(parts, trained) if trained else []
        for variable, failure in zip(self._variables, failures, strict=False):
            if failure is not None and self._failure is None:
                self._failure = _named(variable, failure)
        told = None if self._failure is None else text_of(self._failure)
        return {"trained": trained, "steps": [list(each) for each in self._client.steps()], "failure": told}

    def _together(
        self,
        what: str,
        decide: Callable[[list[RankPart], list[Message]], Message],
        check: Callable[[], None] = lambda: None,
    ) -> Message:
        """Put this rank's part on the shards, and return what the first rank decides once all parts are there."""

        def mine() -> Message:
            check()
            rates, given = self._rates.checked(), self._put()
            told = {"what": what, "round": self._rounds, "generation": self._client.generation, "rates": rates}
            return {**told, "part": list(given.part), "trained": given.trained, "uses": self._client.since()}

        def checked(messages: list[Message]) -> Message:
            for field, text in _DIFFERENCES.items():
                self._check_equal(text, [message[field] for message in messages])
            return decide([RankPart(*message["part"]) for message in messages], messages)

        answer = self._ranks.meet(mine, checked, self._timeout, self._client.answer_seconds)
        self._rounds += 1
        return answer

    def _check_equal(self, what: str, values: list[Any]) -> None:
        """Raise ValueError unless all ranks have the same value."""
        names = self._ranks.names
        for name, value in zip(names, values, strict=True):
            if value != values[0]:
                raise ValueError(
                    f"{name} has {what} {brief(value)}, but {names[0]} has {brief(values[0])}; all ranks must make the "
                    "same calls of their optimizers"
                )


# What must be equal on all ranks, and its name in messages.
_DIFFERENCES = {
    "generation": "the number of recoveries",
    "what": "the call",
    "round": "the number of calls",
    "rates": "the optimizers",
}


def in_step_with(group: Any, modules: list[RowsModule], rates: Rates, average: bool, timeout: float) -> InStep | None:
    """Return the steps of a group of torch.distributed; None if it is of one rank. Raises as InStep does."""
    distributed = torch.distributed
    if group is None or not distributed.is_initialized():
        raise ValueError("group is not a group of torch.distributed: first call torch.distributed.init_process_group()")
    if distributed.get_world_size(group) == 1:
        return None
    stores = list(dict.fromkeys(each.resource_handle[0] for each in rates.variables))
    if len(stores) > 1 or not inside(stores[0]).shared:
        where = " and ".join(str(store.path) for store in stores)
        raise ValueError(
            "ranks that take each step together need all tables in one cluster that they share: rank 0 calls "
            f"kvemb.cluster.open(url), the others kvemb.cluster.connect(url); these are in {where}"
        )
    if fused := [module for module in modules if module.pending.fused]:
        raise ValueError(
            f"a {type(fused[0]).__name__} with fused=True takes this rank's step in its backward pass; make it without "
            "fused=True to train it with a group"
        )
    ranks = CHANNELS.get(group) or connected(group, inside(cast(ClusterStore, stores[0])).address, timeout)
    return InStep(ranks, modules, rates, average, timeout)


# The channels of groups that are open already (kvemb.torch.distributed).
CHANNELS: dict[Any, Ranks] = {}


def _leaf(of: InStep, at: int, variable: Variable) -> torch.Tensor:
    """Return a tensor whose grad stands for a variable's joined gradient."""
    dtype = dtype_of_rows(variable)
    leaf = torch.zeros((), dtype=dtype).expand(1, variable.dim).requires_grad_()
    leaf.grad = JoinedGradient(of, at, variable.dim, dtype)
    return leaf


def _named(variable: Variable, error: Exception) -> Exception:
    """Return an error that names its variable."""
    try:
        raise_named(variable.name, error)
    except Exception as named:
        return named
