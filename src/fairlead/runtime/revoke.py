"""Give back what a process has claimed and cannot start, because its loop does not turn.

A handler that blocks the event loop keeps everything from starting that its process has in hand.
Others could run it. But the process may start a job at any moment, in a thread, or because it
turns again, and a job that is given back must not start. So both sides write before they read:

    the process      marks the start on its board          then reads the revocation
    the supervisor   writes a revocation, waits a tick     then reads the marks

Whatever the order of these four, one of the two sees what the other wrote. If both do, the process
does not start the job and gives it back itself; the fence makes it harmless that two do so. The
tick is longer than any processor keeps a write to itself.

A revocation is a time. It is about the jobs of claims that were asked for until then, be they on
the board already or still on their way to it. What was sent to a process of its own is left
alone: its start happens there.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from fairlead.core.job import Job
from fairlead.runtime.board import Board, Mark
from fairlead.runtime.contact import FIRST_PAUSE, Troubles, is_outage, said
from fairlead.runtime.run import GIVEN_BACK, Pair
from fairlead.runtime.settling import Ended, Settling
from fairlead.runtime.workshop import Workshop

TICK = 0.1
BLOCKED_SECONDS = 1.0
"""A process whose loop has not turned for so long is not going to start anything soon."""


class Revoker:
    """Watches boards, by worker id, and gives back what waits on those that stand still.

    `tell` gets the worker and the number of jobs that were given back.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        boards: Callable[[], Mapping[str, Board]],
        tell: Callable[[str, int], None],
    ) -> None:
        self._workshop = workshop
        self._boards = boards
        self._tell = tell
        self._troubles = Troubles(worker, workshop.events)
        self._settling = Settling(workshop, self._troubles)
        self._under_way: set[str] = set()

    async def run(self) -> None:
        """Watch, for ever."""
        async with asyncio.TaskGroup() as revocations:
            while True:
                for worker, board in self._boards().items():
                    board.watch(TICK)
                    blocked = board.still >= BLOCKED_SECONDS
                    if blocked and worker not in self._under_way and board.waits:
                        self._under_way.add(worker)
                        revocations.create_task(self._revoke(worker, board))
                await asyncio.sleep(TICK)

    async def _revoke(self, worker: str, board: Board) -> None:
        try:
            if count := await self._revoke_unstarted(worker, board):
                self._tell(worker, count)
        except Exception as problem:  # noqa: BLE001 (around a service's step)
            told = f"what {worker} has not started cannot be given back: {said(problem)}"
            self._troubles.tell(f"{told}; it waits until that process goes on")
        finally:
            self._under_way.discard(worker)

    async def _revoke_unstarted(self, worker: str, board: Board) -> int:
        """Revoke what has not started, and give it back; returns how many jobs that were.

        An outage is waited for as long as the process stands still. If it goes on, it
        gives them back by itself.
        """
        revoked_at = asyncio.get_running_loop().time()
        board.revoke(revoked_at)
        await asyncio.sleep(TICK)
        while self._boards().get(worker) is board:
            try:
                return await self._give_back(worker, board, revoked_at)
            except Exception as problem:
                if self._workshop.served.note(problem) or not is_outage(problem):
                    raise
            await asyncio.sleep(FIRST_PAUSE)
            if not board.still:
                break
        return 0

    async def _give_back(self, worker: str, board: Board, revoked_at: float) -> int:
        # In this order: what is on its way to the board is told by the store, and whether the
        # process has asked for more meanwhile, by the board after that.
        marks = list(board.marks())
        held = await self._workshop.store.held(worker)
        if self._boards().get(worker) is not board:
            return 0  # It died meanwhile, and its jobs are taken over.
        jobs = unstarted(held, marks, revoked_at, board.asked_at)
        now = self._workshop.clock.now()
        ended = [Ended.unseen(self._workshop, job, GIVEN_BACK, None, now) for job in jobs]
        written = await self._settling.settle(ended, quietly=True)
        pairs = {(settlement.id, settlement.fence) for settlement in written if settlement}
        board.given_back = pairs | (board.given_back & {mark.pair for mark in marks})
        return len(pairs)


def unstarted(
    held: Iterable[Job], marks: Collection[Mark], revoked_at: float, asked_at: float
) -> list[Job]:
    """Say which of the jobs that the store says a process holds will never start in it.

    Of those on its board: what was claimed until the revocation and is only held. Of
    the others: all, unless the process has asked for a claim since then.
    """
    by_pair: dict[Pair, Mark] = {mark.pair: mark for mark in marks}
    found = []
    for job in held:
        mark = by_pair.get((job.id, job.fence))
        if job.taken_over:
            continue  # Here or by another worker, which decides on it.
        if mark is None:
            revoked = asked_at <= revoked_at
        else:
            revoked = mark.only_held and mark.held_since <= revoked_at
        if revoked:
            found.append(job)
    return found
