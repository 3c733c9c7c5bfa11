"""What Redis cannot do is said where the user meets it."""

import pytest

from fairlead import ConfigError, Fairlead, current_job
from fairlead.core.errors import JobFailed


def test_a_job_cannot_be_part_of_another_databases_transaction(redis_url: str) -> None:
    app = Fairlead(redis_url)
    task = app.task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match=r"cannot share a transaction.*Enqueue after your commit"):
        task.using(connection=object()).enqueue()
    with pytest.raises(ConfigError, match="cannot share a transaction"):
        app.enqueue_many([task.call()], connection=object())
    assert app.bridge.run(app.store.admin.count()) == {}
    app.close()


async def test_a_handler_that_wants_to_commit_learns_why_it_cannot(redis_url: str) -> None:
    app = Fairlead(redis_url)

    @app.task(name="plain")
    def plain() -> None:
        with current_job().commit():
            pass

    @app.task(name="coroutine")
    async def coroutine() -> None:
        async with current_job().commit():
            pass

    async with app.worker():
        for task in (plain, coroutine):
            job = await task.aenqueue()
            with pytest.raises(JobFailed, match="cannot share a transaction"):
                await job.aresult(timeout=20)
            assert (await job.astatus()) == "dead"
    await app.aclose()
