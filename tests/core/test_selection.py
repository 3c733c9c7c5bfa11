"""The rule's promises, over arbitrary queues, weights and arrivals."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import cast
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import turns
from fairlead.core.asking import Asking, share
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job
from fairlead.core.queue import Queue, Served
from fairlead.core.selection import (
    LIMITS,
    LOOK,
    Claim,
    ClaimPlan,
    Head,
    Limit,
    Line,
    Selection,
    Snapshot,
    gate_of,
    select,
)
from fairlead.core.turns import Lineup

NOW = 10**9
weights = st.lists(st.integers(1, 20), min_size=1, max_size=6)


def head(name: str, at: int = 0, **options: object) -> Head:
    values = {"task": "t", "version": 1, "order_at": at, "run_at": at} | options
    return Head(id=JobId(f"{name}-{at:05}"), **values)  # type: ignore[arg-type]


def snapshot(lines: list[Line], slots: int, **options: object) -> Snapshot:
    queues = tuple(line.queue for line in lines)
    plan = ClaimPlan("w", queues, slots, 1, **options)  # type: ignore[arg-type]
    return Snapshot(plan, NOW, by_name(lines))


def by_name(lines: Iterable[Line]) -> dict[str, Line]:
    return {line.queue.name: line for line in lines}


def full(name: str, weight: int = 1, jobs: int = 500, **options: object) -> Line:
    return Line(Queue(name, weight=weight, **options), [head(name, n) for n in range(jobs)])  # type: ignore[arg-type]


def chosen(selection: Selection) -> list[str]:
    return [queue for queue, _ in selection.chosen]


@given(weights, st.integers(1, 300))
def test_full_queues_share_by_weight(weights: list[int], claims: int) -> None:
    """After any number of claims nobody is more than one job's worth off per competitor."""
    lines = [full(f"q{n}", weight) for n, weight in enumerate(weights)]
    served = Counter(chosen(select(snapshot(lines, claims))))
    for line in lines:
        fair = Fraction(claims * line.queue.weight, sum(weights))
        assert abs(served[line.queue.name] - fair) <= len(lines)


@given(weights)
def test_shares_are_within_five_percent_of_the_weights(weights: list[int]) -> None:
    """Claimed one slot at a time, with credits carried over, as a busy pool does."""
    queues = [Queue(f"q{n}", weight=weight) for n, weight in enumerate(weights)]
    claims = 60 * sum(weights)
    served: Counter[str] = Counter()
    credits: Mapping[str, float] = {}
    for turn in range(0, claims, 5):
        lines = [Line(queue, [head(queue.name, turn + n) for n in range(5)]) for queue in queues]
        selection = select(snapshot(lines, 5, credits=credits))
        credits = selection.credits
        served.update(chosen(selection))
    for queue in queues:
        fair = claims * queue.weight / sum(weights)
        assert abs(served[queue.name] - fair) <= 0.05 * fair + 1e-9


