"""Optimizer: what works with torch.optim works with it, at the same step, with the same numbers."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest
import torch

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import SGD, Adagrad, Adam
from kvemb.torch import gradients

KEYS, DIM = 20, 3


class Pair:
    """The same model twice: a bag and a linear layer, in torch alone and with rows in a store."""

    def __init__(self, loaded, rate: float = 0.5, **arguments) -> None:
        torch.manual_seed(3)
        self.theirs = torch.nn.Sequential(torch.nn.EmbeddingBag(KEYS, DIM), torch.nn.Linear(DIM, 1))
        self.variable = loaded(self.theirs[0].weight, optimizer=SGD(rate))
        self.ours = torch.nn.Sequential(kt.EmbeddingBag(self.variable, **arguments), copy.deepcopy(self.theirs[1]))
        self.their_optimizer = torch.optim.SGD(self.theirs.parameters(), rate)
        self.our_optimizers = [torch.optim.SGD(self.ours.parameters(), rate), kt.Optimizer(self.ours)]

    def backward(self, seed: int, scale: float = 1.0) -> None:
        ids = torch.randint(0, KEYS, (6, 4), generator=torch.Generator().manual_seed(seed))
        for model in (self.theirs, self.ours):
            (model(ids).square().sum() * scale).backward()

    def step(self) -> None:
        for optimizer in (self.their_optimizer, *self.our_optimizers):
            optimizer.step()
        self.zero_grad()

    def check(self) -> None:
        rows = torch.from_numpy(self.variable.lookup(np.arange(KEYS), touch=False))
        torch.testing.assert_close(rows, self.theirs[0].weight.detach())
        torch.testing.assert_close(self.ours[1].weight, self.theirs[1].weight)

    def clip(self) -> None:
        ours = [*self.ours.parameters(), *self.our_optimizers[1].leaves]
        torch.testing.assert_close(
            torch.nn.utils.clip_grad_norm_(ours, 0.1),
            torch.nn.utils.clip_grad_norm_(self.theirs.parameters(), 0.1),
            equal_nan=True,
        )

    def zero_grad(self) -> None:
        for optimizer in (self.their_optimizer, *self.our_optimizers):
            optimizer.zero_grad()


SEQUENCES = {
    "accumulated": ["backward", "step", *["backward"] * 3, "step", *["backward"] * 12, "step"],
    "clipped": ["backward", "clip", "step", "backward", "backward", "clip", "step"],
    "added to what was clipped": ["backward", "clip", "backward", "step"],
    "forgotten": ["backward", "zero_grad", "step", "backward", "clip", "zero_grad", "step", "backward", "step"],
}


@pytest.mark.parametrize("calls", SEQUENCES.values(), ids=SEQUENCES)
def test_gradients_are_those_of_dense_parameters_after_every_call(loaded, calls):
    pair = Pair(loaded)
    for seed, call in enumerate(calls):
        getattr(pair, call)(*[seed] if call == "backward" else [])
        assert len(pair.ours[0].pending.waiting) <= gradients.MAX_APART, "bounded"
        pair.check()


@pytest.mark.parametrize("bags", [False, True])
def test_gradients_that_wait_are_not_memory_of_others(loaded, bags):
    """Autograd gives the gradient of a sum to both terms; as a parameter's grad it is changed in place."""
    variable = loaded(torch.zeros(4, 2), optimizer=SGD(1.0))
    rows = kt.EmbeddingBag(variable, mode="sum") if bags else kt.Embedding(variable)
    ids = torch.tensor([[1], [2], [3]]) if bags else torch.tensor([1, 2, 3])
    optimizer, beside = kt.Optimizer(rows), torch.nn.Parameter(torch.zeros(6))
    for _ in range(2):
        ((beside.view(3, 2) + rows(ids)) * torch.full((3, 2), 2.0)).sum().backward()
    given = torch.ones(3, 2)
    rows(ids).backward(given)
    beside.grad.zero_()
    given.zero_()
    optimizer.step()
    assert variable.lookup([1, 2, 3]).tolist() == [[-5.0, -5.0]] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_numpy_cannot_read_as_they_are(loaded, fused):
    """Sparse ones, and those with torch's bit for the negative, such as imaginary parts of conjugates have."""
    variable = loaded(torch.zeros(4, 2), optimizer=SGD(1.0))
    rows = kt.EmbeddingBag(variable, mode="sum", fused=fused)
    optimizer = kt.Optimizer(rows)
    negative = torch.tensor([[1.0 + 2.0j, 3.0 + 4.0j]]).conj().imag
    assert negative.is_neg()
    for gradient in (negative, torch.tensor([[1.0, 0.0]]).to_sparse()):
        rows(torch.tensor([[1]])).backward(gradient)
        optimizer.step()
    assert variable.lookup([1]).tolist() == [[1.0, 4.0]]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: [1, 0.1, 0, 2][step % 4]),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=9, cycle_momentum=False),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    ],
)
@pytest.mark.parametrize("fused", [False, True])
def test_a_schedule_takes_effect_at_the_step_it_is_set_for(loaded, schedule, fused):
    pair = Pair(loaded, fused=fused)
    optimizers = [pair.their_optimizer, *pair.our_optimizers]
    schedulers = [schedule(optimizer) for optimizer in optimizers]
    for seed in range(6):
        pair.backward(seed)
        pair.step()
        for scheduler in schedulers:
            scheduler.step()
        pair.check()


