"""Backends by name: the existing ones, the error for a missing one, and the accepted names of devices."""

from __future__ import annotations

import signal
import sys

import pytest

from kvemb import registry
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        *(("cpu", "cpu"), ("CPU", "cpu"), ("cpu:3", "cpu"), ("/CPU:0", "cpu"), ("/device:CPU:0", "cpu")),
        *(("gpu", "gpu:0"), ("gpu:1", "gpu:1"), ("cuda:02", "gpu:2"), ("/device:GPU:1", "gpu:1")),
    ],
)
def test_devices_are_spelled_as_elsewhere(spec, device):
    assert registry.parse_device(spec) == device


@pytest.mark.parametrize("spec", ["", "tpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1:2", "//cpu", "/job:a/cpu:0"])
def test_other_text_is_no_device(spec):
    with pytest.raises(ValueError, match="a device must be 'cpu', 'gpu:N' or TensorFlow's '/GPU:N', got"):
        registry.parse_device(spec)


def test_a_device_of_another_machine_is_refused_with_what_places_rows_there():
    with pytest.raises(ValueError, match=r"got '/job:ps/replica:0/task:0/CPU:0'; kvemb\.cluster places rows on"):
        registry.parse_device("/job:ps/replica:0/task:0/CPU:0")
    with pytest.raises(ValueError, match=r"got 'tpu'$"):
        registry.parse_device("tpu")


@pytest.mark.parametrize("spec", [0, None, b"cpu", ["cpu"]], ids=repr)
def test_a_device_is_text(spec):
    with pytest.raises(TypeError, match="a device must be text such as 'cpu', got"):
        registry.parse_device(spec)


def test_a_device_has_the_table_of_its_kind(monkeypatch):
    assert registry.hot_table("gpu:1").__name__ == "CudaTable"
    monkeypatch.setitem(registry.hot_backends, "gpu", "device_table:DeviceTable")
    assert registry.hot_table("gpu:1").__name__ == "DeviceTable"
    assert registry.hot_table("cpu").__name__ == "CpuTable"


def test_a_package_that_is_missing_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kvemb.backends.memory_store", None)
    with pytest.raises(BackendUnavailable, match="memory_store:MemoryStore cannot be loaded: ") as told:
        registry.cold_backend("memory")
    assert str(told.value).endswith(f"; install it again: {pip_install()}")
    assert isinstance(told.value.__cause__, ImportError)
    with pytest.raises(KeyError):
        registry.cold_backend("nothing")


def test_ctrl_c_waits_until_a_backend_is_imported(monkeypatch, tmp_path):
    (tmp_path / "late_backend.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nclass Table: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.hot_backends, "gpu", "late_backend:Table")
    with pytest.raises(KeyboardInterrupt):
        registry.hot_table("gpu:0")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.modules.pop("late_backend").Table


def test_cold_backends_have_the_names_of_their_kind():
    assert [registry.cold_backend(name).__name__ for name in ("rocks", "memory")] == ["RocksDatabase", "MemoryStore"]
