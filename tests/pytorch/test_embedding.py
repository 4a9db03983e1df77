"""Embedding gives and trains what torch.nn.Embedding with dense parameters does, and says what it cannot do."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint as recomputed

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import SGD, Adagrad

KEYS, DIM = 40, 3


def weight_of(seed: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(KEYS, DIM, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rows_of(variable: kvemb.Variable) -> torch.Tensor:
    return torch.from_numpy(np.asarray(variable.lookup(np.arange(KEYS), touch=False)))


OPTIONS = st.fixed_dictionaries(
    {
        "padding_idx": st.sampled_from([None, 0, 7]),
        "scale_grad_by_freq": st.booleans(),
        "fused": st.booleans(),
        "adagrad": st.booleans(),
        "evaluating": st.booleans(),
    }
)
IDS = st.lists(st.integers(0, KEYS - 1), max_size=30)


@given(batches=st.lists(IDS, min_size=1, max_size=4), options=OPTIONS)
@settings(max_examples=25, deadline=None)
def test_training_equals_torch(tmp_path_factory, batches, options):
    evaluating = options.pop("evaluating")
    fused, adagrad = options.pop("fused"), options.pop("adagrad")
    theirs = torch.nn.Embedding(KEYS, DIM, **options)
    torch.nn.init.normal_(theirs.weight)  # the padding's row, too, which torch.nn keeps
    parameters = theirs.parameters()
    their_optimizer = torch.optim.Adagrad(parameters, 0.5) if adagrad else torch.optim.SGD(parameters, 0.5)
    with kvemb.open(tmp_path_factory.mktemp("store") / "s", memory_budget="4MiB") as store:
        rule = Adagrad(0.5, 0.0, 1e-10) if adagrad else SGD(0.5)
        variable = store.get_variable("t", dim=DIM, optimizer=rule, hot_rows=16)
        variable.upsert(np.arange(KEYS), theirs.weight.detach().numpy().copy())
        ours = kt.Embedding(variable, fused=fused, **options).train(not evaluating)
        our_optimizer = kt.Optimizer(ours)
        for batch in batches:
            ids = torch.tensor(batch, dtype=torch.int64)
            expected, found = theirs(ids), ours(ids)
            torch.testing.assert_close(found, expected)
            for out, optimizer in ((expected, their_optimizer), (found, our_optimizer)):
                optimizer.zero_grad()
                (out * out + out.sin()).sum().backward()
                optimizer.step()
            torch.testing.assert_close(rows_of(variable), theirs.weight.detach())


def test_ids_of_any_shape_and_integer(loaded):
    weight = weight_of(1)
    module = kt.Embedding(loaded(weight))
    for shape in ((), (0,), (5,), (2, 3), (2, 0, 3), (2, 1, 3)):
        ids = torch.randint(0, KEYS, shape)
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
            torch.testing.assert_close(module(ids.to(dtype)), weight[ids])
    strided = torch.arange(20).reshape(4, 5).T[::2]
    torch.testing.assert_close(module(strided), weight[strided])
    assert module(torch.tensor([5])).requires_grad
    with torch.no_grad():
        assert not module(torch.tensor([5])).requires_grad


def test_a_missing_key_reads_as_its_first_row_and_is_made_by_a_step(store):
    start = kvemb.RandomUniform(-1, 1, seed=1)
    module = kt.Embedding("users", 2, store=store, initializer=start, optimizer=SGD(1.0))
    ids = torch.tensor([-(2**63), 2**63 - 1])
    before = module(ids)
    assert module.variable.size() == 0
    before.sum().backward()
    kt.Optimizer(module).step()
    assert module.variable.size() == 2
    torch.testing.assert_close(module(ids), before.detach() - 1)
    assert (module.embedding_dim, repr(module)) == (2, "Embedding('users', dim=2)")


@pytest.mark.parametrize("value_dtype", ["float64", "float16", "bfloat16"])
def test_values_of_other_dtypes(store, value_dtype):
    if value_dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    module = kt.Embedding("users", 2, store=store, value_dtype=value_dtype, initializer=1.0, optimizer=SGD(0.5))
    out = module(torch.tensor([1, 1]))
    assert out.dtype == (torch.float64 if value_dtype == "float64" else torch.float32)
    out.sum().backward()
    kt.Optimizer(module).step()
    assert module(torch.tensor([1, 2])).tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_uint64_keys_are_trained_and_negative_ones_refused(store):
    module = kt.Embedding("users", 1, store=store, key_dtype="uint64", optimizer=SGD(1.0))
    ids = torch.from_numpy(np.array([2**64 - 1, 3, 3], np.uint64))
    optimizer = kt.Optimizer(module)
    module(ids).sum().backward()
    assert [leaf.grad.tolist() for leaf in optimizer.leaves] == [[[1.0], [2.0]]]
    optimizer.step()
    assert module.variable.export()[0].tolist() == [3, 2**64 - 1]
    with pytest.raises(TypeError, match="keys must fit uint64, got -3"):
        module(torch.tensor([3, -3]))


def test_max_norm_scales_the_result_and_not_the_table(loaded):
    weight = weight_of(2)
    variable = loaded(weight)
    module = kt.Embedding(variable, max_norm=0.5)
    ids = torch.arange(KEYS)
    out = module(ids)
    expected = weight.clone().requires_grad_()
    norms = expected.norm(dim=1, keepdim=True)
    wanted = torch.where(norms > 0.5, expected * (0.5 / norms), expected)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(rows_of(variable), weight)
    out.sin().sum().backward()
    wanted.sin().sum().backward()
    (leaf,) = kt.Optimizer(module).leaves
    torch.testing.assert_close(leaf.grad, expected.grad)


def test_results_may_be_changed_in_place_and_used_twice(loaded):
    weight = weight_of(3)
    module = kt.Embedding(loaded(weight))
    out = module(torch.tensor([1, 2]))
    out.mul_(3)
    (out.sum() + (out * 2).sum()).backward()
    (leaf,) = kt.Optimizer(module).leaves
    assert leaf.grad.tolist() == [[9.0] * DIM] * 2


def test_second_derivatives_reach_the_rows(loaded):
    weight = weight_of(4, torch.float64)
    module = kt.Embedding(loaded(weight))
    ids = torch.tensor([3, 4, 3])
    rows = module(ids)
    (slope,) = torch.autograd.grad((rows**3).sum(), rows, create_graph=True)
    slope.square().sum().backward()  # d/dx (3 x^2)^2 = 36 x^3
    (leaf,) = kt.Optimizer(module).leaves
    torch.testing.assert_close(leaf.grad, torch.stack([2 * 36 * weight[3] ** 3, 36 * weight[4] ** 3]))


def test_a_gradient_of_other_inputs_alone_brings_none_of_rows(loaded):
    module = kt.Embedding(loaded(weight_of(5)))
    dense = torch.ones(DIM, requires_grad=True)
    (found,) = torch.autograd.grad((module(torch.tensor([1])) * dense).sum(), dense)
    assert found.shape == (DIM,)
    assert module.pending.waiting == []


def test_a_forward_without_a_backward_leaves_nothing_behind(loaded):
    module = kt.Embedding(loaded(weight_of(6)))
    optimizer = kt.Optimizer(module)
    out = module(torch.arange(5))
    gone = weakref.ref(out)
    del out
    gc.collect()
    assert gone() is None
    assert (module.pending.waiting, optimizer.leaves) == ([], [])


def test_a_second_backward_through_a_freed_graph_raises_as_elsewhere(loaded):
    module = kt.Embedding(loaded(weight_of(7)))
    loss = module(torch.tensor([1])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    (leaf,) = kt.Optimizer(module).leaves
    assert leaf.grad.tolist() == [[2.0] * DIM]


def test_ids_may_be_overwritten_after_the_forward(loaded):
    variable = loaded(weight_of(8))
    module = kt.Embedding(variable)
    optimizer, ids = kt.Optimizer(module), torch.tensor([1, 2])
    out = module(ids)
    ids[:] = 9
    out.sum().backward()
    optimizer.step()
    changed = (rows_of(variable) != weight_of(8)).any(dim=1).nonzero()[:, 0]
    assert changed.tolist() == [1, 2]


def test_rows_are_no_parameters_and_pickles_read_them(loaded, tmp_path):
    variable = loaded(weight_of(10))
    model = torch.nn.Sequential(kt.Embedding(variable), torch.nn.Linear(DIM, 1))
    assert {name: value.numel() for name, value in model.named_parameters()} == {
        **{"0.anchor": 1, "1.weight": DIM, "1.bias": 1}
    }
    assert list(model.state_dict()) == ["0._extra_state", "1.weight", "1.bias"]
    kt.Optimizer(model)
    variable.resource_handle[0].flush()
    arrived = pickle.loads(pickle.dumps(model[0]))
    torch.testing.assert_close(arrived.eval()(torch.arange(3)), weight_of(10)[:3])
    arrived.variable.resource_handle[0].close()


def test_rows_begin_as_those_of_torch(store):
    """They were zeros, so that a product of two of them had no gradient."""
    ids = torch.arange(4000)
    for module in (kt.Embedding("rows", 8, store=store), kt.EmbeddingBag("bags", 8, store=store)):
        rows = module(ids[:, None])
        assert abs(rows.mean()) < 0.02
        assert abs(rows.std() - 1) < 0.02
        assert module.variable.initializer == kvemb.RandomNormal(0.0, 1.0, module.variable.initializer.seed)
    assert kt.Embedding("given", 2, store=store, initializer=0)(ids[:1]).tolist() == [[0.0, 0.0]]
    with kvemb.variable_scope("scope"):
        assert isinstance(kt.Embedding("rows", 2, store=store).variable.initializer, kvemb.RandomNormal)
    with kvemb.variable_scope("ones", initializer=kvemb.Ones()):
        assert kt.Embedding("rows", 2, store=store)(ids[:1]).tolist() == [[1.0, 1.0]]
    store.get_variable("plain", dim=2)
    assert kt.Embedding("plain", store=store)(ids[:1]).tolist() == [[0.0, 0.0]], "a stored one stays as it is"


def test_two_tables_whose_product_is_the_prediction_learn(store):
    model = torch.nn.ModuleList(kt.Embedding(name, 8, store=store, optimizer=Adagrad(0.5)) for name in "ab")
    optimizer, ids = kt.Optimizer(model), torch.arange(50)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = ((model[0](ids) * model[1](ids)).sum(1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1
    assert losses[-1] < 0.01


def test_padding_reads_as_zeros_until_it_has_a_row(store):
    def made(**options):
        return kt.Embedding("words", 2, store=store, padding_idx=0, optimizer=SGD(1.0), initializer=1.0, **options)

    ids = torch.tensor([[0, 1], [2, 0]])
    module = made()
    assert module(ids).tolist() == [[[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]]]
    for vector in ([[3.0, 4.0]], [[5.0, 6.0]]):
        module.variable.upsert([0], vector)
        for each in (made(), made(scale_grad_by_freq=True), made(fused=True)):
            optimizer = kt.Optimizer(each)
            assert each(ids)[0, 0].tolist() == vector[0]
            each(ids).sum().backward()
            optimizer.step()
            assert each(torch.tensor(0)).tolist() == vector[0], "and is not trained"
    assert made()(torch.tensor([0, 0])).tolist() == [[5.0, 6.0]] * 2
    clipped = made(max_norm=1.0)(torch.tensor(0))
    torch.testing.assert_close(clipped.norm(), torch.tensor(1.0))


# What is refused.


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([1.0]), r"ids must be a tensor of integers, got torch.float32; .* pass ids.long\(\)"),
        (torch.tensor([True]), "got torch.bool"),
        ([1, 2], r"must be a tensor of integers, got \[1, 2\]; use torch.as_tensor"),
        ([["a"]], r"must be a tensor of integers, .*torch.from_numpy\(kvemb.hash_strings\(ids\)\)"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "with numbers, got one on the device 'meta'"),
        (torch.eye(2, dtype=torch.int64).to_sparse(), r"dense tensor, .*; pass ids.to_dense\(\)"),
    ],
    ids=str,
)
def test_ids_that_are_no_dense_integers_are_refused(loaded, ids, message):
    with pytest.raises(TypeError, match=message):
        kt.Embedding(loaded(weight_of(1)))(ids)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_ids_that_numpy_cannot_read_are_refused(loaded):
    rows = kt.Embedding(loaded(weight_of(1)))
    # Made here, not as the parameter of a test: PyTorch imports for a second to make the first nested tensor.
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    with pytest.raises(TypeError, match=r"dense tensor, .*; pass ids.values\(\) and ids.offsets\(\)\[:-1\]"):
        rows(jagged)
    with pytest.raises(TypeError, match=r"ids must be a dense tensor, got a nested one; make it with layout=torch.jag"):
        rows(torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])]))
    narrow = torch.nested.narrow(
        torch.arange(6).reshape(2, 3), 1, torch.tensor([0, 1]), torch.tensor([1, 2]), layout=torch.jagged
    )
    assert len(narrow.values()) == 6
    with pytest.raises(TypeError, match=r"let ids = ids\.contiguous\(\), and pass ids\.values\(\)"):
        rows(narrow)
    with pytest.raises(TypeError, match=r"rows are looked up outside torch.func, torch.vmap"):
        torch.vmap(rows)(torch.tensor([1, 2]))


def test_dtypes_may_be_torchs(store):
    module = kt.Embedding("rows", 2, store=store, value_dtype=torch.float16, key_dtype=torch.int32)
    assert (module.variable.value_dtype, module.variable.key_dtype) == (np.float16, np.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_embeddings": 9}, TypeError, "no argument num_embeddings here: keys are any int64"),
        ({"embedding_dim": 9}, TypeError, "no argument embedding_dim here: give dim"),
        ({"lr": 0.1}, TypeError, "no argument lr here: give optimizer"),
        ({"learning_rate": 0.1}, TypeError, "no argument learning_rate here: give optimizer"),
        ({"_weight": None}, TypeError, "from_pretrained"),
        ({"dtype": torch.float32}, TypeError, "value_dtype"),
        ({"device": "cuda"}, TypeError, "rows live in the store"),
        ({"dims": 3}, TypeError, "no argument 'dims' here, and kvemb.Store.get_variable has none"),
        ({"padding_idx": 1.5}, TypeError, "padding_idx must be an int"),
        ({"max_norm": -1}, ValueError, "max_norm must be above 0"),
        ({"max_norm": "1"}, TypeError, "max_norm must be a real number"),
        ({"norm_type": 0}, ValueError, "norm_type must be above 0"),
        ({"output_dtype": torch.int64}, ValueError, "output_dtype must be a torch float dtype"),
        ({"value_dtype": "int8", "optimizer": None}, ValueError, "holds int8, but floats are needed here"),
        ({"optimizer": None, "fused": True}, ValueError, "no optimizer, which fused=True needs"),
    ],
    ids=str,
)
def test_arguments_without_a_meaning_here_are_refused_with_advice(store, arguments, error, message):
    with pytest.raises(error, match=message):
        kt.Embedding("users", 2, store=store, **{"optimizer": SGD(1.0), **arguments})


def test_a_variable_comes_as_it_is_and_a_number_is_no_name(store, loaded):
    variable = loaded(weight_of(1))
    for arguments in ({"dim": 4}, {"store": store}, {"optimizer": SGD(1.0)}):
        with pytest.raises(ValueError, match="exists already: leave out"):
            kt.Embedding(variable, **arguments)
    assert kt.Embedding(variable, DIM).variable is variable
    with pytest.raises(TypeError, match="expected a name or a Variable, got 1000; begin with a name and dim"):
        kt.Embedding(1000, 16)
    for module in (kt.Embedding, kt.EmbeddingBag):
        with pytest.raises(TypeError, match=r"no argument num_embeddings here: .*; give a name and dim"):
            module(num_embeddings=1000, embedding_dim=16)
        with pytest.raises(TypeError, match="takes from 1 to 3 positional arguments"):
            module("users", 1000, 16)  # a name put before torch.nn's arguments


def test_what_rows_in_a_store_are_not_is_said(loaded):
    module = kt.Embedding(loaded(weight_of(1)))
    assert not hasattr(module, "weight")
    with pytest.raises(AttributeError, match="Embedding has no weight, as rows live in the store: read them with"):
        module.weight.data  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no num_embeddings, .*variable\.size\(\) counts the rows"):
        module.num_embeddings  # noqa: B018
    with pytest.raises(AttributeError, match="object has no attribute 'bias'"):
        module.bias  # noqa: B018


def test_training_without_an_optimizer_is_named(loaded):
    module = kt.Embedding(loaded(weight_of(1)))
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"no optimizer applies them: make a kvemb\.torch\.Optimizer"):
        module(torch.tensor([1]))
    kt.Optimizer(module).step()
    module(torch.tensor([1])).sum().backward()
    with torch.no_grad():
        module(torch.tensor([1]))


def test_a_variable_without_an_optimizer_is_named_when_it_is_to_be_trained(store):
    module = kt.Embedding("plain", 2, store=store)
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="variable 'plain' has no optimizer, so its rows cannot be trained: make it"):
        module(torch.tensor([1]))


@pytest.mark.parametrize("fused", [False, True])
def test_a_frozen_module_gives_rows_without_gradients_until_it_is_trained_again(loaded, fused):
    weight = weight_of(3)
    module, weight = kt.Embedding(loaded(weight), fused=fused), weight[:3]
    model = torch.nn.Sequential(module, torch.nn.Linear(DIM, 1))
    optimizer = kt.Optimizer(model)
    assert module.requires_grad_(False) is module
    assert "frozen" in repr(module)
    model(torch.arange(3)).sum().backward()
    optimizer.step()
    assert torch.equal(module(torch.arange(3)), weight)
    module.requires_grad_()
    model(torch.arange(3)).sum().backward()
    optimizer.step()
    assert not torch.equal(module(torch.arange(3)), weight)


@pytest.mark.parametrize("how", ["module", "parent", "loop"])
def test_whatever_freezes_a_model_freezes_its_rows(loaded, how):
    weight = weight_of(3)[:3]
    model = torch.nn.Sequential(torch.nn.Sequential(kt.Embedding(loaded(weight_of(3)))), torch.nn.Linear(DIM, 1))
    encoder, optimizer, ids = model[0], kt.Optimizer(model), torch.arange(3)

    def set_to(trained: bool) -> None:
        if how == "loop":
            for parameter in encoder.parameters():
                parameter.requires_grad = trained
        else:
            (encoder if how == "parent" else encoder[0]).requires_grad_(trained)

    def train() -> None:
        model(ids).sum().backward()
        optimizer.step()

    set_to(False)
    assert not encoder(ids).requires_grad
    train()
    assert torch.equal(encoder(ids), weight)
    set_to(True)
    train()
    assert not torch.equal(encoder(ids), weight)


def test_optimizers_and_gradients_of_a_models_parameters_leave_rows_alone(loaded):
    model = torch.nn.Sequential(kt.Embedding(loaded(weight_of(3))), torch.nn.Linear(DIM, 1))
    ids, optimizer = torch.arange(KEYS), kt.Optimizer(model)
    gradients = torch.autograd.grad(model(ids).sum(), list(model.parameters()))
    assert gradients[0].tolist() == [0.0]
    optimizer.zero_grad()
    dense = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    model(ids).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, math.inf)
    dense.step()
    assert torch.equal(model[0](ids), weight_of(3))
    assert model[0].anchor.tolist() == [0.0]


def test_no_copy_trains_the_same_rows(loaded):
    model = torch.nn.Sequential(kt.Embedding(loaded(weight_of(3))), torch.nn.Linear(DIM, 1))
    for made in (copy.deepcopy, torch.optim.swa_utils.AveragedModel):
        with pytest.raises(TypeError, match=r"Embedding cannot be copied, .* of 'table0': copy the dense part"):
            made(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()))


def test_an_untrainable_variable_gives_rows_without_gradients(store):
    module = kt.Embedding("frozen", 2, store=store, trainable=False)
    assert not module(torch.tensor([1])).requires_grad
    with pytest.raises(ValueError, match=r"no module of kvemb\.torch with a trainable variable: 'frozen' cannot be"):
        kt.Optimizer(module)


# state_dict.


def test_a_state_dict_is_of_one_store_and_its_variables(store, loaded, tmp_path):
    model = torch.nn.Sequential(kt.Embedding(loaded(weight_of(1))), torch.nn.Linear(DIM, 1))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model.load_state_dict(state)
    store.flush()
    model.load_state_dict(state)
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    with kvemb.open(tmp_path / "other", memory_budget="4MiB") as other:
        stranger = torch.nn.Sequential(
            kt.Embedding("table0", DIM, store=other, optimizer=SGD(0.5)), torch.nn.Linear(DIM, 1)
        )
        with pytest.raises(ValueError, match="restore the checkpoint that belongs to the state_dict"):
            stranger.load_state_dict(state)
        named = torch.nn.Sequential(kt.Embedding("b", DIM, store=other, optimizer=SGD(0.5)), torch.nn.Linear(DIM, 1))
        with pytest.raises(ValueError, match="but this module has 'b'"):
            named.load_state_dict(state)
    with kvemb.restore(checkpoint, tmp_path / "restored", memory_budget="4MiB") as restored:
        again = torch.nn.Sequential(kt.Embedding(restored.variables["table0"]), torch.nn.Linear(DIM, 1))
        again.load_state_dict(state)
        of_0_1 = {**state, "0._extra_state": {"table0": {"store": store.id, "point": restored.point}}}
        again.load_state_dict(of_0_1)
        of_0_1["0._extra_state"]["table0"]["point"] += 100
        with pytest.raises(ValueError, match=r"the earlier point .*: restore the checkpoint"):
            again.load_state_dict(of_0_1)
        again[0].variable.upsert([1], [[1.0] * DIM])
        with pytest.raises(kvemb.errors.MarkNotFound, match="does not keep"):
            again.load_state_dict(state)


@pytest.mark.parametrize("kind", [kt.Embedding, kt.EmbeddingBag])
def test_a_new_variable_without_dim_is_refused(store, kind):
    """It was made with one number a row, and a warning."""
    with store.as_default():
        with pytest.raises(TypeError, match="dim is missing: variable 'words' is new; give the number of values"):
            kind("words")
        with kvemb.variable_scope("tower"), pytest.raises(TypeError, match="variable 'tower/words' is new"):
            kind("words")
        with pytest.raises(TypeError, match="variable 'words' is new"):
            kt.EmbeddingBagCollection({"words": {}})
        assert list(store.variables) == []
        made = kind("words", 3)
        assert kind("words").variable is made.variable
        with kvemb.variable_scope("tower"):
            assert kind("words", dim=1).variable.name == "tower/words"


@pytest.mark.parametrize("reentrant", [False, True])
def test_fused_rows_are_not_read_again_during_a_backward_that_may_have_changed_them(loaded, reentrant):
    """Activation checkpointing calls a module again in the backward, which may have taken its step already."""
    weight = torch.arange(12.0).reshape(4, 3)
    ids = torch.tensor([1, 2])

    def loss(module):
        scale = torch.ones(1, requires_grad=True)
        rows = recomputed(lambda scale: module(ids) * scale, scale, use_reentrant=reentrant)
        return (rows**2).sum()

    fused = kt.Embedding(loaded(weight), fused=True)
    with pytest.raises(
        RuntimeError, match="Embedding with fused=True was called during a backward pass, as activation"
    ):
        loss(fused).backward()
    assert torch.equal(torch.from_numpy(fused.variable.lookup(np.arange(4))), weight)
    ours, theirs = kt.Embedding(loaded(weight)), torch.nn.Embedding.from_pretrained(weight.clone(), freeze=False)
    optimizer = kt.Optimizer(ours)
    loss(ours).backward()
    loss(theirs).backward()
    optimizer.step()
    with torch.no_grad():
        theirs.weight -= 0.5 * theirs.weight.grad
    assert torch.equal(torch.from_numpy(ours.variable.lookup(np.arange(4))), theirs.weight)


def test_ids_of_an_unsigned_variable_may_be_long_tensors(store):
    table = store.get_variable(
        "unsigned", dim=2, key_dtype="uint64", initializer=1.0, optimizer=kvemb.optimizers.SGD(0.5)
    )
    ids, bags = torch.tensor([5, -1, 7]), torch.tensor([[5, -1], [-1, -1]])
    words = kt.Embedding(table, padding_idx=-1)
    bag = kt.EmbeddingBag(table, mode="sum", padding_idx=-1)
    each = kt.EmbeddingBagCollection({"f": table}, padding_idx=-1)
    step = kt.Optimizer(words, bag, each)
    out = words(ids)
    assert out.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert bag(bags).tolist() == each({"f": bags})["f"].tolist() == [[1, 1], [0, 0]]
    (out.sum() + bag(bags).sum() + each({"f": bags})["f"].sum()).backward()
    step.step()
    assert table.export()[0].tolist() == [5, 7]
    assert table.lookup([5, 7])[:, 0].tolist() == [-0.5, 0.5]
    large = torch.tensor([-2]).view(torch.uint64)
    kt.Embedding(table)(large)
    for module, wrong in ((kt.Embedding(table), (ids,)), (kt.EmbeddingBag(table), (bags,))):
        with pytest.raises(TypeError, match=r"keys must fit uint64, got -1; .* ids.view\(torch.uint64\)"):
            module(*wrong)
