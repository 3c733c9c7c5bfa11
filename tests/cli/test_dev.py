"""`fairlead dev`: the code changes, and the worker with it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.core.job import Job, State
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from tests.cli.shop import (
    SHOP,
    eventually,
    greeting,
    read_until,
    refused,
    run,
    started,
    with_store,
)
from tests.words import claim, new_job

READY = "  stop   Ctrl-C"


def greeted(folder: Path) -> str | None:
    """Enqueue a job, wait until it is done, and return its result."""
    job = greeting("you")
    with_store(folder, lambda store: store.put([job]))

    def ended() -> bool:
        found = with_store(folder, lambda store: store.admin.find(job.id))
        assert found is not None
        assert found.state in (State.WAITING, State.RUNNING, State.DONE), found
        return found.state is State.DONE

    eventually(ended)
    found = with_store(folder, lambda store: store.admin.find(job.id))
    assert found is not None
    return found.result


def say(folder: Path, word: str) -> None:
    (folder / "shop.py").write_text(SHOP.replace("hello", word))


def processes_in(folder: Path) -> list[str]:
    """Return the processes that work in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.readlink(entry / "cwd") == str(folder):
                    found.append(entry.name)
    return found


def stopped(process: "subprocess.Popen[str]", number: signal.Signals) -> str:
    process.send_signal(number)
    text, _ = process.communicate(timeout=20)
    assert process.returncode == 0, text
    assert "Traceback" not in text
    assert text.endswith("stopped\n")
    return text


def test_new_code_runs_and_broken_code_does_not(folder: Path) -> None:
    with started(folder, "dev") as process:
        read_until(process, READY)
        assert greeted(folder) == '"hello you"'
        first = process.pid

        say(folder, "good morning")
        read_until(process, "changed: shop.py")
        read_until(process, "reloaded")
        assert greeted(folder) == '"good morning you"'

        (folder / "shop.py").write_text(SHOP + "\nimport nothing_like_it\n")
        text = read_until(process, "not reloaded; the old code runs on")
        assert "module 'shop' cannot be imported: ModuleNotFoundError: No module named" in text
        assert f"({folder / 'shop.py'}, line " in text
        assert greeted(folder) == '"good morning you"'

        say(folder, "good night")
        read_until(process, "reloaded")
        assert greeted(folder) == '"good night you"'
        assert process.pid == first
        assert processes_in(folder) == [str(first)], "one process, and nothing left of the trials"
        text = stopped(process, signal.SIGINT)
        assert "done in " in text
    assert processes_in(folder) == []