def test_a_rate_by_hand_and_one_for_all(loaded):
    variable = loaded(torch.ones(2, 1), optimizer=SGD(0.5))
    module = kt.Embedding(variable)
    optimizer = kt.Optimizer(module, lr=1.0)
    for rate, expected in ((None, 0.0), (0.25, -0.25), (torch.tensor(2.0), -2.25)):
        if rate is not None:
            optimizer.param_groups[0]["lr"] = rate
        module(torch.tensor([1])).sum().backward()
        optimizer.step()
        assert variable.lookup([0, 1]).tolist() == [[1.0], [expected]]
    assert variable.optimizer == SGD(2.0)


def test_a_scaler_skips_a_step_that_overflows(loaded):
    pair = Pair(loaded)
    scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in range(2)]
    for seed, factor in ((1, 1.0), (2, math.inf), (3, 1.0)):
        ids = torch.randint(0, KEYS, (6, 4), generator=torch.Generator().manual_seed(seed))
        for model, scaler in ((pair.theirs, scalers[0]), (pair.ours, scalers[1])):
            scaler.scale(model(ids).square().sum() * factor).backward()
        scalers[0].unscale_(pair.their_optimizer)
        for optimizer in pair.our_optimizers:
            scalers[1].unscale_(optimizer)
        pair.clip()
        scalers[0].step(pair.their_optimizer)
        for optimizer in pair.our_optimizers:
            scalers[1].step(optimizer)
        for scaler in scalers:
            scaler.update()
        pair.zero_grad()
        pair.check()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0


