"""Modules whose ids are on the variable's GPU: the same rows and steps, without a copy of rows to the host.

Tensors in the host's memory stand for those of a GPU, whose memory is the host's where kernels run on the CPU. What
PyTorch itself does on a GPU is not tested by this.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_device import CountingDevice
from cuda_devices import device_of
from cuda_on_cpu import CudaOnCpuTable

import kvemb
import kvemb.torch as kt
from kvemb import registry
from kvemb.rows import device_arrays
from kvemb.tools.bench.gpu import training

STREAM = 77


def stream_of(tensor: Any) -> int:
    """The stream of a tensor, whose memory is the GPU's."""
    CudaOnCpuTable.open_device("gpu:0").lend(tensor, tensor.data_ptr(), tensor.nbytes)
    return STREAM


@pytest.fixture
def _tensors_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors are on the GPU from here on."""
    device_of("cpu")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:CudaOnCpuTable")
    monkeypatch.setattr(device_arrays, "gpu_of_tensor", lambda tensor: 0)
    monkeypatch.setattr(device_arrays, "stream_of_tensor", stream_of)


@pytest.fixture
def stores(tmp_path: Path, _tensors_on_gpu: None) -> Iterator[tuple[kvemb.Store, kvemb.Store]]:
    here = kvemb.open(tmp_path / "here", memory_budget="16MiB")
    there = kvemb.open(tmp_path / "there", memory_budget="16MiB")
    with here, there:
        yield here, there
        there.check()


def both(stores: Any, make: Any) -> list[Any]:
    """A module on the CPU, and one on the GPU. make: fn(**arguments of get_variable)."""
    how = {"initializer": kvemb.RandomNormal(0.0, 1.0, seed=3), "optimizer": kvemb.optimizers.Adam(0.1)}
    return [make(store=store, devices=name, **how) for store, name in zip(stores, ("cpu", "gpu:0"), strict=True)]


def trained(module: Any, batches: list[Any], **how: Any) -> list[Any]:
    """The results of steps, and then the rows that it left."""
    optimizer, results = kt.Optimizer(module), []
    for batch in batches:
        out = module(*batch)
        results.append(out.detach().clone())
        (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
        if how.get("clip"):
            torch.nn.utils.clip_grad_norm_(optimizer.leaves, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [*results, *(torch.from_numpy(column) for column in module.variable.export())]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


IDS = [torch.from_numpy(np.random.default_rng(seed).integers(0, 40, (12, 3))) for seed in range(3)]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("padding", [None, 7])
def test_an_embedding_trains_on_a_gpu_as_on_the_cpu(stores: Any, padding: int | None, clip: bool) -> None:
    pair = both(stores, lambda **how: kt.Embedding("rows", dim=4, padding_idx=padding, **how))
    batches = [(ids,) for ids in IDS]
    if clip:
        results = [trained(module, batches, clip=True) for module in pair]
        for mine, theirs in zip(*results, strict=True):  # a norm is over rows in another order
            torch.testing.assert_close(mine, theirs)
    else:
        assert_same(*(trained(module, batches) for module in pair))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 7])
def test_bags_train_on_a_gpu_as_on_the_cpu(stores: Any, mode: str, padding: int | None) -> None:
    pair = both(stores, lambda **how: kt.EmbeddingBag("bags", dim=4, mode=mode, padding_idx=padding, **how))
    batches = [(IDS[0],), (IDS[1].reshape(-1).int(), torch.tensor([0, 4, 4, 30])), (IDS[2],)]
    for mine, theirs in zip(*(trained(module, batches) for module in pair), strict=True):
        torch.testing.assert_close(mine, theirs)  # torch sums a bag's gradients by the order of its distinct rows


def test_a_collection_under_autocast_and_a_scaler(stores: Any) -> None:
    def made(**how: Any) -> Any:
        store = how.pop("store")
        tables = {"a": {"dim": 4, **how}, "b": {"dim": 2, **how}}
        return kt.EmbeddingBagCollection(tables, {"x": "a", "y": "a", "z": "b"}, store=store)

    results = []
    for module in both(stores, made):
        optimizer, scaler = kt.Optimizer(module), torch.amp.GradScaler("cpu", init_scale=8.0)
        for ids in IDS:
            with torch.autocast("cpu", torch.bfloat16):
                found = module({"x": (ids,), "y": (ids[:, :1],), "z": (ids,)})
                loss = sum((rows @ torch.ones(rows.shape[1], 1)).float().sum() for rows in found.values())
            assert {rows.dtype for rows in found.values()} == {torch.float32}
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append([torch.from_numpy(column) for variable in module.variables for column in variable.export()])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_step_on_hot_rows_waits_once_and_brings_eight_bytes(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CountingDevice()
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))
    module = both(stores, lambda **how: kt.Embedding("rows", dim=4, fused=True, **how))[1]
    for _ in range(3):
        device.start()
        found = module(IDS[0])
        found.sum().backward()
    assert (device.waits, device.downloads, device.uploads) == (1, [8], [])
    before = module(IDS[0])
    module.variable.upsert(torch.arange(100, 103), torch.ones(3, 4))  # rows move
    device.start()
    before.sum().backward()
    assert (device.waits, device.downloads) == (1, [8])


@pytest.fixture
def counted(stores: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[CountingDevice, kvemb.Variable]:
    """A device that counts, and a variable whose keys 0 to 99 are hot on it."""
    device = CountingDevice()
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))
    variable = stores[1].get_variable("rows", dim=4, devices="gpu:0", optimizer=kvemb.optimizers.Adagrad(0.1))
    variable.upsert(torch.arange(100), torch.zeros(100, 4))
    return device, variable


def test_a_plain_step_on_hot_rows_waits_once_and_brings_eight_bytes(counted: Any) -> None:
    device, variable = counted
    keys, grads = IDS[0].clone(), torch.ones(12, 3, 4)
    for _ in range(3):
        device.start()
        variable.lookup(keys)
        variable.apply_gradients(keys, grads)
        assert (device.waits, device.downloads, device.uploads) == (1, [8], [])


@pytest.mark.parametrize(
    "change",
    [
        "in place",
        "another tensor",
        "rows move",
        "some are left out",
        "in inference mode",
        "resized and back",
        "set to nothing and back",
        "given other memory",
        "given memory that is where its own was",
    ],
)
def test_keys_that_may_be_elsewhere_are_found_again(counted: Any, change: str) -> None:
    device, variable = counted
    with torch.inference_mode(change == "in inference mode"):
        memory = np.arange(30)
        keys = torch.from_numpy(memory)
        variable.lookup(keys)
    if change == "resized and back":
        keys.resize_(0)
        memory += 30
        keys.resize_(30)
    elif change == "set to nothing and back":
        storage = keys.untyped_storage()
        keys.set_()
        memory += 30
        keys.set_(storage, 0, (30,))
    elif change == "given other memory":
        keys.data = keys + 30
    elif change == "given memory that is where its own was":
        address = keys.data_ptr()
        keys.data = torch.zeros(0, dtype=torch.int64)
        memory += 30
        keys.data = torch.from_numpy(memory)
        assert (keys.data_ptr(), keys._version) == (address, 0)
    elif change == "in place":
        keys.add_(30)
    elif change == "another tensor":
        keys = keys.clone()
    elif change == "rows move":
        variable.remove(torch.arange(2))
    elif change == "some are left out":
        variable.accum(keys, torch.zeros(30, 4), torch.zeros(30, 4), keys < 5)
    before = variable.lookup_slot("accumulator", np.arange(100))[:, 0]
    device.start()
    variable.apply_gradients(keys, torch.ones(30, 4))
    assert device.waits > 0
    after = variable.lookup_slot("accumulator", np.arange(100))[:, 0]
    assert np.flatnonzero(after != before).tolist() == keys.tolist()


def test_the_memory_of_the_last_keys_is_nobody_elses_though_their_tensor_was_given_other(counted: Any) -> None:
    memory = np.arange(30)
    alive = weakref.ref(memory)
    keys = torch.from_numpy(memory)
    del memory
    counted[1].lookup(keys)
    keys.data = torch.arange(30)
    assert alive() is not None
    counted[1].lookup(keys)
    assert alive() is None


def test_what_does_not_fit_is_refused(stores: Any) -> None:
    module = both(stores, lambda **how: kt.Embedding("rows", dim=4, key_dtype="int32", **how))[1]
    with pytest.raises(TypeError, match="keys must be int32, got int64, which would lose information"):
        module(IDS[0])
    module(IDS[0].int())
    variable = module.variable
    with pytest.raises(TypeError, match=r"got a tensor that requires gradients; pass keys\.detach"):
        variable.lookup(torch.ones(3, requires_grad=True))
    with pytest.raises(TypeError, match="keys must be int32, got int64: arrays on a GPU are not converted"):
        variable.lookup(IDS[0])
    with pytest.raises(ValueError, match=r"keys must be C-contiguous on a GPU; pass .* or keys.contiguous"):
        variable.lookup(IDS[0].int().T)
    with pytest.raises(TypeError, match="the hot rows of variable 'rows' are in the host's memory: pass arrays in the"):
        stores[0].get_variable("rows").lookup(IDS[0])


@pytest.mark.usefixtures("_tensors_on_gpu")
def test_the_benchmark_beside_pytorchs_own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(training, "gpu_of_torch", lambda device: torch.device("cpu"))
    lines = list(training.measure("gpu:0", 300, 8, 256, 2, 2, tmp_path))
    assert [(line.bar, line.peer_name.partition(",")[0]) for line in lines] == [
        ("ratio ≥ 1.5", "torch.nn.EmbeddingBag"),
        ("", "dynamicemb's published 2.19 ms"),
    ]


def test_without_a_gpu_of_pytorch_the_benchmark_leaves_it_out(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch has a GPU")
    assert list(training.measure("gpu:0", 300, 8, 256, 2, 2, tmp_path)) == []