arrivals = st.lists(
    st.tuples(
        st.integers(1, 7),
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=4),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=300)
@given(weights, arrivals)
def test_no_queue_starves(
    weights: list[int], rounds: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """In any ⌈W/w⌉ + k claimed jobs a queue that stays non-empty is served (P12, L4).

    Jobs arrive at random between claims of random size, so queues run empty
    and come back in every order.
    """
    queues = [Queue(f"q{n}", weight=weight) for n, weight in enumerate(weights)]
    waiting = {queue.name: 0 for queue in queues}
    since: dict[str, tuple[int, int, int]] = {}
    credits: Mapping[str, float] = {}
    clock = 0
    for slots, arrived in rounds:
        for index, count in arrived:
            waiting[queues[index % len(queues)].name] += count
        lines = [
            Line(queue, [head(queue.name, n) for n in range(waiting[queue.name])])
            for queue in queues
        ]
        selection = select(snapshot(lines, slots, credits=credits))
        credits = selection.credits
        for name in chosen(selection):
            live = [queue for queue in queues if waiting[queue.name]]
            total, k = sum(queue.weight for queue in live), len(live)
            clock += 1
            waiting[name] -= 1
            for queue in live:
                if queue.name == name:
                    since.pop(name, None)
                    continue
                missed, most, most_k = since.get(queue.name, (0, 0, 0))
                missed, most, most_k = missed + 1, max(most, total), max(most_k, k)
                since[queue.name] = (missed, most, most_k)
                bound = math.ceil(most / queue.weight) + most_k
                assert missed < bound, f"{queue.name} missed {missed} turns, bound {bound}"


@settings(max_examples=300)
@given(st.integers(2, 6), arrivals)
def test_nor_with_two_jobs_a_turn(
    number: int, rounds: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """Those that have jobs at any time while a queue waits count for its bound."""
    queues = [Queue(f"q{n}") for n in range(number)]
    lineup = Lineup(queues)
    waiting = {queue.name: 0 for queue in queues}
    missed = Counter[str]()
    rivals: dict[str, set[Queue]] = {}
    credits: Mapping[str, float] = {}
    for slots, arrived in rounds:
        for index, count in arrived:
            waiting[queues[index % len(queues)].name] += count
        with patch.object(turns, "MANY", 2):
            shares = share(ClaimPlan("w", lineup, slots, 1, credits=credits), waiting)
        credits = shares.credits
        for name in shares.turns:
            live = {queue for queue in queues if waiting[queue.name]}
            waiting[name] -= 1
            for queue in live:
                if queue.name == name:
                    del missed[name]
                    rivals.pop(name, None)
                    continue
                missed[queue.name] += 1
                seen = rivals[queue.name] = rivals.get(queue.name, set()) | live
                bound = math.ceil(sum(each.weight for each in seen) / queue.weight) + len(seen)
                assert missed[queue.name] < bound, f"{queue.name}: {missed}, bound {bound}"


@given(weights, st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(1, 40))
def test_no_slot_stays_free_while_there_is_work(
    weights: list[int], depths: list[int], slots: int
) -> None:
    lines = [
        full(f"q{n}", weight, depth)
        for n, (weight, depth) in enumerate(zip(weights, depths, strict=False))
    ]
    depth = sum(depths[: len(weights)])
    assert len(select(snapshot(lines, slots)).chosen) == min(slots, depth)


gated = st.builds(
    dict,
    run_at=st.sampled_from([0, NOW, NOW + 1]),
    expires_at=st.sampled_from([None, NOW, NOW + 1]),
    task=st.sampled_from(["t", "unknown"]),
    version=st.sampled_from([1, 2]),
    lost=st.booleans(),
)


@given(
    st.lists(st.lists(gated, max_size=8), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 20),
)
def test_nothing_gated_is_chosen_and_no_slot_stays_free(
    lines_of: list[list[dict[str, object]]], paused: list[bool], slots: int
) -> None:
    lines = [
        Line(Queue(f"q{n}"), [head(f"q{n}", at, **job) for at, job in enumerate(jobs)], paused[n])
        for n, jobs in enumerate(lines_of)
    ]
    view = snapshot(lines, slots, capable={"t": 1})
    selection = select(view)
    picked = {job.id for _, job in selection.chosen}
    gates = {job.id: gate_of(job, line, view) for line in lines for job in line.heads}
    assert all(gates[job_id] is None for job_id in picked)
    assert all(gates[job_id] is gate for job_id, gate in selection.held.items())
    assert len(picked) == min(slots, sum(gate is None for gate in gates.values()))


LIMIT = cast(Gate, "limit")
"""A limit that exists only here: of each task, so many jobs may run."""


@given(
    st.lists(st.lists(st.sampled_from("tuv"), max_size=8), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 3)),
    st.integers(0, 3),
    st.integers(0, 20),
)
def test_no_two_queues_pass_one_limit_and_no_slot_stays_free(
    tasks_of: list[list[str]], running: dict[str, int], most: int, slots: int
) -> None:
    """Claimed as a worker does: again at once, as long as a limit refuses somebody."""
    lines = [
        Line(Queue(f"q{n}"), [head(f"q{n}", at, task=task) for at, task in enumerate(tasks)])
        for n, tasks in enumerate(tasks_of)
    ]
    view = msgspec.structs.replace(snapshot(lines, slots), used={LIMIT: Counter(running)})
    taken: Counter[str] = Counter()
    with patch.dict(LIMITS, {LIMIT: Limit(lambda head: head.task, most)}):
        while True:
            selection = select(view)
            picked = {job.id for _, job in selection.chosen}
            refused = {job.id for job in selection.refused.get(LIMIT, ())}
            assert not picked & refused
            assert dict.fromkeys(refused, LIMIT) == selection.held
            taken.update(job.task for _, job in selection.chosen)
            assert selection.used == {LIMIT: Counter(running) + taken}
            assert selection.cut == bool(refused)
            if not refused:
                break
            view = left_of(view, selection, picked | refused)
    waiting = Counter(task for tasks in tasks_of for task in tasks)
    free = {task: min(waiting[task], max(0, most - running.get(task, 0))) for task in "tuv"}
    assert all(taken[task] <= free[task] for task in "tuv")
    assert sum(taken.values()) == min(slots, sum(free.values()))


def left_of(view: Snapshot, selection: Selection, gone: Collection[JobId]) -> Snapshot:
    """What the next claim sees after this one."""
    lines = {
        name: msgspec.structs.replace(line, heads=[job for job in line.heads if job.id not in gone])
        for name, line in view.lines.items()
    }
    running = Counter(view.plan.running) + Counter(chosen(selection))
    plan = msgspec.structs.replace(view.plan, running=running, credits=selection.credits)
    return msgspec.structs.replace(view, plan=plan, lines=lines, used=selection.used)


def test_a_limit_admits_the_first_in_place_and_gives_the_turn_of_others_back() -> None:
    early, late = head("b", 1), head("a", 2)
    lines = [Line(Queue("a"), [late]), Line(Queue("b"), [early])]
    view = msgspec.structs.replace(snapshot(lines, 2), used={LIMIT: Counter()})
    with patch.dict(LIMITS, {LIMIT: Limit(lambda head: head.task, 1)}):
        selection = select(view)
    assert selection.chosen == [("b", early)]
    assert selection.held == {late.id: LIMIT}
    assert selection.cut
    assert "a" not in selection.credits


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4), st.integers(1, 10))
def test_critical_jobs_take_their_reserve_and_at_most_half_of_the_rest(
    running_critical: int, running_ordinary: int, reserve: int, slots: int
) -> None:
    lines = [
        full("mail"),
        Line(
            Queue("alarm", critical=True, tasks=["t"], reserve=reserve),
            [head("alarm", n) for n in range(100)],
        ),
    ]
    running = {"alarm": running_critical, "mail": running_ordinary}
    served = Counter(chosen(select(snapshot(lines, slots, running=running))))
    critical = running_critical + served["alarm"]
    if served["alarm"]:
        assert critical <= reserve + slots // 2
    beyond = max(0, critical - reserve)
    if served:
        assert beyond + running_ordinary + served["mail"] <= max(slots, running_ordinary + beyond)
    free = slots - max(0, running_critical - reserve) - running_ordinary
    if free > slots // 2:
        assert served["mail"], "a critical flood must leave slots to the others"


