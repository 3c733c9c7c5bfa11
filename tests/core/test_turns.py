"""How long a queue waits for its turn when several processes claim, each with credits of its own."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.asking import share
from fairlead.core.queue import Queue, Served
from fairlead.core.selection import ClaimPlan
from fairlead.core.turns import MANY, Credits, Lineup, Room

STEPS = 300


def lineup_of(weights: Sequence[int]) -> Lineup:
    return Lineup(Queue(f"q{n}", weight=weight) for n, weight in enumerate(weights))


def bound(weights: Sequence[int], weight: int) -> int:
    """What holds for one process: ⌈W/w⌉ + k."""
    return math.ceil(sum(weights) / weight) + len(weights)


def longest_waits(
    weights: Sequence[int], begun: Sequence[Credits], claims: Iterable[tuple[int, int]]
) -> dict[str, int]:
    """Let processes claim from full queues: pairs of who, and how many jobs.

    Returns for each queue after how many claimed jobs, of all processes together, one of its own
    came at the latest.
    """
    credits = list(begun)
    lineup = credits[0].lineup
    full = dict.fromkeys(lineup.names, math.inf)
    last = dict.fromkeys(lineup.names, 0)
    worst = dict.fromkeys(lineup.names, 0)
    clock = 0
    for process, slots in claims:
        shares = share(ClaimPlan("w", lineup, slots, 1, credits=credits[process]), full)
        credits[process] = shares.credits
        for name in shares.turns:
            clock += 1
            worst[name] = max(worst[name], clock - last[name])
            last[name] = clock
    return {name: max(worst[name], clock - last[name]) for name in lineup.names}


def phases(weights: Sequence[int], processes: int) -> list[Credits]:
    lineup = lineup_of(weights)
    return [Credits.at_phase(lineup, number / processes) for number in range(processes)]


SHAPES = [
    [19, 1],
    [10, 9, 1],
    [4, 4, 4, 4, 3, 1],
    [1] * 10,
    [20, 1, 1, 1],
    [5, 3, 1],
    [7, 5, 3, 2, 2, 1],
]


@pytest.mark.parametrize("weights", SHAPES, ids=str)
@pytest.mark.parametrize(("processes", "most"), [(1, 1.0), (2, 1.0), (4, 4 / 3), (8, 2.1)])
def test_processes_that_claim_in_step_come_close_to_the_bound_of_one(
    weights: list[int], processes: int, most: float
) -> None:
    claims = [(process, 1) for _ in range(STEPS) for process in range(processes)]
    waits = longest_waits(weights, phases(weights, processes), claims)
    for weight, wait in zip(weights, waits.values(), strict=True):
        assert wait <= most * bound(weights, weight)


def test_without_phases_they_would_be_far_from_it() -> None:
    """What the phases are for: four processes that begin alike serve a queue all at once."""
    weights = [19, 1]
    claims = [(process, 1) for _ in range(STEPS) for process in range(4)]
    waits = longest_waits(weights, [Credits(lineup_of(weights))] * 4, claims)
    assert max(waits.values()) > 3 * bound(weights, 1)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=60),
    st.booleans(),
)
def test_however_processes_claim_a_queue_gets_its_turn(
    weights: list[int], processes: int, claims: list[tuple[int, int]], is_phased: bool
) -> None:
    """In any n·(⌈W/w⌉ + k - 1) + 1 jobs that n processes claim: one of them claimed ⌈W/w⌉ + k."""
    begun = phases(weights, processes)
    if not is_phased:
        begun = [Credits(begun[0].lineup)] * processes
    claimed = [(process % processes, slots) for process, slots in claims]
    long = chain(claimed, repeat((0, 5), 10))
    waits = longest_waits(weights, begun, long)
    for weight, wait in zip(weights, waits.values(), strict=True):
        assert wait <= processes * (bound(weights, weight) - 1) + 1


def test_a_copy_of_credits_is_a_value() -> None:
    lineup = lineup_of([2, 1])
    begun = Credits(lineup)
    once = share(ClaimPlan("w", lineup, 2, 1, credits=begun), {"q0": 9, "q1": 9})
    twice = share(ClaimPlan("w", lineup, 2, 1, credits=begun), {"q0": 9, "q1": 9})
    assert once == twice
    assert dict(begun) == {}
    assert dict(once.credits) == {"q0": -0.5, "q1": -1.0}


def test_what_a_part_of_the_queues_owes_is_taken_over_by_the_whole() -> None:
    whole, part = lineup_of([1, 1, 1]), Lineup([Queue("q1")])
    credits = Credits(whole, {"q0": -1.0, "q1": -2.0})
    assert dict(credits.updated(Credits(part))) == {"q0": -1.0}
    assert dict(credits.updated(Credits(part, {"q1": -0.5}))) == {"q0": -1.0, "q1": -0.5}
    assert credits.updated(credits) is credits


def test_a_long_round_is_counted_from_zero_again() -> None:
    """After any number of jobs the fractions of heavy queues are as exact as at first."""
    lineup = lineup_of([1, 1_000_000])
    credits = Credits(lineup, {"q0": -(2.0**51), "q1": -(2.0**51)})
    full = {"q0": 99, "q1": 99}
    once = share(ClaimPlan("w", lineup, 1, 1, credits=credits), full)
    twice = share(ClaimPlan("w", lineup, 10, 1, credits=once.credits), full)
    assert twice.turns == ["q1"] * 10
    assert twice.credits["q1"] == pytest.approx(-1e-6)


def test_a_queue_gives_two_jobs_a_turn_where_many_of_the_same_weight_share_many_slots() -> None:
    """Half as many queues are asked. The second half of the round follows in the next claim."""
    lineup = lineup_of([3] * MANY)
    full = dict.fromkeys(lineup.names, 9)
    first = share(ClaimPlan("w", lineup, MANY, 1), full)
    second = share(ClaimPlan("w", lineup, MANY, 1, credits=first.credits), full)
    half = MANY // 2
    assert first.turns == [name for name in lineup.names[:half] for _ in range(2)]
    assert second.turns == [name for name in lineup.names[half:] for _ in range(2)]


@pytest.mark.parametrize(
    ("weights", "slots"),
    [([1] * (MANY - 1), MANY), ([1] * MANY, MANY - 1), ([1] * MANY + [2], MANY)],
    ids=["few queues", "few slots", "other weights"],
)
def test_elsewhere_a_turn_is_one_job(weights: list[int], slots: int) -> None:
    lineup = lineup_of(weights)
    turns = share(ClaimPlan("w", lineup, slots, 1), dict.fromkeys(lineup.names, 9)).turns
    assert turns[: MANY - 1] == list(lineup.names[: MANY - 1])


def test_of_two_that_owe_the_same_who_was_served_longest_ago_is_next() -> None:
    """Else a queue that comes back would have two turns while the other one waits for one."""
    lineup = lineup_of([1, 1])
    first = share(ClaimPlan("w", lineup, 1, 1), {"q1": 9})
    back = share(ClaimPlan("w", lineup, 1, 1, credits=first.credits), {"q0": 9, "q1": 9})
    then = share(ClaimPlan("w", lineup, 1, 1, credits=back.credits), {"q0": 9, "q1": 9})
    assert [*first.turns, *back.turns, *then.turns] == ["q1", "q0", "q1"]


def test_a_claim_looks_at_no_more_queues_than_it_has_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more, for whom there is no room left."""
    lineup = lineup_of([1] * 1_000)
    asked: list[str] = []
    has_room = Room.for_queue

    def counted(self: Room, queue: Served) -> int:
        asked.append(queue.name)
        return has_room(self, queue)

    monkeypatch.setattr(Room, "for_queue", counted)
    share(ClaimPlan("w", lineup, 50, 1), dict.fromkeys(lineup.names, 1))
    assert len(asked) == 51
