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
    offsets, data = np.zeros(4, np.int64), np.empty(24, np.uint8)
    for wrong in (0xD800, 0xDFFF, 0x110000):
        codes = np.array([[65, 0], [66, wrong], [67, 68]], np.uint32)
        assert word_kernels.encode(codes, offsets, data) == 1
    assert word_kernels.encode(np.array([[65, 0], [0, 0], [0, 66]], np.uint8), offsets, data) == -1
    assert offsets.tolist() == [0, 1, 1, 3]  # NULs in front of a character are a part of the word


def test_ascii_before_and_behind_other_characters_is_encoded_as_by_python():
    words = ["a" * before + "é" + "b" * behind for before in range(20) for behind in range(20)]
    encoded = as_words(np.array(words))
    assert [encoded.word(at).decode() for at in range(len(words))] == words


def test_objects_are_read_until_one_is_none_or_has_no_room():
    offsets, data, present = np.zeros(5, np.int64), np.empty(6, np.uint8), np.ones(4, np.bool_)

    def gathered(values: list[object], missing: object = "none") -> int:
        present[:] = True
        return word_kernels.gather(id(values), True, id(missing), 0, 4, offsets, data, present)

    assert gathered(["ab", None, b"c", "é"], None) == 4
    assert (offsets.tolist(), present.tolist()) == ([0, 2, 2, 3, 5], [True, False, True, True])
    assert bytes(data[:5]) == "abcé".encode()
    assert gathered(["ab", None, b"c", "é"]) == 1
    assert gathered(["ab", "cd", "efg", ""]) == 2  # no room
    assert gathered(["ab", "\ud800"]) == 1  # no UTF-8
    assert gathered(["ab", "c"]) == 2  # another thread has shortened the list
