"""Break one promise at a time, and insist that a test notices: the list for `make mutants`.

Each mutant is one small change to a copy of the source, and names the tests that must
fail with it. A mutant that survives means a promise nobody checks. `tests/mutation.py`
runs them: `.venv/bin/python -m tests.mutation --only "a stale worker"` tries those whose
promise says so.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A change that breaks a promise, and where that must be noticed."""

    promise: str
    file: str
    code: str
    broken: str
    tests: str


SQLITE = "stores/sqlite"
POSTGRES = "stores/postgres"
REDIS = "stores/redis"
PG_DAMAGE = "tests/stores/test_postgres_damage.py"
LOCKS = "tests/system/test_postgres_locks.py"
DAMAGE = "tests/stores/test_sqlite_damage.py"
SESSIONS = "tests/system/test_postgres_sessions.py"
MUTANTS = [
    Mutant(
        "a stale worker cannot settle (I6), SQLite",
        f"{SQLITE}/line.py",
        "return {(job.id, job.fence): job for job in running}",
        "return _Any({(job.id, job.fence): job for job in running})",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "a stale worker cannot settle (I6), memory",
        "stores/memory/line.py",
        "entry.lease_until and entry.fence == fence else None",
        "entry.lease_until else None",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "an answer comes after the commit (I1)",
        f"{SQLITE}/writer.py",
        '            connection.execute("COMMIT")\n        except Exception',
        '            self._answer(batch)\n            connection.execute("COMMIT")\n'
        "        except Exception",
        "tests/stores/test_sqlite.py",
    ),
    Mutant(
        "durable means synced (P1)",
        f"{SQLITE}/connection.py",
        '"durable": "FULL"',
        '"durable": "NORMAL"',
        "tests/stores/test_sqlite.py",
    ),
    Mutant(
        "one bad row fails its own caller alone",
        f"{SQLITE}/writer.py",
        "if len(requests) > 1 and self._try(connection, verb, requests) is None:",
        "if len(requests) > 1 and self._fail_all(connection, verb, requests) is None:",
        "tests/stores/test_sqlite.py",
    ),
    Mutant(
        "a put is recognised after the job is done",
        f"{SQLITE}/sql/put.sql",
        "WHERE NOT EXISTS (SELECT 1 FROM fairlead_finished WHERE id = column1)\n  AND",
        "WHERE",
        "tests/stores/test_put.py",
    ),
    Mutant(
        "no two claims get the same job (I5)",
        f"{SQLITE}/sql/claim.sql",
        "      AND lease_until <= :now\n    ORDER BY order_at, id\n    LIMIT :limit\n)\n\n-- name: large",
        "    ORDER BY order_at, id\n    LIMIT :limit\n)\n\n-- name: large",
        "tests/stores/test_claim.py",
    ),
    Mutant(
        "a promoted job keeps its place",
        f"{SQLITE}/sql/upkeep.sql",
        "UPDATE fairlead_job SET parked = 0\nWHERE seq IN (\n    SELECT seq FROM fairlead_job WHERE parked = 1",
        "UPDATE fairlead_job SET parked = 0, order_at = :now\nWHERE seq IN (\n"
        "    SELECT seq FROM fairlead_job WHERE parked = 1",
        "tests/stores/test_claim.py",
    ),
    Mutant(
        "a give-back returns the attempt (P10)",
        "core/outcome.py",
        "        case Returned(cut_off=False):\n"
        "            return _settle(job, outcome, State.WAITING, counts=False,",
        "        case Returned(cut_off=False):\n            return _settle(job, outcome, State.WAITING,",
        "tests/core/test_outcome.py",
    ),
    Mutant(
        "a crash counts apart from attempts (P7)",
        "core/outcome.py",
        "        counts=False,\n        crashed=True,",
        "        counts=True,\n        crashed=False,",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "an idle queue's debt melts no faster than others are served (P12)",
        "core/selection.py",
        "credits[name] = min(0.0, credits[name] + passed)",
        "credits[name] = 0.0",
        "tests/core/test_selection.py",
    ),
    Mutant(
        "credit cannot be saved up (P12)",
        "core/selection.py",
        "credits[name] = min(0.0, credits[name] + passed)",
        "credits[name] = credits[name] + passed",
        "tests/core/test_selection.py",
    ),
    Mutant(
        "critical jobs take at most half of the shared slots",
        "core/selection.py",
        "max(0, plan.slots // 2 - beyond)",
        "max(0, plan.slots - beyond)",
        "tests/core/test_selection.py",
    ),
    Mutant(
        "a job nobody knows is parked, not claimed (P11)",
        "core/selection.py",
        "    Gate.NO_CAPABLE_WORKER: _incapable,\n}",
        "}",
        "tests/stores/test_claim.py",
    ),
    Mutant(
        "a cancelled run is no success (I17)",
        f"{SQLITE}/line.py",
        "settlement if job.cancel is None else overrule(settlement, job.cancel)",
        "settlement",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "dead letters are never forgotten (I10)",
        f"{SQLITE}/line.py",
        'tell(connection, "prune_workers", before=now - keep)',
        'connection.execute("DELETE FROM fairlead_dead")',
        "tests/stores/test_upkeep.py",
    ),
    Mutant(
        "no connection crosses a fork",
        f"{SQLITE}/store.py",
        "        if session is not None:\n            session.close()\n\n    def reopen",
        "        self._session = session\n\n    def reopen",
        "tests/system/test_fork.py",
    ),
    Mutant(
        "our lock on the file is never dropped",
        f"{SQLITE}/connection.py",
        "        if self.path.exists():\n            return\n",
        "        if self.path.exists():\n            os.close(os.open(self.path, os.O_RDWR))\n            return\n",
        "tests/system/test_kill.py",
    ),
    Mutant(
        "an interrupt stops its own thread only",
        f"{SQLITE}/writer.py",
        "            else:\n                self._answer(batch)\n            raise",
        "            raise",
        "tests/system/test_kill.py",
    ),
    Mutant(
        "a wake-up comes when the commit can be seen",
        f"{SQLITE}/wake.py",
        "self._nap_until = self._loop.time() + _NAPPING_SECONDS",
        "self._pause = 1.0",
        "tests/face/test_handles.py",
    ),
    Mutant(
        "the log is checkpointed",
        f"{SQLITE}/checkpoint.py",
        "return bool(salt) and frame[8:16] == salt",
        "return False",
        "tests/stores/test_sqlite.py",
    ),
    Mutant(
        "the job is part of the caller's transaction (I2)",
        f"{SQLITE}/store.py",
        "return put_rows(connection, jobs, self._clock.now())",
        "put_rows(connection, jobs, self._clock.now()); return connection.commit()",
        "tests/face/test_transaction.py",
    ),
    Mutant(
        "a run that lost its lease commits no rows (I7)",
        f"{SQLITE}/line.py",
        "job = _current(cursor, [settlement.id]).get((settlement.id, settlement.fence))",
        "job = next(iter(_current(cursor, [settlement.id]).values()), None)",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a run that is refused takes its rows with it (I7)",
        "runtime/commit.py",
        "            raise LeaseLost(self.settlement.id)\n",
        "            return\n",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a job is done with its handler's rows (I7)",
        f"{SQLITE}/line.py",
        "    for problem in _write_settlements(cursor, [(job, settlement)], now).values():\n"
        "        raise problem\n",
        "",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a cancelled run commits no rows (I17)",
        f"{SQLITE}/line.py",
        "    if job.cancel is not None:\n        return overrule(settlement, job.cancel)\n",
        "",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "the fence is read under the write lock",
        f"{SQLITE}/line.py",
        '    tell(cursor, "take_write_lock")\n',
        "",
        "tests/stores/test_sqlite_transaction.py",
    ),
    Mutant(
        "jobs enqueued in a handler's transaction are part of it (P2)",
        "runtime/commit.py",
        "return commit.connection if commit is not None and commit.store is store else None",
        "return None",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a commit whose answer was lost is looked for (I7)",
        "runtime/run.py",
        "return Committed(None if commit.fate is Fate.COMMITTED else ending, told)",
        "return Committed(None, told)",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a handler that goes on after its commit has not lost its lease",
        "runtime/keeper.py",
        "if not await self._is_settled(pair):",
        "if pair:",
        "tests/face/test_commit.py",
    ),
    Mutant(
        "a connection is not used again while a cancelled question still runs on it (F19)",
        f"{SQLITE}/store.py",
        "                connection = self._reader()\n",
        "                connection = self._reader()\n            self._idle.append(connection)\n",
        "tests/stores/test_sqlite.py",
    ),
    Mutant(
        "the start of a handler is known before it runs (I9)",
        "runtime/loop_runner.py",
        '        self._begin(run, ASYNC, 0)\n        point("started")\n        outcome = await acall(run)\n',
        '        outcome = await acall(run)\n        self._begin(run, ASYNC, 0)\n        point("started")\n',
        "tests/system/test_worker_crashes.py",
    ),
    Mutant(
        "leases are renewed whatever the handlers' loop does (L8)",
        "runtime/keeper.py",
        "            if mark.held_since <= before\n        }\n        owners |= await self._unseen(before)\n",
        "            if mark.held_since <= before < board.pulse\n        }\n",
        "tests/system/test_worker_limits.py",
    ),
    Mutant(
        "a time-out is not settled while its thread still runs (never two live runs)",
        "runtime/worker.py",
        '            run.deadline = float("inf")\n            self._tell_overdue(run, where)\n\n    def _tell',
        '            run.deadline = float("inf")\n            self._settler.put(run, run.called_off)\n'
        "            self._tell_overdue(run, where)\n\n    def _tell",
        "tests/system/test_worker_limits.py",
    ),
    Mutant(
        "the neighbours of a poison are not blamed (P7)",
        "runtime/takeover.py",
        "Crashed(death.how, company=not alone)",
        "Crashed(death.how)",
        "tests/system/test_worker_crashes.py",
    ),
    Mutant(
        "a suspect runs alone (P7)",
        "core/job.py",
        "return self.suspect or self.crashes > 0",
        "return False",
        "tests/system/test_worker_crashes.py",
    ),
    Mutant(
        "a lost run is decided on before any handler runs",
        "runtime/worker.py",
        "            if run.job.lost:\n",
        "            if False:\n",
        "tests/simulation",
    ),
    Mutant(
        "after an outage nobody takes over what still runs",
        "core/selection.py",
        "return plan.spare_lost or late",
        "return False",
        "tests/simulation",
    ),
    Mutant(
        "outcomes wait for the store (I1)",
        "runtime/settler.py",
        "                await self._contact.lost(problem, began)\n                continue\n",
        "                await self._contact.lost(problem, began)\n                return {}\n",
        "tests/simulation",
    ),
    Mutant(
        "a batch that is refused is split until the bad job is alone (I22)",
        "runtime/split.py",
        "        if len(items) <= 1:\n            return []\n",
        "        return []\n",
        "tests/runtime/test_damage.py",
    ),
    Mutant(
        "a job whose end is refused becomes a dead letter (P11)",
        "runtime/settler.py",
        "    if damaged:\n",
        "    if False:\n",
        "tests/runtime/test_damage.py",
    ),
    Mutant(
        "a keeper survives whatever a duty raises (I22)",
        "runtime/keeper.py",
        "            if is_outage(problem):\n                raise\n"
        '            self._troubles.tell(f"it could',
        '            raise\n            self._troubles.tell(f"it could',
        "tests/runtime/test_damage.py",
    ),
    Mutant(
        "slots that a resting queue fills are not given away",
        "core/selection.py",
        "slots=self.slots - filled",
        "slots=self.slots",
        "tests/runtime/test_damage.py",
    ),
    Mutant(
        "an id comes back from the board as it was (I22)",
        "runtime/board.py",
        '.rstrip(b"\\0")',
        "",
        "tests/runtime/test_damage.py",
    ),
    Mutant(
        "a job whose options cannot be read does not run (F43)",
        "runtime/run.py",
        "if self.unreadable is not None:",
        "if False:",
        "tests/runtime/test_embedded.py",
    ),
    Mutant(
        "what is nested too deep is unreadable, and ends no process (F43)",
        "core/job.py",
        "ValueError, RecursionError, ConfigError",
        "ValueError, ConfigError",
        "tests/runtime/test_embedded.py",
    ),
    Mutant(
        "a claim is bounded by bytes (F82)",
        "core/selection.py",
        "        self.bytes -= size\n",
        "",
        "tests/core/test_selection.py",
    ),
    Mutant(
        "nothing is claimed ahead beside large payloads (F82)",
        "runtime/pool.py",
        "self._ahead(now) if self._bytes < MOST_BYTES else 0",
        "self._ahead(now)",
        "tests/runtime/test_pool.py",
    ),
    Mutant(
        "ids cannot be foretold (T26)",
        "core/ids.py",
        'memoryview(os.urandom(_POOL_BYTES)).cast("Q")',
        "[__import__('random').getrandbits(64) for _ in range(512)]",
        "tests/core/test_ids.py",
    ),
    Mutant(
        "what was claimed unseen is given back (F1, p5)",
        "runtime/takeover.py",
        "    for job in await store.held(death.worker):\n",
        "    for job in [j for j in await store.held(death.worker) if (j.id, j.fence) in marks]:\n",
        "tests/system/test_worker_killed.py",
    ),
    Mutant(
        "a stop gives back what has not started (P10)",
        "runtime/worker.py",
        "        self._give_back_unstarted()\n        await self._until",
        "        await self._until",
        "tests/runtime",
    ),
    Mutant(
        "an outside effect that a stop cuts off is not simply repeated",
        "runtime/worker.py",
        "GIVEN_BACK if run.started_at is None else CUT_OFF",
        "GIVEN_BACK",
        "tests/runtime/test_embedded.py",
    ),
    Mutant(
        "what handlers started ends with a killed supervisor (F7)",
        "runtime/guardian.py",
        '[ -z "$groups" ] || kill -s KILL -- $groups',
        ":",
        "tests/system/test_worker_killed.py",
    ),
    # PostgreSQL
    Mutant(
        "a stale worker cannot settle (I6), PostgreSQL",
        f"{POSTGRES}/migrations/0002_line.sql",
        "            WHERE id = given.id AND fence = given.fence AND lease_until > 0\n",
        "            WHERE id = given.id AND lease_until > 0\n",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "no two claims get the same job (I5), PostgreSQL",
        f"{POSTGRES}/migrations/0002_line.sql",
        "(l.from_at, l.from_id)\n                  AND order_at <= l.upto_at AND lease_until <= at\n",
        "(l.from_at, l.from_id)\n                  AND order_at <= l.upto_at\n",
        f"{LOCKS}::test_two_who_claim_in_turns_never_get_the_same_job",
    ),
    Mutant(
        "a heartbeat waits for nobody who has locked a job",
        f"{POSTGRES}/migrations/0002_line.sql",
        "                FOR UPDATE SKIP LOCKED\n            ) AS held\n        ))",
        "                FOR UPDATE\n            ) AS held\n        ))",
        f"{LOCKS}::test_a_cancel_waits_for_a_locked_job_and_a_settlement_comes_back_for_it",
    ),
    Mutant(
        "a locked job's lease is renewed as soon as it is free",
        f"{POSTGRES}/store.py",
        "        if locked:\n",
        "        if False:\n",
        f"{LOCKS}::test_a_lease_that_was_said_to_be_renewed_lasts",
    ),
    Mutant(
        "a job that ended is not put again, by COPY either",
        f"{POSTGRES}/migrations/0002_line.sql",
        "    IF cardinality(known) > 0 THEN\n        WITH back",
        "    IF false THEN\n        WITH back",
        "tests/stores/test_postgres.py",
    ),
    Mutant(
        "an outcome waits for who has locked its job",
        f"{POSTGRES}/store.py",
        "        if busy:\n            # Not",
        "        if False:\n            # Not",
        f"{LOCKS}::test_a_job_whose_row_is_locked_when_it_ends_is_done_all_the_same",
    ),
    Mutant(
        "what a deadlock undid is done again (F27)",
        f"{POSTGRES}/lane.py",
        "_UNDONE = (errors.DeadlockDetected, ",
        "_UNDONE = (",
        f"{LOCKS}::test_a_deadlock_is_tried_again",
    ),
    Mutant(
        "an answer comes after the commit (I1), PostgreSQL",
        f"{POSTGRES}/line.py",
        '[(answer,)] = await lane.ask(self._sql["put"], put_text(jobs, self.at(), tell))',
        '__import__("asyncio").ensure_future(lane.ask(self._sql["put"], '
        "put_text(jobs, self.at(), tell))); answer = None",
        "tests/system/test_postgres_network.py::test_a_put_that_is_repeated_is_one_job",
    ),
    Mutant(
        "a listener listens again (L3)",
        f"{POSTGRES}/wake.py",
        "            await asyncio.sleep(pause)\n",
        "            await asyncio.sleep(3600)\n",
        f"{SESSIONS}::test_a_listener_that_was_ended_listens_again",
    ),
    Mutant(
        "nobody relies on news that a pooler keeps (F26)",
        f"{POSTGRES}/wake.py",
        "                await self._tell(PING)\n",
        '                await connection.execute("SELECT pg_notify(%s, %s)", '
        "(self._address.schema, PING))\n",
        "tests/system/test_postgres_network.py"
        "::test_who_cannot_hear_through_a_pooler_does_not_rely_on_it",
    ),
    Mutant(
        "a put ends by its deadline (L9)",
        f"{POSTGRES}/lane.py",
        "        if not ready and time.monotonic() > until:\n",
        "        if not ready and not until:\n",
        f"{SESSIONS}::test_a_put_to_a_server_that_stands_still_ends_in_time",
    ),
    Mutant(
        "a question ends by its deadline, however long it takes to call it off (L9)",
        f"{POSTGRES}/lane.py",
        "            self._abandon(working)\n",
        "            self._abandon(working)\n            await asyncio.wait({working})\n",
        f"{SESSIONS}::test_a_put_to_a_server_that_stands_still_ends_in_time",
    ),
    Mutant(
        "a connection that ended while it was idle is not used",
        f"{POSTGRES}/lane.py",
        "    return not ear.poll(0)\n",
        "    return True\n",
        f"{SESSIONS}::test_what_arrives_unasked_is_the_end_of_a_connection",
    ),
    Mutant(
        "a fork waits for no thread of its parent",
        f"{POSTGRES}/store.py",
        "        store.begin()\n",
        "        del store\n",
        f"{SESSIONS}::test_a_fork_waits_for_no_thread_that_it_does_not_have",
    ),
    Mutant(
        "a fork does not hold its parent's sessions",
        f"{POSTGRES}/lane.py",
        "            os.dup2(nowhere, connection.pgconn.socket)\n",
        "            pass\n",
        f"{SESSIONS}::test_a_child_does_not_keep_the_sessions_of_a_parent_that_was_killed",
    ),
    Mutant(
        "leases and due times are the server's (F28)",
        f"{POSTGRES}/line.py",
        "return self._clock.now() if self._clock else None",
        'return self._clock.now() if self._clock else __import__("time").time_ns() // 1_000',
        "tests/system/test_postgres_clock.py::test_wrong_clocks_of_workers_change_nothing",
    ),
    Mutant(
        "a migration keeps nobody waiting for its lock (P14)",
        f"{POSTGRES}/migrate.py",
        """        connection.execute("SET LOCAL lock_timeout = '500ms'")\n""",
        "",
        "tests/system/test_postgres_migration.py"
        "::test_a_migration_that_cannot_get_its_lock_keeps_nobody_waiting",
    ),
    # People
    Mutant(
        "what explain says is what the next claim does",
        "insight/explain.py",
        "running={q.name: busy.get(process, {}).get(q.name, 0) for q in pool.queues},",
        "",
        "tests/insight",
    ),
    Mutant(
        "explain counts every process of a worker",
        "insight/explain.py",
        "for process in (*sorted(busy), *idle)",
        "for process in (*sorted(busy), *idle)[:1]",
        "tests/insight",
    ),
    Mutant(
        "explain sees jobs that fell due",
        f"{SQLITE}/sql/admin.sql",
        "WHERE parked = 1 AND run_at <= :now AND queue = :queue AND lease_until <= :now\n",
        "WHERE 0\n",
        "tests/insight",
    ),
    Mutant(
        "a job is revived only from the states that were named",
        f"{SQLITE}/sql/admin.sql",
        "FROM fairlead_dead WHERE :dead AND id",
        "FROM fairlead_dead WHERE id",
        "tests/stores/test_admin.py",
    ),
    Mutant(
        "a job that crashed runs alone after its revival",
        f"{SQLITE}/sql/admin.sql",
        "       crashes > 0, errors\nFROM fairlead_dead",
        "       0, errors\nFROM fairlead_dead",
        "tests/stores/test_admin.py",
    ),
    Mutant(
        "an edit that came second changes nothing",
        f"{SQLITE}/sql/admin.sql",
        "WHERE id = :id AND payload = :was",
        "WHERE id = :id",
        "tests/stores/test_admin.py",
    ),
    Mutant(
        "the old arguments are kept",
        f"{SQLITE}/admin.py",
        "self._note(connection, edit.by, 1, [edit.job_id], edit.was)",
        "self._note(connection, edit.by, 1, [edit.job_id])",
        "tests/stores/test_admin.py",
    ),
    Mutant(
        "several tags mean all of them",
        f"{SQLITE}/sql/admin.sql",
        "WHERE wanted.value NOT IN (",
        "WHERE wanted.value IN (",
        "tests/stores/test_admin.py",
    ),
    Mutant(
        "a feeder that is stopped while it claims ends",
        "runtime/feeder.py",
        "if empty and not self._stopped",
        "if empty",
        "tests/runtime/test_parts.py",
    ),
    Mutant(
        "what cannot be undone asks first",
        "cli/act.py",
        "    if care.yes:\n        return\n    if uncertain",
        "    if care is not None:\n        return\n    if uncertain",
        "tests/cli/test_jobs.py",
    ),
    Mutant(
        "looking makes no schema and changes none",
        "cli/desk.py",
        "            if check:\n",
        "            if not check:\n",
        "tests/cli/test_migrate.py",
    ),
    Mutant(
        "new arguments are checked before they are saved",
        "cli/dead.py",
        'return signature.read(sys.stdin.read(TEXT_LIMIT + 1) if given == "-" else given)',
        'return sys.stdin.read() if given == "-" else given',
        "tests/cli/test_dead.py",
    ),
    Mutant(
        "dev gives back what its threads would not let go of",
        "cli/dev.py",
        "    if left:\n",
        "    if left and not left:\n",
        "tests/cli/test_dev.py",
    ),
    Mutant(
        "a message of the store steers no terminal (T9)",
        "cli/command.py",
        "super().__init__(hinted(escaped(without_passwords(message))))",
        "super().__init__(hinted(without_passwords(message)))",
        "tests/cli/test_hostile.py",
    ),
    Mutant(
        "a stale worker cannot settle (I6), Redis",
        f"{REDIS}/lua/settle.lua",
        "if not is_read or fence ~= given_fence or lease_until == 0 then",
        "if not is_read or lease_until == 0 then",
        "tests/stores/test_settle.py",
    ),
    Mutant(
        "a stale worker cannot renew (I6), Redis",
        f"{REDIS}/lua/extend.lua",
        "run[LEASE_UNTIL] > 0 and run[FENCE] == pairs_given[n][2]",
        "run[LEASE_UNTIL] > 0",
        "tests/stores/test_extend.py",
    ),
    Mutant(
        "fences grow though the server lost its last second (F35)",
        f"{REDIS}/lua/claim.lua",
        "math.max(run[FENCE] + 1, now)",
        "run[FENCE] + 1",
        "tests/stores/test_redis.py::test_fences_never_go_back_when_the_server_loses_its_last_second",
    ),
    Mutant(
        "a repeated put is recognised (I1), Redis",
        f"{REDIS}/lua/put.lua",
        "if known[n] or seen[id] then",
        "if seen[id] then",
        "tests/stores/test_put.py",
    ),
    Mutant(
        "an id is in one queue only, Redis",
        f"{REDIS}/line.py",
        "places = (yield from self._queues.reserve(strays)) if strays else {}",
        "places = (yield from self._queues.reserve(strays)) and {} if strays else {}",
        "tests/stores/test_redis.py",
    ),
    Mutant(
        "a server that evicts is refused (F25)",
        f"{REDIS}/condition.py",
        'if server.policy.startswith("allkeys"):',
        'if server.policy.startswith("none"):',
        "tests/stores/test_redis_condition.py",
    ),
    Mutant(
        "a server that keeps nothing is refused (F25)",
        f"{REDIS}/condition.py",
        "if not server.aof and not address.fast:",
        "if not server.aof and address.fast:",
        "tests/stores/test_redis_condition.py",
    ),
    Mutant(
        "jobs end though memory is full (F25)",
        f"{REDIS}/lua/settle.lua",
        "#!lua flags=allow-oom",
        "#!lua",
        "tests/stores/test_redis.py::test_a_full_server_takes_no_job_and_lets_the_others_go_on",
    ),
    Mutant(
        "scripts are loaded again (F24)",
        f"{REDIS}/nodes.py",
        "                    bare.add(left[at])",
        "                    bare.discard(left[at])",
        "tests/stores/test_redis.py::test_scripts_that_were_flushed_are_loaded_again",
    ),
    Mutant(
        "a connection that was given up on is not used again (T15)",
        f"{REDIS}/lane.py",
        "            answers = [await _answer(connection) for _ in commands]\n"
        "        except BaseException:",
        "            answers = [await _answer(connection) for _ in commands]\n        except ValueError:",
        "tests/stores/test_redis.py::test_a_connection_that_was_given_up_on_is_not_used_again",
    ),
    Mutant(
        "a slot that moved is followed, Redis",
        f"{REDIS}/nodes.py",
        "again[at] = self._owners[reply.slot_id] = _named(reply, left[at])",
        "answers[at] = reply",
        "tests/stores/test_redis.py::test_a_queue_is_followed_when_its_slot_moves",
    ),
    Mutant(
        "a put over several queues is all or none (I2), Redis",
        f"{REDIS}/lane.py",
        'return [("MULTI",), *commands, ("EXEC",)] if together and len(commands) > 1 else commands',
        "return commands",
        "tests/stores/test_redis.py::test_a_put_over_several_queues_is_all_or_none",
    ),
    Mutant(
        "a damaged job stops nobody (F34), Redis",
        f"{REDIS}/line.py",
        "except DecodeError as problem:",
        "except LookupError as problem:",
        "tests/stores/test_redis.py",
    ),
    Mutant(
        "a traceback in the plain log steers no terminal (T9)",
        "log.py",
        "for line in escaped_lines(text))",
        "for line in text.split(chr(10)))",
        "tests/test_log.py",
    ),
    Mutant(
        "what continues a record cannot pass for a line of the log (T9)",
        "log.py",
        '_INDENT = " " * 4',
        '_INDENT = ""',
        "tests/test_log.py",
    ),
    Mutant(
        "no part of a password is told (T9)",
        "core/url.py",
        'any("@" in part for part in parts[2:])',
        "False",
        "tests/core/test_url.py",
    ),
    Mutant(
        "an error does not carry the URL along (T9)",
        "core/url.py",
        """    with suppress(ValueError):  # Its words quote the URL, so our error must not carry it along.
        parts = urlsplit(url)
""",
        """    try:
        parts = urlsplit(url)
    except ValueError as problem:
        raise unreadable_url(str(problem)) from None
""",
        "tests/core/test_url.py",
    ),
    Mutant(
        "zero-width characters are seen",
        "core/text.py",
        r"\u200b-\u200d",
        r"\u200c-\u200d",
        "tests/core/test_text.py",
    ),
    Mutant(
        "a server that a service file names proves who it is (T9)",
        f"{POSTGRES}/address.py",
        "known = _resolved(given)",
        "known = {name: str(value) for name, value in given.items()}",
        "tests/stores/test_postgres_address.py",
    ),
    Mutant(
        "who asks for less protection is warned",
        f"{POSTGRES}/store.py",
        "if address.doubt:",
        "if address.doubt and not address:",
        "tests/stores/test_postgres_address.py",
    ),
    Mutant(
        "a key that is there twice is refused (T12)",
        "core/codec.py",
        "if len(set(names)) < len(names):",
        "if len(set(names)) < 0:",
        "tests/core/test_codec.py",
    ),
    Mutant(
        "a stored payload with a key twice is unreadable (F43)",
        "core/codec.py",
        'if payload.count(":") != len(kwargs) and not self._wrote(payload, call):',
        "if not kwargs:",
        "tests/core/test_codec.py",
    ),
    Mutant(
        "more than 10,000 keys are refused (T12)",
        "core/codec.py",
        'return _STRINGS.sub(b"", payload).count(b":") > KEY_LIMIT',
        "return False",
        "tests/core/test_codec.py",
    ),
    Mutant(
        "a name of 10 MB is compared with nothing (T12)",
        "core/errors.py",
        "if len(str(name)) > QUOTED:",
        "if not name:",
        "tests/core/test_text.py",
    ),
    Mutant(
        "commands go on over JSON that is nested too deep (I22)",
        "cli/words.py",
        "return read(lay_out, ",
        "return (lambda decode, _, text: decode(text))(lay_out, ",
        "tests/cli/test_hostile.py",
    ),
    Mutant(
        "a fence that cannot be harms only its job (I22), SQLite",
        f"{SQLITE}/heads.py",
        "    fence: Instant\n",
        "    fence: int\n",
        DAMAGE,
    ),
    Mutant(
        "a job that is there twice does not hold up its batch (I22), SQLite",
        f"{SQLITE}/line.py",
        "    except sqlite3.IntegrityError as problem:\n        if len(jobs) == 1:",
        "    except KeyError as problem:\n        if len(jobs) == 1:",
        DAMAGE,
    ),
    Mutant(
        "a job that is there twice is kept (I22), SQLite",
        f"{SQLITE}/repair.py",
        'if other := _elsewhere(connection, sound["id"]):',
        'if other := "":',
        DAMAGE,
    ),
    Mutant(
        "a worker that cannot be read holds up nobody (I22), SQLite",
        f"{SQLITE}/sql/claim.sql",
        "iif(typeof(capable) = 'text' AND json_valid(capable), capable, '{}')",
        "capable",
        DAMAGE,
    ),
    Mutant(
        "the audit names every damage (F75), SQLite",
        f"{SQLITE}/audit.py",
        "if problems := table.problems(row):",
        "if problems := {}:",
        DAMAGE,
    ),
    Mutant(
        "the repair puts right what the audit names (F75), SQLite",
        f"{SQLITE}/repair.py",
        "        _agree(seen, now)\n",
        "        pass\n",
        DAMAGE,
    ),
    Mutant(
        "a claim reads no more than it brings (F82), SQLite",
        f"{SQLITE}/sql/claim.sql",
        "CASE WHEN size <= :large THEN payload END AS payload",
        "payload",
        "tests/stores/test_sqlite_large.py",
    ),
    Mutant(
        "no lock is opened through a link (T27)",
        f"{SQLITE}/connection.py",
        "_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW",
        "_OPEN = os.O_RDWR | os.O_CLOEXEC",
        "tests/stores/test_sqlite_files.py",
    ),
    Mutant(
        "a side file that is a link is refused (T27)",
        f"{SQLITE}/connection.py",
        "if stat.S_ISLNK(found.st_mode) or found.st_nlink > 1:",
        "if found.st_nlink > 9:",
        "tests/stores/test_sqlite_files.py",
    ),
    Mutant(
        "no file is made where another user's link says (T27)",
        f"{SQLITE}/connection.py",
        "        self._refuse_strangers_link()\n",
        "",
        "tests/stores/test_sqlite_files.py",
    ),
    # Damaged rows on PostgreSQL
    Mutant(
        "a claim steps over a damaged job (I22)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "lease_until, worker, claimed_at) IS NOT TRUE THEN 'unreadable'\n",
        "lease_until, worker, claimed_at) IS NULL THEN 'unreadable'\n",
        f"{PG_DAMAGE}::test_a_claim_makes_a_dead_letter_of_a_damaged_job",
    ),
    Mutant(
        "a claim moves a damaged job out of the line (I22)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "        PERFORM bury(damaged, at);\n    END IF;\n    RETURN NEXT ROW(\n",
        "        NULL;\n    END IF;\n    RETURN NEXT ROW(\n",
        f"{PG_DAMAGE}::test_a_claim_makes_a_dead_letter_of_a_damaged_job",
    ),
    Mutant(
        "a damaged job that runs fails no batch of settlements (I22)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "               coalesce(claimed_at, at), started_at, at, outcome, fingerprint\n",
        "               claimed_at, started_at, at, outcome, fingerprint\n",
        f"{PG_DAMAGE}::test_a_damaged_job_that_runs_ends_as_others_do",
    ),
    Mutant(
        "what a worker announced stops no other (I22)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "jsonb_each_text(known_tasks(capable))",
        "jsonb_each_text(capable)",
        f"{PG_DAMAGE}::test_what_a_worker_announced_stops_no_other",
    ),
    Mutant(
        "a damaged job that falls due keeps no other parked (I22)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "    SELECT array_agg(place) FILTER (WHERE sound), ",
        "    SELECT array_agg(place), ",
        f"{PG_DAMAGE}::test_a_parked_job_that_no_order_can_hold_keeps_no_other_parked",
    ),
    Mutant(
        "a claim ends with the job that fills its bytes (F82)",
        f"{POSTGRES}/migrations/0002_line.sql",
        "                    EXIT WHEN ready = line.room OR bytes >= share;\n",
        "                    EXIT WHEN ready = line.room;\n",
        f"{PG_DAMAGE}::test_a_claim_ends_with_the_job_that_fills_its_bytes",
    ),
    Mutant(
        "no word of anybody ends the listener (L3)",
        f"{POSTGRES}/wake.py",
        "_PLACE.fullmatch(at)",
        "at.isdigit()",
        f"{PG_DAMAGE}::test_no_word_ends_the_listener",
    ),
    Mutant(
        "a refusal is not taken for an outage (F75)",
        f"{POSTGRES}/lane.py",
        "        case _ if _is_refusal(problem):\n",
        "        case _ if False:\n",
        f"{PG_DAMAGE}::test_only_an_outage_is_an_outage",
    ),
    Mutant(
        "a list of days that somebody changed keeps no job from its end (I22)",
        f"{POSTGRES}/migrations/0001_jobs.sql",
        "        IF NOT is_part(part, name) THEN\n            EXECUTE",
        "        IF true THEN\n            EXECUTE",
        f"{PG_DAMAGE}::test_a_list_of_days_that_somebody_changed_keeps_no_job_from_its_end",
    ),
    Mutant(
        "a repair is written into the audit log",
        f"{POSTGRES}/migrations/0005_repair.sql",
        "        PERFORM note(doc->'by', done, '{}', NULL, at);\n",
        "        NULL;\n",
        f"{PG_DAMAGE}::test_an_operator_mends_and_it_is_in_the_audit_log",
    ),
]

# What some mutants need to be runnable at all.
EXTRAS = {
    f"{SQLITE}/line.py": """

class _Any(dict):
    def _key(self, pair): return next((k for k in self if k[0] == pair[0]), pair)
    def get(self, pair, default=None): return dict.get(self, self._key(pair), default)
    def pop(self, pair, default=None): return dict.pop(self, self._key(pair), default)
""",
    f"{SQLITE}/writer.py": """

def _fail_all(self, connection, verb, requests):
    problem = self._try(connection, verb, requests)
    if problem is not None:
        raise problem
Writer._fail_all = _fail_all
""",
}