def test_critical_queues_are_asked_first() -> None:
    lines = [full("mail"), full("alarm", critical=True, tasks=("t",), reserve=1)]
    order = chosen(select(snapshot(lines, 4)))
    assert order == ["alarm", "alarm", "alarm", "mail", "mail"]


def test_the_order_inside_a_queue_is_the_lines() -> None:
    line = Line(Queue("mail"), [head("mail", at) for at in (3, 1, 2)])
    assert [job.order_at for _, job in select(snapshot([line], 3)).chosen] == [3, 1, 2]


def test_an_idle_queue_saves_nothing_up() -> None:
    """Whoever was away for long is next, but not next a hundred times."""
    busy, idle = Queue("busy"), Queue("idle")
    credits: Mapping[str, float] = {}
    for _ in range(100):
        lines = [full("busy", jobs=2), Line(idle, [])]
        credits = select(snapshot(lines, 1, credits=credits)).credits
    lines = [full("busy"), full("idle")]
    order = chosen(select(snapshot(lines, 10, credits=credits)))
    assert order.count(idle.name) == order.count(busy.name) == 5


def test_a_queue_cannot_win_by_running_empty() -> None:
    credits: Mapping[str, float] = {}
    served: Counter[str] = Counter()
    for turn in range(200):
        # "sly" shows a job only every other time.
        lines = [full("honest", jobs=2), full("sly", jobs=turn % 2)]
        selection = select(snapshot(lines, 1, credits=credits))
        credits = selection.credits
        served.update(chosen(selection))
    assert served["sly"] <= 100


