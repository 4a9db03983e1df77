"""Plants faults into a copy of the Python core, one at a time, and shows that the tests find each.

python tests/planted_faults.py runs the tests that planted_faults_table.py names for each fault, prints what became of
it, and exits with 1 if one is not found. --quick runs only the tests of every day, and shows which faults wait for the
slow ones. The checkout is not written to. A fault is

    found        a test failed; the table names the first one
    hung         the run was ended after --limit seconds, as expected of this fault: found, too
    not found    all tests passed: a test is missing
    not planted  the text to replace is missing or ambiguous, or a test file is missing: correct the table
    no result    the tests did not run, or not on the copy, or had no end
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from planted_faults_table import FAULTS, Fault

# The folders of a checkout, and where they are in the package.
FOLDERS = {"kvemb": "kvemb", "backends": "kvemb/backends", "tools": "kvemb/tools"}
# A filesystem in memory, and how many bytes it must have free (tests/conftest.py).
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 << 30
LIMIT_SECONDS = 300
FOUND = ("found", "hung")

# Histories long enough to meet every planted fault.
LONGER = {"KVEMB_EXAMPLES": "6", "KVEMB_FAULTS": "4", "KVEMB_OFFSETS": "2", "KVEMB_SEEDS": "4"}
LONGER |= {"KVEMB_MARK_HISTORIES": "6"}

# Runs pytest, then checks that all of kvemb was imported from the copy. Threads that a fault has stopped do not matter.
ELSEWHERE = 99
RUN = f"""
import os, sys, pytest
code = pytest.main(sys.argv[2:])
modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "kvemb"]
copied = all((module.__file__ or "").startswith(sys.argv[1]) for module in modules)
sys.stdout.flush()
sys.stderr.flush()
os._exit(code if modules and copied else {ELSEWHERE})
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a fault. by: the first test that failed, or why there is no result."""

    title: str
    file: str
    outcome: str
    by: str
    seconds: float


class Copy:
    """A copy of a checkout, its three folders joined as in the installed package, in which faults are planted.

    It stays at one path, so kernels are compiled once. slow: whether slow tests run. limit: seconds of a run.
    """

    def __init__(self, checkout: Path, work: Path, *, slow: bool, limit: float) -> None:
        self.path, self._work, self._slow, self._limit = work / "copy", work, slow, limit
        ignored = shutil.ignore_patterns("__pycache__")
        for folder, place in {**FOLDERS, "tests": "tests"}.items():
            shutil.copytree(checkout / folder, self.path / place, ignore=ignored)
        for file in (checkout / "pyproject.toml", *checkout.glob("*.md")):
            shutil.copy(file, self.path)
        # A changed file must not be taken for the compiled one: the times of changes are too coarse for that.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.path / "kvemb", quiet=2, invalidation_mode=mode)

    def outcome_of(self, fault: Fault) -> Outcome:
        """Plant a fault, run its tests, and take it out again."""
        begun = time.monotonic()
        source = self.path / fault.file
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        missing = [test for test in fault.tests if not (self.path / "tests" / test).is_file()]
        if (count := text.count(fault.right)) != 1 or missing:
            why = f"there is no tests/{missing[0]}" if missing else f"the text occurs {count} times"
            return Outcome(fault.title, fault.file, "not planted", why, 0.0)
        source.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
        try:
            outcome, by = self._tried(fault)
        finally:
            source.write_text(text, encoding="utf-8")
        return Outcome(fault.title, fault.file, outcome, by, round(time.monotonic() - begun, 1))

    def failures(self, tests: list[str]) -> str:
        """Run tests without a fault; returns the first failure, "" if there is none."""
        code, output = self._run(tests)
        return "" if code == 0 else _first_failure(output) or f"pytest ended with {code}"

    def _tried(self, fault: Fault) -> tuple[str, str]:
        code, output = self._run(list(fault.tests))
        if code is None:
            return ("hung" if fault.hangs else "no result"), f"no end after {self._limit:g} seconds"
        if code == ELSEWHERE:
            return "no result", "kvemb was imported from elsewhere"
        if code in (0, 5):  # 5: all tests are slow
            return "not found", ""
        if code == 1 or code < 0:
            return "found", _first_failure(output) or f"the process ended by signal {-code}"
        return "no result", " ".join(output.split())[-200:]

    def _run(self, tests: list[str]) -> tuple[int | None, str]:
        """Return the exit code of pytest, None if it was ended, and its output."""
        temporary, log = self._work / "tmp", self._work / "log"
        temporary.mkdir()
        chosen = ["-m", "" if self._slow else "not slow", "--hypothesis-seed=0", *(f"tests/{test}" for test in tests)]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=line", *chosen]
        given = {"PYTHONPATH": str(self.path), "PYTHONHASHSEED": "0", "TMPDIR": str(temporary)}
        given |= {"NUMBA_CACHE_DIR": str(self._work / "compiled")}
        command = [sys.executable, "-P", "-c", RUN, str(self.path), *options]
        with open(log, "wb") as output:
            run = subprocess.Popen(
                command, cwd=self.path, env={**LONGER, **os.environ, **given}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = run.wait(self._limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):  # also the processes that tests left
                    os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        for left in (temporary, self.path / ".hypothesis"):
            shutil.rmtree(left, ignore_errors=True)
        return code, log.read_text(encoding="utf-8", errors="replace")


def _first_failure(output: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", output, re.MULTILINE)
    return found[1] if found else ""


def _place() -> Path | None:
    """Return where to put the copy, None for the system's temporary directory: in memory if there is room."""
    in_memory = "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK)
    return MEMORY if in_memory and shutil.disk_usage(MEMORY).free > MEMORY_BYTES else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="run only the tests of every day")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to test")
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this word in their title or file")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of one run")
    parser.add_argument("--sound", action="store_true", help="plant nothing: the tests of these faults must pass")
    parser.add_argument("--json", action="store_true", help="print JSON; the table goes to the standard error")
    return parser.parse_args()


def main() -> int:
    """Run the faults that the command line asks for; returns the exit code."""
    given = _arguments()
    faults = [fault for fault in FAULTS if given.only in fault.title or given.only in fault.file]
    table = sys.stderr if given.json else sys.stdout
    begun, outcomes = time.monotonic(), list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="kvemb-faults-", dir=_place(), ignore_cleanup_errors=True) as work:
        copy = Copy(given.root.resolve(), Path(work).resolve(), slow=not given.quick, limit=given.limit)
        if given.sound:
            failure = copy.failures(sorted({test for fault in faults for test in fault.tests}))
            print(failure or "all pass")
            return int(bool(failure))
        for fault in faults:
            done = copy.outcome_of(fault)
            outcomes.append(done)
            print(f"{done.outcome:11} {done.seconds:6.1f} s  {done.file}: {done.title}", file=table)
            print(f"{'':21} {done.by}" if done.by else "", end="\n" if done.by else "", file=table, flush=True)
    seconds, counts = round(time.monotonic() - begun, 1), dict(Counter(each.outcome for each in outcomes))
    print(f"{len(outcomes)} faults in {seconds} s: {counts}", file=table)
    if given.json:
        summary = {"quick": given.quick, "seconds": seconds, "counts": counts}
        json.dump({**summary, "faults": [asdict(each) for each in outcomes]}, sys.stdout, indent=1)
        print()
    accepted = (*FOUND, "not found") if given.quick else FOUND
    return int(not outcomes or any(each.outcome not in accepted for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
