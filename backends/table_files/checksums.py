"""XXH3 in 64 bits (Yann Collet's xxHash, version 0.8, seed 0), of which RocksDB stores the low 32 bits behind a block.

Lengths of 16 bytes and less have formulas of their own, which no block needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.table_files.addresses import add_stripe, folded_product, load_64
from kvemb.kernels.compiling import compiled

# The default secret of XXH3.
SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
# The least bytes of which checksum() can be taken.
MIN_BYTES = 17
_U = np.uint64
_PRIME_32, _PRIME_64 = _U(0x9E3779B1), _U(0x9E3779B185EBCA87)
_STARTS = (
    *(_U(0xC2B2AE3D), _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)),
    *(_U(0x85EBCA77C2B2AE63), _U(0x85EBCA77), _U(0x27D4EB2F165667C5), _U(0x9E3779B1)),
)
# Bytes of a stripe; stripes between two scrambles, which end the secret; where the secret is read for the rest.
_STRIPE, _STRIPES, _SCRAMBLE_AT, _LAST_AT, _MERGE_AT = 64, 16, 128, 121, 11


@compiled
def _avalanche(mixed: Any) -> Any:
    mixed = (mixed ^ (mixed >> _U(37))) * _U(0x165667919E3779F9)
    return mixed ^ (mixed >> _U(32))


@compiled
def _mixed_16(data: int, secret: int) -> Any:
    return folded_product(load_64(data) ^ load_64(secret), load_64(data + 8) ^ load_64(secret + 8))


@compiled
def _of_up_to_128(data: int, nbytes: int, secret: int) -> Any:
    total, pairs = _U(nbytes) * _PRIME_64, (nbytes - 1) // 32
    for pair in range(pairs + 1):  # from both ends inwards
        total += _mixed_16(data + 16 * pair, secret + 32 * pair)
        total += _mixed_16(data + nbytes - 16 * (pair + 1), secret + 32 * pair + 16)
    return _avalanche(total)


@compiled
def _of_up_to_240(data: int, nbytes: int, secret: int) -> Any:
    total = _U(nbytes) * _PRIME_64
    for at in range(0, 128, 16):
        total += _mixed_16(data + at, secret + at)
    total = _avalanche(total)
    for at in range(128, nbytes - 15, 16):
        total += _mixed_16(data + at, secret + at - 128 + 3)
    return _avalanche(total + _mixed_16(data + nbytes - 16, secret + 119))


@compiled
def _of_more(data: int, nbytes: int, secret: int, sums: Any) -> Any:
    for lane in range(8):
        sums[lane] = _STARTS[lane]
    to, left = sums.ctypes.data, nbytes - 1
    while left >= _STRIPE * _STRIPES:
        for stripe in range(_STRIPES):
            add_stripe(to, data + _STRIPE * stripe, secret + 8 * stripe)
        for lane in range(8):
            scrambled = sums[lane] ^ (sums[lane] >> _U(47)) ^ load_64(secret + _SCRAMBLE_AT + 8 * lane)
            sums[lane] = scrambled * _PRIME_32
        data, left = data + _STRIPE * _STRIPES, left - _STRIPE * _STRIPES
    for stripe in range(left // _STRIPE):
        add_stripe(to, data + _STRIPE * stripe, secret + 8 * stripe)
    add_stripe(to, data + left + 1 - _STRIPE, secret + _LAST_AT)
    total = _U(nbytes) * _PRIME_64
    for lane in range(0, 8, 2):
        keyed = sums[lane] ^ load_64(secret + _MERGE_AT + 8 * lane)
        total += folded_product(keyed, sums[lane + 1] ^ load_64(secret + _MERGE_AT + 8 * lane + 8))
    return _avalanche(total)


@compiled
def checksum(data: int, nbytes: int, secret: int, sums: Any) -> Any:
    """Return the low 32 bits of XXH3 of bytes at an address. REQUIRES: nbytes >= MIN_BYTES.

    secret: the address of SECRET. sums: 8 words of scratch, uint64.
    """
    if nbytes <= 128:
        hashed = _of_up_to_128(data, nbytes, secret)
    elif nbytes <= 240:
        hashed = _of_up_to_240(data, nbytes, secret)
    else:
        hashed = _of_more(data, nbytes, secret, sums)
    return np.int64(hashed & _U(0xFFFFFFFF))
