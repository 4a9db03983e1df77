"""Loads numba and a first kernel, which takes half a second, in a process from which others are forked.

Opens no store, whose threads would not survive a fork.
"""

import numpy as np

import kvemb

kvemb.RandomNormal(seed=1).rows(np.arange(2), 1, np.float32)