def line_at(at: int) -> Head:
    return head("mail", at, task="unknown")


def test_the_look_past_gated_jobs_is_bounded() -> None:
    seen = 0

    def heads() -> object:
        nonlocal seen
        for at in range(10 * LOOK):
            seen += 1
            yield head("mail", at, task="unknown")

    line = Line(Queue("mail"), heads())  # type: ignore[arg-type]
    selection = select(snapshot([line], 5, capable={"t": 1}))
    assert selection.chosen == []
    assert seen == LOOK
    assert len(selection.held) == LOOK
    assert selection.cut
    looked = selection.looked["mail"]
    assert (looked.last, looked.stepped, looked.cut) == (line_at(LOOK - 1), LOOK, True)


def test_a_claim_looks_at_no_more_than_it_takes() -> None:
    seen = Counter[str]()

    def heads(name: str) -> object:
        for at in range(1000):
            seen[name] += 1
            yield head(name, at)

    lines = [Line(Queue(f"q{n}"), heads(f"q{n}")) for n in range(10)]  # type: ignore[arg-type]
    select(snapshot(lines, 20))
    assert sum(seen.values()) == 20


def test_spared_leases_are_left_alone() -> None:
    lost, fresh = head("lost", 1, lost=True), head("fresh", 2)
    line = Line(Queue("mail"), [lost, fresh])

    spared = select(snapshot([line], 5, spare_lost=True))
    assert [chosen.id for _, chosen in spared.chosen] == [fresh.id]
    assert spared.held == {lost.id: Gate.LEASE_SPARED}

    taken = select(snapshot([line], 5))
    assert [chosen.id for _, chosen in taken.chosen] == [lost.id, fresh.id]


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 12), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 12),
    st.lists(st.sampled_from([0.0, -0.5, -1.25, -3.0]), min_size=4, max_size=4),
)
def test_shares_are_what_select_would_choose(
    lines: list[tuple[int, bool, int, int]], slots: int, debts: list[float]
) -> None:
    """Whoever has only the lengths comes to the same turns and credits."""
    queues = [
        Queue(f"q{at}", weight=weight, critical=critical, **({"tasks": ["t"]} if critical else {}))
        for at, (weight, critical, _, _) in enumerate(lines)
    ]
    plan = ClaimPlan(
        "w",
        tuple(queues),
        slots,
        1,
        running={queue.name: line[3] for queue, line in zip(queues, lines, strict=True)},
        credits={queue.name: debt for queue, debt in zip(queues, debts, strict=False) if debt},
    )
    lengths = {queue.name: line[2] for queue, line in zip(queues, lines, strict=True)}
    selection = select(
        Snapshot(plan, 0, by_name(Line(q, [head("h")] * lengths[q.name]) for q in queues))
    )
    shares = share(plan, lengths)
    assert shares.turns == [name for name, _ in selection.chosen]
    assert shares.credits == selection.credits


# Many queues


