"""The arguments that make a variable, each written once: their names, order, types and defaults.

As in tfra.dynamic_embedding, get_variable takes the name first, and Variable takes it after shared_name.
Store.get_variable explains the arguments; kvemb.engine.specification checks them. Frozen values.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import cast

import numpy.typing as npt

from kvemb.initializers import Initializer
from kvemb.optimizers import Optimizer
from kvemb.options import Creator
from kvemb.restrict import RestrictPolicy
from kvemb.tiers.hot_tables import Partitioner, default_partitioner


class LeftOut(int):
    """A number that stands for an argument that was not given."""


class LeftOutName(str):
    """The name of a dtype that stands for an argument that was not given."""


class LeftOutFlag(int):
    """True or False that stands for an argument that was not given. Not a bool, which has no subclasses."""

    def __repr__(self) -> str:
        return repr(bool(self))


# The reference's defaults. For a stored variable they mean "as stored".
KEY_DTYPE, VALUE_DTYPE, DIM = LeftOutName("int64"), LeftOutName("float32"), LeftOut(1)
TRAINABLE, CHECKPOINT, BP_V2 = (cast(bool, LeftOutFlag(flag)) for flag in (True, True, False))


# With several base dataclasses, the fields of the last base come first.


@dataclass(frozen=True, eq=False)
class Named:
    """The name, first and required."""

    name: str


@dataclass(frozen=True, eq=False)
class NamedLater:
    """The name, with the reference's default."""

    name: str = "DynamicEmbedding_Variable"


@dataclass(frozen=True, eq=False)
class Place:
    """What keys and rows are, and where they live."""

    key_dtype: npt.DTypeLike = KEY_DTYPE
    value_dtype: npt.DTypeLike = VALUE_DTYPE
    dim: int = DIM
    devices: str | list[str] | None = None
    partitioner: Partitioner = default_partitioner
    shared_name: str | None = "get_variable"


@dataclass(frozen=True, eq=False)
class Use:
    """How rows begin, change and leave."""

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


@dataclass(frozen=True, eq=False)
class Arguments(Use, Place, Named):
    """The arguments of get_variable."""


@dataclass(frozen=True, eq=False)
class ReferenceArguments(Use, NamedLater, Place):
    """The arguments of the reference's Variable."""

    shared_name: str | None = None


Asked = Arguments | ReferenceArguments
