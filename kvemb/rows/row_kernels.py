"""The kernels of row_copies. They release the GIL and access only their arguments; callers hold the locks."""

from __future__ import annotations

from typing import Any

from kvemb.kernels.compiling import kernel


@kernel
def copy_rows(
    keys: Any, scores: Any, steps: Any, flags: Any, words: Any, at: Any,
    to_keys: Any, to_scores: Any, to_steps: Any, to_flags: Any, to_words: Any, to: Any,
) -> None:  # fmt: skip
    """Copy every column of rows `at` to rows `to`."""
    width = words.shape[1]
    for i in range(len(at)):
        source, target = at[i], to[i]
        to_keys[target], to_scores[target] = keys[source], scores[source]
        to_steps[target], to_flags[target] = steps[source], flags[source]
        for word in range(width):
            to_words[target, word] = words[source, word]


@kernel
def spread(rows: Any, at: Any, out: Any, to: Any) -> None:
    """Copy rows `at` to rows `to` of out."""
    width = rows.shape[1]
    for i in range(len(at)):
        source, target = at[i], to[i]
        for column in range(width):
            out[target, column] = rows[source, column]
