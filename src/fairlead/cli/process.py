"""Where the processes of a worker begin. Started by us, never by hand.

worker TARGET SOCKET BOARD STACKS    claims and runs jobs
heir   TARGET SOCKET BOARD STACKS    the same, in place of one that died and left suspects
solo   TARGET SOCKET STACKS          runs one handler at a time for a worker process
group  TARGET SOCKET STACKS [BOARD]  runs a group of suspects at once for a worker process
check  TARGET                        loads the app, for a reload, and says whether it could
leave  TARGET WORKER [COMMAND...]    gives back what a worker that is no more had in hand, and
                                     becomes the command, if there is one

An heir needs a process for the suspects as soon as it has claimed them. Both take a third of a
second to load, so it starts the other one before it loads anything itself.
"""

import sys

from fairlead.runtime.recruit import Recruit


def main() -> None:
    """Do what the first argument says."""
    role, target, *rest = sys.argv[1:]
    recruit = _recruit(target, int(rest[1])) if role == "heir" else None
    from fairlead.cli.roles import play  # noqa: PLC0415 (most of the third of a second)

    play(role, target, rest, recruit)


def _recruit(target: str, board: int) -> Recruit | None:
    try:
        return Recruit("group", target, (board,))
    except OSError:  # The machine has no room for it now; it is tried again when it is needed.
        return None


if __name__ == "__main__":
    main()
