"""What runs beside the line: steps, their pauses, their troubles, their end; in virtual time."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.core.errors import StoreUnavailable
from fairlead.core.events import Event, Trouble
from fairlead.core.store import Upkeep
from fairlead.runtime import keeper
from fairlead.runtime.keeper import Keeper
from fairlead.runtime.service import LONGEST_SECONDS, SHORTEST_SECONDS, Service, Services
from fairlead.runtime.upkeep import UPKEEP_SECONDS, upkeep
from fairlead.runtime.workshop import Terms, Workshop
from tests.runtime.heard import Heard
from tests.simulation.loop import VirtualLoop

Step = Callable[[], Awaitable[Any]]


class Beside:
    """Services in a world of their own, and what was told of them."""

    def __init__(self, *services: Service, drain: bool = False) -> None:
        self.app = Fairlead("memory://")
        self.told: list[str] = []
        self.app.events.subscribe(self._hear, Trouble)
        self._workshop = self.app.workshop(Terms(drain=drain))
        self._services = services

    def _hear(self, event: Event) -> None:
        assert isinstance(event, Trouble)
        self.told.append(event.problem)

    def run(self, seconds: float) -> None:
        """Run them for so long, by a clock that need not wait."""

        async def run() -> None:
            running = asyncio.create_task(Services(self._workshop, "w", self._services).run())
            await asyncio.sleep(seconds)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled(), "services never end by themselves"

        virtually(run())


def virtually(coroutine: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(Random(0))
    try:
        loop.run_until_complete(loop.spawn(loop.outside, coroutine))
    finally:
        loop.dispose()


class Noted:
    """A step that notes when it is done, and then does what `then` says, once for each step."""

    def __init__(self, *then: Any) -> None:
        self.times: list[float] = []
        self._then = list(then)

    async def __call__(self) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        now = self._then.pop(0) if len(self._then) > 1 else self._then[0]
        if isinstance(now, BaseException):
            raise now
        return await now() if callable(now) else now

    @property
    def pauses(self) -> list[float]:
        return [later - at for at, later in pairwise(self.times)]


def test_the_next_step_comes_when_a_step_says() -> None:
    step = Noted(2.0, 0.5, 3.0)
    beside = Beside(Service("count", step))
    beside.run(10.0)
    assert step.pauses == pytest.approx([2.0, 0.5, 3.0, 3.0])
    assert beside.told == []


@pytest.mark.parametrize("problem", [RecursionError("too deep"), asyncio.CancelledError()])
def test_a_step_that_fails_is_told_and_tried_again_after_growing_pauses(
    problem: BaseException,
) -> None:
    """Also one whose task dies because somebody cancelled it."""
    step, other = Noted(*[problem] * 9, 1.0, problem, 1.0), Noted(1.0)
    beside = Beside(Service("count", step), Service("go on", other))
    beside.run(199.5)
    assert len(other.times) == 200
    for number, pause in enumerate(step.pauses[:9]):
        longest = min(30.0, 0.5 * 2**number)
        assert longest / 2 <= pause <= longest, number
    assert step.pauses[9] == pytest.approx(1.0)
    assert step.pauses[10] <= 0.5  # They begin anew.
    [told] = beside.told
    assert told.startswith("it could not count: ")
    assert told.endswith("; it goes on trying")


def test_an_outage_is_left_to_the_heartbeat_to_tell() -> None:
    step = Noted(StoreUnavailable("store", "is away"))
    beside = Beside(Service("count", step))
    beside.run(60.0)
    assert len(step.times) >= 5
    assert beside.told == []


def test_a_step_that_hangs_is_cancelled_and_told_and_the_others_go_on() -> None:
    ended: list[float] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(asyncio.get_running_loop().time())

    step, other = Noted(hang, 5.0), Noted(1.0)
    beside = Beside(Service("count", step, limit=7.0), Service("go on", other))
    beside.run(19.5)
    assert ended == pytest.approx([step.times[0] + 7.0])
    assert len(step.times) >= 3
    assert len(other.times) == 20
    assert beside.told == [
        "it could not count: TimeoutError('it took more than 7 s'); it goes on trying"
    ]


def test_a_step_that_heeds_no_cancellation_is_told_and_never_runs_twice_at_once() -> None:
    running = most = 0

    async def deaf() -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        end = asyncio.get_running_loop().time() + 30.0
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        running -= 1
        return 0.0

    step, other = Noted(deaf), Noted(1.0)
    beside = Beside(Service("count", step, limit=7.0), Service("go on", other))
    beside.run(49.5)
    assert most == 1
    assert len(step.times) == 2
    assert len(other.times) == 50
    assert "does not heed its end" in beside.told[0]
    assert "it took more than 7 s" in beside.told[1]


@pytest.mark.parametrize("nonsense", [-1, -0.001, math.nan, -math.inf, None, "soon", True, [1]])
def test_a_step_that_returns_no_seconds_is_told_and_tried_again(nonsense: object) -> None:
    step = Noted(nonsense, 4.0)
    beside = Beside(Service("count", step))
    beside.run(10.0)
    assert step.pauses[0] <= 0.5
    assert step.pauses[1] == pytest.approx(4.0)
    [told] = beside.told
    assert f"its step returned {nonsense!r}, not the seconds" in told


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (0, SHORTEST_SECONDS),
        (1e-9, SHORTEST_SECONDS),
        (1e300, LONGEST_SECONDS),
        (math.inf, LONGEST_SECONDS),
        (10**400, LONGEST_SECONDS),
    ],
)
def test_a_step_comes_neither_at_once_nor_never(answer: float, pause: float) -> None:
    step = Noted(answer)
    beside = Beside(Service("count", step))
    beside.run(2.5 * pause)
    assert step.pauses == pytest.approx([pause, pause])
    assert beside.told == []


def test_a_drain_runs_only_the_services_that_say_so() -> None:
    one, other = Noted(1.0), Noted(1.0)
    Beside(Service("count", one), Service("go on", other, in_drain=True), drain=True).run(4.5)
    assert (len(one.times), len(other.times)) == (0, 5)


# Upkeep


async def test_housekeeping_comes_at_once_while_there_is_more_and_else_out_of_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Fairlead("memory://")
    more = True

    async def verb(_keep: int) -> Any:
        return type("Done", (Upkeep,), {"more": more})()

    monkeypatch.setattr(app.store, "upkeep", verb)
    service = upkeep(app.workshop())
    assert service.in_drain
    assert await service.step() == SHORTEST_SECONDS
    more = False
    pauses = [await service.step() for _ in range(100)]
    assert min(pauses) >= 0.5 * UPKEEP_SECONDS
    assert max(pauses) <= 1.5 * UPKEEP_SECONDS
    assert max(pauses) - min(pauses) > 0.5 * UPKEEP_SECONDS


# The keeper


def _keeper(app: Fairlead, monkeypatch: pytest.MonkeyPatch, *services: Service) -> Keeper:
    def made(service: Service) -> Callable[[Workshop], Service]:
        return lambda _workshop: service

    monkeypatch.setattr(keeper, "SERVICES", tuple(made(service) for service in services))
    return Keeper(app.workshop(Terms(lease=4.0)), "w", dict, lambda _worker, _news: None)


def _beats(app: Fairlead, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the time of every heartbeat."""
    beats: list[float] = []
    real = app.store.announce

    async def announce(*args: Any) -> Any:
        beats.append(asyncio.get_running_loop().time())
        return await real(*args)

    monkeypatch.setattr(app.store, "announce", announce)
    return beats


