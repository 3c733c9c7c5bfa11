"""Check the tables against themselves: every job in one place, every mark in agreement (I3)."""

from fairlead.core.admin import Finding
from fairlead.core.clock import SECOND
from fairlead.core.job import LONGEST_HEAD_START
from fairlead.stores.postgres.lane import AsyncConnection

_NOW = "SELECT coalesce(%s, {schema}.stamp())"
_CHECKS = (
    (
        "job {} is live and finished at once",
        "SELECT id FROM {schema}.job JOIN {schema}.finished_record USING (id)",
    ),
    (
        "job {} is live and a dead letter at once",
        "SELECT id FROM {schema}.job JOIN {schema}.dead USING (id)",
    ),
    (
        "job {} is finished and a dead letter at once",
        "SELECT id FROM {schema}.finished_record JOIN {schema}.dead USING (id)",
    ),
    (
        "job {} is finished twice",
        "SELECT id FROM {schema}.finished_record GROUP BY id HAVING count(*) > 1",
    ),
    (
        "job {} does not agree with itself about running",
        """
        SELECT id FROM {schema}.job
        WHERE (lease_until > 0) <> (worker IS NOT NULL)
           OR (lease_until > 0) <> (claimed_at IS NOT NULL)
        """,
    ),
    (
        "job {} runs and waits for its time at once",
        "SELECT id FROM {schema}.job WHERE parked = 1 AND lease_until > 0",
    ),
    (
        "job {} runs without a fence",
        "SELECT id FROM {schema}.job WHERE lease_until > 0 AND fence = 0",
    ),
    (
        "job {} is parked for no known reason",
        "SELECT id FROM {schema}.job WHERE parked NOT IN (0, 1, 2, 3)",
    ),
    (
        "job {} stands in the order before it is due",
        """
        SELECT id FROM {schema}.job
        WHERE parked IN (0, 3) AND lease_until = 0 AND run_at > %(now)s
        """,
    ),
    (
        "job {} has a head start beyond a day",
        "SELECT id FROM {schema}.job WHERE abs(run_at - order_at) > %(longest)s",
    ),
    (
        "finished job {} is in a state that is not final",
        "SELECT id FROM {schema}.finished_record WHERE state NOT IN ('done', 'cancelled')",
    ),
    ("dead letter {} has no reason", "SELECT id FROM {schema}.dead WHERE reason IS NULL"),
    (
        "job {} has two lines for one fence in the attempt log",
        """
        SELECT job_id FROM {schema}.attempt_record
        GROUP BY job_id, fence HAVING count(*) > 1
        """,
    ),
)


async def audit(connection: AsyncConnection, schema: str, at: int | None) -> list[Finding]:
    """Scan everything in one transaction, which sees one state."""
    findings = []
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        [now] = await (
            await connection.execute(_NOW.replace("{schema}", schema), [at])
        ).fetchone() or (0,)
        # A clock that went back makes due jobs look early: allow for an hour.
        values = {"now": now + 3600 * SECOND, "longest": LONGEST_HEAD_START * SECOND}
        for problem, query in _CHECKS:
            cursor = await connection.execute(query.replace("{schema}", schema), values)
            findings += [
                Finding(problem.format(job_id), "keep a copy of the rows, and report it")
                for (job_id,) in await cursor.fetchall()
            ]
    return findings
