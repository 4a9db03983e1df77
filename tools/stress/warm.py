"""Loads numba, with a first kernel, which takes half a second: once, where processes are forked that have imported it.

Opens no store, whose threads would not survive a fork.
"""

import numpy as np

import kvemb

kvemb.RandomNormal(seed=1).rows(np.arange(2), 1, np.float32)
