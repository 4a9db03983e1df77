"""XXH3 in 64 bits (Yann Collet's xxHash, version 0.8), of bytes at an address.

RocksDB stores its low 32 bits behind a block, and the key of a word is all of them (kvemb.rows.words). Names follow
xxhash.h. Source: https://github.com/Cyan4973/xxHash/blob/v0.8.3/doc/xxhash_spec.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.addresses import add_stripe, folded_product, load_8, load_32, load_64, reversed_bytes
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
_U = np.uint64
_PRIME_32, _PRIME_64 = _U(0x9E3779B1), _U(0x9E3779B185EBCA87)
_STARTS = (
    *(_U(0xC2B2AE3D), _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)),
    *(_U(0x85EBCA77C2B2AE63), _U(0x85EBCA77), _U(0x27D4EB2F165667C5), _U(0x9E3779B1)),
)
# Bytes of a stripe; stripes between two scrambles, which end the secret; where the secret is read for the rest.
_STRIPE, _STRIPES, _SCRAMBLE_AT, _LAST_AT, _MERGE_AT = 64, 16, 128, 121, 11


def secret_of(seed: int) -> Any:
    """Return the secret of bytes longer than 240 for a seed from 0 to 2**64 - 1."""
    words = SECRET.view("<u8").copy()
    words[0::2] += _U(seed)
    words[1::2] -= _U(seed)
    return words.view(np.uint8)


@compiled
def _avalanche(mixed: Any) -> Any:
    mixed = (mixed ^ (mixed >> _U(37))) * _U(0x165667919E3779F9)
    return mixed ^ (mixed >> _U(32))


@compiled
def _avalanche_64(mixed: Any) -> Any:
    """Return the end of the older XXH64."""
    mixed = (mixed ^ (mixed >> _U(33))) * _U(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> _U(29))) * _U(0x165667B19E3779F9)
    return mixed ^ (mixed >> _U(32))


@compiled
def _rotated(word: Any, bits: int) -> Any:
    return (word << _U(bits)) | (word >> _U(64 - bits))


@compiled
def _of_up_to_3(data: int, nbytes: int, secret: int, seed: Any) -> Any:
    if nbytes == 0:
        return _avalanche_64(seed ^ load_64(secret + 56) ^ load_64(secret + 64))
    first, middle, last = load_8(data), load_8(data + nbytes // 2), load_8(data + nbytes - 1)
    combined = first << 16 | middle << 24 | last | nbytes << 8
    return _avalanche_64(_U(combined) ^ (_U(load_32(secret) ^ load_32(secret + 4)) + seed))


@compiled
def flip_of_4_to_8(secret: int, seed: Any) -> Any:
    """Return what of_4_to_8 takes of the secret and the seed, the same for all words."""
    seed ^= reversed_bytes(seed & _U(0xFFFFFFFF)) & _U(0xFFFFFFFF00000000)
    return (load_64(secret + 8) ^ load_64(secret + 16)) - seed


@compiled
def of_4_to_8(data: int, nbytes: int, flip: Any) -> Any:
    """Return the hash of 4 to 8 bytes."""
    both = _U(load_32(data + nbytes - 4)) + (_U(load_32(data)) << _U(32))
    mixed = both ^ flip
    mixed = (mixed ^ _rotated(mixed, 49) ^ _rotated(mixed, 24)) * _U(0x9FB21C651E98DF25)
    mixed = (mixed ^ ((mixed >> _U(35)) + _U(nbytes))) * _U(0x9FB21C651E98DF25)
    return mixed ^ (mixed >> _U(28))


@compiled
def _of_up_to_16(data: int, nbytes: int, secret: int, seed: Any) -> Any:
    low = load_64(data) ^ ((load_64(secret + 24) ^ load_64(secret + 32)) + seed)
    high = load_64(data + nbytes - 8) ^ ((load_64(secret + 40) ^ load_64(secret + 48)) - seed)
    return _avalanche(_U(nbytes) + reversed_bytes(low) + high + folded_product(low, high))


@compiled
def _mixed_16(data: int, secret: int, seed: Any) -> Any:
    low, high = load_64(secret) + seed, load_64(secret + 8) - seed
    return folded_product(load_64(data) ^ low, load_64(data + 8) ^ high)


@compiled
def _of_up_to_128(data: int, nbytes: int, secret: int, seed: Any) -> Any:
    total, pairs = _U(nbytes) * _PRIME_64, (nbytes - 1) // 32
    for pair in range(pairs + 1):  # from both ends inwards
        total += _mixed_16(data + 16 * pair, secret + 32 * pair, seed)
        total += _mixed_16(data + nbytes - 16 * (pair + 1), secret + 32 * pair + 16, seed)
    return _avalanche(total)


@compiled
def _of_up_to_240(data: int, nbytes: int, secret: int, seed: Any) -> Any:
    total = _U(nbytes) * _PRIME_64
    for at in range(0, 128, 16):
        total += _mixed_16(data + at, secret + at, seed)
    total = _avalanche(total)
    for at in range(128, nbytes - 15, 16):
        total += _mixed_16(data + at, secret + at - 128 + 3, seed)
    return _avalanche(total + _mixed_16(data + nbytes - 16, secret + 119, seed))


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
def _of_more_than_16(data: int, nbytes: int, secret: int, seed: Any, long_secret: int, sums: Any) -> Any:
    if nbytes <= 128:
        return _of_up_to_128(data, nbytes, secret, seed)
    if nbytes <= 240:
        return _of_up_to_240(data, nbytes, secret, seed)
    return _of_more(data, nbytes, long_secret, sums)


@compiled
def xxh3(data: int, nbytes: int, secret: int, seed: Any, long_secret: int, sums: Any) -> Any:
    """Return XXH3 of bytes at an address, uint64, as XXH3_64bits_withSeed does.

    secret, long_secret: the addresses of SECRET and secret_of(seed). seed: uint64. sums: 8 words of scratch, uint64.
    """
    if nbytes > 16:
        return _of_more_than_16(data, nbytes, secret, seed, long_secret, sums)
    if nbytes > 8:
        return _of_up_to_16(data, nbytes, secret, seed)
    if nbytes > 3:
        return of_4_to_8(data, nbytes, flip_of_4_to_8(secret, seed))
    return _of_up_to_3(data, nbytes, secret, seed)


# The least bytes of which checksum() can be taken: no block is smaller.
MIN_BYTES = 17


@compiled
def checksum(data: int, nbytes: int, secret: int, sums: Any) -> Any:
    """Return the low 32 bits of XXH3 of bytes at an address, with seed 0. REQUIRES: nbytes >= MIN_BYTES.

    secret: the address of SECRET. sums: 8 words of scratch, uint64.
    """
    hashed = _of_more_than_16(data, nbytes, secret, _U(0), secret, sums)
    return np.int64(hashed & _U(0xFFFFFFFF))
