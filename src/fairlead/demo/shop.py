"""The demo's app: a shop whose outside world fails in every way we care for.

Its store is the one $FAIRLEAD_URL names; the demo points that at a temporary file.
"""

import asyncio
import os
import time

from fairlead.app import Fairlead
from fairlead.core.errors import Ambiguous, Permanent
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry, exponential
from fairlead.runtime.run import current_job

TARGET = f"{__name__}:app"
CURRENCIES = ("CHF", "EUR", "USD")
FAILURES = 3
"""How often the rate service is busy before it answers."""
SHORT_SECONDS, VIDEO_SECONDS = 0.04, 1.2

app = Fairlead(
    queues=[
        Queue("mail", weight=4),
        Queue("reports", weight=2),
        Queue("thumbnails", weight=1),
        Queue("payments"),
        Queue("videos"),
    ]
)


@app.task(name="newsletter", queue="mail")
async def newsletter(reader: int) -> None:
    """Send one letter."""
    await asyncio.sleep(SHORT_SECONDS)


@app.task(name="invoice", queue="reports")
async def invoice(order: int) -> None:
    """Write one invoice."""
    await asyncio.sleep(SHORT_SECONDS)


@app.task(name="thumbnail", queue="thumbnails")
async def thumbnail(picture: int) -> int:
    """Make one small picture; returns the process that made it."""
    await asyncio.sleep(SHORT_SECONDS)
    return os.getpid()


@app.task(
    name="exchange_rates",
    queue="reports",
    retry=Retry(attempts=5, backoff=exponential(base=0.4, factor=2, jitter=0)),
)
async def exchange_rates(day: str) -> str:
    """Ask a service that is busy at first."""
    if current_job().attempt <= FAILURES:
        raise ConnectionError("the rate service is busy (503)")
    return f"rates of {day}"


@app.task(name="charge", queue="payments")
async def charge(order: int, cents: int, currency: str) -> str:
    """Take money for an order; a currency that does not exist never will."""
    if currency not in CURRENCIES:
        raise Permanent(f"no currency {currency!r}; there are {', '.join(CURRENCIES)}")
    return f"order {order}: {cents / 100:.2f} {currency}"


@app.task(name="refund", queue="payments", effects="external")
async def refund(order: int, cents: int) -> None:
    """Give money back through a bank that falls silent in the middle."""
    raise Ambiguous(
        f"the bank did not answer after the request was sent; idempotency key refund-{order}"
    )


@app.task(name="encode", queue="videos")
def encode(video: int) -> None:
    """Encode one video: a plain function, so it runs in a thread."""
    time.sleep(VIDEO_SECONDS)
