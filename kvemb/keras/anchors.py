"""Anchors: a scalar weight for each variable, by which backends and Keras know that its rows are trained.

Rows are not weights of a layer. Its anchor is: Keras asks for the gradient of the anchor, which runs the backward pass
of the rows. That gradient is 0, so the anchor stays 0. Layers on one variable share its anchor, as layers share a tied
weight.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import keras
import numpy as np

from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable

_anchors: WeakKeyDictionary[Variable, keras.Variable] = WeakKeyDictionary()
_lock = threading.Lock()


def anchor_of(variable: Variable) -> keras.Variable:
    """Return the anchor of a variable."""
    with uninterrupted(), _lock:
        anchor = _anchors.get(variable)
        if anchor is None:
            anchor = keras.Variable(
                np.zeros((), np.float32), dtype="float32", trainable=True, autocast=False, name="rows"
            )
            _anchors[variable] = anchor
    return anchor


def known_variables() -> list[Variable]:
    """Return the variables that layers of this process have had."""
    with uninterrupted(), _lock:
        return list(_anchors)
