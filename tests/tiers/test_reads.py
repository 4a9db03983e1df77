"""Reads of several steps: one that a refresh interrupts is repeated until it has seen one point throughout."""

from __future__ import annotations

from types import SimpleNamespace

from kvemb.tiers.reads import of_one_point


class Reader:
    def __init__(self, moves: int) -> None:
        self._storage, self.moves = SimpleNamespace(shown=0), moves

    @of_one_point
    def read(self, *given: int, named: int) -> tuple[int, int, tuple[int, ...], int]:
        before = self._storage.shown
        if self.moves:
            self.moves -= 1
            self._storage.shown += 1
        return before, self._storage.shown, given, named


def test_it_is_repeated_as_often_as_the_point_moved():
    for moves in range(4):
        reader = Reader(moves)
        assert reader.read(1, 2, named=3) == (moves, moves, (1, 2), 3)
        assert reader.moves == 0
