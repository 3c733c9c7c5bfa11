"""Where the looks of workers along a queue stopped, so that their next claims go on there.

A look steps over jobs that its worker does not know. If they are many, the next claim does not step
over them again: it goes on behind the last job that was looked at, until the end of the queue, or
until a job comes to stand before that place. What nobody tells of, a lease that passes or the deed
of another process, is found from the front: a look begins there again when as many jobs were
taken as were stepped over, so that to step over them costs no more than a part of the time.
"""

from typing import NamedTuple

from fairlead.core.selection import LOOK, Looked

FEW = LOOK // 10
"""To step over so few again costs next to nothing."""

Place = tuple[int, str]
"""A place in the order of a queue: order_at and id."""


class _Look(NamedTuple):
    place: Place
    stepped: int
    taken: int


class Looks:
    """What is remembered of them, by queue and worker."""

    def __init__(self) -> None:
        self._looks: dict[str, dict[str, _Look]] = {}

    def place(self, worker: str, queue: str) -> Place | None:
        """Return where a claim goes on in a queue; None is the front."""
        look = self._looks[queue].get(worker) if queue in self._looks else None
        return look and look.place

    def end(self, worker: str, queue: str, looked: Looked) -> bool:
        """Take note of how far a claim came in a queue; says whether to begin anew at once.

        So it is at the end of the queue if the look took some on its way: by now others may stand
        in front. One that took none has seen all there is.
        """
        before = self._looks[queue].pop(worker, None) if queue in self._looks else None
        stepped, taken = looked.stepped, looked.taken
        if before is not None:
            stepped, taken = stepped + before.stepped, taken + before.taken
        if looked.last is None:
            return before is not None and taken > 0
        if looked.cut or (stepped >= FEW and taken < stepped):
            look = _Look((looked.last.order_at, looked.last.id), stepped, taken)
            self._looks.setdefault(queue, {})[worker] = look
        return False

    def arrived(self, queue: str, place: Place) -> None:
        """Begin at the front again where a job came to stand before the place to go on from."""
        looks = self._looks.get(queue)
        if looks:
            self._looks[queue] = {w: look for w, look in looks.items() if look.place < place}

    def __bool__(self) -> bool:
        """Say whether there is anything to remember."""
        return any(self._looks.values())

    def forget(self) -> None:
        """Begin at the front again everywhere."""
        self._looks.clear()
