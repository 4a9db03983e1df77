"""Variable scopes: a common prefix of names, and defaults for the variables made inside.

The rules are those of TensorFlow 1's ``tf.variable_scope`` and ``tf.get_variable``. Each thread, and each asynchronous
task, has its own scopes. Outside any scope get_variable behaves as ``tfra.dynamic_embedding.get_variable``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.engine.arguments import Arguments, CustomGetter
from kvemb.engine.engine import Engine
from kvemb.engine.specification import check_name
from kvemb.initializers import GlorotUniform, Initializer
from kvemb.rows.schema import value_dtype
from kvemb.tiers.partition import Partitioner, default_partitioner

Got = TypeVar("Got")


class Reuse(enum.Enum):
    """The third value of ``reuse``, besides True and False."""

    AUTO_REUSE = "get the variable, or create it"


AUTO_REUSE = Reuse.AUTO_REUSE


@dataclass(frozen=True)
class VariableScope:
    """Hold a scope: its full name, and the defaults of variables that are made inside.

    ``variable_scope`` yields one. Pass it to ``variable_scope`` to enter the same scope again. The attributes are those
    of TensorFlow 1's ``tf.VariableScope``; ``variable_scope`` explains them.

    Attributes:
        name: The full name, with the names of the enclosing scopes.
        reuse: True, False or ``AUTO_REUSE``.
        initializer: The default initializer, or None.
        regularizer: The default regularizer, or None.
        partitioner: The default partitioner, or None.
        constraint: The default constraint, or None.
        custom_getter: What is called instead of ``get_variable``, or None.
    """

    name: str
    reuse: bool | Reuse = False
    initializer: Initializer | npt.ArrayLike | None = None
    regularizer: Callable[[Any], Any] | None = None
    partitioner: Partitioner | None = None
    constraint: Callable[[npt.NDArray[Any]], npt.ArrayLike] | None = None
    custom_getter: CustomGetter | None = None


_current: ContextVar[VariableScope | None] = ContextVar("kvemb variable scope", default=None)


def get_variable_scope() -> VariableScope | None:
    """Return the innermost scope of this thread or task.

    Returns:
        The scope; None outside any scope.

    Example:
        >>> with kvemb.variable_scope("towers"):
        ...     kvemb.get_variable_scope().name
        'towers'
    """
    return _current.get()


@contextmanager
def variable_scope(
    name: str | VariableScope,
    reuse: bool | Reuse | None = None,
    initializer: Initializer | npt.ArrayLike | None = None,
    regularizer: Callable[[Any], Any] | None = None,
    partitioner: Partitioner | None = None,
    constraint: Callable[[npt.NDArray[Any]], npt.ArrayLike] | None = None,
    custom_getter: CustomGetter | None = None,
    caching_device: None = None,
) -> Iterator[VariableScope]:
    """Prefix the names of variables with ``name/`` inside a ``with`` block, and give them defaults.

    The rules are those of TensorFlow 1's ``tf.variable_scope``. Each thread, and each asynchronous task, has its own
    scopes.

    Args:
        name: The scope's name, below the enclosing scope; or a ``VariableScope`` to enter again, from anywhere.
        reuse: True: ``get_variable`` only gets existing variables, and raises ValueError for others. ``AUTO_REUSE``: it
            gets or creates. False or None: the scope inherits True or ``AUTO_REUSE`` from the enclosing scope. If that
            has neither, ``get_variable`` only creates, and raises ValueError for a variable that was created or opened
            before in this process. A variable that is only stored is opened.
        initializer: The default for new variables. None: that of the enclosing scope. If no scope has one, it is
            ``GlorotUniform``, or zeros for integers.
        regularizer: The default for variables that are made or opened here. None: that of the enclosing scope.
        partitioner: The default; a variable that is open already must have the same one. None: that of the enclosing
            scope.
        constraint: The default; a variable that is open already must have the same one. None: that of the enclosing
            scope.
        custom_getter: ``fn(getter, name, **arguments)``, called instead of ``get_variable``. Its first argument,
            ``getter(name, **arguments)``, is the enclosing scope's custom getter; in the outermost scope it is
            ``get_variable`` itself. Names are full names, and arguments are those of ``get_variable``. None: that of
            the enclosing scope.
        caching_device: Must be None, because the hot tier is the cache.

    Yields:
        The scope.

    Raises:
        TypeError: ``reuse`` or a function has the wrong type.
        ValueError: The name is not valid, or ``caching_device`` is given.

    Example:
        >>> with kvemb.variable_scope("towers", initializer=kvemb.Ones()):
        ...     items = kvemb.get_variable("items", dim=2)
        >>> items.name, items.lookup(7).tolist()
        ('towers/items', [1.0, 1.0])
    """
    around = _current.get()
    if isinstance(name, VariableScope):
        base, full = name, name.name
    else:
        base = around or VariableScope("")
        full = f"{base.name}/{check_name(name)}" if base.name else check_name(name)
    if reuse is not None and not isinstance(reuse, (bool, Reuse)):
        raise TypeError(f"reuse must be True, False, None or AUTO_REUSE, got {brief(reuse)}")
    if caching_device is not None:
        raise ValueError("caching_device has no meaning in kvemb, whose hot tier is the cache; leave it out")
    for what, given in {
        "regularizer": regularizer, "partitioner": partitioner, "constraint": constraint, "custom_getter": custom_getter
    }.items():  # fmt: skip
        if given is not None and not callable(given):
            raise TypeError(f"{what} must be callable, got {brief(given)}")
    scope = VariableScope(
        full,
        reuse or base.reuse,
        base.initializer if initializer is None else initializer,
        regularizer or base.regularizer,
        partitioner or base.partitioner,
        constraint or base.constraint,
        _nested(custom_getter, base.custom_getter),
    )
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def _nested(inner: CustomGetter | None, outer: CustomGetter | None) -> CustomGetter | None:
    """Return a custom getter that calls the inner one and passes it the outer one as its getter."""
    if inner is None or outer is None:
        return inner or outer

    def both(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        return inner(partial(outer, getter), name, *args, **kwargs)

    return both


def get_in_scope(arguments: Arguments, engine: Engine, get: Callable[[Arguments], Any]) -> Any:
    """Return get(arguments), with the scope's prefix and defaults added, or the custom getter's result.

    Raises ValueError if `reuse` forbids it. REQUIRES: the engine's lock.
    """
    scope, custom = _current.get(), arguments.custom_getter
    if custom is not None and not callable(custom):
        raise TypeError(f"custom_getter must be callable, got {brief(custom)}")
    if scope is None:
        if custom is None:
            return get(arguments)
        return _custom(custom, arguments, get)
    check_name(arguments.name)
    name = f"{scope.name}/{arguments.name}"
    is_new, is_open = name not in engine.names(), name in engine.tables
    unset = arguments.partitioner is default_partitioner
    arguments = replace(
        arguments,
        name=name,
        initializer=scope.initializer if arguments.initializer is None and is_new else arguments.initializer,
        regularizer=arguments.regularizer or (None if is_open else scope.regularizer),
        partitioner=scope.partitioner if unset and scope.partitioner else arguments.partitioner,
        constraint=arguments.constraint or scope.constraint,
    )

    def getter(arguments: Arguments) -> Any:
        exists = arguments.name in engine.names()
        if scope.reuse is True and not exists:
            raise ValueError(
                f"variable {arguments.name!r} does not exist, and the scope {scope.name!r} has reuse=True; create it "
                "first, or use AUTO_REUSE"
            )
        if scope.reuse is False and arguments.name in engine.tables:
            raise ValueError(
                f"variable {arguments.name!r} exists already; did you mean to set reuse=True or "
                f"reuse=kvemb.AUTO_REUSE in variable_scope({scope.name!r})?"
            )
        if not exists and arguments.initializer is None and value_dtype(arguments.value_dtype).kind not in "iu":
            arguments = replace(arguments, initializer=GlorotUniform())
        return get(arguments)

    custom = custom or scope.custom_getter
    return getter(arguments) if custom is None else _custom(custom, arguments, getter)


def _custom(custom: CustomGetter, arguments: Arguments, get: Callable[[Arguments], Got]) -> Got:
    """Return custom(getter, name, **others); getter takes the same arguments, name first."""
    others = {**vars(arguments), "custom_getter": None}

    def getter(name: str, **given: Any) -> Got:
        return get(Arguments(name, **given))

    result: Got = custom(getter, others.pop("name"), **others)
    return result
