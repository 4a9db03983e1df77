"""The interface to the keys of a call and to the arrays that belong to them, wherever these are."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np

from kvemb.engine.table import Table
from kvemb.rows.hashing import Keys


class GivenKeys(Protocol):
    """The keys of a call on a variable, checked. Arrays that belong to them must be in the same memory.

    on_device: whether that is a GPU's. flat: the keys (n,), int64 in the host's memory. shape: as they were given.
    """

    on_device: ClassVar[bool]
    table: Table
    shape: tuple[int, ...]
    flat: Any

    def check_owners(self) -> None:
        """Call the partitioner, so that its errors are raised before anything changes."""

    def in_host(self) -> Keys:
        """Return the keys (n,) in the host's memory."""

    # Arrays for results, and arrays that the caller gave.

    def checked(self) -> Keys:
        """Return the keys (n,) in the host's memory. Raises HashCollision if a row of a string key has another name."""

    def rows(self, out: Any) -> Any:
        """Return an array (n, schema.width) to fill: a new one, or a view of out, if given.

        The caller then passes it to result(), which fills out if this is not a view. Raises TypeError, ValueError.
        """

    def flags(self) -> Any:
        """Return a new array (n,) of bool to fill."""

    def result(self, filled: Any) -> Any:
        """Return a filled array of rows() or flags() in the shape of the keys, as an array of their library.

        Raises HashCollision if a row of a string key has another name.
        """

    def per_key(self, data: Any, dtype: np.dtype[Any], what: str, width: int) -> Any:
        """Return an array of keys.shape + (width,) as (n, width). what: its name. Raises TypeError, ValueError.

        Of string keys, names stand behind it.
        """

    def flags_per_key(self, data: Any, what: str) -> Any:
        """Return an array of bool of keys.shape as (n,). what: its name. Raises TypeError, ValueError."""

    # Calls of kvemb.operations, with arrays that the methods above returned.

    def lookup(self, rows: Any, exists: Any, *, touch: bool) -> None:
        """Fill rows, and exists unless it is None."""

    def upsert(self, values: Any) -> None:
        """Set rows."""

    def accum(self, old: Any, new: Any, exists: Any) -> None:
        """Add new - old to rows."""

    def apply_gradients(self, grads: Any, **how: bool) -> None:
        """Take one optimizer step. how: options of TableUpdates.apply_gradients."""

    def prefetch(self, *, after_lookup: bool) -> None:
        """Begin to read cold rows."""