def test_sigterm_stops_it_too(folder: Path) -> None:
    with started(folder, "dev", "--log-level", "info", "--slots", "2") as process:
        text = read_until(process, READY)
        assert "  app    shop:app\n" in text
        assert "post: 2 slots on the loop; queues mail (4)" in text
        assert greeted(folder) == '"hello you"'
        told = stopped(process, signal.SIGTERM)
        assert "done in " in told
        assert "started after " not in told
    assert processes_in(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_app_that_cannot_be_imported_is_waited_for(folder: Path, number: signal.Signals) -> None:
    (folder / "shop.py").write_text("def f(:\n")
    with started(folder, "dev") as process:
        text = read_until(process, "waiting for a change")
        assert text.startswith(
            "module 'shop' cannot be imported: SyntaxError: invalid syntax (shop.py, line 1)\n"
        )
        if number == signal.SIGINT:
            eventually(lambda: watches(process.pid))
            stopped(process, number)
            return
        eventually(lambda: watches(process.pid))
        (folder / "shop.py").write_text("1 / 0\n")
        assert "ZeroDivisionError" in read_until(process, "waiting for a change")
        eventually(lambda: watches(process.pid))
        say(folder, "at last")
        read_until(process, "reloaded")
        assert greeted(folder) == '"at last you"'
        stopped(process, number)
    assert processes_in(folder) == []


def watches(pid: int) -> bool:
    """Say whether a process has the kernel tell it of changes."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "inotify" in os.readlink(entry):
                info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
                if "inotify wd:" in info:
                    return True
    return False


def test_a_file_that_is_saved_while_the_code_loads_is_not_missed(folder: Path) -> None:
    """Here the module itself saves another one, after it has loaded that."""
    (folder / "part.py").write_text("WORD = 'old'\n")
    (folder / "shop.py").write_text(
        SHOP.replace("hello {name}", "{part.WORD} {name}")
        + "\nimport pathlib, part\n"
        + "if part.WORD == 'old':\n"
        + "    pathlib.Path('part.py').write_text(\"WORD = 'new'\\n\")\n"
    )
    with started(folder, "dev") as process:
        read_until(process, "changed: part.py")
        read_until(process, "reloaded")
        assert greeted(folder) == '"new you"'
        stopped(process, signal.SIGINT)


def test_other_folders_can_be_watched(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    with started(folder, "dev", "--watch", str(other)) as process:
        read_until(process, READY)
        eventually(lambda: watches(process.pid))
        (other / "notes.txt").write_text("no code")
        (other / "more.py").write_text("number = 1\n")
        assert "notes" not in read_until(process, "changed: more.py")
        read_until(process, "reloaded")
        # Until it works and watches again, a signal ends it in another way, without a last word.
        eventually(lambda: watches(process.pid))
        stopped(process, signal.SIGTERM)


def test_what_no_change_of_code_can_mend_is_refused(folder: Path) -> None:
    assert refused(folder, "dev").startswith("a worker needs your app: name it first")
    (folder / "jobs.db").write_text("only a text, and not a short one " * 50)
    answer = run(folder, "dev", "shop:app")
    assert answer.returncode == 1
    assert "Error: sqlite:///jobs.db: file is not a database" in answer.stderr
    assert "the app has no queue 'mial'" in refused(folder, "dev", "shop:app", "--queue", "mial")
    assert "does not exist" in refused(folder, "dev", "shop:app", "--watch", "nowhere")


GRIP = """

@app.task(name="grip")
def grip() -> None:
    import time

    time.sleep(60)
"""


@pytest.mark.parametrize("impatient", [False, True], ids=["one signal", "many signals"])
def test_the_job_of_a_plain_function_is_given_back_when_dev_ends(
    folder: Path, impatient: bool
) -> None:
    """A thread cannot be stopped; its job must not stay leased to a program that is no more."""
    (folder / "shop.py").write_text(SHOP + GRIP)
    job = new_job("grip", "default")
    with_store(folder, lambda store: store.put([job]))
    with started(folder, "dev", "shop:app") as process:
        read_until(process, "started after")
        process.send_signal(signal.SIGTERM)
        read_until(process, "stopped")
        while impatient and process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        text, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    assert f"job {job.id} was cut off: waiting" in text
    found = with_store(folder, lambda store: store.admin.find(job.id))
    assert found is not None
    assert (found.state, found.attempt) == (State.WAITING, 0)
    assert processes_in(folder) == []


def test_new_code_that_hangs_does_not_keep_dev_from_ending(folder: Path) -> None:
    with started(folder, "dev", "shop:app") as process:
        read_until(process, READY)
        (folder / "shop.py").write_text("import time\n\ntime.sleep(60)\n" + SHOP)
        read_until(process, "changed: shop.py")
        assert "stopped" in stopped(process, signal.SIGTERM)
    assert processes_in(folder) == []


def test_dev_that_ends_late_leaves_alone_what_another_worker_took_over(folder: Path) -> None:
    """It was suspended for longer than a lease; another worker has one of its jobs by now."""

    async def two_jobs(store: Store) -> tuple[Job, Job]:
        await store.put([new_job("grip", "default")])
        await claim(store, Queue("default"), worker="dev", lease=0)
        [taken] = await claim(store, Queue("default"), worker="w2")
        await store.put([new_job("grip", "default")])
        [own] = await claim(store, Queue("default"), worker="dev")
        return taken, own

    (folder / "shop.py").write_text(SHOP + GRIP)
    taken, own = with_store(folder, two_jobs)
    assert taken.lost
    assert taken.taken_over
    leave = [sys.executable, "-m", "fairlead.cli.process", "leave", "shop:app", "dev"]
    said = subprocess.run(leave, cwd=folder, capture_output=True, text=True, check=True)
    assert own.id in said.stderr
    assert taken.id not in said.stderr
    for job, state in [(taken, State.RUNNING), (own, State.WAITING)]:
        found = with_store(folder, lambda store, job=job: store.admin.find(job.id))
        assert found is not None
        assert (found.state, found.fence) == (state, job.fence)