@pytest.mark.parametrize("bags", [False, True])
def test_a_scaler_passes_a_batch_without_rows(loaded, bags):
    variable = loaded(torch.ones(4, 2), optimizer=Adam(0.5, bias_correction="global"))
    module = kt.EmbeddingBag(variable, mode="sum") if bags else kt.Embedding(variable, padding_idx=0)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1), kt.Optimizer(module)
    empty = (torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])) if bags else (torch.tensor([0, 0]),)
    full = (torch.tensor([1]), torch.tensor([0])) if bags else (torch.tensor([1]),)
    for step, arguments in enumerate((empty, empty, full, empty)):
        scaler.scale(module(*arguments).sum()).backward()
        if step:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(optimizer.leaves, 1.0, math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert optimizer.leaves == []
    assert scaler.get_scale() == 64.0
    torch.testing.assert_close(torch.from_numpy(variable.lookup([1])), torch.full((1, 2), 0.5))
    assert variable.lookup([0, 2]).tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_step_that_is_forgotten_is_said_once(loaded, zeroed):
    variable = loaded(torch.ones(4, 2))
    model = torch.nn.ModuleList(kt.Embedding(variable) for _ in range(2))
    optimizer = kt.Optimizer(model)

    def train(passes: int) -> None:
        for _ in range(passes):
            sum(each(torch.tensor([1])).sum() for each in (*model, *model)).backward()
            if zeroed:
                optimizer.zero_grad()

    for _ in range(2):
        train(gradients.MAX_PASSES)
        optimizer.step()
    train(gradients.MAX_PASSES + 1)
    with pytest.warns(UserWarning, match=r"^65 backward passes .* trains 'table0': add optimizer.step\(\)") as told:
        train(3)
    assert len(told) == 1


def test_hyperparameters_of_groups_are_used_or_refused(loaded):
    variable = loaded(torch.ones(2, 1), optimizer=SGD(0.5))
    module = kt.Embedding(variable)
    optimizer = kt.Optimizer(module)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.0)
    group["weight_decay"] = 0.5
    module(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert variable.lookup([0, 1]).tolist() == [[1.0], [0.25]]
    assert variable.optimizer == SGD(0.5, weight_decay=0.5)
    for name, value, kind, message in (
        (
            "momentum",
            0.9,
            ValueError,
            r"'momentum' .* has no effect on SGD, which has lr, .*weight_d",
        ),
        ("weight_decay", -1.0, ValueError, "weight_decay must be finite and at least 0"),
        ("weight_decay", "x", TypeError, "weight_decay must be a number"),
    ):
        module(torch.tensor([1])).sum().backward()
        optimizer.param_groups[0][name] = value
        with pytest.raises(kind, match=message):
            optimizer.step()
        assert variable.lookup([1]).tolist() == [[0.25]]
        optimizer.zero_grad()
        optimizer.param_groups[0].pop("momentum", None)


def test_a_closure_is_called_with_gradients_enabled(loaded):
    module = kt.Embedding(loaded(torch.ones(2, 1)))
    optimizer = kt.Optimizer(module)

    def closure() -> float:
        loss = module(torch.tensor([1])).sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert optimizer.step(closure) == 1.0
    assert module.variable.lookup([1]).tolist() == [[0.5]]


def test_modules_that_share_a_variable_take_one_step(loaded):
    variable = loaded(torch.ones(4, 1), optimizer=Adagrad(1.0, 0.0, 1e-10))
    shown, bought = kt.Embedding(variable), kt.EmbeddingBag(variable, mode="sum")
    optimizer = kt.Optimizer(shown, bought)
    (shown(torch.tensor([1, 2])).sum() + bought(torch.tensor([[2, 3]])).sum()).backward()
    optimizer.step()
    assert variable.lookup([0, 1, 2, 3]).tolist() == [[1.0], [0.0], [0.0], [0.0]]
    assert variable.export(with_slots=True)[2]["accumulator"][2].tolist() == [4.0], "one step of the sum"


def test_its_state_is_the_rates(loaded, tmp_path):
    pair = Pair(loaded)
    optimizer = pair.our_optimizers[1]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    pair.backward(1)
    optimizer.step()
    scheduler.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    pair.variable.optimizer = SGD(0.5)
    other = kt.Optimizer(pair.ours)
    pair.backward(1)
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert (other.param_groups[0]["lr"], other.param_groups[0]["initial_lr"], other.leaves) == (0.25, 0.5, [])
    pair.backward(2)
    other.step()
    assert pair.variable.optimizer == SGD(0.25)
    stranger = kt.Optimizer(kt.Embedding(loaded(torch.ones(2, 2))))
    with pytest.raises(ValueError, match=r"is of the variables \['table0'\], but this optimizer trains \['table1'\]"):
        stranger.load_state_dict(optimizer.state_dict())


# What is refused, with nothing changed.


def test_a_rule_that_was_changed_elsewhere_is_named(loaded):
    variable = loaded(torch.ones(2, 1))
    module = kt.Embedding(variable)
    optimizer = kt.Optimizer(module)
    module(torch.tensor([1])).sum().backward()
    variable.optimizer = SGD(7.0)
    with pytest.raises(
        ValueError,
        match=r"has the optimizer SGD\(learning_rate=7.0.*change its rate .* as in Optimizer\(first, second\)",
    ):
        optimizer.step()
    assert variable.lookup([1]).tolist() == [[1.0]]
    kt.Optimizer(module).step()
    assert variable.lookup([1]).tolist() == [[-6.0]]


def test_no_gradient_is_lost_between_backwards_of_two_threads(loaded, monkeypatch):
    """Of which one adds while the other sums what waits."""
    variable = loaded(torch.zeros(2, 1), optimizer=SGD(1.0))
    module = kt.Embedding(variable)
    optimizer = kt.Optimizer(module)

    def backward() -> None:
        module(torch.tensor([1])).sum().backward()

    second = threading.Thread(target=backward)

    def meanwhile(waiting: list[gradients.Gradient], merged=gradients.merged) -> list[gradients.Gradient]:
        monkeypatch.undo()
        done = merged(waiting)
        second.start()
        second.join(0.1)
        return done

    monkeypatch.setattr(gradients, "merged", meanwhile)
    for _ in range(gradients.MAX_APART + 1):
        backward()
    second.join()
    optimizer.step()
    assert variable.lookup([1]).tolist() == [[-gradients.MAX_APART - 2.0]]


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_cannot_be_is_refused(loaded, rate):
    variables = [loaded(torch.ones(2, 1)) for _ in range(2)]
    model = torch.nn.ModuleList(kt.Embedding(variable) for variable in variables)
    optimizer = kt.Optimizer(model)
    rates = model[0].pending.rates
    sum(module(torch.tensor([1])).sum() for module in model).backward()
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.25, rate
    with pytest.raises(ValueError, match="learning_rate must be finite and at least 0"):
        optimizer.step()
    assert [variable.lookup([1]).tolist() for variable in variables] == [[[1.0]]] * 2
    optimizer.param_groups[1]["lr"] = "x"
    with pytest.raises(TypeError, match="lr must be a real number, got str 'x'"):
        optimizer.step()
    assert [variable.optimizer for variable in variables] == [SGD(0.5)] * 2
    for given, error, message in [
        (rate, ValueError, "learning_rate must be finite and at least 0"),
        ("x", TypeError, "lr must be a real number, got str 'x'"),
    ]:
        with pytest.raises(error, match=message):
            kt.Optimizer(model, lr=given)
    assert model[0].pending.rates is rates


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_are_not_finite_change_nothing_where_they_are_checked(loaded, fused):
    checked, unchecked = loaded(torch.ones(5, 1)), loaded(torch.ones(5, 1))
    module = kt.Embedding(checked, check_finite=True, fused=fused)
    optimizer = kt.Optimizer(module)

    def train(ids: list[int], factors: list[float]) -> None:
        (module(torch.tensor(ids)) * torch.tensor(factors)[:, None]).sum().backward()
        optimizer.step()

    with pytest.raises(
        ValueError, match="the gradient of key 3 of variable 'table0' is not finite, nor are those of 1"
    ):
        train([1, 3, 4], [1.0, math.nan, math.inf])
    assert checked.lookup(np.arange(5)).tolist() == [[1.0]] * 5
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="the gradient of key 3 of variable 'table0' is not finite; no step was taken"):
        train([3], [math.nan])
    optimizer.zero_grad()
    plain = kt.Embedding(unchecked, fused=True)
    (plain(torch.tensor([3])) * math.nan).sum().backward()
    assert math.isnan(unchecked.lookup([3])[0, 0])