class Round:
    """The rule written down as one would say it, over all queues at every step."""

    def __init__(self, queues: Sequence[Served]) -> None:
        self.queues = queues
        self.debts = {queue.name: 0.0 for queue in queues}
        self.last_turns = {queue.name: at for at, queue in enumerate(queues)}
        self.turns = len(queues)

    def claim(
        self, lengths: Mapping[str, int], slots: int, running: Mapping[str, int]
    ) -> list[str]:
        room = ClaimPlan("w", tuple(self.queues), slots, 1, running=running).room()
        left, chosen = dict(lengths), list[str]()
        for kind in (True, False):
            queues = [queue for queue in self.queues if queue.critical is kind]
            passed, first, served = 0.0, dict(self.debts), Counter[str]()
            while open_ones := [q for q in queues if left[q.name] and room.for_queue(q)]:
                queue = min(open_ones, key=lambda q: (self.debts[q.name], self.last_turns[q.name]))
                passed = self.debts[queue.name]
                for _ in range(min(room.per_turn, left[queue.name], room.for_queue(queue))):
                    room.take(queue)
                    chosen.append(queue.name)
                    left[queue.name] -= 1
                self.turns += 1
                self.last_turns[queue.name] = self.turns
                served[queue.name] += 1
                owed = first[queue.name] + served[queue.name] / queue.weight
                self.debts[queue.name] = owed
            for queue in queues:
                self.debts[queue.name] = max(0.0, self.debts[queue.name] - passed)
        return chosen


claims_in_turn = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(st.integers(0, 6), min_size=12, max_size=12),
        st.dictionaries(st.integers(0, 11), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=12,
)
"""Slots, how many jobs each queue has, and how many of it run."""
# In eighths and quarters sums are exact, so that two ways to add come to the same.
exact_queues = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@given(exact_queues, claims_in_turn)
def test_a_lazy_round_comes_to_what_the_whole_one_does(
    shapes: list[tuple[int, bool, int]],
    claims: list[tuple[int, list[int], dict[int, int]]],
) -> None:
    compare_with_the_whole_round(Lineup(queues_of(shapes)), claims)


@given(st.integers(2, 12), claims_in_turn)
def test_so_does_one_with_two_jobs_a_turn(
    number: int, claims: list[tuple[int, list[int], dict[int, int]]]
) -> None:
    with patch.object(turns, "MANY", 2):
        compare_with_the_whole_round(Lineup(Queue(f"q{n}", 2) for n in range(number)), claims)


def compare_with_the_whole_round(
    queues: Lineup, claims: list[tuple[int, list[int], dict[int, int]]]
) -> None:
    rule = Round(queues)
    credits: Mapping[str, float] = {}
    for slots, depths, busy in claims:
        lengths = {queue.name: depth for queue, depth in zip(queues, depths, strict=False)}
        running = {q.name: busy[n] for n, q in enumerate(queues) if n in busy}
        plan = ClaimPlan("w", queues, slots, 1, running=running, credits=credits)
        lines = by_name(Line(q, [head("h", n) for n in range(lengths[q.name])]) for q in queues)
        selection = select(Snapshot(plan, NOW, lines))
        assert chosen(selection) == rule.claim(lengths, slots, running)
        assert dict(selection.credits) == {n: -owed for n, owed in rule.debts.items() if owed}
        some = {name for name, length in lengths.items() if length}
        known = select(Snapshot(plan, NOW, lines, among=some))
        assert (known.chosen, known.credits) == (selection.chosen, selection.credits)
        assert asked_in_rounds(plan, lengths) == (chosen(selection), selection.credits)
        credits = selection.credits


def queues_of(shapes: list[tuple[int, bool, int]]) -> list[Queue]:
    return [
        Queue(f"q{n}", weight, critical=True, tasks=["t"], reserve=reserve)
        if critical
        else Queue(f"q{n}", weight)
        for n, (weight, critical, reserve) in enumerate(shapes)
    ]


