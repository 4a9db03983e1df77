"""Tokens of variables, which a drop and a recovery change."""

from __future__ import annotations

from kvemb.cluster.coordination.opened import are_of_one_variable, new_token, next_token


def test_a_token_is_of_one_variable_between_two_recoveries():
    token, other = new_token(), new_token()
    later = next_token(next_token(token))
    assert len({token, next_token(token), later, other}) == 4
    assert are_of_one_variable(token, later)
    assert not are_of_one_variable(other, later)
