"""The fuzz by hand: `python -m tests.fuzz --store sqlite --rounds 500`."""

import argparse
import asyncio
import logging
import sys

from tests.fuzz.grounds import GROUNDS
from tests.fuzz.rounds import Report, one_round, plans, table


def main() -> int:
    """Play rounds, and say what they came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=GROUNDS, action="append")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="of all rounds, or of one to repeat")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    broken = 0
    for name in arguments.store or GROUNDS:
        print(f"{name}: seed {arguments.seed}", flush=True)
        reports = play(name, arguments.rounds, arguments.seed)
        print(table(reports), flush=True)
        broken += any(report.problems for report in reports)
    return int(broken > 0)


def play(name: str, rounds: int, seed: int) -> list[Report]:
    """Play so many rounds on one kind of store; or the one that a report named."""
    reports = []
    first, only = (seed // 1_000_000, seed) if seed >= 1_000_000 else (seed, None)
    with GROUNDS[name]() as ground:
        victim = ground(()).victim
        most = rounds if only is None else only % 1_000_000 + 1
        for number, chosen in plans(victim.damages, most, first, victim.at_once):
            if only in (None, number):
                reports.append(asyncio.run(one_round(ground(chosen), chosen, number)))
                if reports[-1].problems:
                    print(f"  broken: seed {number}", file=sys.stderr, flush=True)
    return reports


if __name__ == "__main__":
    sys.exit(main())
