"""Default seeds are a function of the variable's name that never changes."""

from __future__ import annotations

import kvemb
from kvemb.initializers.seeding import seed_of, seeded, seeded_like


def test_the_seed_of_a_name_is_pinned():
    assert seed_of("users") == 489558067500612477


def test_only_a_seed_left_out_is_taken_from_the_name():
    assert seeded(kvemb.RandomNormal(), "users").seed == seed_of("users")
    assert seeded(kvemb.RandomNormal(seed=5), "users").seed == 5
    assert seeded(kvemb.RandomNormal(), "ads") != seeded(kvemb.RandomNormal(), "users")
    constant = kvemb.Constant(1.0)
    assert seeded(constant, "users") is constant


def test_a_seed_left_out_asks_for_the_one_there_is():
    kept = kvemb.RandomNormal(seed=9)
    assert seeded_like(kvemb.RandomNormal(), kept).seed == 9
    assert seeded_like(kvemb.RandomNormal(seed=4), kept).seed == 4
    assert seeded_like(kvemb.RandomUniform(), kept).seed is None, "another kind, which is refused elsewhere"
