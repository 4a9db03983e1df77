"""CRC-32C, of which RFC 3720 has the values (appendix B.4)."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.kernels.crc32c import checksum


def unmasked(masked: int) -> int:
    rest = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rest >> 17 | rest << 15) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_are_those_of_the_standard(data, expected):
    assert unmasked(checksum(np.frombuffer(data, np.uint8))) == expected