def test_no_service_delays_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fairlead("memory://")
    beats = _beats(app, monkeypatch)

    async def hang() -> None:
        await asyncio.Event().wait()

    services = [
        Service(f"misbehave {number}", Noted(then), limit=3.0)
        for number, then in enumerate((hang, 0.0, RecursionError(), math.nan))
    ]

    async def run() -> None:
        keeping = asyncio.create_task(_keeper(app, monkeypatch, *services).run())
        await asyncio.sleep(30.5)
        assert not keeping.done()
        keeping.cancel()
        await asyncio.wait([keeping])

    virtually(run())
    pauses = [later - at for at, later in pairwise(beats)]
    assert pauses == pytest.approx([1.0] * 30)


def test_services_end_before_the_heartbeat_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step does at its end is done by a worker that is still there for others."""
    app = Fairlead("memory://")
    beats = _beats(app, monkeypatch)
    ended: list[float] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.9)
            ended.append(asyncio.get_running_loop().time())

    async def run() -> None:
        keeping = asyncio.create_task(
            _keeper(app, monkeypatch, Service("count", Noted(slow_to_end))).run()
        )
        await asyncio.sleep(5.2)
        keeping.cancel()
        await asyncio.wait([keeping])
        assert ended == [asyncio.get_running_loop().time()]

    virtually(run())
    assert ended[0] - 0.9 < beats[-1] < ended[0]


async def test_a_worker_inside_a_program_runs_services_as_long_as_it_lasts(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(any_app)
    steps = 0

    async def step() -> float:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise RecursionError("too deep")
        return 0.0

    monkeypatch.setattr(keeper, "SERVICES", (upkeep, lambda _workshop: Service("count", step)))
    async with any_app.worker():
        trouble = await heard.until(Trouble)
        async with asyncio.timeout(10):
            while steps < 5:
                await asyncio.sleep(0.01)
    assert "it could not count: RecursionError('too deep')" in trouble.problem
    after = steps
    await asyncio.sleep(0.2)
    assert steps == after
