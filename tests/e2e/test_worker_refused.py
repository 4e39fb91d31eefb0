"""A database that does not let a worker or a scheduler work: one sentence with role, object and remedy, and exit code 5
(4 where the schema is meant). Never a traceback, never an endless retry."""

import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import horsies_schema
from horsies_worker.database.settings import SETTINGS
from horsies_worker.exit_codes import ExitCode
from tests.support import postgres
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.scheduler_app import start_scheduler
from tests.support.workers import WorkerProcess, describe, ended, start_worker, tasks_on, worker


@pytest.fixture
def account(db: Database) -> Iterator[str]:
    """A login with the rights that `horsies-migrate grants` gives a worker."""
    name = f"plain_{uuid.uuid4().hex[:8]}"
    prefix = f"h_{uuid.uuid4().hex[:8]}_"
    db.execute(horsies_schema.grants(prefix=prefix))
    db.execute(f"CREATE ROLE {name} LOGIN IN ROLE {prefix}worker")
    yield name
    for role in (name, *(prefix + role for role in ("producer", "worker", "viewer", "operator"))):
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def url_of(db: Database, account: str) -> str:
    url = db.url.replace("postgres@", f"{account}@")
    assert account in url
    return url


def refused(process: WorkerProcess, who: str, *words: str, code: ExitCode = ExitCode.DATABASE) -> None:
    with ended(process, code=None):
        assert process.wait(40) == code, process.log
        last = process.log.strip().splitlines()[-1]
        assert "Traceback" not in process.log
        assert last.startswith("horsies: ")
        if code is ExitCode.DATABASE:
            assert f"the database refuses this {who}" in last
        for word in words:
            assert word in last, last


