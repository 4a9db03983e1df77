"""Calls by shared memory and by Arrow Flight: the same results, each to who asked for it, and losses that are told."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import callee as callee_module
import numpy as np
import pytest
from callee import HOST, TOKEN
from waiting import wait_until

from kvemb.cluster.data_plane.flight_parts import PART_BYTES
from kvemb.cluster.data_plane.links import Link
from kvemb.cluster.data_plane.unix_peer import SEGMENT_BYTES
from kvemb.cluster.transport import GateClosed, Unanswered
from kvemb.threads.pool import Threads


def test_shared_memory_is_for_one_node_and_flight_for_others(served):
    here, there = served.reach("here"), served.reach("there")
    assert here.startswith("kvemb-")
    assert there.startswith(f"grpc://{HOST}:")
    assert (served.reach("here"), served.reach("elsewhere")) == (here, there), "servers are started once"


def test_values_of_any_size_come_and_go(linked):
    link = linked()
    most = max(SEGMENT_BYTES, 2 * PART_BYTES)
    for nbytes in (0, 1, most - 4096, most + 4097, 3):
        array = np.arange(nbytes, dtype=np.uint8)
        found, number, text = link.call("echo", (array, 7, "text")).result()
        assert (number, text) == (7, "text")
        assert np.array_equal(found, array)
        found += 1  # it is writable, and no one else's
    assert link.call("echo", ()).result() == ()


def test_answers_stay_while_other_calls_run_and_channels_are_used_again(linked, way):
    link = linked()
    kept = [link.call("echo", (np.full(5000, number),)).result() for number in range(8)]
    for _ in range(3):
        futures = [link.call("echo", (np.full(5000, 100 + number),)) for number in range(8)]
        for number, future in enumerate(futures):
            assert (future.result()[0] == 100 + number).all()
        del future, futures
    assert [int(array.min()) for (array,) in kept] == [int(array.max()) for (array,) in kept] == list(range(8))
    del kept
    gc.collect()
    # Each answer in shared memory had a channel of its own; one through Flight was copied, and its channel was free.
    wait_until(lambda: len(link._free) >= (8 if way == "here" else 1))


def test_calls_of_many_threads_get_their_own_answers(linked, callee):
    link = linked()

    def calls(thread):
        for step in range(30):
            array = np.full(1 + 400 * (step % 5), 1000 * thread + step)
            assert np.array_equal(link.call("echo", (array,)).result(60)[0], array)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(calls, range(6)))
    assert len(callee.calls) == 180


def test_a_call_that_takes_long_is_waited_for_and_asked_about(linked, callee):
    link = linked()
    link.call("echo", ()).result()
    future, told = link.call("wait", (5,)), threading.Event()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert not future.done()
    future.add_done_callback(lambda _: told.set())
    callee.waiting.set()
    assert told.wait(60)
    assert future.done()
    assert future.result(0) == (5,)
    assert future.exception() is None


def test_what_a_shard_keeps_of_a_call_does_not_change_with_later_calls(linked, callee):
    link = linked()
    for number in range(5):
        link.call("keep", (np.full(3000, number),)).result()
    for _ in range(5):
        link.call("echo", (np.full(3000, 77),)).result()
    assert [(int(array.min()), int(array.max())) for array in callee.kept] == [(each, each) for each in range(5)]


def test_the_bytes_of_a_call_do_not_change_while_the_rest_of_it_runs(linked, callee, way):
    link = linked()
    assert link.call("accept", (np.full(3000, 1), "accepted")).result() == ("accepted",)
    if way == "here":  # a stream of Flight has one call after the other
        for _ in range(5):
            link.call("echo", (np.full(3000, 77),)).result()
    assert callee.kept == []
    callee.waiting.set()
    wait_until(lambda: callee.kept)
    assert (callee.kept[0] == 1).all()
    for number in range(2, 5):
        link.call("accept", (np.full(3000, number), None)).result()
    wait_until(lambda: len(callee.kept) == 4)
    # Their connections end them in any order; a shard's steps wait for each other.
    assert sorted((int(array.min()), int(array.max())) for array in callee.kept) == [(n, n) for n in range(1, 5)]
    wait_until(lambda: all(channel.ready() for channel in link._free))  # channels are used again


def test_errors_are_raised_as_they_are_or_else_by_their_text(linked):
    link = linked()
    with pytest.raises(ValueError, match="mine"):
        link.call("raise", (ValueError("mine"),)).result()
    assert isinstance(link.call("raise", (TimeoutError("mine"),)).exception(60), TimeoutError)
    with pytest.raises(GateClosed):
        link.call("raise", (GateClosed(),)).result()
    with pytest.raises(RuntimeError, match="Unportable: it failed"):
        link.call("fail", ()).result()
    first, none, last = link.call("errors", ()).result()
    assert (repr(first), none, repr(last)) == ("ValueError('first')", None, "RuntimeError('Unportable: it failed')")


def test_an_answer_that_nobody_asks_for_disturbs_no_later_call(linked, callee):
    link = linked()
    link.call("echo", ()).result()
    link.call("wait", (np.zeros(9),))
    gc.collect()
    callee.waiting.set()
    for number in range(3):
        assert link.call("echo", (number,)).result() == (number,)


SERVER = """
import sys
from callee import HOST, TOKEN, Callee
from kvemb.cluster.data_plane.served import Served
served = Served(Callee(), TOKEN, "here", HOST)
print(served.reach(sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_shard_that_is_killed_answers_nothing_and_one_in_its_place_is_found(served, way):
    tests = str(Path(callee_module.__file__).parent)
    killed = subprocess.Popen(
        [sys.executable, "-c", SERVER, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": tests},
    )
    first = killed.stdout.readline().strip()
    addresses = [first]
    link = Link(lambda: addresses[-1], TOKEN, Threads(8))
    futures = [link.call("echo", (number,)) for number in range(3)]
    assert [future.result(60) for future in futures] == [(0,), (1,), (2,)]
    running = link.call("wait", ())
    killed.kill()
    killed.communicate()
    with pytest.raises(Unanswered, match="has ended"):
        running.result(60)
    with pytest.raises(Unanswered, match="no connection to its process"):
        link.call("echo", (4,)).result(60)
    addresses.append(served.reach(way))
    assert link.call("echo", (5,)).result(60) == (5,)
    link.close()


def test_who_lacks_the_token_gets_no_answer(linked, callee):
    for token in (b"", b"u" * 32, TOKEN + b"t"):
        with pytest.raises(Unanswered, match=r"no connection|has ended"):
            linked(token).call("echo", ()).result(60)
    assert callee.calls == []


def test_a_link_that_was_closed_answers_nothing(linked):
    link = linked()
    link.call("echo", ()).result()
    link.close()
    with pytest.raises(Unanswered, match="closed"):
        link.call("echo", ()).result(60)
