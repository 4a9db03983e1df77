"""The rows in a state_dict: a mark of each store, to which load_state_dict takes the store back.

A state_dict has a small tensor for each module of kvemb.torch: bytes of JSON, because some frameworks save tensors
alone. All modules of a call of state_dict() have the same marks, which are kept at least as long as the tensors or
copies of them live. load_state_dict() of any torch.nn.Module, which importing kvemb.torch replaces by one that does
this beside, finds all marks before it loads anything, and moves rows only once the dense part is loaded: so neither is
loaded without the other.
"""

from __future__ import annotations

import functools
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from kvemb.checks.brief import brief
from kvemb.durability import manifest
from kvemb.engine.engine import Engine
from kvemb.engine.marking import content_of, find, has_rows_of
from kvemb.engine.rolling_back import rollback
from kvemb.errors import MarkNotFound
from kvemb.handle import inside
from kvemb.store import Store
from kvemb.variable import Variable

KEY = "_extra_state"  # PyTorch's name


class Rows(NamedTuple):
    """The rows of a store in a state_dict. mark: the id of their mark. content: content_of() its durable point."""

    mark: str
    content: str


class _Calls(threading.local):
    """The calls that this thread is in.

    saving: whether a call of state_dict(). destination: what it, or the last one, fills; keys: under which modules have
    put their parts there. marked: the marks for that, by store. loading: in a load, the rows that stores get when all
    else is loaded. later: what else is then to be done.
    """

    saving = False
    destination: weakref.ref[Any] | None = None
    keys: set[str]
    marked: dict[Engine, dict[str, Any]]
    loading: dict[Engine, Rows] | None = None
    later: list[Callable[[], object]]


_calls = _Calls()


# Saving.


@contextmanager
def saving(destination: Any, key: str) -> Iterator[None]:
    """In the block saved() makes no mark of a store that has one in this state_dict already.

    destination: the state_dict that is being made. key: under which the module's part will be in it.
    """
    known = None if _calls.destination is None else _calls.destination()
    if known is None or known is not destination or key in _calls.keys:  # another call of state_dict()
        _calls.marked, _calls.keys = {}, set()
        try:
            _calls.destination = weakref.ref(destination)
        except TypeError:  # a plain dict
            _calls.destination = None
    _calls.keys.add(key)
    _calls.saving = True
    try:
        yield
    finally:
        _calls.saving = False


def saved(variables: list[Variable]) -> torch.Tensor:
    """Return what a state_dict has for the rows of variables: a tensor of bytes, uint8 (n,)."""
    if not _calls.saving:
        _calls.marked, _calls.destination = {}, None
    parts = {variable.name: _saved(variable) for variable in variables}
    state = torch.frombuffer(bytearray(json.dumps(parts).encode()), dtype=torch.uint8)
    # PyTorch copies the attributes of a tensor with it.
    state.kvemb_holds = [engine.points.marks.hold(told["mark"]) for engine, told in _calls.marked.items()]
    return state


def _saved(variable: Variable) -> dict[str, Any]:
    store = variable.resource_handle[0]
    told = {"store": store.id, "point": store.point}
    if not _can_mark(store) or not inside(variable).persistent:
        return told
    engine, marked = inside(store), _calls.marked
    if engine not in marked:
        mark = store.mark(block=True)
        current = engine.points.current
        number = int(mark.path.name)
        described = current if current.point == number else manifest.read(mark.path)
        marked[engine] = {"store": mark.store, "point": number, "mark": mark.id, "content": content_of(described)}
    return marked[engine]


def _can_mark(store: Any) -> bool:
    """Whether a store can make marks now: not while a file of its checkpoint is written, which has the rows then."""
    if not isinstance(store, Store) or store.state.gone or store.state.read_only:
        return False
    return not inside(store).checkpointer.attaches_here


# Loading.


def read(state: Any, variables: list[Variable]) -> dict[str, Any]:
    """Return what a state_dict has for these variables, by name. Raises ValueError if it is of others."""
    if isinstance(state, torch.Tensor):
        try:
            state = json.loads(bytes(state.detach().to("cpu", torch.uint8).flatten().tolist()))
        except ValueError as error:
            raise ValueError(f"the state_dict is damaged: {error}; load another one") from error
    names = [variable.name for variable in variables]
    if not isinstance(state, Mapping) or set(state) != set(names):
        told = ", ".join(map(repr, names))
        raise ValueError(f"the state_dict is of the variables {brief(state)}, but this module has {told}")
    return dict(state)


