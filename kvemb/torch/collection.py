"""EmbeddingBagCollection: many features over many variables, with one call of the store per forward and per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvemb.checks.brief import brief, there_are
from kvemb.frameworks.variables import Needs, check_padding, variable_getter
from kvemb.initializers import RandomUniform
from kvemb.rows.bags import bounds_of
from kvemb.shared_docs import described_as
from kvemb.store import Store
from kvemb.torch.bags import JaggedIds, Keys, bags_of, ids_of, joined_keys, keys_of, not_padding, strings_of
from kvemb.torch.eager import never_compiled
from kvemb.torch.embedding import Embedding
from kvemb.torch.module import RowsModule
from kvemb.torch.options import REFUSED, check_mode, check_output
from kvemb.torch.pooling import BagLookup, Pooling
from kvemb.variable import Variable

# torchrec's limit is 1 / sqrt(num_embeddings), and a variable has no number of rows: this is that of 10,000 rows.
INITIAL = RandomUniform(-0.01, 0.01)


@described_as(Embedding)
class EmbeddingBagCollection(RowsModule):
    """Pool bags of several features, as torchrec's EmbeddingBagCollection does.

    A forward pass is one call of the store for all features, and so is a step. Features may share a table.

    ``load_state_dict`` accepts this module's own state, and also the weights of a torch.nn.ModuleDict of
    torch.nn.EmbeddingBag (``"{table}.weight"``) or of torchrec's EmbeddingBagCollection
    (``"embedding_bags.{table}.weight"``). Row i becomes the row of key i.

    Args:
        tables: A dict from each table's name to a Variable, or to a dict of arguments of ``kvemb.Store.get_variable``,
            such as ``dim`` and ``optimizer``, for a variable of that name. Without an ``initializer``, new rows are
            uniform in ±0.01. torchrec's are uniform in ±1/sqrt(num_embeddings), which is the same for 10,000 rows; for
            n rows give ``kvemb.RandomUniform(-(n**-0.5), n**-0.5)``.
        features: A dict from each feature's name to its table. None: each table has one feature, of the same name.
        mode: "sum", "mean" or "max" for all tables, or a dict from each table's name to its mode. The default is "sum",
            as in torchrec; that of EmbeddingBag is "mean", as in torch.nn.
        padding_idx: A key that is left out of all bags, such as the -1 that fills up rows of ids, or a dict from some
            tables' names to such a key. It is not looked up, trained, or counted in a mean.
        allow_absent: Whether a feature may be absent from a batch: all of its bags are then empty. Of the features that
            are given, at least one must be this module's, and all must have the same number of bags. False: an absent
            feature raises, as it may be a misspelt name.
        store: The store of variables that are given by name. None: the default store.

    Raises:
        TypeError: For an argument of the wrong type.
        ValueError: For an unknown mode, a feature or a padding of an unknown table, a table without a feature, or a
            variable that is given as two tables; and as for EmbeddingBag.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> table = {"dim": 16, "optimizer": kvemb.optimizers.Adagrad(0.05)}
        >>> bags = kt.EmbeddingBagCollection(
        ...     {"ads": table, "people": table},
        ...     features={"clicked": "ads", "shown": "ads", "user": "people"},
        ... )
        >>> ads, starts = torch.tensor([7, 8, 9]), torch.tensor([0, 2])
        >>> user = torch.tensor([[1], [2]])
        >>> out = bags({"clicked": (ads, starts), "shown": (ads, starts), "user": user})
        >>> {name: tuple(rows.shape) for name, rows in out.items()}
        {'clicked': (2, 16), 'shown': (2, 16), 'user': (2, 16)}
    """

    def __init__(
        self,
        tables: Mapping[str, Variable | Mapping[str, Any]],
        features: Mapping[str, str] | None = None,
        mode: str | Mapping[str, str] = "sum",
        *,
        padding_idx: int | str | Mapping[str, int | str] | None = None,
        allow_absent: bool = False,
        store: Store | None = None,
        fused: bool = False,
        check_finite: bool = False,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(tables, Mapping) or not tables:
            raise TypeError(
                "tables must be a dict from names to variables or their arguments, as in {'ads': {'dim': 16}}, "
                f"got {brief(tables)}"
            )
        if not isinstance(features, Mapping | None):
            raise TypeError(f"features must be a dict from feature to table, or None, got {brief(features)}")
        features = {name: name for name in tables} if features is None else dict(features)
        for name, table in features.items():
            if not isinstance(table, str):
                raise TypeError(f"features[{name!r}] must be the name of its table, got {brief(table)}")
            if table not in tables:
                raise ValueError(
                    f"features[{name!r}] must be the name of its table, got {table!r}; {there_are(tables)}"
                )
        if unused := [name for name in tables if name not in features.values()]:
            raise ValueError(f"no feature names the table {unused[0]!r}; leave it out, or name it in features")
        modes = dict(mode) if isinstance(mode, Mapping) else dict.fromkeys(tables, mode)
        if set(modes) != set(tables):
            raise ValueError(f"mode must be one mode, or a dict with a mode for each of {', '.join(tables)}")
        if store is not None and all(isinstance(given, Variable) for given in tables.values()):
            raise ValueError("store is for new variables, but every table is a Variable already; leave it out")
        paddings = dict(padding_idx) if isinstance(padding_idx, Mapping) else dict.fromkeys(tables, padding_idx)
        if unknown := [name for name in paddings if name not in tables]:
            raise ValueError(f"padding_idx must name tables, got {unknown[0]!r}; {there_are(tables)}")
        self.pooling: dict[str, Pooling] = {
            name: Pooling(check_mode(modes[name]), check_padding(paddings.get(name), strings=True)) for name in tables
        }
        self.allow_absent: bool = bool(allow_absent)
        check_output(output_dtype)
        getters = {
            name: _getter(name, given, store, Needs(strings=True, padding=self.pooling[name].padding, fused=fused))
            for name, given in tables.items()
        }
        self.tables: dict[str, Variable] = {name: getter() for name, getter in getters.items()}
        if len(set(self.tables.values())) < len(self.tables):
            raise ValueError("two tables are the same variable; make it one table, which features share")
        super().__init__(list(self.tables.values()), fused, check_finite, output_dtype)
        self.features = features
        for name, variable in self.tables.items():
            for place in (f"{name}.weight", f"embedding_bags.{name}.weight"):  # in torch.nn, and in torchrec
                self.destinations[place] = variable

    @never_compiled
    def forward(self, inputs: Any) -> dict[str, torch.Tensor]:
        """Return the pooled bags of each feature, on the device of its ids. An empty bag gives zeros.

        A backward pass collects the gradients of the rows for ``kvemb.torch.Optimizer.step``, or takes the step itself
        if the module is fused. All arguments are checked before anything is looked up.

        Args:
            inputs: A dict from each feature to its bags, or a torchrec KeyedJaggedTensor. In the dict, bags are (ids,
                offsets), (ids, offsets, per_sample_weights), or ids of shape (count, m), as for EmbeddingBag. Omit
                FBGEMM's trailing offset; it would add an empty bag. Instead of a KeyedJaggedTensor you may pass any
                object with ``keys()``, ``values()``, ``offsets()`` and ``weights_or_none()``, and with
                ``stride_per_key()`` if features differ in their number of bags. Every feature must be given, unless
                ``allow_absent``; others are ignored. Ids of a table with string keys are strings, as for Embedding.

        Returns:
            A dict from each feature to its bags, (count, dim), in the order of ``features``.

        Raises:
            TypeError: If an argument is not of these kinds.
            ValueError: For a feature that is missing or given twice, a wrong shape, or offsets out of order.
            RuntimeError: If the module cannot be trained now, for example because no optimizer takes its gradients.
            KvembError: What ``kvemb.Store.lookup`` raises.
        """
        bags = {name: self._bags_of(name, each) for name, each in self._by_feature(inputs).items()}
        if len(bags) < len(self.features):
            bags |= self._empty_bags(bags)
        lookups = [
            BagLookup(self.tables[table], bags[name], self.pooling[table]) for name, table in self.features.items()
        ]
        rows = self.rows([each.request for each in lookups])
        return {
            name: self._as_output(each.pool(part), bags[name].device)
            for name, each, part in zip(self.features, lookups, rows, strict=True)
        }

    def keys_by_variable(self, inputs: Any) -> dict[Variable, Keys]:
        """Return the keys of the rows that ``forward(inputs)`` looks up.

        Args:
            inputs: As for ``forward``.

        Returns:
            A dict from each variable to its keys, an integer array (n,) or StringKeys, with repetitions.

        Raises:
            TypeError: As ``forward``, for ids.
            ValueError: As ``forward``, for features.
        """
        parts: dict[Variable, list[Keys]] = {}
        for name, given in self._by_feature(inputs).items():
            table, (ids, *_) = self._table(name), self._parts_of(name, given)
            keys: Any = strings_of(ids, table, name)[:] if table.key_dtype.hasobject else keys_of(ids, name).reshape(-1)
            if (chosen := not_padding(keys, self.pooling[self.features[name]].padding)) is not None:
                keys = keys[chosen]
            parts.setdefault(table, []).append(keys)
        return {table: joined_keys(keys) for table, keys in parts.items()}

    def _by_feature(self, inputs: Any) -> dict[str, Any]:
        by_feature = inputs if isinstance(inputs, Mapping) else _jagged(inputs)
        given = {name: by_feature[name] for name in self.features if name in by_feature}
        missing = [name for name in self.features if name not in given]
        if missing and not (self.allow_absent and given):
            cure = "" if self.allow_absent else "; if that is intended, make the collection with allow_absent=True"
            raise ValueError(f"the feature {missing[0]!r} is not given; {there_are(by_feature)}{cure}")
        return given

    def _empty_bags(self, bags: dict[str, JaggedIds]) -> dict[str, JaggedIds]:
        """Return the bags of absent features: empty, and as many as the others have. Raises ValueError."""
        counts = {name: each.count for name, each in bags.items()}
        absent = [name for name in self.features if name not in bags]
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"the feature {absent[0]!r} is absent, and others differ in their number of bags: {counts}"
            )
        like = next(iter(bags.values()))
        begins = torch.zeros(like.count, dtype=torch.int64)
        return {
            name: JaggedIds(_no_keys(self._table(name)), begins, like.count, None, False, like.device)
            for name in absent
        }

    def _table(self, feature: str) -> Variable:
        return self.tables[self.features[feature]]

    def _bags_of(self, name: str, given: Any) -> JaggedIds:
        ids, *others = self._parts_of(name, given)
        ids = ids_of(ids, self._table(name), self.anchor.device, name)
        return bags_of(ids, *others, mode=self.pooling[self.features[name]].mode, what=name)

    def _parts_of(self, name: str, given: Any) -> Sequence[Any]:
        """Return the ids of a feature, and what was given beside them. A list of strings is one of ids."""
        several = isinstance(given, (tuple, list))
        if self._table(name).key_dtype.hasobject:
            several = several and any(isinstance(each, torch.Tensor) for each in given[1:2])
        parts = given if several else (given,)
        if not 1 <= len(parts) <= 3:
            raise TypeError(f"{name} must be ids, (ids, offsets) or (ids, offsets, weights), got {len(parts)} parts")
        return parts


def _getter(name: str, given: Any, store: Store | None, needs: Needs) -> Callable[[], Variable]:
    if isinstance(given, Variable):
        return variable_getter(given, None, None, {}, REFUSED, needs=needs)
    if not isinstance(given, Mapping):
        raise TypeError(f"tables[{name!r}] must be a Variable or arguments such as {{'dim': 16}}, got {brief(given)}")
    return variable_getter(name, None, store, dict(given), REFUSED, INITIAL, needs)


def _no_keys(variable: Variable) -> Keys:
    return strings_of([], variable) if variable.key_dtype.hasobject else np.empty(0, variable.key_dtype)


def _jagged(inputs: Any) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return (ids, offsets) or (ids, offsets, weights) by feature, from an object like a KeyedJaggedTensor."""
    try:
        names, values, offsets = list(inputs.keys()), inputs.values(), inputs.offsets()
        weights = inputs.weights_or_none()
    except AttributeError as error:
        raise TypeError(f"expected a dict by feature, or a KeyedJaggedTensor, got {brief(inputs)}") from error
    bags = _bags_by_name(inputs, names, len(offsets))
    if len(set(names)) < len(names):
        raise ValueError(f"a feature is given twice: {', '.join(map(str, names))}")
    ends = bounds_of(keys_of(offsets, "offsets"), len(values), last_included=True, what="values")
    parts, last = {}, 0
    for name, count in zip(names, bags, strict=True):
        first, last = last, last + count
        begin, end = int(ends[first]), int(ends[last])
        own = (values[begin:end], offsets[first:last] - begin)
        parts[name] = own if weights is None else (*own, weights[begin:end])
    return parts


def _bags_by_name(inputs: Any, names: list[str], offsets: int) -> list[int]:
    """Return each feature's number of bags: the same for all, unless torchrec's batch sizes vary by feature."""
    if hasattr(inputs, "stride_per_key"):
        bags = [int(count) for count in inputs.stride_per_key()]
        if len(bags) == len(names) and sum(bags) + 1 == offsets:
            return bags
        raise ValueError(f"expected {sum(bags) + 1} offsets for {len(names)} features of {bags} bags, got {offsets}")
    count = (offsets - 1) // max(1, len(names))
    if offsets != count * len(names) + 1:
        raise ValueError(f"{offsets} offsets do not divide into {len(names)} features with the same number of bags")
    return [count] * len(names)
