"""Progress of long work never goes back, and never exceeds its total."""

from __future__ import annotations

import threading

from kvemb.progress import Meter


def test_what_is_done_is_told_after_each_piece_and_never_exceeds_the_total():
    told = []
    meter = Meter(10, lambda done, total: told.append((done, total)))
    for piece in (4, 0, 5, 7):
        meter(piece)
    assert told == [(4, 10), (4, 10), (9, 10), (10, 10)]


def test_a_meter_needs_no_report():
    Meter(10, None)(3)


def test_many_threads_tell_in_order():
    told = []
    meter = Meter(4000, lambda done, total: told.append(done))
    threads = [threading.Thread(target=lambda: [meter(1) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == list(range(1, 4001))
