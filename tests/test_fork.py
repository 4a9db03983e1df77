"""A process forked from one with an open store gets a clear error, and does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_python

PROGRAM = """
    import os, sys, warnings
    import numpy as np
    import kvemb

    warnings.simplefilter("ignore")  # fork beside threads is what this is about
    path = sys.argv[1]
    with kvemb.open(path, memory_budget="8MiB") as store:
        table = store.get_variable("table", dim=2, optimizer=kvemb.optimizers.SGD())
        keys, rows = np.arange(30_000), np.ones((30_000, 2), np.float32)
        table.upsert(keys, rows)
        child = os.fork()
        if not child:
            calls = {
                "lookup": lambda: table.lookup(keys), "upsert": lambda: table.upsert(keys, rows),
                "prefetch": lambda: table.prefetch(keys), "restrict": lambda: table.clear(),
                "export": lambda: table.export(), "flush": store.flush, "check": store.check,
                "checkpoint": lambda: store.checkpoint(path + ".checkpoint"),
                "get_variable": lambda: store.get_variable("other"), "size": table.size,
                "stats": lambda: table.stats, "all stats": lambda: store.stats,
                "optimizer": lambda: setattr(table, "optimizer", kvemb.optimizers.SGD(0.5)),
            }
            for name, call in calls.items():
                try:
                    call()
                except kvemb.errors.Closed as error:
                    assert "does not survive a fork; open it in this process with follow=True" in str(error)
                else:
                    os._exit(3)
            assert "closed" in repr(table) and "closed" in repr(store)
            with kvemb.open(path, follow=True) as reader:
                assert reader.variables == {}
            store.close()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert (table.lookup(keys) == 1).all()
        store.check()
    with kvemb.open(path, memory_budget="8MiB") as store:
        assert store.recovery is None
        assert store.variables["table"].size() == 30_000
    print("sound")
"""


OF_A_CLUSTER = """
    import os, sys, warnings
    from concurrent.futures import Future
    import kvemb.cluster
    from kvemb.durability.checkpointer import PendingCheckpoint

    warnings.simplefilter("ignore")
    pending, now = PendingCheckpoint(Future()), {"wait_seconds": 0}
    with kvemb.cluster.open(sys.argv[1], shards=1, transport="local", memory_budget="8MiB") as cluster:
        table = cluster.get_variable("table", dim=1)
        table.upsert([1], [[1.0]])
        child = os.fork()
        if not child:
            calls = {
                "its clients do not survive a fork; start workers by spawn": lambda: table.lookup([1]),
                "in this process within": lambda: kvemb.cluster.connect(sys.argv[1], transport="local", **now),
                "checkpoint is being written by process": pending.result,
                "wait for it there": pending.done,
            }
            for text, call in calls.items():
                try:
                    call()
                except (kvemb.errors.Closed, kvemb.errors.BackendUnavailable) as error:
                    assert text in str(error), error
                else:
                    os._exit(3)
            assert "being written" in repr(pending)
            cluster.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not pending.done()
        assert (table.lookup([1]) == 1).all()
    print("sound")
"""


@pytest.mark.slow
def test_a_forked_client_of_a_cluster_and_a_pending_checkpoint_do_not_wait_forever(tmp_path: Path) -> None:
    """They waited for the parent's threads."""
    done = run_python(OF_A_CLUSTER, tmp_path / "cluster")
    assert (done.stdout, done.returncode) == ("sound\n", 0), done.stderr


@pytest.mark.slow
def test_a_worker_that_was_forked_is_told_and_harms_nothing(tmp_path: Path) -> None:
    done = run_python(PROGRAM, tmp_path / "store")
    assert (done.stdout, done.returncode) == ("sound\n", 0), done.stderr
