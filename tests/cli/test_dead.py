"""`fairlead dead`: dead letters are listed, mended, replayed and deleted."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.outcome import Ambiguous
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from tests.cli.shop import (
    APP,
    Stock,
    audit_lines,
    greeting,
    many_dead,
    objects,
    refused,
    run,
    started,
    state_of,
    terminal,
    told,
    with_store,
)
from tests.words import claim, done, settled


def payload(folder: Path, job_id: JobId) -> str:
    found = with_store(folder, lambda store: store.admin.find(job_id))
    assert found is not None
    return found.payload


# Looking


def test_only_dead_letters_are_listed_and_filters_combine(folder: Path, stock: Stock) -> None:
    lines = told(folder, "dead", "list", "--full").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [stock.worse, stock.bad]
    [job] = objects(folder, "dead", "list", "--task", "greet", "--since", "1h", "--tag", "bad")
    assert job["id"] == stock.bad
    assert told(folder, "dead", "list", "--queue", "alarms") == "no dead letter matches\n"
    assert "No such option" in refused(folder, "dead", "list", "--state", "done")


def test_dead_letters_are_grouped_by_error(folder: Path, stock: Stock) -> None:
    with_store(folder, lambda store: many_dead(store, 3))
    lines = told(folder, "dead", "list", "--by-error").splitlines()
    assert lines[0].split() == ["FINGERPRINT", "COUNT", "LAST", "ERROR", "TASKS"]
    assert lines[1].endswith("Oops: it broke                 greet")
    assert lines[-1] == "`fairlead dead replay --error FINGERPRINT` lets a group run again"
    groups = objects(folder, "dead", "list", "--by-error")
    assert [(group["error"], group["count"]) for group in groups] == [
        ("Oops", 3),
        ("KeyError", 1),
        ("ValueError", 1),
    ]
    assert groups[0]["last_at"].endswith("Z")
    assert [line.split()[:2] for line in lines[1:4]] == [
        [group["fingerprint"], str(group["count"])] for group in groups
    ]
    assert told(folder, "dead", "list", "--by-error", "--queue", "alarms") == (
        "no dead letter matches\n"
    )


def test_a_dead_letter_is_shown_and_nothing_else(folder: Path, stock: Stock) -> None:
    assert "Last failure\n  KeyError: 'two'\n" in told(folder, "dead", "show", stock.worse)
    assert refused(folder, "dead", "show", stock.done, code=3, **APP) == (
        f"job {stock.done} is done, not dead; see `fairlead jobs show`"
    )


# Mending


def test_new_arguments_are_checked_before_they_are_saved(folder: Path, stock: Stock) -> None:
    """The old ones stay in the audit log and on the job's page."""
    for arguments, problem in (
        ('{"name": 1}', "argument 'name' of task 'greet': expected `str`, got `int`; it takes (n"),
        ("{name: x}", "call of task 'greet': this is not JSON: object keys must be strings"),
    ):
        assert refused(folder, "dead", "edit", stock.bad, arguments, **APP).startswith(problem)
    assert payload(folder, stock.bad) == '{"name": "bad"}'
    assert audit_lines(folder) == []

    assert told(folder, "dead", "edit", stock.bad, '{"name": "good ☃"}') == (
        f"saved; `fairlead dead replay {stock.bad}` lets it run again\n"
    )
    assert payload(folder, stock.bad) == '{"name":"good ☃"}'
    assert audit_lines(folder) == [("edit", stock.bad, 1)]
    assert objects(folder, "audit", "list")[0]["before"] == {"name": "bad"}
    assert 'before: {"name": "bad"}\n' in told(folder, "dead", "show", stock.bad)
    assert told(folder, "dead", "edit", stock.bad, '["good ☃"]') == (
        "nothing to change: the arguments are the same\n"
    )


def test_new_arguments_may_come_from_stdin(folder: Path, stock: Stock) -> None:
    answer = run(folder, "dead", "edit", stock.worse, "-", stdin='{"a": 1, "b": 2}\n', **APP)
    assert answer.returncode == 0, answer.stderr
    assert payload(folder, stock.worse) == '{"a":1,"b":2}'
    assert refused(folder, "dead", "edit", stock.worse, **APP) == (
        "no new arguments; give them as JSON, or - to read them from stdin"
    )


