"""What an account with few rights tries against workers, waiting clients and other accounts, with real logins."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from horsies import TaskResult, wait_for_signal
from horsies.ids import new_id
from tests.support import worker_app, workflow_app
from tests.support.operator import as_process
from tests.support.postgres import Database
from tests.support.roles import accounts, allowed, may
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, describe, ended, start_worker, tasks_on, worker

LONG_MS = 30_000
CHANNELS = (
    "task_new", "task_queue_default", "task_grouped", "task_done", "tasks_ended", "task_cancel", "queue_state",
    "worker_control", "schedule_state", "workflow_done", "workflows_ended", "workflow_step",
)  # fmt: skip
HOSTILE = (
    "", " ", "x", "default ", "default \x01", "%s%n{}", "'; DROP TABLE horsies_tasks;--", "\u202e\x1b[2J", "é" * 3_000,
    "a" * 7_999, "w:", "w:x", "s:x", "t:x", "c:", "c:nan", "c:-inf", "c:inf", "c:1e400", "c:-1e308", "q:",
    "w:" + "x" * 900,
)  # fmt: skip


@pytest.fixture
def roles(db: Database) -> Iterator[dict[str, Database]]:
    with accounts(db) as found:
        yield found


@pytest.fixture
def one(roles: dict[str, Database], tmp_path: Path) -> Iterator[WorkerProcess]:
    with worker(roles["worker"], folder=tmp_path, auto_migrate=False) as found:
        yield found


def test_an_owner_may_take_every_function_from_public(db: Database, roles: dict[str, Database], tmp_path: Path) -> None:
    """As docs/operations/security.md says: the roles of `grants` go on with what is granted to them by name."""
    db.execute("REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public FROM PUBLIC")
    described = describe(roles["worker"], auto_migrate=False)
    with (
        ended(start_worker(described, tmp_path, "--with-scheduler", app=workflow_app.APP)) as started,
        worker_app.build(describe(roles["producer"], auto_migrate=False)) as app,
    ):
        started.wait_up()
        number = workflow_app.register(app)
        keyed = number.number.with_options(unique_key="k", on_conflict="replace")
        sent = [
            number.number.send(1), *number.number.send_many([(1,), (1,)]), keyed.send(1),
            number.number.with_options(group="g").send(1), *app.send_many([number.number.call(1)]),
        ]  # fmt: skip
        assert [handle.get(LONG_MS).ok for handle in sent] == [1] * len(sent)
        until = wait_for_signal("until", int)
        run = app.workflow("waits", [until, number.number.node(waits_for=[until])(1)]).start()
        run.signal("until", 1)
        run.get(LONG_MS)
        with psycopg.connect(roles["producer"].url, autocommit=True) as producer:
            producer.execute("SELECT horsies_send('number', '{\"n\": 1}', '{}')")
        for role, look in (
            ("viewer", ("queues",)), ("viewer", ("top", "--once")), ("viewer", ("limits",)),
            ("operator", ("queues", "pause", "other")), ("operator", ("tasks", "cancel", sent[0].task_id)),
        ):  # fmt: skip
            ran = as_process(*look, url=roles[role].url)
            assert "permission denied" not in ran.err
        assert as_process("doctor", url=roles["viewer"].url).code == 0
        assert "permission denied" not in started.log
    assert not may(roles["stranger"], "SELECT horsies_is_count('1')")


@pytest.mark.parametrize("role", ["viewer", "stranger"])
def test_forged_notifications(db: Database, roles: dict[str, Database], one: WorkerProcess, role: str) -> None:
    """Every account may NOTIFY. It ends no wait, cancels no task, stops no worker: each reads the tables again."""
    with tasks_on(roles["producer"].url, auto_migrate=False) as tasks, psycopg.connect(roles[role].url) as attacker:
        running = tasks.sleep.send(3.0)
        eventually(lambda: db.value("SELECT status FROM horsies_tasks WHERE id = %s", running.task_id) == "RUNNING")
        worker_id = db.value("SELECT worker_id FROM horsies_worker_instances")
        results: list[TaskResult] = []  # type: ignore[type-arg]
        waiting = threading.Thread(target=lambda: results.append(running.get(LONG_MS)))
        waiting.start()
        attacker.autocommit = True
        for channel in (*CHANNELS, f"task_done_{running.task_id[-2:]}"):
            for payload in (*HOSTILE, running.task_id, f"t:{running.task_id}", worker_id):
                attacker.execute("SELECT pg_notify(%s, %s)", (channel, payload.replace("\0", "")))
        waiting.join(30)
        assert [result.is_ok() for result in results] == [True]
        assert tasks.add.send(1, 2).get(LONG_MS) == TaskResult(ok=3)
    assert one.is_running
    assert "Traceback" not in one.log


def test_what_every_account_hears(db: Database, roles: dict[str, Database]) -> None:
    """LISTEN needs no right either. Notifications carry ids and the names of queues and groups, no payload."""
    secret = "canary"

    async def heard() -> set[str]:
        connection = await psycopg.AsyncConnection.connect(roles["stranger"].url, autocommit=True)
        async with connection:
            for channel in CHANNELS:
                await connection.execute(f'LISTEN "{channel}"')  # type: ignore[call-overload]
            await asyncio.to_thread(send)
            return {note.payload async for note in connection.notifies(timeout=2)}

    ids: set[str] = set()

    def send() -> None:
        with tasks_on(roles["producer"].url, auto_migrate=False) as tasks:
            vault = tasks.vault.with_options(metadata={"tenant": secret}, unique_key=secret)
            ids.add(vault.send(secret).task_id)
            tasks.vault.with_options(group="acme").send(secret)

    found = asyncio.run(heard())
    assert ids <= found
    assert "default acme" in found
    assert not any(secret in payload or "vault" in payload for payload in found)


def test_what_a_viewer_cannot_get_around(db: Database, roles: dict[str, Database]) -> None:
    """Ways to a private column that name it indirectly."""
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, kwargs, unique_key) VALUES ('a', 't', '{\"p\": 1}', 'canary')"
    )
    db.execute("ANALYZE horsies_tasks")
    viewer = roles["viewer"]
    attacks = [
        "SELECT t FROM horsies_tasks t", "SELECT to_jsonb(t) FROM horsies_tasks t", "SELECT t.* FROM horsies_tasks t",
        "SELECT row_to_json(t) FROM horsies_tasks t", "SELECT count(*) FROM horsies_tasks WHERE kwargs LIKE '%p%'",
        "SELECT id FROM horsies_tasks ORDER BY unique_key", "SELECT count(DISTINCT metadata) FROM horsies_tasks",
        "SELECT 1 FROM horsies_tasks GROUP BY result", "COPY horsies_tasks TO STDOUT", "TABLE horsies_tasks",
        "COPY (SELECT kwargs FROM horsies_tasks) TO STDOUT", "COPY horsies_tasks (id) TO PROGRAM 'true'",
        "SELECT x.kwargs FROM horsies_tasks a JOIN horsies_tasks x USING (id)",
        "DO $$ BEGIN CREATE TEMP VIEW v AS SELECT kwargs FROM horsies_tasks; PERFORM count(kwargs) FROM v; END $$",
        "CREATE TEMP TABLE c AS SELECT unique_key FROM horsies_tasks",
        "SELECT completion_key FROM horsies_worker_instances", "SELECT key FROM horsies_unique_keys",
        "SELECT horsies_complete_task('a', 'w', 1, 't', 1, '{}', 0, 0, 1, 'h', false)",
        "SELECT horsies_signal('w', 'n', '1', NULL, NULL)", "SELECT horsies_cancel_tasks(ARRAY['a'])",
        "SELECT horsies_purge_tasks(ARRAY['a'])", "SELECT horsies_send('t', '{}', '{}')",
        "ALTER ROLE CURRENT_USER SUPERUSER", "SET ROLE postgres", "SELECT pg_read_file('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')",
    ]  # fmt: skip
    assert allowed(viewer, attacks) == []
    assert viewer.execute("SELECT most_common_vals FROM pg_stats WHERE tablename = 'horsies_tasks'"
                          " AND attname IN ('kwargs', 'unique_key', 'result', 'metadata')") == []  # fmt: skip


def test_what_a_replacing_send_can_change(db: Database, roles: dict[str, Database]) -> None:
    """A producer that sends with the key of a waiting task replaces the call, also one of another producer. It changes
    no other task, and neither the name nor the state of this one."""
    other = "INSERT INTO horsies_tasks (id, task_name, unique_key, kwargs) VALUES ('{0}', '{1}', '{0}', '{{\"n\": 1}}')"
    for name in ("waits", "runs", "ended"):
        db.execute(other.format(name, "add"))
    db.execute(other.format("keyless", "add").replace("'keyless', 'add', 'keyless'", "'keyless', 'add', NULL"))
    claim = "claimed_by_worker_id = 'w', claimed_at = now(), started_at = now()"
    db.execute(f"UPDATE horsies_tasks SET status = 'RUNNING', {claim} WHERE id = 'runs'")
    db.execute("UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), result = '{}' WHERE id = 'ended'")
    before = dict(db.execute("SELECT id, to_jsonb(t)::text FROM horsies_tasks t"))
    with tasks_on(roles["producer"].url, auto_migrate=False) as tasks:
        for key in before:
            forged = tasks.add.with_options(unique_key=key, on_conflict="replace").send(7, 7)
            assert (forged.task_id == key) == (key == "waits")
        tasks.noop.with_options(unique_key="waits", on_conflict="replace").send()  # of another name
    after = dict(db.execute("SELECT id, to_jsonb(t)::text FROM horsies_tasks t WHERE id = ANY (%s)", list(before)))
    changed = {
        name
        for name, value in json.loads(after["waits"]).items()
        if value != json.loads(before["waits"])[name] and name != "updated_at"
    }
    assert changed <= {"args", "kwargs", "enqueued_at", "max_retries", "task_options", "good_until", "keep_seconds"}
    assert all(after[key] == before[key] for key in ("runs", "ended", "keyless"))
    assert not may(roles["viewer"], "SELECT horsies_send_unique(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
                   " NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)")  # fmt: skip


def test_sends_that_are_meant_to_hurt(db: Database, roles: dict[str, Database], one: WorkerProcess) -> None:
    """Rows of a producer's own SQL: each ends with an error of its own, and the next task runs."""
    forged = {
        "deep": '{"a":' * 200_000, "wide": json.dumps({"a": 1, "b": 2, **{f"k{n}": n for n in range(50_000)}}),
        "huge": json.dumps({"a": "x" * 20_000_000}), "number": '{"a": ' + "9" * 100_000 + "}", "list": "[1, 2]",
        "infinite": '{"a": 1e999}', "twice": '{"a": 1, "a": "x"}', "surrogate": '{"a": "\\ud800"}', "empty": "",
    }  # fmt: skip
    options = (
        '{"timeout_ms": -1}',
        '{"timeout_ms": 1e308}',
        '{"retry_policy": {"max_retries": 1e9}}',
        "[]",
        "x",
        "null",
    )
    names = ("os.system", "../add", "add\n", "__import__", "builtins.eval", "a" * 255)
    sent: list[str] = []
    with psycopg.connect(roles["producer"].url, autocommit=True) as producer:
        for columns in (
            *({"kwargs": text} for text in forged.values()),
            *({"kwargs": '{"a": 1}', "task_options": text} for text in options),
            *({"task_name": name, "kwargs": '{"command": "true"}'} for name in names),
        ):
            row = {"id": new_id(), "task_name": "add", **columns}
            try:
                producer.execute(
                    f"INSERT INTO horsies_tasks ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",  # type: ignore[call-overload]
                    list(row.values()),
                )
            except psycopg.Error:
                continue
            sent.append(row["id"])
    assert len(sent) > 15
    with tasks_on(roles["producer"].url, auto_migrate=False) as tasks:
        assert tasks.add.send(1, 2).get(LONG_MS) == TaskResult(ok=3)
    known = "SELECT count(*) FROM horsies_tasks WHERE id = ANY (%s) AND task_name = 'add' AND terminal_at IS NULL"
    eventually(lambda: db.value(known, sent) == 0, timeout=60)
    ran = db.execute("SELECT DISTINCT task_name FROM horsies_tasks WHERE status = 'COMPLETED'")
    assert ran == [("add",)]
    assert one.is_running
