"""A few rounds of the fuzz on every store; `make chaos` plays every damage, and many at once."""

import asyncio
from random import Random

import pytest

from tests.fuzz.grounds import GROUNDS
from tests.fuzz.rounds import one_round, plans, table

SHORT, LONG = 25, 500
SEED = 20_261_116 % 1_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", GROUNDS)
def test_whatever_is_damaged_harms_only_itself(name: str) -> None:
    """Another sample of damages with every seed; what fails is told with the way to repeat it."""
    with GROUNDS[name]() as ground:
        damages = list(ground(()).victim.damages)
        chosen = Random(SEED).sample(damages, SHORT)
        rounds = [
            asyncio.run(one_round(ground(each), each, number))
            for number, each in plans(chosen, SHORT, SEED)
        ]
    assert not any(each.problems for each in rounds), table(rounds)
    assert any(each.named for each in rounds)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GROUNDS)
def test_every_damage_and_many_at_once_harm_only_themselves(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with GROUNDS[name]() as ground:
        damages = list(ground(()).victim.damages)
        rounds = []
        for number, each in plans(damages, max(LONG, len(damages) + 100), SEED):
            rounds.append(asyncio.run(one_round(ground(each), each, number)))
    with capsys.disabled():
        print(f"\n{name}: seed {SEED}\n{table(rounds)}")
    assert {damage for each in rounds for damage in each.tried} == set(damages)
    assert not any(each.problems for each in rounds)
