"""Threads in native code when the program ends: they are waited for, and no other enters."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from kvemb.threads import native
from kvemb.threads.native import end_native_code, native_code

# Daemon threads read cold rows, which is in rocksdict without the GIL, until the interpreter ends.
PROGRAM = """
import sys, threading, time, numpy as np, kvemb
table = kvemb.open(sys.argv[1], memory_budget="8MiB").get_variable("table", dim=8, hot_rows=100)
table.upsert(np.arange(50_000), np.ones((50_000, 8), np.float32))

def look_up():
    while True:
        try:
            table.lookup(np.random.randint(0, 50_000, 400), touch=False)
        except Exception:
            pass

for _ in range(4):
    threading.Thread(target=look_up, daemon=True).start()
time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def _going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_ended", [False])


def test_the_end_waits_for_a_thread_in_native_code_and_lets_no_other_in() -> None:
    inside, go, refused = threading.Event(), threading.Event(), []

    def call() -> None:
        with native_code(), native_code():
            inside.set()
            go.wait()
        try:
            with native_code():
                pass
        except SystemExit:
            refused.append(True)

    thread, ending = threading.Thread(target=call), threading.Thread(target=end_native_code)
    thread.start()
    inside.wait()
    ending.start()
    wait_until(lambda: native._ended[0])
    assert ending.is_alive()
    go.set()
    ending.join()
    thread.join()
    assert refused == [True]
    with native_code():  # the main thread may still close stores
        pass


@pytest.mark.slow
def test_daemon_threads_do_not_abort_a_program_that_ends(tmp_path: Path) -> None:
    for turn in range(2):
        run = [sys.executable, "-c", PROGRAM, str(tmp_path / str(turn))]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