def plan(state: Any, variables: list[Variable]) -> dict[Engine, Rows]:
    """Return the rows of a state_dict that stores must get, so that variables have theirs.

    Raises ValueError if it is of other variables or of another store, or if a reader shows other rows; MarkNotFound if
    a store can no longer go back to them.
    """
    wanted: dict[Engine, Rows] = {}
    found = read(state, variables)
    for variable in variables:
        name, told, store = variable.name, found[variable.name], variable.resource_handle[0]
        if told["store"] != store.id:
            raise ValueError(
                f"the state_dict was saved with variable {name!r} of the store {told['store']}, but this is the "
                f"store {store.id}: restore the checkpoint that belongs to the state_dict"
            )
        if isinstance(store, Store) and not inside(variable).persistent:
            raise ValueError(
                f"the rows of {name!r} are in memory alone, so no state_dict has them: make the variable without "
                "kv_creator=kvemb.MemoryCreator(), or load a state_dict of the dense part alone"
            )
        if "mark" not in told:
            _check_point(name, told, store)
        else:
            rows = Rows(told["mark"], told["content"])
            _check_rows(name, rows, inside(store))
            join(wanted, {inside(store): rows})
    return wanted


def _check_point(name: str, wanted: Mapping[str, Any], store: Any) -> None:
    """Check a state that was saved in a checkpoint, of a cluster, or by kvemb 0.1.0: without a mark."""
    if wanted["point"] > store.point:
        raise ValueError(
            f"the state_dict was saved at durable point {wanted['point']} of its store, but the store is at the "
            f"earlier point {store.point}: restore the checkpoint that belongs to the state_dict"
        )


def _check_rows(name: str, rows: Rows, engine: Engine) -> None:
    """Raise ValueError or MarkNotFound unless a store has these rows, or can go back to them."""
    mark = find(engine, rows.mark)
    if (mark is not None and not engine.state.read_only) or has_rows_of(engine, mark, rows.content):
        return
    if engine.state.read_only:
        there = f"open {mark.path} in its place" if mark is not None else "its mark is not there"
        raise ValueError(
            f"the store {engine.path} is read-only, and its rows of {name!r} are not those of the state_dict: {there}, "
            "or open the store for writing"
        )
    raise MarkNotFound(
        f"the state_dict is of rows of {name!r} that the store {engine.path} does not keep: its mark was dropped, or "
        "more than keep_marks= marks without a name were made after it, or the store was restored from another state. "
        "Nothing was loaded. Open the store with a larger keep_marks=, or save the state_dict in the files of a "
        "checkpoint (CheckpointManager.save) and resume from it"
    )


def load_rows(state: Any, variables: list[Variable]) -> None:
    """Give variables the rows of a state_dict: when the load in progress has loaded all else, or at once.

    Raises what plan() raises; what Store.rollback raises.
    """
    wanted = plan(state, variables)
    if _calls.loading is None:
        _move(wanted)
    else:
        join(_calls.loading, wanted)


def when_loaded(call: Callable[[], object]) -> None:
    """Call a function when the load in progress has loaded all else, or at once."""
    if _calls.loading is None:
        call()
    else:
        _calls.later.append(call)


def join(wanted: dict[Engine, Rows], more: Mapping[Engine, Rows]) -> None:
    """Add to the rows that stores must get. Raises ValueError if a store must get two different states."""
    for engine, rows in more.items():
        if wanted.setdefault(engine, rows).content != rows.content:
            raise ValueError(
                f"the state_dict has parts of different states of the store {engine.path}, which can go back to one "
                "alone: save all modules of a store in one call of state_dict()"
            )


def _move(wanted: Mapping[Engine, Rows]) -> None:
    """Take stores to these rows, unless they have them."""
    for engine, rows in wanted.items():
        mark = find(engine, rows.mark)
        if not has_rows_of(engine, mark, rows.content):
            if mark is None:
                raise MarkNotFound(f"the mark of {engine.path} was dropped while a state_dict was loaded; load again")
            rollback(engine, mark)


def replace_load(variables_of: Callable[[torch.nn.Module], list[Variable] | None]) -> None:
    """Let torch.nn.Module.load_state_dict load rows, too. variables_of: those of a module of kvemb.torch, else None."""
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: torch.nn.Module, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        if _calls.loading is not None or not isinstance(state_dict, Mapping):
            return load(self, state_dict, *args, **options)
        # All that can be known to fail, before anything is loaded.
        wanted: dict[Engine, Rows] = {}
        for name, module in self.named_modules(remove_duplicate=False):
            key = f"{name}.{KEY}" if name else KEY
            if key in state_dict and (variables := variables_of(module)) is not None:
                join(wanted, plan(state_dict[key], variables))
        _calls.loading, _calls.later = {}, []
        try:
            result = load(self, state_dict, *args, **options)
            wanted, later = _calls.loading, _calls.later
        finally:
            _calls.loading, _calls.later = None, []
        _move(wanted)
        for call in later:
            call()
        return result

    torch.nn.Module.load_state_dict = load_state_dict
