"""Arrays in a GPU's memory: what is known of them, and what is refused. PyTorch's are in tests/pytorch."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays_on_device import OTHER_STREAM, ArrayOnDevice, DlpackOnly, there

from kvemb.rows.device_arrays import (
    DEFAULT_STREAM,
    DeviceArray,
    device_of,
    empty_like,
    in_kind,
    read_array,
    stream_of_tensor,
)

F32 = np.dtype(np.float32)


def interface(data: Any) -> tuple[dict[str, Any], Any]:
    owner = data
    if not hasattr(data, "__cuda_array_interface__"):
        owner = ArrayOnDevice(data.array, stream=data.__dlpack__(stream=1))
    return owner.__cuda_array_interface__, owner


class Interface:
    """An array of a library that has no more than __cuda_array_interface__."""

    def __init__(self, array: Any, **told: Any) -> None:
        self.__cuda_array_interface__ = {**there(array).__cuda_array_interface__, **told}


def read(data: Any, shape: Any = None, dtype: Any = F32, **how: Any) -> DeviceArray:
    return read_array(data, None if dtype is None else np.dtype(dtype), shape, "rows", interface, **how)


def test_it_is_known_which_arrays_are_on_a_gpu():
    for here in (np.ones(3), np.float32(1), [1], (), 3, None, "no", np.ones(2).view(np.recarray)):
        assert device_of(here) is None
    assert device_of(ArrayOnDevice(np.ones(2), gpu=3)) == "gpu:3"
    assert device_of(DlpackOnly(np.ones(2))) == "gpu:0"
    assert device_of(Interface(np.ones(2))) == "gpu"


def test_an_array_is_read_where_it_is():
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = ArrayOnDevice(rows)
    found = read(given, (2, 3))
    assert (found.address, found.shape, found.dtype) == (rows.ctypes.data, (2, 3), F32)
    assert (found.stream, found.owner, found.size, found.row_bytes) == (OTHER_STREAM, given, 6, 12)
    assert found.reshaped(6).row_bytes == 4
    assert found.view_as(np.dtype(np.int32)).dtype == np.int32
    assert read(given, dtype=None).dtype == F32
    assert read(there(np.zeros((0, 3)), F32)).size == 0
    assert read(there(3.0, F32), ()).size == 1


def test_the_stream_is_the_default_one_unless_the_array_says_another():
    rows = np.ones(4, np.float32)
    assert read(Interface(rows, stream=None)).stream == DEFAULT_STREAM
    assert read(Interface(rows, version=2, stream=None)).stream == DEFAULT_STREAM
    assert read(Interface(rows, stream=9)).stream == 9
    given = DlpackOnly(rows)
    assert read(given).stream == 1
    assert given.asked == [1]
    assert read(given).borrowed
    assert not read(there(rows)).borrowed
    assert read(Interface(rows, stream=None)).borrowed, "its library does not know on which stream it is used"


def test_axes_of_one_entry_may_have_any_stride():
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert read(ArrayOnDevice(rows[:1])).shape == (1, 2)
    assert read(Interface(rows[:, :1].copy(), strides=(4, 999))).shape == (4, 1)


@pytest.mark.parametrize(
    ("data", "how", "error", "said"),
    [
        (there([1.0]), {}, TypeError, r"rows must be float32, got float64: .*rows.astype\('float32'\)"),
        (there([1.0], F32), {"shape": (2,)}, ValueError, r"rows must have shape \(2,\), got \(1,\)"),
        (ArrayOnDevice(np.ones((3, 2), F32)[:, :1]), {}, ValueError, "C-contiguous on a GPU; pass cupy.asc"),
        (ArrayOnDevice(np.ones((3, 2), F32).T), {}, ValueError, "C-contiguous"),
        (Interface(np.ones(2, F32), data=(64, True)), {"written": True}, ValueError, "read-only"),
    ],
    ids=["dtype", "shape", "part", "turned", "read-only"],
)
def test_what_does_not_fit_is_refused(data, how, error, said):
    with pytest.raises(error, match=said):
        read(data, **how)


def test_an_answer_is_of_the_library_that_asked():
    def empty(shape: Any, dtype: Any) -> Any:
        return ArrayOnDevice(np.zeros(shape, dtype))

    made = empty_like(DlpackOnly(np.ones(1)), (2, 3), F32, empty)
    assert type(made) is ArrayOnDevice
    assert (made.shape, made.dtype) == ((2, 3), F32)
    assert in_kind(there([1]), made) is in_kind(Interface(np.ones(1)), made) is made
    taken = in_kind(DlpackOnly(np.ones(1)), made)
    assert type(taken) is DlpackOnly
    assert taken.array is made.array


def test_a_call_while_a_cuda_graph_is_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = [False]
    cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=device),
        is_current_stream_capturing=lambda: capturing[0],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert [stream_of_tensor(SimpleNamespace(device=stream)) for stream in (0, 77)] == [DEFAULT_STREAM, 77]
    capturing[0] = True
    with pytest.raises(RuntimeError, match=r"cannot be captured in a CUDA graph.* before and after the graph"):
        stream_of_tensor(SimpleNamespace(device=77))