def test_what_is_no_model_of_rows(loaded, store):
    with pytest.raises(ValueError, match=r"no module of kvemb\.torch with a trainable variable"):
        kt.Optimizer(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"expected modules, as in Optimizer\(model, lr=0.1\), got <gen"):
        kt.Optimizer(torch.nn.Linear(1, 1).parameters())
    with pytest.raises(TypeError, match=r"expected modules, as in Optimizer\(model, lr=0.1\), got 0.5"):
        kt.Optimizer(torch.nn.Linear(1, 1), 0.5)
    with pytest.raises(ValueError, match="'bare' has no optimizer"):
        kt.Optimizer(kt.Embedding(store.get_variable("bare", dim=2)))
    optimizer = kt.Optimizer(kt.Embedding(loaded(torch.ones(2, 1))))
    with pytest.raises(ValueError, match="make a new Optimizer"):
        optimizer.add_param_group({"params": []})


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_step_that_failed_is_not_taken_by_the_next_one(loaded, monkeypatch, looked_at):
    variable = loaded(torch.ones(5, 1))
    module = kt.Embedding(variable)
    optimizer = kt.Optimizer(module)
    module(torch.tensor([1])).sum().backward()
    if looked_at:  # by a schedule, or to clip
        assert len(optimizer.leaves) == 1

    def fail(*given: object) -> None:
        raise kvemb.KvembError("a shard was lost")

    with monkeypatch.context() as patch:
        patch.setattr(kvemb.Store, "apply_gradients", fail)
        with pytest.raises(kvemb.KvembError, match="lost"):
            optimizer.step()
    module(torch.tensor([2])).sum().backward()
    optimizer.step()
    assert variable.lookup([1, 2])[:, 0].tolist() == [1.0, 0.5]


