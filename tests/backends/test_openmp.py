"""PyTorch's OpenMP threads: when they are used, and that they change no bit of a result."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

import numpy as np
import pytest

import kvemb
from kvemb.backends import openmp
from kvemb.backends.cpu_threads import in_parts, part_count, run_parts
from kvemb.backends.intrinsics import next_number

KEYS = 40_000  # in a batch: enough for all threads, also when equal ones are counted once


@pytest.fixture
def torch():
    """PyTorch with two threads, of an OpenMP that kvemb can use."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    if not openmp.team():
        pytest.skip("this PyTorch has no libgomp of its own")
    yield torch
    torch.set_num_threads(before)


def elsewhere(call):
    """Return the result of a call on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_without_pytorch_there_is_no_team(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert openmp.team() == 0
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))  # as it is while it is imported
    assert openmp.team() == 0


def test_a_pytorch_without_libgomp_has_no_team(tmp_path):
    (tmp_path / "lib").mkdir()
    assert openmp._library(str(tmp_path / "__init__.py")) is None
    (tmp_path / "lib" / "libgomp.so.1").write_bytes(b"")  # not a library, or one that is not loaded
    assert openmp._library(str(tmp_path / "__init__.py")) is None


@pytest.mark.needs("torch")
def test_the_team_is_for_the_main_thread_outside_of_parallel_regions(torch):
    inside = []
    on_thread = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    address = openmp.team()
    parallel = ctypes.CFUNCTYPE(None, on_thread, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(address)
    parallel(on_thread(lambda data: inside.append(openmp.team())), None, 0, 0)
    assert inside == [0, 0]
    assert elsewhere(openmp.team) == 0
    torch.set_num_threads(1)
    assert openmp.team() == 0
    torch.set_num_threads(2)
    assert openmp.team() == address


def wait_at_gate(number, arguments):
    gate, begun, taken = arguments
    next_number(begun)
    while next_number(gate) < 0:
        pass
    taken[number] += 1


wait_in_parts = in_parts(wait_at_gate)


@pytest.mark.needs("torch")
def test_all_parts_have_ended_when_ctrl_c_is_raised(torch):
    gate, begun, taken = np.array([-(2**62)]), np.zeros(1, np.int64), np.zeros(part_count(), np.int64)

    def interrupt():
        while begun[0] < 2:  # two threads are in their first parts
            pass
        os.kill(os.getpid(), signal.SIGINT)
        gate[0] = 0

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_parts(wait_in_parts, gate, begun, taken)
    thread.join()
    assert taken.tolist() == [1] * part_count()


def set_part(number, arguments):
    arguments[0][number] = 1


set_in_parts = in_parts(set_part)


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(torch):
    run_parts(set_in_parts, np.zeros(part_count()))
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        taken = np.zeros(part_count())
        run_parts(set_in_parts, taken)
        os._exit(0 if taken.all() and not openmp.team() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.needs("torch")
def test_both_kinds_of_threads_give_the_same_bits(torch, tmp_path, monkeypatch):
    """Every call that is split over the cores, with keys that are missing and keys that occur twice."""
    team, address = openmp.team, openmp.team()

    def results(name, use_team):
        used = []
        monkeypatch.setattr(openmp, "team", lambda: used.append(team()) or used[-1] if use_team else 0)
        draw = np.random.default_rng(7)
        with kvemb.open(tmp_path / name, memory_budget="64MiB") as store:
            policy, optimizer = kvemb.FrequencyRestrictPolicy(), kvemb.optimizers.Adagrad()
            table = store.get_variable("rows", dim=8, init_size=2 * KEYS, restrict_policy=policy, optimizer=optimizer)
            keys = draw.integers(0, KEYS, (4, KEYS))
            table.upsert(keys[0], draw.random((KEYS, 8), np.float32))
            table.apply_gradients(keys[1], draw.random((KEYS, 8), np.float32))
            found = [table.lookup(keys[2]), table.lookup(keys[3], touch=False)]
            bags = kvemb.embedding_lookup_sparse(table, keys[2], np.arange(0, KEYS, 7), combiner="mean")
            found += [bags.values, bags.row_gradients(draw.random(bags.shape, np.float32))[1]]
            every, values, slots, scores = table.export(with_slots=True, with_scores=True)
            found += [each[np.argsort(every)] for each in (every, values, *slots.values(), scores)]
        return found, used

    theirs, used = results("theirs", use_team=True)
    mine, _ = results("mine", use_team=False)
    assert len(used) > 6
    assert set(used) == {address}
    for left, right in zip(theirs, mine, strict=True):
        np.testing.assert_array_equal(left, right)
