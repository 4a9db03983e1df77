"""Kernels are compiled with our options alone, and kept on disk."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import kvemb
from kvemb.backends.cuda.compiler import binary_of
from kvemb.backends.cuda.cupy_device import OUT_OF_MEMORY
from kvemb.backends.cuda.source import OPTIONS


class Refused(Exception):
    """NVRTC's error."""


class Nvrtc:
    """CuPy's binding of a compiler whose programs are their own source and options."""

    NVRTCError = Refused

    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.getVersion = lambda: version
        self.createProgram, self.compileProgram, self.destroyProgram = self.create, self.compile, self.destroy
        self.getProgramLog, self.getCUBIN = self.log, self.binary
        self.programs: list[tuple[str, tuple[str, ...]]] = []
        self.destroyed = 0

    def create(self, source, name, headers, include_names):
        self.programs.append((source, ()))
        return len(self.programs)

    def compile(self, program, options):
        source, _ = self.programs[program - 1]
        if "wrong" in source:
            raise Refused("NVRTC_ERROR_COMPILATION")
        self.programs[program - 1] = source, options

    def log(self, program):
        return "kvemb.cu(1): error: what is that"

    def binary(self, program):
        return repr(self.programs[program - 1]).encode()

    def destroy(self, program):
        self.destroyed += 1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where programs are kept."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "kvemb"


def test_no_option_is_added_but_the_gpu_and_a_program_is_compiled_once(folder):
    nvrtc = Nvrtc()
    made = binary_of(nvrtc, "source", "90")
    assert made == repr(("source", (*OPTIONS, "--gpu-architecture=sm_90"))).encode()
    assert binary_of(nvrtc, "source", "90") == made
    assert (len(nvrtc.programs), nvrtc.destroyed) == (1, 1)
    (kept,) = folder.glob("*/*")
    assert kept.parent.name == f"{kvemb.__version__}-nvrtc-13.0-sm_90"


def test_another_source_gpu_or_compiler_is_another_program():
    nvrtc = Nvrtc()
    made = {binary_of(nvrtc, source, gpu) for source, gpu in [("a", "80"), ("a", "90"), ("b", "90")]}
    assert len(made) == len(nvrtc.programs) == 3
    binary_of(newer := Nvrtc((13, 1)), "a", "80")
    assert len(newer.programs) == 1


def test_the_compilers_messages_are_raised():
    nvrtc = Nvrtc()
    with pytest.raises(RuntimeError, match=r"NVRTC_ERROR_COMPILATION: kvemb.cu\(1\): error: what is that"):
        binary_of(nvrtc, "wrong", "90")
    assert nvrtc.destroyed == 1


@pytest.mark.needs("cupy")
def test_cupys_compiler_makes_a_program_without_a_gpu_that_keeps_subnormal_floats():
    import cupy

    source = 'extern "C" __global__ void scale(float* a) { a[0] = a[0] * a[1] + a[2] / a[3]; }'
    assert binary_of(cupy.cuda.nvrtc, source, "90").startswith(b"\x7fELF")
    program = cupy.cuda.nvrtc.createProgram(source, "kvemb.cu", (), ())
    cupy.cuda.nvrtc.compileProgram(program, (*OPTIONS, "--gpu-architecture=compute_90"))
    text = cupy.cuda.nvrtc.getPTX(program).decode()
    assert "mul.f32" in text or "mul.rn.f32" in text
    assert ".ftz" not in text


@pytest.mark.needs("cupy")
def test_what_is_asked_of_cupy_is_there():
    """CuPy can be imported without a GPU, and its compiled classes say their arguments in their documentation."""
    import cupy

    cuda = cupy.cuda
    says = {
        cuda.Memory: "Memory(size_t size)",
        cuda.PinnedMemoryPointer: "PinnedMemoryPointer(mem, ptrdiff_t offset)",
        cuda.UnownedMemory: "UnownedMemory(intptr_t ptr, size_t size, owner, int device_id=-1)",
        cuda.MemoryPointer: "MemoryPointer(BaseMemory mem, ptrdiff_t offset)",
        cuda.get_elapsed_time: "get_elapsed_time(start_event, end_event)",
        cuda.Device: "Device(device=None)",
        cuda.runtime.getDeviceProperties: "getDeviceProperties(int device)",
        cuda.runtime.deviceGetAttribute: "deviceGetAttribute(int attrib, int device)",
        cuda.runtime.memcpyAsync: "memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)",
        cuda.runtime.memsetAsync: "memsetAsync(intptr_t ptr, int value, size_t size, intptr_t stream)",
        cuda.runtime.getDeviceCount: "getDeviceCount()",
        cuda.function.Module.load: "Module.load(self, bytes cubin)",
        cuda.function.Module.get_function: "Module.get_function(self, name)",
        cuda.nvrtc.createProgram: "createProgram(str src, str name, headers, include_names)",
        cuda.nvrtc.compileProgram: "compileProgram(intptr_t prog, options)",
        cuda.nvrtc.getCUBIN: "getCUBIN(intptr_t prog)",
        cuda.nvrtc.getProgramLog: "getProgramLog(intptr_t prog)",
        cuda.nvrtc.destroyProgram: "destroyProgram(intptr_t prog)",
        cuda.nvrtc.getVersion: "getVersion()",
        cuda.PinnedMemory.__init__: "PinnedMemory.__init__(self, size_t size, unsigned int flags=0)",
        cuda.Event.__init__: "Event.__init__(self, block=False, disable_timing=False, interprocess=False)",
        cuda.Event.record: "Event.record(self, stream=None)",
        cuda.Event.synchronize: "Event.synchronize(self)",
        cuda.Stream.__init__: "Stream.__init__(self, null=False, non_blocking=False, ptds=False, priority=None)",
        cuda.Stream.wait_event: "_BaseStream.wait_event(self, event)",
        cuda.Stream.from_external: "Stream.from_external(cls, obj)",
    }
    for what, said in says.items():
        assert (what.__doc__ or "").split("\n")[0].partition(" ->")[0] == said
    assert issubclass(cuda.runtime.CUDARuntimeError, Exception)
    assert issubclass(cuda.nvrtc.NVRTCError, RuntimeError)
    numbers = {"memcpyHostToDevice": 1, "memcpyDeviceToHost": 2, "memcpyDeviceToDevice": 3, "hostAllocPortable": 1}
    assert {name: getattr(cuda.runtime, name) for name in numbers} == numbers
    assert {"mem_info", "compute_capability", "id"} <= set(dir(cuda.Device))
    assert cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, 77))).ptr == 77
    assert cuda.runtime.CUDARuntimeError(OUT_OF_MEMORY).status == OUT_OF_MEMORY
    held = np.arange(64, dtype=np.uint8)
    pinned = cuda.PinnedMemoryPointer(SimpleNamespace(ptr=held.ctypes.data, size=64), 0)
    np.frombuffer(pinned, np.uint8, 64)[0] = 9
    assert held[0] == 9
    memory = cuda.UnownedMemory(512, 80, None, 0)
    assert cuda.MemoryPointer(memory, 16).ptr == 528
    with cuda.using_allocator(lambda nbytes: cuda.MemoryPointer(memory, 0)):
        assert cuda.alloc(8).ptr == 512
