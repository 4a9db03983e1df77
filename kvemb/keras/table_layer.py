"""TableLayer: the base of Embedding and EmbeddingBag, the layers over one variable."""

from __future__ import annotations

from typing import Any, Self

import keras

from kvemb.frameworks.variables import check_padding, variable_of
from kvemb.keras.configs import config_of, find
from kvemb.keras.converted import converted_arguments
from kvemb.keras.keys import check_flag, check_ids, warn_of_narrow_input, warn_of_short_ids
from kvemb.keras.layer import INITIAL, REFUSED, RowsLayer, check_layer
from kvemb.pooling.given_bags import max_norm_of
from kvemb.store import Store
from kvemb.variable import Variable


class TableLayer(RowsLayer):
    """A layer over one variable. See kvemb.keras.Embedding for its arguments."""

    # Whether the last axis of ids is a bag; the arguments that a config has besides the variable.
    _pools = False
    _options: tuple[str, ...] = ("mask_zero", "padding_idx", "max_norm", "split_keys")

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        *,
        store: Store | None = None,
        mask_zero: bool = False,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        split_keys: bool = False,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **arguments: Any,
    ) -> None:
        masking, split = check_flag(mask_zero, "mask_zero"), check_flag(split_keys, "split_keys")
        check_layer(name, dtype)
        padding = check_padding(padding_idx)
        named = name if variable is None else variable
        most = None if max_norm is None else max_norm_of(max_norm)
        arguments = converted_arguments(arguments, dim, named)
        self.variable: Variable = variable_of(named, dim, store, arguments, REFUSED, INITIAL)
        super().__init__([self.variable], name=name, dtype=dtype, trainable=trainable)
        self.mask_zero: bool = masking
        self.padding_idx: int | None = padding
        self.max_norm: float | None = most
        self.split_keys: bool = split
        self.supports_masking: bool = masking or self._pools
        if not split:
            warn_of_short_ids(self.variable, 3 + self._pools)  # bags have an __init__ of their own

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Return the shape of the result for ids of a shape.

        Args:
            input_shape: The shape of the ids.

        Returns:
            The shape.
        """
        shape = tuple(input_shape)
        return (*shape[: len(shape) - self.split_keys - self._pools], self.variable.dim)

    def compute_output_spec(self, ids: Any, *arguments: Any, **others: Any) -> Any:
        """Return the shape and dtype of the result. Nothing is looked up.

        Args:
            ids: As for ``call``.
            *arguments: Not used.
            **others: Not used.

        Returns:
            A KerasTensor.

        Raises:
            TypeError: If ``ids`` are not integers.
            ValueError: For a wrong shape.
        """
        self._check(ids)
        if not self.split_keys:
            warn_of_narrow_input(ids, self.variable)
        ragged = {"ragged": True} if getattr(ids, "ragged", False) and not self._pools else {}
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype=self.compute_dtype, **ragged)

    def get_config(self) -> dict[str, Any]:
        """Return what ``from_config`` takes.

        Returns:
            The layer's arguments, and which variable of which store has the rows, as JSON values.
        """
        options = {name: getattr(self, name) for name in self._options}
        return {**super().get_config(), **config_of(self.variable), **options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer on the variable of a config, which is found in the innermost default store.

        Args:
            config: What ``get_config`` returned.

        Returns:
            The layer.

        Raises:
            StoreNotFound: If no store is open that has the variable; the message says what to open.
        """
        rest = {name: value for name, value in config.items() if name not in ("variable", "dim", "store")}
        return cls(find(config, cls.__name__), **rest)

    def _check(self, ids: Any) -> None:
        check_ids(ids, "ids", split=self.split_keys, least_rank=2 * self._pools)
