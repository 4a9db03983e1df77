"""Features and tables of DistributedEmbedding: keras-rs' FeatureConfig and TableConfig, or dicts of their fields."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from kvemb.checks.brief import brief, there_are
from kvemb.checks.numeric import as_int
from kvemb.frameworks.variables import check_padding, variable_getter
from kvemb.keras.converted import kvemb_initializer, kvemb_optimizer
from kvemb.keras.layer import REFUSED
from kvemb.pooling.given_bags import check_combiner
from kvemb.store import Store
from kvemb.variable import Variable

# Fields of keras-rs' TableConfig. Those that are not passed on have no effect here, as DistributedEmbedding says.
_OF_TABLES = {"name", "vocabulary_size", "embedding_dim", "initializer", "optimizer", "combiner", "placement"}
_OF_TABLES |= {"max_ids_per_partition", "max_unique_ids_per_partition"}
_OF_FEATURES = {"name", "table", "input_shape", "output_shape", "padding_idx"}
_logger = logging.getLogger("kvemb")
_PLACEMENTS = ("auto", "default_device", "sparsecore")


class Feature(NamedTuple):
    """A feature, by the path to it in the structure of feature_configs. variable, vocabulary: of its table.

    padding: a key that is left out of bags. width: to which bags of any lengths are padded at least.
    """

    path: tuple[Any, ...]
    name: str
    variable: Variable
    combiner: str
    vocabulary: int | None
    padding: int | None
    width: int


def features_of(configs: Any, store: Store | None) -> list[Feature]:
    """Return the features of a structure of configs, in its order. A table is made once, for all of its features.

    Raises TypeError, ValueError, and what get_variable raises.
    """
    getters: dict[str, tuple[Any, Callable[[], Variable]]] = {}  # nothing is made before all configs are checked
    found = []
    for path, config in leaves(configs, _is_feature):
        table = _field(config, "table")
        if table is None:
            raise TypeError(f"expected a FeatureConfig, or a dict with a table, got {brief(config)}")
        if isinstance(config, Mapping) and (other := sorted(set(config) - _OF_FEATURES)):
            raise TypeError(f"a feature has no field {other[0]!r}; {there_are(_OF_FEATURES)}")
        name = _field(table, "name")
        if not isinstance(name, str):
            raise TypeError(f"a table must have a name, got {brief(table)}")
        if name not in getters:
            getters[name] = table, _getter(name, table, store)
        elif getters[name][0] is not table and getters[name][0] != table:
            raise ValueError(f"two tables are named {name!r}: {brief(getters[name][0])}, and {brief(table)}")
        combiner = check_combiner(_field(table, "combiner", "mean"))
        called = str(_field(config, "name", path[-1] if path else name))
        vocabulary = _field(table, "vocabulary_size")
        vocabulary = None if vocabulary is None else as_int(vocabulary, f"vocabulary_size of table {name!r}", 1)
        padding = check_padding(_field(config, "padding_idx"))
        shape = tuple(_field(config, "input_shape") or ())
        width = as_int(shape[1], f"input_shape[1] of feature {called!r}", 0) if shape[1:] and shape[1] else 0
        found.append((path, called, name, combiner, vocabulary, padding, width))
    if not found:
        raise ValueError(f"feature_configs has no features: {brief(configs)}")
    if placed := [name for name, (table, _) in getters.items() if _field(table, "placement") == "sparsecore"]:
        _logger.warning("placement='sparsecore' has no effect, as rows are in the store: tables %s", ", ".join(placed))
    variables = {name: getter() for name, (_, getter) in getters.items()}
    return [Feature(path, called, variables[name], *others) for path, called, name, *others in found]


def leaves(structure: Any, is_leaf: Callable[[Any], bool]) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the leaves of nested dicts, lists and tuples, each with its path."""
    if is_leaf(structure) or not isinstance(structure, (Mapping, list, tuple)):
        return [((), structure)]
    pairs = structure.items() if isinstance(structure, Mapping) else enumerate(structure)
    return [((key, *path), leaf) for key, each in pairs for path, leaf in leaves(each, is_leaf)]


def at(structure: Any, path: tuple[Any, ...], what: str) -> Any:
    """Return what is at a path of a structure. what: its name in errors. Raises ValueError."""
    for step in path:
        try:
            structure = structure[step]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{what} must have the structure of feature_configs: there is nothing at {step!r} of {brief(structure)}"
            ) from error
    return structure


def with_leaves(structure: Any, values: Mapping[tuple[Any, ...], Any], path: tuple[Any, ...] = ()) -> Any:
    """Return a structure like feature_configs with a value for each path."""
    if path in values:
        return values[path]
    if isinstance(structure, Mapping):
        return {key: with_leaves(each, values, (*path, key)) for key, each in structure.items()}
    found = [with_leaves(each, values, (*path, place)) for place, each in enumerate(structure)]
    return tuple(found) if isinstance(structure, tuple) else found


def _is_feature(each: Any) -> bool:
    return hasattr(each, "table") or (isinstance(each, Mapping) and "table" in each)


def _field(config: Any, name: str, default: Any = None) -> Any:
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)


def _getter(name: str, table: Any, store: Store | None) -> Callable[[], Variable]:
    if isinstance(given := _field(table, "variable"), Variable):
        return variable_getter(given, None, None, {}, REFUSED)
    placement = _field(table, "placement", "auto")
    if placement not in _PLACEMENTS:
        raise ValueError(f"placement of table {name!r} must be one of {', '.join(_PLACEMENTS)}, got {brief(placement)}")
    dim, vocabulary = _field(table, "embedding_dim", _field(table, "dim")), _field(table, "vocabulary_size")
    arguments: dict[str, Any] = {}
    if isinstance(table, Mapping):
        arguments = {key: each for key, each in table.items() if key not in {*_OF_TABLES, "dim"}}
    optimizer, initializer = _field(table, "optimizer"), _field(table, "initializer")
    if optimizer is not None:
        arguments["optimizer"] = kvemb_optimizer(optimizer, name)
    if initializer is not None:
        arguments["initializer"] = kvemb_initializer(initializer, vocabulary, dim, name)
    # As keras-rs' tables begin. A stored variable may lack dim here, and a new one is refused without it.
    fan_out = keras.initializers.VarianceScaling(mode="fan_out")
    initial = None if dim is None else kvemb_initializer(fan_out, None, as_int(dim, "embedding_dim", 1), name)
    return variable_getter(name, dim, store, arguments, REFUSED, initial)
