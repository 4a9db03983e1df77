"""The command line that reproduces results, with the options that differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvemb.tools.bench.tier.cases import DEFAULTS, HOT, ROWS, ZIPF, Case, Settings


def command(cases: Iterable[Case], settings: Settings) -> str:
    """Return the command line for these cases and settings."""
    measured = list(cases)
    given: list[tuple[str, Sequence[float], Sequence[float]]] = [
        ("rows", list(dict.fromkeys(case.rows for case in measured)), ROWS),
        ("hot", sorted({case.hot for case in measured}), HOT),
        ("zipf", sorted({case.zipf for case in measured}), ZIPF),
    ]
    words = [f"--{name} {value}" for name, values, usual in given if values != usual for value in values]
    usual_of = vars(DEFAULTS)
    words += [f"--{name} {value}" for name, value in vars(settings).items() if value != usual_of[name]]
    return " ".join(["kvemb bench tier", *words, "--folder FOLDER --resume --out docs/inside/tier.md"])
