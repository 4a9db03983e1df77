"""docs/api.md: everything public, with its arguments, as the docstrings say it.

`python tests/api_page.py > docs/api.md` writes the page again; tests/test_house.py says when that is due.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import kvemb
import kvemb.cluster
from kvemb import bulk, errors, optimizers

ROOT = Path(__file__).parents[1]
WITH_METHODS = (
    *(kvemb.Store, kvemb.Variable, kvemb.Stats),
    *(kvemb.CheckpointManager, kvemb.Checkpoint, kvemb.PendingCheckpoint),
    kvemb.Embeddings,
)
# Longer signatures are cut; help() has them whole.
WIDE = 90
HEAD = """# API

Everything public, with the first lines of its docstring. The docstrings, such as `help(kvemb.Store.get_variable)`, say
the rest: shapes and dtypes, what duplicate and missing keys mean, whether arrays are copies, and the errors.
"""


def page() -> str:
    """Return the page."""
    classes = [_methods(each) for each in WITH_METHODS]
    policies, started = _kinds(kvemb.RestrictPolicy), _kinds(kvemb.Initializer)
    apart = {*WITH_METHODS, *policies, *started, kvemb.KvembError}
    rest = [name for name in kvemb.__all__ if not isinstance(getattr(kvemb, name), ModuleType)]
    rest = [name for name in rest if _documented(getattr(kvemb, name)) and getattr(kvemb, name) not in apart]
    functions = [name for name in rest if not isinstance(getattr(kvemb, name), type)]
    other = [name for name in rest if name not in functions]
    parts = [
        HEAD,
        _section("Functions of kvemb", [_row(name, getattr(kvemb, name)) for name in functions]),
        *classes,
        _section("Policies", [_row(each.__name__, each) for each in policies]),
        _section("kvemb.optimizers", [_row(each.__name__, each) for each in optimizers.KINDS.values()]),
        _section("Initializers", [_row(each.__name__, each) for each in started]),
        _section("Other classes", [_row(name, getattr(kvemb, name)) for name in other]),
        _section("kvemb.torch", _torch()),
        _section("kvemb.cluster", [_row(name, getattr(kvemb.cluster, name)) for name in kvemb.cluster.__all__]),
        _section("kvemb.bulk: whole tables, in batches", [_row(name, getattr(bulk, name)) for name in bulk.__all__]),
        _section("kvemb.errors", [_error(each) for each in vars(errors).values() if isinstance(each, type)]),
    ]
    return "\n".join(parts)


def _documented(value: Any) -> bool:
    return isinstance(value, type) or inspect.isfunction(value)


def _kinds(base: type) -> list[type]:
    """Return the public classes that are a `base`, itself first."""
    public = [getattr(kvemb, name) for name in kvemb.__all__]
    return [base, *(each for each in public if isinstance(each, type) and issubclass(each, base) and each is not base)]


def _methods(kind: type) -> str:
    rows = []
    for name, value in inspect.getmembers(kind):
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            rows.append(f"| `{name}` | {_first(value)} |" if isinstance(value, property) else _row(name, value))
    return _section(f"kvemb.{kind.__name__}", rows, _first(kind))


def _section(title: str, rows: list[str], told: str = "") -> str:
    return "\n".join([f"## {title}\n", *([f"{told}\n"] if told else []), "| | |", "|---|---|", *rows, ""])


def _row(name: str, value: Any) -> str:
    try:
        given = list(inspect.signature(value).parameters.values())
    except ValueError:  # a class that takes what Python's own do
        given = []
    return f"| `{_call(name, [each for each in given if each.name != 'self'])}` | {_first(value)} |"


def _call(name: str, given: list[inspect.Parameter]) -> str:
    """Return a call with its arguments, as many as fit."""
    parts: list[str] = []
    for each in given:
        if each.kind is each.KEYWORD_ONLY and "*" not in parts and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        plain = each.default is None or isinstance(each.default, bool | int | float | str)
        default = "" if each.default is each.empty else f"={each.default!r}" if plain else "=..."
        parts.append(f"{stars}{each.name}{default}")
    while len(f"{name}({', '.join(parts)})") > WIDE:
        parts = [*parts[: -2 if parts[-1] == "..." else -1], "..."]
    return f"{name}({', '.join(parts)})"


def _first(value: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    told = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    assert told, value
    return told.replace("|", "\\|")


def _torch() -> list[str]:
    """Return the rows of kvemb.torch, read from its source, so that the page needs no PyTorch."""
    folder, rows = ROOT / "kvemb" / "torch", []
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("kvemb.torch."):
            continue
        source = folder / f"{str(node.module).rpartition('.')[2]}.py"
        (name,) = (each.name for each in node.names)
        for found in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(found, ast.ClassDef | ast.FunctionDef) and found.name == name:
                told = " ".join((ast.get_docstring(found) or "").partition("\n\n")[0].split())
                rows.append(f"| `{name}` | {told} |")
    return rows


def _error(kind: type[Exception]) -> str:
    return f"| `{kind.__name__}({', '.join(each.__name__ for each in kind.__bases__)})` | {_first(kind)} |"


if __name__ == "__main__":
    print(page(), end="")