def test_only_a_dead_letter_of_a_known_task_is_edited(folder: Path, stock: Stock) -> None:
    assert refused(folder, "dead", "edit", stock.done, "{}", code=4, **APP) == (
        f"job {stock.done} is done, not dead"
    )
    assert refused(folder, "dead", "edit", stock.bad, "{}").startswith(
        "the check of the new arguments needs your app: name it first, as in `shop:app`"
    )
    shop = folder / "shop.py"
    shop.write_text(shop.read_text().replace('"greet"', '"greeting"'))
    assert refused(folder, "dead", "edit", stock.bad, '["x"]', **APP).startswith(
        "the app has no task 'greet' (did you mean 'greeting'?); `fairlead tasks list` lists them"
    )


def editor(folder: Path, script: str) -> str:
    path = folder / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_editor_opens_with_the_old_arguments(folder: Path, stock: Stock) -> None:
    mend = editor(folder, """sed -i 's/bad/better/' "$1"; touch -d '1 minute' "$1" """)
    with terminal(folder, "dead", "edit", stock.bad, EDITOR=mend) as screen:
        assert screen.end() == 0, screen.text
    assert payload(folder, stock.bad) == '{"name":"better"}'


def test_ctrl_c_in_an_editor_is_the_editors(folder: Path, stock: Stock) -> None:
    mend = editor(
        folder,
        """trap 'echo noticed' INT
        echo ready; until read answer; do :; done
        sed -i "s/bad/$answer/" "$1"; touch -d '1 minute' "$1" """,
    )
    with terminal(folder, "dead", "edit", stock.bad, EDITOR=mend) as screen:
        screen.until("ready")
        screen.type("\x03")
        screen.until("noticed")
        screen.type("fine\r")
        assert screen.end() == 0, screen.text
    assert payload(folder, stock.bad) == '{"name":"fine"}'


def test_an_editor_that_saves_nothing_changes_nothing(folder: Path, stock: Stock) -> None:
    with terminal(folder, "dead", "edit", stock.bad, EDITOR="true") as screen:
        assert screen.end() == 4
    assert "Error: nothing was saved" in screen.text
    with terminal(folder, "dead", "edit", stock.bad, EDITOR="false") as screen:
        assert screen.end() == 1
    assert "Traceback" not in screen.text
    assert audit_lines(folder) == []


# Replaying


def test_dead_letters_are_replayed_by_id_by_filter_and_by_fingerprint(
    folder: Path, stock: Stock
) -> None:
    assert told(folder, "dead", "replay", stock.bad) == "replayed 1 dead letter\n"
    assert state_of(folder, stock.bad) == "waiting"
    with_store(folder, lambda store: many_dead(store, 4))
    assert told(folder, "dead", "replay", "--task", "add", "--yes") == "replayed 1 dead letter\n"
    [group] = objects(folder, "dead", "list", "--by-error")
    mark = group["fingerprint"]
    assert told(folder, "dead", "replay", "--error", mark, "--yes") == "replayed 4 dead letters\n"
    assert audit_lines(folder) == [
        ("replay", f"--state dead --error {mark}", 4),
        ("replay", "--task add --state dead", 1),
        ("replay", stock.bad, 1),
    ]
    assert "replay by " in told(folder, "jobs", "show", stock.bad)
    [job] = objects(folder, "jobs", "show", stock.bad)
    assert (job["attempt"], len(job["errors"])) == (0, 1)


def test_what_is_not_dead_is_not_replayed(folder: Path, stock: Stock) -> None:
    answer = run(folder, "dead", "replay", stock.done, stock.bad, **APP)
    assert answer.returncode == 0
    assert answer.stderr == (
        f"job {stock.done} is done: not replayed; fairlead jobs retry runs other jobs again\n"
    )
    assert answer.stdout == "replayed 1 dead letter\n"
    answer = run(folder, "dead", "replay", stock.done, stock.bad, **APP)
    assert answer.returncode == 4
    assert answer.stderr.endswith("Error: nothing was done\n")
    assert refused(folder, "dead", "replay", **APP).startswith("which dead letters? Name them by")


