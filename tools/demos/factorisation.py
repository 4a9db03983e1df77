"""Logistic matrix factorisation over three variables of a store: users, items, and the overall rate of clicks.

The row of a user or an item is its factors and, in the last column, its bias. The log-odds of a click are
factors · factors + both biases + the overall rate (Johnson, "Logistic matrix factorization for implicit feedback
data", 2014). Not thread-safe.
"""

from __future__ import annotations

import numpy as np

import kvemb
from kvemb.tools.demos.click_log import Clicks, Floats, auc

LEARNING_RATE, INITIAL_ACCUMULATOR, INITIAL_SPREAD = 0.1, 0.1, 0.05
EVALUATED_AT_ONCE = 8192


class Factorisation:
    """The model. All parameters are in `store`, so a checkpoint of the store is one of the model."""

    def __init__(self, store: kvemb.Store, dim: int, seed: int) -> None:
        adagrad = kvemb.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
        self._dim = dim
        self._users, self._items = (
            store.get_variable(
                name,
                dim=dim + 1,
                initializer=kvemb.RandomUniform(-INITIAL_SPREAD, INITIAL_SPREAD, seed=seed + number),
                optimizer=adagrad,
                restrict_policy=kvemb.FrequencyRestrictPolicy,
            )
            for number, name in enumerate(("user", "item"))
        )
        self._rate = store.get_variable("click_rate", dim=1, optimizer=adagrad)

    @property
    def variables(self) -> tuple[kvemb.Variable, kvemb.Variable]:
        """The two large variables: users, items."""
        return self._users, self._items

    @property
    def row_bytes(self) -> int:
        """Bytes of a user's or an item's float32 row with its Adagrad slot."""
        return 2 * 4 * (self._dim + 1)

    def prefetch(self, part: Clicks) -> None:
        """Start reading the rows that training on `part` will need."""
        for variable, ids in zip(self.variables, part.ids.T, strict=True):
            variable.prefetch(ids)

    def train(self, part: Clicks) -> int:
        """Take one Adagrad step on the summed log loss of all lines of `part`; returns the number of rows."""
        user_ids, item_ids = part.ids.T
        users, items = self._users.lookup(user_ids), self._items.lookup(item_ids)
        error = (0.5 + 0.5 * np.tanh(0.5 * self._logits(users, items)) - part.clicked)[:, None]
        user_grads, item_grads = error * items, error * users
        # A bias has the gradient of 1 * error, not of the other side's bias.
        user_grads[:, -1:] = item_grads[:, -1:] = error
        self._users.apply_gradients(user_ids, user_grads)
        self._items.apply_gradients(item_ids, item_grads)
        self._rate.apply_gradients(np.zeros(1, np.int64), error.sum(axis=0, keepdims=True))
        return part.ids.size

    def scores(self, part: Clicks) -> Floats:
        """Return the log-odds of a click of each line (n,). Changes neither rows nor scores."""
        scores = []
        for start in range(0, len(part.ids), EVALUATED_AT_ONCE):
            user_ids, item_ids = part.ids[start : start + EVALUATED_AT_ONCE].T
            users = self._users.lookup(user_ids, touch=False)
            scores.append(self._logits(users, self._items.lookup(item_ids, touch=False)))
        return np.concatenate(scores)

    def auc(self, part: Clicks) -> float:
        """Return the area under the ROC curve on `part`."""
        return auc(self.scores(part), part.clicked)

    def _logits(self, users: Floats, items: Floats) -> Floats:
        rate = self._rate.lookup(np.zeros(1, np.int64), touch=False)[0, 0]
        match = np.einsum("nd,nd->n", users[:, :-1], items[:, :-1])
        logits: Floats = match + users[:, -1] + items[:, -1] + rate
        return logits
