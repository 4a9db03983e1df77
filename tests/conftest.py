"""Stores for tests: each in its own directory, with its invariants checked at teardown.

The directories are in memory if there is room, which saves a third of the time; TMPDIR=/tmp puts them on a disk.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import kvemb
from kvemb.defaults import DEFAULTS
from kvemb.limits import Limits

BUDGET = "8MiB"
Opener = Callable[..., kvemb.Store]
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 << 30
TESTS = Path(__file__).parent
PYTORCH, KERAS = TESTS / "pytorch", TESTS / "keras3"


def pytest_configure(config: pytest.Config) -> None:
    """Make tests and their processes use a filesystem in memory; no test fails because the machine is busy.

    PyTorch's threads sleep while they wait: they would spin on cores that other tests need.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    examples = 30 if config.option.markexpr.endswith("not slow") else 100
    health = [HealthCheck.too_slow]
    settings.register_profile("kvemb", max_examples=examples, deadline=None, suppress_health_check=health)
    settings.load_profile("kvemb")
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


@cache
def folder_of(path: Path) -> Path | None:
    """Return the folder of tests of a framework that a file is in, None for any other."""
    return next((folder for folder in (PYTORCH, KERAS) if folder in path.parents), None)


@cache
def is_installed(module: str) -> bool:
    """Whether a module can be imported; its parents may be missing as well."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def combined(case: Any) -> set[tuple[Any, ...]]:
    """The combinations of values of which a case is one: all pairs, or each value where a test has `independent`."""
    values = [(name, id(value)) for name, value in case.callspec.params.items()]
    return set(combinations(values, 1 if case.get_closest_marker("independent") else 2))


def cases_of_every_day(cases: list[Any]) -> list[Any]:
    """Choose a few cases of a test, in which each combination is."""
    of_case = [combined(case) for case in cases]
    chosen, lacking = [], set().union(*of_case)
    while lacking:
        at = max(range(len(cases)), key=lambda at: len(of_case[at] & lacking))
        chosen.append(cases[at])
        lacking -= of_case[at]
    return chosen


def mark_other_cases_slow(items: list[pytest.Item]) -> None:
    """Give each test with several parameters a few cases of every day; the others get the marker slow."""
    tests: dict[str, list[Any]] = {}
    for item in items:
        parameters = len(item.callspec.params) if hasattr(item, "callspec") else 0
        if parameters > (1 if item.get_closest_marker("independent") else 2) and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        chosen = cases_of_every_day(cases)
        for case in cases:
            if case not in chosen:
                case.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a package that is not installed; .ci/run selects the same tests, and has all packages."""
    mark_other_cases_slow(items)
    for item in items:
        folder = folder_of(item.path)
        if folder == PYTORCH and item.path.stem != "test_missing":
            item.add_marker(pytest.mark.needs("torch"))
        if folder == KERAS and item.path.stem != "test_missing":
            item.add_marker(pytest.mark.needs("keras"))
            # Keras' variables do not know NumPy 2's argument.
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"))
        for module in (module for mark in item.iter_markers("needs") for module in mark.args):
            if not is_installed(module):
                item.add_marker(pytest.mark.skip(reason=f"{module} is not installed; it is of kvemb[test-all]"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process: what they parse, open or compile for all of them is made once.

    If --dist says something else, that counts.
    """
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def _foreground() -> None:
    """Handle Ctrl-C as in a terminal: pytest-xdist starts processes with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def compile_what_most_tests_call() -> None:
    """Kernels that one process has compiled are found on disk by the others, which wait here meanwhile."""
    with open(__file__) as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with kvemb.open(Path(folder, "store"), memory_budget=BUDGET) as store:
            table = store.get_variable("table", dim=3, hot_rows=16, optimizer=kvemb.optimizers.SGD())
            table.upsert(np.arange(99), np.ones((99, 3), np.float32))
            table.apply_gradients(np.arange(99), table.lookup(np.arange(99)))
            table.remove(np.arange(9))
            store.check()


def tests_have_bytecode() -> bool:
    """Whether pytest has written the bytecode of every file of tests, which has assertions of its own."""
    files = (path for path in TESTS.rglob("test_*.py") if KERAS not in path.parents)
    return all(any(path.parent.glob(f"__pycache__/{path.stem}.*-pytest-*.pyc")) for path in files)


@contextmanager
def bytecode_by_one() -> Iterator[None]:
    """While tests have no bytecode, let one process collect and write it. Another one compiles kernels meanwhile."""
    folder = os.open(TESTS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            compile_what_most_tests_call()
            fcntl.flock(folder, fcntl.LOCK_EX)
        if tests_have_bytecode():
            fcntl.flock(folder, fcntl.LOCK_UN)
        yield
    finally:
        os.close(folder)


@contextmanager
def kept_from_the_collector() -> Iterator[None]:
    """Let the garbage collector ignore what is made in the block: modules and tests, which stay until the end.

    Going through them again and again took a third of the time of all tests. Afterwards it looks for garbage less often
    than by default: a compilation of a kernel makes as many objects as a thousand tests.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Divide what processes of pytest-xdist would all do in a fresh clone: half a minute each, and as long again."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    one_by_one = nullcontext() if alone or sys.dont_write_bytecode or tests_have_bytecode() else bytecode_by_one()
    with kept_from_the_collector():
        with one_by_one:
            collected = yield
        if not alone:
            compile_what_most_tests_call()
    return collected


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of a test's stores: those of the marker `limits`, otherwise the defaults.

    Small slots make many files in level 0 of RocksDB; crowded_files is so large that no checkpoint waits for
    compaction.
    """
    marker = request.node.get_closest_marker("limits")
    return Limits(**({"crowded_files": 10_000, **marker.kwargs} if marker else {}))


@pytest.fixture
def open_store(limits: Limits, tmp_path: Path) -> Iterator[Opener]:
    """kvemb.open with a small budget; checks and closes every opened store at teardown, before tmp_path is deleted."""
    opened: list[kvemb.Store] = []

    def opener(path: Path, **arguments: Any) -> kvemb.Store:
        arguments = {"memory_budget": BUDGET, "limits": limits, **arguments}
        opened.append(kvemb.open(path, **arguments))
        return opened[-1]

    yield opener
    for store in opened:
        if not store.state.closed:
            try:
                if store.state.cause is None:
                    store.check()
            finally:
                store.close()


@pytest.fixture
def store(open_store: Opener, tmp_path: Path) -> kvemb.Store:
    """An empty store, also the path tmp_path / "store"."""
    return open_store(tmp_path / "store")


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints and stores of which tests copy one and damage it (damage.make)."""
    from damage import make

    return make(tmp_path_factory.mktemp("places"))


@pytest.fixture(params=["rocks", "memory", "two devices"])
def make(request: pytest.FixtureRequest, store: kvemb.Store) -> Callable[..., kvemb.Variable]:
    """A function that makes a variable with 16 hot rows, with one of several kinds of cold stores and devices."""
    numbers = iter(range(100))
    kinds = {"memory": {"kv_creator": kvemb.MemoryCreator()}, "two devices": {"devices": ["cpu", "/CPU:0"]}}

    def factory(**arguments: Any) -> kvemb.Variable:
        chosen = {"dim": 3, "hot_rows": 16, **kinds.get(request.param, {}), **arguments}
        return store.get_variable(f"table{next(numbers)}", **chosen)

    return factory


@pytest.fixture
def no_default():
    """No default store except those that the test makes."""
    before, DEFAULTS.stores[:] = DEFAULTS.stores[:], []
    yield
    DEFAULTS.stores[:] = before