def test_two_replays_at_once_replay_each_dead_letter_once(folder: Path) -> None:
    jobs = with_store(folder, lambda store: many_dead(store, 3_000))
    with (
        started(folder, "dead", "replay", "--all", "--yes", "--json") as first,
        started(folder, "dead", "replay", "--all", "--yes", "--json") as second,
    ):
        outputs = [first.communicate()[0], second.communicate()[0]]
        assert (first.returncode, second.returncode) == (0, 0)
    counts = [int(output.split('"count":')[1].split(",")[0]) for output in outputs]
    assert sum(counts) == len(jobs)
    assert sum(count for _, _, count in audit_lines(folder)) == len(jobs)
    claimed = with_store(folder, lambda store: claim(store, Queue("default"), slots=4_000))
    assert sorted(job.id for job in claimed) == sorted(jobs)


def test_dead_letters_are_deleted_for_good(folder: Path, stock: Stock) -> None:
    assert refused(folder, "dead", "delete", "--all", **APP) == (
        "this would delete 2 dead letters (mail 1, reports 1); nobody is here to ask, so add "
        "--yes, or look first with --dry-run"
    )
    assert told(folder, "dead", "delete", stock.bad, "--yes") == "deleted 1 dead letter\n"
    assert told(folder, "dead", "delete", "--all", "--yes") == "deleted 1 dead letter\n"
    assert [state_of(folder, job_id) for job_id in (stock.bad, stock.worse)] == [None, None]
    assert state_of(folder, stock.done) == "done"
    with terminal(folder, "dead", "delete", "--all") as screen:
        assert screen.end() == 0
    assert screen.text == "no dead letter matches\r\n"


@pytest.mark.parametrize("keys", ["y\r", "n\r"])
def test_a_replay_by_filter_asks_first(folder: Path, stock: Stock, keys: str) -> None:
    with terminal(folder, "dead", "replay", "--queue", "mail") as screen:
        screen.until("replay 1 dead letter (mail 1)? [y/N]: ")
        screen.type(keys)
        assert screen.end() == (0 if keys == "y\r" else 4)
    assert state_of(folder, stock.bad) == ("waiting" if keys == "y\r" else "dead")


def test_a_dead_letter_that_cannot_be_read_stops_nobody_and_can_be_deleted(folder: Path) -> None:
    async def prepare(store: Store) -> list[JobId]:
        return await many_dead(store, 3)

    ids = with_store(folder, prepare)
    with sqlite3.connect(folder / "jobs.db") as raw:
        raw.execute(
            "UPDATE fairlead_dead SET payload = CAST(x'ff00fe' AS TEXT) WHERE id = ?", (ids[1],)
        )
        raw.execute("UPDATE fairlead_dead SET payload = x'ff' WHERE id = ?", (ids[2],))
    raw.close()
    listed = told(folder, "dead", "list", "--full")
    assert all(job_id in listed for job_id in ids)
    assert "not JSON" in told(folder, "dead", "show", ids[1])
    assert told(folder, "dead", "delete", ids[1], "--yes") == "deleted 1 dead letter\n"
    assert told(folder, "dead", "replay", "--all", "--yes") == "replayed 2 dead letters\n"


def test_a_job_that_ended_since_it_was_seen_is_not_run_again(folder: Path) -> None:
    """While a person thinks about the question, things go on."""

    async def prepare(store: Store) -> tuple[JobId, JobId]:
        uncertain, later = greeting("a"), greeting("b", delay=SECOND // 10)
        await store.put([uncertain])
        [claimed] = await claim(store, Queue("mail"))
        await store.settle([settled(claimed, Ambiguous("who knows"))])
        await store.put([later])
        return uncertain.id, later.id

    async def end(store: Store) -> None:
        await asyncio.sleep(0.2)
        [claimed] = await claim(store, Queue("mail"))
        await store.settle([done(claimed, "1")])

    uncertain, later = with_store(folder, prepare)
    with terminal(folder, "jobs", "retry", uncertain, later) as screen:
        screen.until("retry 2 jobs? [y/N]")
        assert "1 uncertain job, whose outside effect may have happened" in screen.text
        with_store(folder, end)
        screen.type("y\n")
        assert screen.end() == 0
    assert "retried 1 job of 2 that were found" in screen.text
    assert (state_of(folder, uncertain), state_of(folder, later)) == ("waiting", "done")
