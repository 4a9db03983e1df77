"""`kvemb bench strings`: keys of strings, from each kind of column. There is no peer: Python has no stable hash.

Rates are of CPU time, because one core hashes. Every kind must give the same keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer

import kvemb
from kvemb.installed import pip_install
from kvemb.tools.bench.measure import cost
from kvemb.tools.bench.options import Runs
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.failures import BadInput
from kvemb.tools.limits import MAX_ROWS

MIN_RATE = 20e6
# The same strings elsewhere in memory: each read of one waits for the memory. It has no bar.
SCATTERED = "list, scattered"


def run(
    strings: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Strings of 16 bytes in a column.")] = 1_000_000,
    runs: Runs = 5,
) -> Report:
    """Hash columns of strings to keys, on one core."""
    words = [f"{number:016x}" for number in range(strings)]
    expected, report = kvemb.hash_strings(words), Report()
    for name, column in columns_of(words).items():
        np.testing.assert_array_equal(kvemb.hash_strings(column), expected)
        taken = [cost(_hashing(column), number).cpu for number in range(runs)]
        rates = [strings / max(each, 1e-9) for each in taken]
        line = compare(name, "strings/s of CPU time", rates)
        report.lines.append(line if name == SCATTERED else line.at_least(MIN_RATE))
    return report


def columns_of(words: list[str]) -> dict[str, Any]:
    """Return the same strings in each kind of column that needs no package but those of the extra `tools`."""
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput(f"this benchmark needs pyarrow; run: {pip_install('tools')}") from error
    array, scattered = pyarrow.array(words), np.empty(len(words), object)
    order = np.random.default_rng(1).permutation(len(words))
    scattered[order] = [words[at].upper().lower() for at in order.tolist()]  # strings of its own
    return {
        "Arrow": array,
        "Arrow, string_view": array.cast(pyarrow.string_view()),
        "Arrow, a dictionary": array.dictionary_encode(),
        "NumPy S": np.array(words, "S"),
        "NumPy U": np.array(words),
        "list": words,
        "list of bytes": [word.encode() for word in words],
        SCATTERED: scattered.tolist(),
        "array of objects": np.array(words, object),
    }


def _hashing(column: Any) -> Callable[[int], Any]:
    return lambda _: kvemb.hash_strings(column)
