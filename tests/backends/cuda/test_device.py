"""Opening a GPU that is there or not; on a machine with one, what the hot table asks of it."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_devices import DEVICES, device_of
from cuda_on_cpu import CpuDevice

from kvemb.backends.cuda.cupy_device import OUT_OF_MEMORY, CupyDevice, open_device
from kvemb.backends.cuda.device import Workspace, sorting_bytes
from kvemb.backends.cuda.table import CudaTable
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install

KERNEL = """
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
typedef long long i64;
KERNEL scale(const i64* given, i64 n, double by, float more, i64* out) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    out[i] = (i64)(given[i] * by + more);
}
"""


@pytest.fixture(params=DEVICES)
def device(request):
    """Each implementation of Device that this machine has."""
    return device_of(request.param)


class NoDriver(Exception):
    """What CuPy raises."""


def cupy_with(count: int | None) -> SimpleNamespace:
    """What of CuPy is asked first, without a compiler. count: of GPUs; None: there is no driver."""

    def counted() -> int:
        if count is None:
            raise NoDriver("the driver is missing")
        return count

    def version() -> tuple[int, int]:
        raise RuntimeError("no such file: libnvrtc.so.13")

    runtime = SimpleNamespace(getDeviceCount=counted, CUDARuntimeError=NoDriver)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=version)))


INSTALL = re.escape(f"{pip_install('gpu')} (CUDA 13) or the extra gpu-cuda12; or use devices=None")


@pytest.mark.parametrize(
    ("cupy", "said"),
    [
        (None, f"install CuPy: {INSTALL}"),
        (cupy_with(None), "the driver is missing; install NVIDIA's driver, or use devices=None"),
        (cupy_with(3), "this machine has 3 GPUs; use devices=None"),
        (cupy_with(98), f"no such file: libnvrtc.so.13; install CUDA's run-time compiler: {INSTALL}"),
    ],
    ids=["no CuPy", "no driver", "too few", "no compiler"],
)
def test_a_gpu_that_is_not_there_is_told_with_what_to_install(monkeypatch, cupy, said):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for ask in (open_device, CudaTable.memory):
        with pytest.raises(BackendUnavailable, match=rf"device 'gpu:97' is not available: .*{said}$"):
            ask("gpu:97")


def downloaded(device, address, count):
    """Numbers from a device, once its default stream has brought them."""
    pinned, event = device.pinned(8 * count), device.event()
    device.download(pinned, address, 1)
    device.record(event, 1)
    device.finish(event)
    return pinned.view(np.int64)


def test_memory_is_copied_there_and_back_and_on_the_device(device):
    given = np.arange(1000)
    memory = device.allocate(8000)
    assert memory.address % 256 == 0
    device.upload(memory.address, given, 1)
    got = downloaded(device, memory.address + 4000, 500)
    assert got.tolist() == given[500:].tolist()
    device.copy(memory.address + 4000, memory.address, 4000, 1)
    assert downloaded(device, memory.address + 4000, 500).tolist() == given[:500].tolist()
    assert device.memory_bytes() > 8000


def workspace_for(device, count):
    """A workspace for sorting, and what keeps it."""
    memory = device.allocate(sorting_bytes(count))
    return Workspace(memory.address, sorting_bytes(count)), memory


def test_numbers_are_sorted_stably_and_in_place(device):
    numbers = np.random.default_rng(0).integers(-3, 3, 5000)
    memory = device.allocate(2 * numbers.nbytes)
    device.upload(memory.address, numbers, 1)
    workspace, _kept = workspace_for(device, len(numbers))
    device.order(memory.address, len(numbers), memory.address + numbers.nbytes, workspace, 1)
    got = downloaded(device, memory.address + numbers.nbytes, len(numbers))
    assert got.tolist() == np.argsort(numbers, kind="stable").tolist()
    numbers = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, 5000)
    device.upload(memory.address, numbers, 1)
    device.sort(memory.address, len(numbers), workspace, 1)
    assert downloaded(device, memory.address, len(numbers)).tolist() == sorted(numbers.tolist())


def test_a_kernel_gets_its_arguments(device):
    memory = device.allocate(1600)
    device.upload(memory.address, np.arange(100), 1)
    run = device.load(KERNEL)
    assert device.load(KERNEL) is run
    run(1, "scale", 100, memory.address, 100, 3.0, np.float32(0.5), memory.address + 800)
    got = downloaded(device, memory.address + 800, 100)
    assert got.tolist() == [3 * number for number in range(100)]


def test_more_memory_than_there_is_is_a_memory_error(device):
    if isinstance(device, CpuDevice):
        pytest.skip("does not apply: a CPU's memory is not what is tested here")
    with pytest.raises(MemoryError):
        device.allocate(1 << 50)


@pytest.mark.parametrize("freed", [True, False])
def test_memory_that_pytorch_keeps_for_later_is_had_before_there_is_none(monkeypatch, freed):
    left, emptied = [0], []

    class NoMemory(Exception):
        status = OUT_OF_MEMORY

    class Memory(int):
        def __init__(self, nbytes):
            if nbytes > left[0]:
                raise NoMemory

    def empty_cache():
        emptied.append(1)
        left[0] = 1000 if freed else 100

    cuda = SimpleNamespace(
        Device=lambda number: nullcontext(),
        Memory=Memory,
        runtime=SimpleNamespace(CUDARuntimeError=NoMemory),
    )
    cupy = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None))
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, empty_cache=empty_cache))
    monkeypatch.setitem(sys.modules, "torch", torch)
    device = CupyDevice(cupy, 0)
    device._device.id = 0
    if freed:
        assert device.allocate(1000).address == 1000
    else:
        with pytest.raises(MemoryError, match="gpu:0 has less than 1000 B left"):
            device.allocate(1000)
    assert emptied == [1]


def test_cupy_sorts_in_the_workspace_that_it_is_given_and_takes_the_rest_from_its_pool():
    pieces, allocators = [], []

    @contextmanager
    def using_allocator(allocator):
        allocators.append(allocator)
        yield
        allocators.pop()

    def argsort(numbers):
        pieces.extend(allocators[-1](nbytes) for nbytes in (100, 512, 513, 1))
        return SimpleNamespace(data=SimpleNamespace(ptr=np.argsort(numbers)))

    def copy(to, source, nbytes, kind, stream):
        arrays[to][:] = source
        assert (nbytes, stream, len(allocators)) == (24, 1, 1)

    def stream_of(external):
        stream = nullcontext()
        stream.ptr = external.__cuda_stream__()[1]
        return stream

    cuda = SimpleNamespace(
        Device=lambda number: nullcontext(),
        Stream=SimpleNamespace(from_external=stream_of),
        UnownedMemory=lambda address, nbytes, owner, number: (address, nbytes),
        MemoryPointer=lambda memory, offset: memory,
        using_allocator=using_allocator,
        runtime=SimpleNamespace(memcpyAsync=copy, memcpyDeviceToDevice=3),
    )
    pool = SimpleNamespace(malloc=lambda nbytes: ("pool", nbytes))
    cupy = SimpleNamespace(cuda=cuda, argsort=argsort, get_default_memory_pool=lambda: pool)
    device = CupyDevice(cupy, 0)
    device._device.id = 0
    arrays = {1: np.array([3, 1, 2]), 2: np.empty(3, np.int64)}
    device._view = lambda address, count: arrays[address]
    device.order(1, 3, 2, Workspace(1 << 20, 2048), 1)
    assert arrays[2].tolist() == [1, 2, 0]
    assert pieces == [(1 << 20, 100), ((1 << 20) + 512, 512), ((1 << 20) + 1024, 513), ("pool", 1)]
    assert not allocators


@pytest.mark.parametrize("stream", [1, 2, 77])
def test_kernels_and_copies_are_on_the_stream_that_is_named_whatever_cupy_takes_for_the_default_one(
    monkeypatch, stream
):
    """CuPy's Stream.null has the handle 0, for which it may take a thread's own stream where it launches."""
    used = []

    def launch(grid, block, arguments, stream):
        used.append(stream.ptr)

    def device_of_number(number):
        made = nullcontext()
        made.compute_capability = "90"
        return made

    module = SimpleNamespace(load=lambda binary: None, get_function=lambda name: launch)
    cuda = SimpleNamespace(
        Device=device_of_number,
        nvrtc=None,
        function=SimpleNamespace(Module=lambda: module),
        Stream=SimpleNamespace(from_external=lambda made: SimpleNamespace(ptr=made.__cuda_stream__()[1])),
        runtime=SimpleNamespace(memsetAsync=lambda address, value, nbytes, ptr: used.append(ptr)),
    )
    monkeypatch.setattr("kvemb.backends.cuda.cupy_device.binary_of", lambda nvrtc, source, architecture: b"")
    device = CupyDevice(SimpleNamespace(cuda=cuda), 0)
    device.load(KERNEL)(stream, "scale", 1)
    device.zero(0, 8, stream)
    assert used == [stream, stream]


@pytest.mark.parametrize(("name", "stays"), [("kvemb-write_0", True), ("a caller's", False)])
def test_a_thread_of_kvemb_stays_on_its_first_gpu_and_a_callers_returns_to_the_one_before(name, stays):
    """A context of CUDA takes hundreds of MB on each GPU to which a thread returns, GPU 0 at first."""
    now, contexts = [0], set()

    def set_device(number):
        now[0] = number
        contexts.add(number)

    class Gpu:
        def __init__(self, number):
            self.id, self.before = number, []

        def use(self):
            set_device(self.id)

        def __enter__(self):
            self.before.append(now[0])
            if now[0] != self.id:
                set_device(self.id)

        def __exit__(self, *error):
            set_device(self.before.pop())

    cuda = SimpleNamespace(Device=Gpu, runtime=None, Event=lambda disable_timing: now[0])
    device, made = CupyDevice(SimpleNamespace(cuda=cuda), 3), []
    thread = threading.Thread(target=lambda: made.extend(device.event() for _ in range(3)), name=name)
    thread.start()
    thread.join()
    assert made == [3, 3, 3]
    assert (now[0], contexts) == ((3, {3}) if stays else (0, {0, 3}))


def test_a_device_tells_the_time_between_timed_events(device):
    start, middle, end = (device.event(timed=True) for _ in range(3))
    memory = device.allocate(1 << 20)
    device.record(start, 1)
    device.zero(memory.address, 1 << 20, 1)
    device.record(middle, 1)
    device.zero(memory.address, 1 << 20, 1)
    device.record(end, 1)
    first, both = device.seconds(start, middle), device.seconds(start, end)
    assert 0 < first < both
    assert first + device.seconds(middle, end) == pytest.approx(both, rel=0.1, abs=1e-5)
    assert device.bytes_per_second() > 0


def test_a_stream_waits_for_what_another_one_does(device):
    memory, (one, other), event = device.allocate(1 << 20), (device.stream(), device.stream()), device.event()
    device.zero(memory.address, 1 << 20, one)
    device.upload(memory.address, np.arange(1000), one)
    device.record(event, one)
    device.wait(other, event)
    workspace, _kept = workspace_for(device, 1000)
    device.order(memory.address, 1000, memory.address + 8000, workspace, other)
    device.record(event, other)
    device.wait(1, event)
    assert downloaded(device, memory.address + 8000, 1000).tolist() == list(range(1000))
    assert not downloaded(device, memory.address + 16000, 1000).any()