MISSING = [
    ("REVOKE UPDATE ON horsies_tasks FROM {group}", ["UPDATE on table public.horsies_tasks", "horsies-migrate grants"]),
    ("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {group}", ["INSERT on table public.horsies_heartbeats", "more"]),
    ("REVOKE EXECUTE ON FUNCTION horsies_task_is_sound FROM PUBLIC, {group}",
     ["EXECUTE on function public.horsies_task_is_sound"]),
    ("REVOKE USAGE ON SCHEMA public FROM PUBLIC, {group}", ["USAGE on schema public"]),
    ("ALTER ROLE {account} SET default_transaction_read_only = on",
     ["default_transaction_read_only", 'ALTER ROLE "{account}" RESET']),
    ("ALTER ROLE {account} NOLOGIN", ["not permitted to log in", "may it log in?"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), MISSING)
def test_a_worker_without_a_right(db: Database, account: str, tmp_path: Path, change: str, words: list[str]) -> None:
    group = _worker_of(db, account)
    names = {"group": group, "account": account, "database": db.name}
    db.execute(change.format(**names))
    process = start_worker(describe(url_of(db, account)), tmp_path)
    named = [] if "DATABASE" in change else [account]
    refused(process, "worker", *named, *(word.format(**names) for word in words))


def test_a_scheduler_without_rights(db: Database, account: str, tmp_path: Path) -> None:
    db.execute(f"ALTER ROLE {account} SET default_transaction_read_only = on")
    refused(start_scheduler(url_of(db, account), {"s": 1}, tmp_path), "scheduler", account, "read-only")
    db.execute(f"ALTER ROLE {account} RESET default_transaction_read_only")
    db.execute("REVOKE ALL ON horsies_schedule_state FROM PUBLIC")
    db.execute(f"REVOKE {_worker_of(db, account)} FROM {account}")
    refused(start_scheduler(url_of(db, account), {"s": 1}, tmp_path), "scheduler", account, "horsies_schedule_state")


def _worker_of(db: Database, account: str) -> str:
    return db.value(
        "SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid"
        " JOIN pg_roles a ON a.oid = m.member WHERE a.rolname = %s",
        account,
    )


def test_the_rights_of_grants_are_enough(db: Database, account: str, tmp_path: Path) -> None:
    with ended(start_worker(describe(url_of(db, account)), tmp_path)) as process:
        process.wait_up()


def test_a_worker_that_may_not_upgrade_the_schema(empty_db: Database, tmp_path: Path) -> None:
    name = f"plain_{uuid.uuid4().hex[:8]}"
    empty_db.execute(f"CREATE ROLE {name} LOGIN")
    empty_db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        process = start_worker(describe(url_of(empty_db, name)), tmp_path)
        refused(process, "worker", "permission denied", "horsies-migrate up", code=ExitCode.SCHEMA)
    finally:
        empty_db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


class _Refusal(socketserver.BaseRequestHandler):
    """What PgBouncer answers to a session that begins with settings: no TLS, and a protocol violation."""

    def handle(self) -> None:
        while True:
            size = int.from_bytes(self.request.recv(4, socket.MSG_WAITALL), "big")
            if size == 0:
                return
            body = self.request.recv(size - 4, socket.MSG_WAITALL)
            if int.from_bytes(body[:4], "big") == 80877103:  # SSLRequest
                self.request.sendall(b"N")
                continue
            fields = (b"SFATAL", b"C08P01", b"Munsupported startup parameter: default_transaction_isolation", b"")
            answer = b"\0".join(fields) + b"\0"
            self.request.sendall(b"E" + (len(answer) + 4).to_bytes(4, "big") + answer)
            return


@pytest.mark.parametrize("who", ["worker", "scheduler"])
def test_a_pooler_that_was_not_declared(tmp_path: Path, who: str) -> None:
    """PgBouncer's own words."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Refusal) as pooler:
        threading.Thread(target=pooler.serve_forever, daemon=True).start()
        try:
            url = f"postgresql://someone@127.0.0.1:{pooler.server_address[1]}/shop"
            if who == "worker":
                process = start_worker(describe(url), tmp_path)
            else:
                process = start_scheduler(url, {"s": 1}, tmp_path)
            refused(process, who, "unsupported startup parameter", "pooler=True", "direct_url")
        finally:
            pooler.shutdown()


def test_a_real_pooler_that_was_not_declared(db: Database, tmp_path: Path) -> None:
    with pgbouncer(db) as proxy:
        refused(start_worker(describe(proxy.url), tmp_path), "worker", "pooler=True", "direct_url")


# -- the way to the server -------------------------------------------------------------------------

FIRST = "default_transaction_isolation, extra_float_digits, search_path"
SWALLOWED = ", ".join((FIRST, *SETTINGS))


@pytest.mark.parametrize("who", ["worker", "scheduler"])
@pytest.mark.parametrize("pool_size", [1, 3])
def test_a_real_pooler_that_ignores_the_settings_of_a_session(
    db: Database, tmp_path: Path, who: str, pool_size: int
) -> None:
    with pgbouncer(db, ignored=SWALLOWED, pool_size=pool_size) as proxy:
        if who == "worker":
            process = start_worker(describe(proxy.url), tmp_path)
        else:
            process = start_scheduler(proxy.url, {"s": 1}, tmp_path)
        refused(process, who, "transaction-mode pooler", "pooler=True", "direct_url")


def test_a_pooler_in_session_mode_that_refuses_what_later_sessions_set(db: Database, tmp_path: Path) -> None:
    with pgbouncer(db, mode="session", pool_size=20, ignored=FIRST) as proxy:
        refused(
            start_worker(describe(proxy.url), tmp_path), "worker", "startup parameter: statement_timeout", "direct_url"
        )


def test_a_pooler_in_session_mode_is_no_obstacle(db: Database, tmp_path: Path) -> None:
    with (
        pgbouncer(db, mode="session", pool_size=20, ignored=SWALLOWED) as proxy,
        worker(proxy.url, folder=tmp_path) as process,
        tasks_on(db) as tasks,
    ):
        assert tasks.add.send(1, 2).get(30_000).ok == 3
        assert "LISTEN does not work" not in process.log


@pytest.mark.parametrize("who", ["worker", "scheduler"])
def test_a_direct_url_of_another_database(db: Database, tmp_path: Path, who: str) -> None:
    with postgres.database() as other:
        broker = {"direct_url": other.url}
        if who == "worker":
            process = start_worker(describe(db.url, broker=broker), tmp_path)
        else:
            process = start_scheduler(db.url, {"s": 1}, tmp_path, broker=broker)
        refused(process, who, "direct_url leads to another database", db.name, other.name)
