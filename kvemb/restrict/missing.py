"""The replacement of a user-defined policy while its variable is open without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy.typing as npt

from kvemb.restrict.policy import Counts, RestrictPolicy, Scores


@dataclass(frozen=True)
class MissingPolicy(RestrictPolicy):
    """A user-defined policy that was not given when its variable was opened.

    Only the name of its class is known. The stored description is kept. Scores do not change: uses are not recorded, as
    with touch=False, and a new row has the score 0. Restricting and recording uses raise ValueError.

    Args:
        class_name: The module and qualified name of the class.
    """

    class_name: str

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return the old scores."""
        return old_score

    def apply_update(self, keys: npt.ArrayLike) -> NoReturn:
        """Raise ValueError, because how a use changes a score is unknown."""
        raise self.error()

    def apply_restriction(self, num_reserved: int, trigger: int | None = None) -> NoReturn:
        """Raise ValueError, because scores of rows used since the opening are not up to date."""
        raise self.error()

    def error(self) -> ValueError:
        """Return the error that says which policy is missing and how to give it.

        Returns:
            The error, for the caller to raise.
        """
        return ValueError(
            f"the variable was opened without its policy {self.class_name}; close the store, and open the variable "
            "with get_variable(..., restrict_policy=...) first"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stored description."""
        return {"kind": "custom", "class": self.class_name}
