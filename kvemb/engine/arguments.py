"""The arguments that make a variable, each written once: their names, order, types and defaults.

As in tfra.dynamic_embedding, get_variable takes the name first, and Variable takes it after shared_name.
Store.get_variable explains the arguments; kvemb.engine.specification checks them. Frozen values.

Sources: dynamic_embedding_variable.py of TensorFlow Recommenders-Addons
(https://github.com/tensorflow/recommenders-addons, tensorflow_recommenders_addons/dynamic_embedding/python/ops), and
tf.get_variable of TensorFlow 1 (tensorflow/python/ops/variable_scope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

import numpy.typing as npt

from kvemb.initializers import Initializer
from kvemb.operations.constraining import Constraint
from kvemb.optimizers import Optimizer
from kvemb.options import Creator
from kvemb.restrict import Admission, RestrictPolicy
from kvemb.tiers.partition import Partitioner, default_partitioner

# fn(getter, name, **arguments); see kvemb.variable_scope.
CustomGetter = Callable[..., Any]


class UnsetInt(int):
    """A number that stands for an argument that was not given."""


class UnsetName(str):
    """The name of a dtype that stands for an argument that was not given."""


class UnsetFlag(int):
    """True or False that stands for an argument that was not given. Not a bool, because bool cannot be subclassed."""

    def __repr__(self) -> str:
        return repr(bool(self))


# The reference's defaults. For a stored variable they mean "as stored".
KEY_DTYPE, VALUE_DTYPE, DIM = UnsetName("int64"), UnsetName("float32"), UnsetInt(1)
TRAINABLE, CHECKPOINT, BP_V2 = (cast(bool, UnsetFlag(flag)) for flag in (True, True, False))


class GraphKeys:
    """Name the collections that every store has, as TensorFlow 1's ``tf.GraphKeys`` does.

    Attributes:
        GLOBAL_VARIABLES: All variables, unless ``collections`` names others.
        TRAINABLE_VARIABLES: The variables with ``trainable=True``.
        REGULARIZATION_LOSSES: What the regularizers returned.
    """

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    REGULARIZATION_LOSSES = "regularization_losses"


# With several base dataclasses, the fields of the last base come first.


@dataclass(frozen=True, eq=False)
class RequiredName:
    """Hold the name, first and required."""

    name: str


@dataclass(frozen=True, eq=False)
class DefaultName:
    """Hold the name, with the reference's default."""

    name: str = "DynamicEmbedding_Variable"


@dataclass(frozen=True, eq=False)
class RowArguments:
    """Hold the arguments on keys and rows, and where rows live."""

    key_dtype: npt.DTypeLike = KEY_DTYPE
    value_dtype: npt.DTypeLike = VALUE_DTYPE
    dim: int = DIM
    devices: str | list[str] | None = None
    partitioner: Partitioner = default_partitioner
    shared_name: str | None = "get_variable"


@dataclass(frozen=True, eq=False)
class LifecycleArguments:
    """Hold the arguments on how rows begin, change and leave."""

    initializer: Initializer | npt.ArrayLike | None = None
    trainable: bool = TRAINABLE
    checkpoint: bool = CHECKPOINT
    init_size: int = 0
    kv_creator: Creator | None = None
    restrict_policy: RestrictPolicy | type[RestrictPolicy] | None = None
    bp_v2: bool = BP_V2
    _: KW_ONLY
    optimizer: Optimizer | None = None
    hot_rows: int | None = None
    admission: Admission | None = None
    max_rows: int | None = None
    ttl: float | None = None
    name_bytes: int | None = None
    regularizer: Callable[[Any], Any] | None = None
    constraint: Constraint | None = None
    collections: Sequence[str] | None = None
    custom_getter: CustomGetter | None = None
    caching_device: None = None
    validate_shape: bool = True
    use_resource: bool | None = None
    synchronization: Any = None
    aggregation: Any = None


@dataclass(frozen=True, eq=False)
class Arguments(LifecycleArguments, RowArguments, RequiredName):
    """Hold the arguments of get_variable."""


@dataclass(frozen=True, eq=False)
class ReferenceArguments(LifecycleArguments, DefaultName, RowArguments):
    """Hold the arguments of the reference's Variable."""

    shared_name: str | None = None


AnyArguments = Arguments | ReferenceArguments


def is_given(arguments: AnyArguments, name: str) -> bool:
    """Whether an argument was given: it is not the default, and not an `init_size` of 0."""
    value, left_out = getattr(arguments, name), type(arguments).__dataclass_fields__[name].default
    return value is not left_out and not (name == "init_size" and value == 0)


def check_given(arguments: AnyArguments) -> None:
    """Raise TypeError for a wrong type, and ValueError for a value with a meaning only in a TensorFlow graph.

    Values that ask for what kvemb always does are accepted.
    """
    meant = {"synchronization": "AUTO", "aggregation": "NONE"}
    for name, only in meant.items():
        given = getattr(arguments, name)
        if given is not None and str(getattr(given, "name", given)).upper() != only:
            raise ValueError(f"{name} must be {only} or left out, got {given!r}: kvemb has no distribution strategy")
    if arguments.caching_device is not None:
        raise ValueError("caching_device has no meaning in kvemb, whose hot tier is the cache; leave it out")
    if arguments.validate_shape is not True:
        raise ValueError("validate_shape must be True or left out: the shape of a row is always known, (dim,)")
    if arguments.use_resource not in (None, True):
        raise ValueError("use_resource must be True or left out: a variable always behaves as a resource")
    admission = arguments.admission
    if admission is not None and not isinstance(admission, Admission):
        raise TypeError(f"admission must be an Admission, got {admission!r}; use kvemb.Admission(sightings=3)")
    kind = type(arguments.regularizer)
    if kind.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow"):
        raise TypeError(
            f"regularizer must be fn(variable), got {kind.__module__}.{kind.__name__}, which takes a weight, and a "
            "table has none; give the optimizer weight_decay, such as kvemb.optimizers.AdamW()"
        )
    for name in ("regularizer", "constraint", "custom_getter"):
        if getattr(arguments, name) is not None and not callable(getattr(arguments, name)):
            raise TypeError(f"{name} must be callable, got {getattr(arguments, name)!r}")
    given = arguments.collections
    if given is not None and (isinstance(given, str) or not all(isinstance(each, str) for each in given)):
        raise TypeError(f"collections must be a list of names such as GraphKeys.GLOBAL_VARIABLES, got {given!r}")
