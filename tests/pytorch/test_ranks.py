"""The channel between ranks: one answer to the messages of all, and every way in which one of them may fail."""

from __future__ import annotations

import pytest
from rank_threads import channels, run

from kvemb.errors import Corruption, RankLost
from kvemb.torch.ranks import error_of, text_of


def fails(error):
    raise error


def test_all_get_the_answer_that_the_first_rank_gives_to_the_messages_of_all():
    ends = channels(3)

    def work(end):
        return [
            end.meet(lambda at=at: {"at": at, "rank": end.rank}, lambda messages: {"all": messages}, 60.0)
            for at in range(2)
        ]

    expected = [{"all": [{"at": at, "rank": rank} for rank in range(3)]} for at in range(2)]
    assert run(work, ends) == [expected] * 3


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_of_one_rank_is_raised_by_all_which_can_go_on(failing):
    ends = channels(3)

    def work(end):
        with pytest.raises(Corruption) as raised:
            end.meet(lambda: fails(Corruption("bad")) if end.rank == failing else {}, lambda _: {}, 60.0)
        with pytest.raises(ValueError, match=r"^no$"):
            end.meet(dict, lambda _: fails(ValueError("no")), 60.0)
        return str(raised.value), end.meet(dict, lambda _: {"went": "on"}, 60.0)

    found = run(work, ends)
    assert found == [("bad" if rank == failing else f"rank {failing}: bad", {"went": "on"}) for rank in range(3)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_ends_with_an_error_tells_all_others(failing):
    ends = channels(3)

    def work(end):
        if end.rank == failing:
            if failing:
                end.fail(KeyError("broken"))
            else:  # Ctrl-C
                with pytest.raises(KeyboardInterrupt):
                    end.meet(lambda: fails(KeyboardInterrupt()), lambda _: {}, 60.0)
            return None
        for _ in range(2):
            with pytest.raises(RankLost, match=rf"^rank {failing} has ended: Key.*; start all ranks again"):
                end.meet(dict, lambda _: {}, 60.0)
        return end.told()

    found = run(work, ends)
    assert found.pop(failing) is None
    assert found[0] == found[1]
    assert found[0].startswith(f"rank {failing} has ended: ")


def test_all_that_hang_are_named_to_the_others():
    ends = channels(4)

    def work(end):
        if end.rank in (1, 3):
            return None
        with pytest.raises(RankLost) as raised:
            end.meet(dict, lambda _: {}, 0.1, 60.0)
        return str(raised.value)

    found = run(work, ends)
    assert found[0] == found[2]
    assert found[0].startswith("rank 1 and rank 3 did not come to the step within 0.1 seconds")


def test_garbage_from_a_rank_is_the_end_of_it():
    for garbage in (b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x03abc", b"\xff\xff\xff\xffabc"):
        first, second = channels(2)
        second._leader.sendall(garbage)
        with pytest.raises(RankLost, match="rank 1 has ended"):
            first.meet(dict, lambda _: {}, 60.0)


def test_errors_keep_their_kind_where_they_can_be_made_from_their_text():
    error = ValueError("no")
    error.add_note("variable 'users'")
    assert repr(error_of(*text_of(error))) == repr(ValueError("no\nvariable 'users'"))
    assert repr(error_of(*text_of(KeyError("no")))) == repr(RuntimeError("KeyError: 'no'"))
    end = channels(1)[0]
    end.close()
    with pytest.raises(RankLost, match="left the group"):
        end.meet(dict, lambda _: {}, 60.0)