def asked_in_rounds(
    plan: ClaimPlan, lengths: Mapping[str, int]
) -> tuple[list[str], Mapping[str, float]]:
    """Ask as a store in many parts does: only who has its turn, and only for its share."""
    asking, left, rounds = Asking(plan), dict(lengths), 0
    while wanted := asking.wanted():
        rounds += 1
        assert rounds <= len(lengths) + 1, "a round ends the claim, or one of the queues"
        for name, count in wanted.items():
            given = min(count, left[name])
            left[name] -= given
            jobs = [claimed(name, head(name, n)) for n in range(given)]
            asking.gave(name, jobs, more=given == count)
    jobs, credits = asking.in_turns()
    return [job.queue for job in jobs], credits


def test_a_claim_asks_as_many_queues_as_it_has_slots() -> None:
    """With a thousand full queues the cost follows from the slots: twenty claims, each fifty."""
    queues = Lineup(Queue(f"q{n}") for n in range(1_000))
    asked: list[str] = []

    class Lines(dict[str, Line]):
        def __missing__(self, name: str) -> Line:
            asked.append(name)
            return Line(Queue(name), [head(name)])

    credits: Mapping[str, float] = {}
    for _ in range(20):
        plan = ClaimPlan("w", queues, 50, 1, credits=credits)
        credits = select(Snapshot(plan, NOW, Lines())).credits
    assert len(asked) == 1_000
    assert len(set(asked)) == 1_000


def test_a_store_in_parts_asks_as_many_queues_as_it_has_slots() -> None:
    plan = ClaimPlan("w", tuple(Queue(f"q{n}") for n in range(1_000)), 50, 1)
    asking = Asking(plan)
    wanted = asking.wanted()
    assert wanted == {f"q{n}": 1 for n in range(50)}
    for name in wanted:
        asking.gave(name, [claimed(name, head(name))], more=True)
    assert asking.wanted() == {}
    assert list(Asking(plan, among={"q7", "q900"}).wanted().items()) == [("q7", 25), ("q900", 25)]


# Bytes


def sized(name: str, sizes: list[int]) -> Line:
    return Line(Queue(name), [head(name, n, size=size) for n, size in enumerate(sizes)])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_a_claim_ends_with_the_job_that_fills_its_bytes(sizes: list[int], most: int) -> None:
    selection = select(snapshot([sized("a", sizes)], 100, most_bytes=most))
    given_out = [head.size for _, head in selection.chosen]
    assert given_out == sizes[: len(given_out)]
    assert sum(given_out[:-1]) < most
    assert selection.cut == (sum(given_out) >= most)
    assert selection.cut or given_out == sizes


def test_queues_share_the_bytes_by_their_turns() -> None:
    lines = [sized("a", [10] * 9), sized("b", [10] * 9)]
    selection = select(snapshot(lines, 100, most_bytes=40))
    assert chosen(selection) == ["a", "b", "a", "b"]


# Claims in parts


@given(weights, st.integers(0, 40), st.dictionaries(st.integers(0, 5), st.integers(0, 10)))
def test_a_claim_in_parts_gives_no_more_than_one(
    weights: list[int], slots: int, running: dict[int, int]
) -> None:
    """Asked queue by queue, after each other, the pool is as full as when it asks for all."""
    lines = [full(f"q{n}", weight, jobs=20) for n, weight in enumerate(weights)]
    runs = {f"q{n}": count for n, count in running.items() if n < len(weights)}
    plan = snapshot(lines, slots, running=runs).plan
    whole = select(Snapshot(plan, NOW, by_name(lines)))
    claim = Claim([], plan.standing, NOW)
    for line in lines:
        part = plan.after(claim).only([line.queue])
        answer = select(Snapshot(part, NOW, by_name([line])))
        jobs = [claimed(line.queue.name, head) for _, head in answer.chosen]
        claim = claim.joined(Claim(jobs, answer.credits, NOW))
    assert len(claim.jobs) == len(whole.chosen)


def claimed(queue: str, head: Head) -> Job:
    return Job(head.id, "t", 1, queue, "{}", None, 1, 0, 1, 0, 0, None, 0, 0, "w")
