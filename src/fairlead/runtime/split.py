"""Send a batch to the store; if it is refused, split it until what is damaged is alone.

A batch shares one statement, so one damaged row fails it whole. The halves are sent again, and
their halves, until all that is sound is done and the damaged ones are told, each by itself. An
outage is not split: it is nobody's fault, and is raised.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fairlead.runtime.contact import is_outage

Item = TypeVar("Item")
Answer = TypeVar("Answer")


async def in_parts(
    send: Callable[[Sequence[Item]], Awaitable[Answer]],
    items: Sequence[Item],
    refused: Callable[[Item, Exception], None],
) -> list[Answer]:
    """Send the items, together if that goes; returns the answers of the parts that were taken.

    `refused` is told of each item that the store does not take by itself either.
    """
    try:
        return [await send(items)]
    except Exception as problem:
        if is_outage(problem):
            raise
        if len(items) == 1:
            refused(items[0], problem)
        if len(items) <= 1:
            return []
    half = len(items) // 2
    first = await in_parts(send, items[:half], refused)
    return first + await in_parts(send, items[half:], refused)