def test_copies_are_refused(loaded):
    optimizer = kt.Optimizer(kt.Embedding(loaded(torch.ones(5, 1))))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: save its state_dict\(\)"):
            attempt(optimizer)


class One(Pair):
    """The same model twice, each with one optimizer for all of it."""

    def __init__(self, loaded, rate: float = 0.1) -> None:
        super().__init__(loaded, rate)
        self.variable.optimizer = SGD(rate)
        # Rows of torch.nn are trained as SGD trains them, and the dense part by AdamW: two groups of two optimizers.
        self.their_optimizers = [
            torch.optim.SGD(self.theirs[0].parameters(), rate), torch.optim.AdamW(self.theirs[1].parameters(), rate)
        ]  # fmt: skip
        self.dense = torch.optim.AdamW(self.ours[1].parameters(), rate)
        self.ours_optimizer = kt.Optimizer(self.ours, dense=self.dense)

    def step(self) -> None:
        for optimizer in (*self.their_optimizers, self.ours_optimizer):
            optimizer.step()
            optimizer.zero_grad()


class TestOneOptimizer:
    """With dense= it is the optimizer of the whole model."""

    def test_a_step_trains_rows_and_dense_parameters(self, loaded):
        pair = One(loaded)
        for seed in range(4):
            pair.backward(seed)
            pair.step()
            pair.check()
        assert all(each.grad is None for each in pair.ours[1].parameters())

    def test_dense_gradients_stay_until_they_are_zeroed_also_when_groups_are_read(self, loaded):
        pair = One(loaded)
        pair.backward(1)
        before = pair.ours[1].weight.grad.clone()
        assert [len(group["params"]) for group in pair.ours_optimizer.param_groups] == [1, 2]
        pair.ours_optimizer.step()
        torch.testing.assert_close(pair.ours[1].weight.grad, before)
        pair.ours_optimizer.zero_grad(set_to_none=False)
        assert not pair.ours[1].weight.grad.any()

    def test_one_schedule_is_for_all(self, loaded):
        pair = One(loaded)
        schedules = [
            torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (*pair.their_optimizers, pair.ours_optimizer)
        ]
        for seed in range(4):
            pair.backward(seed)
            pair.step()
            for each in schedules:
                each.step()
        pair.check()
        assert pair.variable.optimizer.learning_rate == pytest.approx(0.1 / 8)
        assert [group["lr"] for group in pair.ours_optimizer.param_groups] == [0.1 / 16, 0.1 / 16]

    def test_a_scaler_and_clipping_see_all_gradients(self, loaded):
        pair = One(loaded)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        pair.backward(1, scale=4.0)
        scaler._lazy_init_scale_growth_tracker("cpu")
        scaler.unscale_(pair.ours_optimizer)
        for each in pair.theirs.parameters():
            each.grad /= 4.0
        ours = [each for group in pair.ours_optimizer.param_groups for each in group["params"]]
        torch.testing.assert_close(
            torch.nn.utils.clip_grad_norm_(ours, 0.1), torch.nn.utils.clip_grad_norm_(pair.theirs.parameters(), 0.1)
        )
        scaler.step(pair.ours_optimizer)
        for optimizer in pair.their_optimizers:
            optimizer.step()
        pair.check()

    def test_a_step_that_overflows_changes_neither(self, loaded):
        pair = One(loaded)
        rows, weight = pair.variable.lookup(np.arange(KEYS), touch=False), pair.ours[1].weight.detach().clone()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        pair.backward(1, scale=math.inf)
        scaler._lazy_init_scale_growth_tracker("cpu")
        scaler.step(pair.ours_optimizer)
        np.testing.assert_array_equal(pair.variable.lookup(np.arange(KEYS), touch=False), rows)
        torch.testing.assert_close(pair.ours[1].weight.detach(), weight)

    def test_rows_that_are_refused_leave_the_dense_part(self, loaded):
        pair = One(loaded)
        weight = pair.ours[1].weight.detach().clone()
        pair.backward(1)
        pair.ours_optimizer.param_groups[0]["none"] = 1
        with pytest.raises(ValueError, match="'none' in the parameter group of variable"):
            pair.ours_optimizer.step()
        torch.testing.assert_close(pair.ours[1].weight.detach(), weight)

    def test_its_state_is_that_of_both(self, loaded, tmp_path):
        pair = One(loaded)
        pair.backward(1)
        pair.step()
        pair.ours_optimizer.param_groups[0]["lr"] = pair.ours_optimizer.param_groups[1]["lr"] = 0.025
        torch.save(pair.ours_optimizer.state_dict(), tmp_path / "state")
        linear = copy.deepcopy(pair.ours[1])
        saved = torch.load(tmp_path / "state", weights_only=True)
        model = torch.nn.Sequential(pair.ours[0], linear)
        again = kt.Optimizer(model, dense=torch.optim.AdamW(linear.parameters(), 9.0))
        again.load_state_dict(saved)
        assert [group["lr"] for group in again.param_groups] == [0.025, 0.025]
        assert [each["step"].item() for each in again.state.values()] == [1.0, 1.0]
        for each in pair.their_optimizers:
            each.param_groups[0]["lr"] = 0.025
        pair.ours, pair.ours_optimizer = model, again
        pair.backward(2)
        pair.step()
        pair.check()

    def test_a_state_of_another_kind_is_refused_and_changes_nothing(self, loaded):
        pair = One(loaded)
        alone = kt.Optimizer(pair.ours)
        with pytest.raises(
            ValueError, match=r"the state_dict has groups of dense parameters; make .* with it \(dense=\)"
        ):
            alone.load_state_dict(pair.ours_optimizer.state_dict())
        one = kt.Optimizer(pair.ours, dense=pair.dense)
        with pytest.raises(ValueError, match=r"has no groups of dense parameters; make .* without it \(dense=\)"):
            one.load_state_dict(alone.state_dict())
        other = kt.Optimizer(pair.ours, dense=torch.optim.AdamW([pair.ours[1].weight], 0.5))
        state = other.state_dict()
        state["param_groups"][0]["lr"] = 7.0
        with pytest.raises(ValueError, match="parameter group"):
            one.load_state_dict(state)
        assert [group["lr"] for group in one.param_groups] == [0.1, 0.1]

    def test_a_closure_is_called_once_and_groups_are_added_to_the_dense_part(self, loaded):
        pair, calls = One(loaded), []

        def closure():
            calls.append(1)
            pair.backward(1)
            return 5.0

        assert pair.ours_optimizer.step(closure) == 5.0
        assert calls == [1]
        more = torch.nn.Parameter(torch.ones(2))
        pair.ours_optimizer.add_param_group({"params": [more], "lr": 3.0})
        assert [group["lr"] for group in pair.ours_optimizer.param_groups] == [0.1, 0.1, 3.0]
        assert pair.dense.param_groups[1]["params"] == [more]

    @pytest.mark.parametrize("wrong", ["adam", torch.optim.AdamW, 1])
    def test_what_is_no_optimizer_is_refused(self, loaded, wrong):
        with pytest.raises(TypeError, match=r"dense must be an optimizer of torch\.optim, such as"):
            kt.Optimizer(Pair(loaded).ours, dense=wrong)

    def test_nor_is_one_of_rows(self, loaded):
        pair = One(loaded)
        with pytest.raises(TypeError, match=r"rows of several models go into one Optimizer\(first, second\)"):
            kt.Optimizer(pair.ours, dense=pair.ours_optimizer)


class Wrapper:
    """Looks like the optimizer that it has, as Lightning's wrapper does: inherited calls run on the wrapper."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Wrapped", (Wrapper, type(optimizer)), {})

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


def test_what_a_wrapper_clips_is_what_the_optimizer_takes(loaded):
    pair = Pair(loaded)
    wrapped = Wrapper(pair.our_optimizers[1])
    for seed in range(3):
        pair.backward(seed)
        leaves = [leaf for group in wrapped.param_groups for leaf in group["params"]]
        torch.nn.utils.clip_grad_norm_([*pair.ours.parameters(), *leaves], 0.1)
        torch.nn.utils.clip_grad_norm_(pair.theirs.parameters(), 0.1)
        for optimizer in (pair.their_optimizer, *pair.our_optimizers):
            optimizer.step()
        for optimizer in (pair.their_optimizer, pair.our_optimizers[0], wrapped):
            optimizer.zero_grad()
        pair.check()
