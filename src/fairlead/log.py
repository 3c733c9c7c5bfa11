"""Log lines. The only module that imports `logging`."""

import logging

from fairlead.core.events import Event

_logger = logging.getLogger("fairlead")


def report_subscriber(event: Event, error: Exception) -> None:
    """Report a subscriber that raised: its event is lost to it, the job is not."""
    _logger.error(
        "a subscriber failed on %s of job %s; the job is not affected",
        type(event).__name__,
        event.job_id,
        exc_info=error,
    )
