"""The kernels of words: what they encode is what Python encodes."""

from __future__ import annotations

import random

import numpy as np

from kvemb.rows import word_kernels
from kvemb.rows.words import as_words


def test_code_points_of_all_lengths_are_encoded_as_by_python():
    chance = random.Random(1)
    last = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    words = ["".join(chr(chance.choice(last)) for _ in range(length)) for length in range(1, 40)]
    encoded = as_words(np.array(words))
    assert encoded.data.tobytes() == "".join(words).encode()
    assert np.diff(encoded.offsets).tolist() == [len(word.encode()) for word in words]


def test_a_code_point_that_utf8_lacks_is_found():
    offsets = np.zeros(4, np.int64)
    for wrong in (0xD800, 0xDFFF, 0x110000):
        codes = np.array([[65, 0], [66, wrong], [67, 68]], np.uint32)
        assert word_kernels.measure(codes, offsets) == 1
    assert word_kernels.measure(np.array([[65, 0], [0, 0], [0, 66]], np.uint8), offsets) == -1
    assert offsets.tolist() == [0, 1, 1, 3]  # NULs in front of a character are a part of the word
