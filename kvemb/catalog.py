"""A store's variables by name; a variable is opened when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from kvemb.checks.brief import there_are
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.agreement import agreed_optimizer
from kvemb.engine.arguments import Arguments
from kvemb.engine.engine import Engine
from kvemb.engine.keeping_bounds import set_bounds
from kvemb.engine.specification import check_name, stored_optimizer, wanted_bounds
from kvemb.engine.table import Table
from kvemb.handle import Handle, inside
from kvemb.initializers import initializer_from_json
from kvemb.options import RocksDBCreator, format_count
from kvemb.restrict import policy_from_json
from kvemb.variable import Variable


class VariableMap(Mapping[str, Variable]):
    """Map names to the variables of a store: what ``Store.variables`` returns.

    It is a read-only view, so it shows variables that are made later. Getting a variable that is not open yet opens it
    as it is stored; an unknown name raises KeyError, which lists the names that there are. Iteration is over names, and
    opens nothing.
    """

    def __init__(self, names: Callable[[], list[str]], get: Callable[[str], Variable]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Variable:
        if name not in self._names():
            raise KeyError(f"there is no variable {name!r}; {there_are(self._names())}")
        return self._get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<variables {', '.join(self)}>"


def open_variable(store: Handle[Engine], name: str) -> Variable:
    """Return a variable of a store; if it is not open, open it as it is stored. Raises KeyError, Closed."""
    engine = inside(store)
    engine.state.check_here()
    with engine.lock:
        engine.state.check_open()
        if name in engine.tables:
            return variable_of(engine.tables[name])
        return open_stored(store, name, engine.opened_manifest.variables[name])


def get_or_make(store: Handle[Engine], arguments: Arguments) -> Variable:
    """Return the variable of this full name: open, stored, or new. REQUIRES: the engine's lock. See get_variable."""
    known = inside(store).tables.get(check_name(arguments.name))
    if known is None:
        return Variable(**{**vars(arguments), "store": store})
    if (optimizer := agreed_optimizer(known, arguments)) is not None:
        known.set_optimizer(optimizer, writable=False)  # as when it is opened with another one
    set_bounds(inside(store), known, wanted_bounds(arguments, known.operations.bounds))
    return variable_of(known)


def variable_of(table: Table) -> Variable:
    """Return the Variable of an open table."""
    return cast(Variable, table.variable)


def open_stored(store: Handle[Engine], name: str, entry: VariableEntry) -> Variable:
    """Open a stored variable, or make an empty one like a variable of another store."""
    return Variable(
        name=name,
        store=cast(Any, store),
        key_dtype=entry.key_dtype,
        value_dtype=entry.value_dtype,
        dim=entry.dim,
        initializer=initializer_from_json(entry.initializer),
        optimizer=stored_optimizer(entry),
        restrict_policy=policy_from_json(entry.policy),
        kv_creator=RocksDBCreator.from_json(entry.creator),
        trainable=entry.trainable,
        checkpoint=entry.checkpoint,
        bp_v2=entry.bp_v2,
        max_rows=entry.max_rows,
        ttl=entry.ttl,
        name_bytes=entry.name_bytes or None,
    )


def lines_of(engine: Engine) -> Iterator[str]:
    """Yield a line for each variable of an open store, for the store's repr."""
    for name in engine.names():
        if name in engine.tables:
            yield f"  {engine.tables[name].variable!r}"
        else:
            entry = engine.opened_manifest.variables[name]
            yield f"  {name}: {format_count(entry.rows, 'row')} of dim {entry.dim} {entry.value_dtype}, not opened yet"
