"""A process forked from one that used RocksDB ends with its own status, deletes nothing, and is told that it cannot
write."""

from __future__ import annotations

from pathlib import Path

from programs import run_python

PROGRAM = """
    import gc, os, sys, warnings
    from pathlib import Path
    import kvemb
    from kvemb.durability import cold_databases

    warnings.simplefilter("ignore")  # fork beside threads is what this is about
    database = cold_databases.to_repair_into(Path(sys.argv[1], "rows"))
    child = os.fork()
    if not child:
        database.close()
        del database
        gc.collect()
        try:
            kvemb.open(Path(sys.argv[1], "store"))
        except kvemb.errors.BackendUnavailable as error:
            print(error)
        print("told", flush=True)
        sys.exit(5)  # as a program ends: with the exit handlers of libraries
    status = os.waitpid(child, 0)[1]
    database.close()
    with kvemb.open(Path(sys.argv[1], "store"), memory_budget="8MiB") as store:
        store.get_variable("table", dim=1).upsert([1], [[1.0]])
    print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_closes_nothing_and_opens_nothing_to_write(tmp_path: Path) -> None:
    """Before, it waited forever for RocksDB's threads when it closed or wrote, or ended by SIGSEGV."""
    done = run_python(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    error, *rest = done.stdout.splitlines()
    assert error.startswith("no store can be written in process ")
    assert "start it by spawn, or fork it before a store is opened" in error
    assert rest == ["told", "5"]
