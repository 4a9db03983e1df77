"""The methods of a store that make one call on several of its variables; those of a cluster are the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from kvemb.checks.numeric import as_bool
from kvemb.defaults import DefaultStore
from kvemb.handle import Inside
from kvemb.variable import Variable

_Rows = dict[Variable | str, npt.NDArray[Any]]


class ManyTables(DefaultStore[Inside]):
    """A store with these methods. A subclass defines those with an underscore, which do the work.

    They may be functions of another module, so that a small call does not pass through one more method.
    """

    @abstractmethod
    def _lookup(self, wanted: Mapping[Any, npt.ArrayLike], *, touch: bool, out: _Rows | None = None) -> _Rows:
        """See lookup()."""

    @abstractmethod
    def _apply_gradients(self, wanted: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """See apply_gradients()."""

    @abstractmethod
    def _prefetch(self, wanted: Mapping[Any, npt.ArrayLike], after_lookup: bool) -> None:
        """See prefetch()."""

    def lookup(
        self, keys: Mapping[Variable | str, npt.ArrayLike], *, touch: bool = True, out: _Rows | None = None
    ) -> _Rows:
        """Look up keys of several variables in one call.

        The results are those of ``Variable.lookup`` for each, at a lower cost: a large call finds hot rows on all
        cores, and cold reads of different variables overlap. A client of a cluster makes one call to each shard.

        All arguments are checked first. The call is atomic per key, not across variables. But a follower's
        ``refresh()`` happens before or after the whole call.

        Args:
            keys: A dict from a variable, or its name, to keys of any shape. Duplicates are allowed.
            touch: Whether each occurrence of a key counts as a use for the policy.
            out: A dict from some of these variables to arrays to fill, as for ``Variable.lookup``. None: new arrays.

        Returns:
            A dict from the keys of ``keys``, in their order, to rows ``keys.shape + (dim,)`` in the value dtype: new
            arrays, or those of ``out``. Missing keys have the initializer's row.

        Raises:
            TypeError, ValueError: As ``Variable.lookup`` raises them, with the variable's name in the message;
                ValueError also for a variable that is given twice or belongs to another store.
            KeyError: The store has no variable of a name.
            Corruption: Bytes on disk differ from what was written. A note names the variable, as for other errors.

        Example:
            >>> items = store.get_variable("items", dim=3)
            >>> rows = store.lookup({users: [1, 2], "items": [7]})
            >>> rows[users].shape, rows["items"].shape
            ((2, 2), (1, 3))
        """
        return self._lookup(keys, touch=as_bool(touch, "touch"), out=out)

    def apply_gradients(self, grads: Mapping[Variable | str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Take one optimizer step on several variables in one call.

        The results are those of ``Variable.apply_gradients`` for each. All arguments are checked before any row
        changes. After that, each variable's step is as atomic as a separate call: if one fails, the others are still
        taken, and the first error is raised with the name of its variable. With ``durability="write"`` all steps wait
        for one sync of the log.

        Args:
            grads: A dict from a variable, or its name, to ``(keys, grads)``, as for ``Variable.apply_gradients``.

        Raises:
            TypeError, ValueError: As ``Variable.apply_gradients`` raises them; ValueError also for a variable that is
                given twice or belongs to another store.
            KeyError: The store has no variable of a name.
            Corruption: Bytes on disk differ from what was written.

        Example:
            >>> store.apply_gradients({users: ([1, 2], [[1, 1], [1, 1]])})
            >>> users.lookup([1, 2]).tolist()
            [[0.5, 0.5], [1.5, 1.5]]
        """
        self._apply_gradients(grads)

    def prefetch(self, keys: Mapping[Variable | str, npt.ArrayLike], *, after_lookup: bool = False) -> None:
        """Start reading the cold rows of several variables, for the call that follows.

        It changes no result.

        Args:
            keys: A dict from a variable, or its name, to keys of any shape.
            after_lookup: Whether to wait for the next lookup to finish first; see ``Variable.prefetch``.

        Raises:
            TypeError, ValueError: As ``lookup`` raises them.
            KeyError: The store has no variable of a name.
        """
        self._prefetch(keys, bool(after_lookup))
