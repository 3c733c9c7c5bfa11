"""Replay a seed, or run many: `python -m tests.simulation 42`, `… --seeds 10000 --start 500`."""

import argparse
import sys
import time

from tests.simulation.chaos import SimulationFailed, report, run_seed
from tests.simulation.world import World


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this one, with its history")
    parser.add_argument("--seeds", type=int, default=500, help="how many to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--most", type=int, default=5, help="stop after so many failures")
    wanted = parser.parse_args()
    if wanted.seed is not None:
        replay(wanted.seed)
    else:
        sys.exit(run_many(wanted.start, wanted.seeds, wanted.most))


def replay(seed: int) -> None:
    """Run one seed and print all that happened."""
    from tests.simulation.chaos import chaos

    world = World(seed)
    world.tell_all = True
    world.run(chaos)
    for at, what, job, *more in world.witness.history:
        seconds = (at - world.witness.history[0][0]) / 1e6
        print(f"{seconds:9.3f}  {what:10} {(job or '')[-6:]:6} {' '.join(map(str, more))}")
    print(report(world) if world.witness.broken else f"seed {seed}: every promise was kept")
    print(f"digest {world.witness.digest()}")


def run_many(start: int, count: int, most: int) -> int:
    """Run seeds until some have failed; returns how many did."""
    began = time.perf_counter()
    failed = 0
    events = 0
    for seed in range(start, start + count):
        try:
            events += len(run_seed(seed).witness.history)
        except SimulationFailed as problem:
            failed += 1
            print(problem, "\n", flush=True)
            if failed >= most:
                break
    seconds = time.perf_counter() - began
    done = seed - start + 1
    print(f"{done} seeds, {failed} failed, {events} events, {done / seconds:.1f} seeds/s")
    return failed


if __name__ == "__main__":
    main()
