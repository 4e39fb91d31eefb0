"""`replica_url`: dashboards, the exporter and lists read from a real streaming replica, and act on the primary."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from horsies import AppConfig, Horsies, PostgresConfig
from horsies.errors import BrokerError
from horsies.operate import replica as replica_module
from horsies.operate.broker import PostgresBroker
from horsies.operate.filters import TaskFilter
from horsies.operate.views import WorkerLiveness
from horsies_tui.data.filters import Query
from horsies_tui.data.postgres import PostgresSource
from horsies_tui.data.source import SourceError, Target
from tests.support import factories, postgres
from tests.support.apps import UNREACHABLE
from tests.support.exporters import environment, exporter
from tests.support.replica import Replica, replicated
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def servers() -> Iterator[Replica]:
    with replicated() as found:
        yield found


@pytest.fixture
def replica(servers: Replica, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """Up, caught up, and with empty tables; one that was away is asked again at once."""
    monkeypatch.setattr(replica_module, "TRY_AGAIN_S", 0.0)
    postgres.empty(servers.primary)
    servers.join()
    servers.catch_up()
    return servers


def config(replica: Replica) -> PostgresConfig:
    return PostgresConfig(replica.primary.url, replica_url=replica.db.url)


def cut(replica: Replica) -> None:
    """What the primary writes from now on does not arrive."""
    replica.cut()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"
    eventually(lambda: replica.db.value(gone), timeout=20, describe="nothing is received")


async def ids(broker: PostgresBroker) -> set[str]:
    return {task.id for task in (await broker.list_tasks()).tasks}


# -- where it reads, where it writes -------------------------------------------------------------


async def test_lists_come_from_the_replica_and_actions_go_to_the_primary(replica: Replica) -> None:
    first = factories.task(replica.primary)
    replica.catch_up()
    async with Horsies(AppConfig(config(replica))) as app:
        broker = app.get_broker()
        reader = broker.for_reading()
        assert await ids(reader) == {first}
        state = reader.replica_state
        assert state is not None
        assert (state.lag, state.away) == (timedelta(), None)
        cut(replica)
        second = factories.task(replica.primary)
        assert await ids(reader) == {first}
        assert await ids(broker) == {first, second}
        assert (await broker.cancel_many([first, second])).keys() == {first, second}
        with pytest.raises(BrokerError, match=r"reads from the replica .* act with app.get_broker"):
            await reader.cancel(second)
        assert reader.for_reading() is reader
        assert broker.replica_state is None


async def test_without_a_replica_the_broker_reads_itself(replica: Replica) -> None:
    async with Horsies(AppConfig(PostgresConfig(replica.primary.url))) as app:
        assert app.get_broker().for_reading() is app.get_broker()


async def test_every_read_of_the_operators_runs_on_a_standby(replica: Replica) -> None:
    """No LISTEN, no temporary table, no row lock: a read that needs one would fail here."""
    for status in ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"):
        factories.task(replica.primary, status)
    factories.worker_state(replica.primary)
    run = factories.workflow(replica.primary, "RUNNING")
    replica.catch_up()
    async with Horsies(AppConfig(config(replica))) as app:
        reader = app.get_broker().for_reading()
        assert await reader.count_tasks(TaskFilter()) == 5
        task = (await reader.list_tasks()).tasks[0]
        assert await reader.get_task_detail(task.id) is not None
        assert await reader.get_task_info(task.id) is not None
        await reader.get_attempts(task.id)
        await reader.get_task_states([task.id])
        await reader.get_stale_tasks()
        await reader.find_stale()
        await reader.get_expired_tasks()
        await reader.get_worker_stats()
        await reader.get_schedules()
        await reader.count_purgeable(TaskFilter())
        assert [one.name for one in await reader.get_queues()] == ["default"]
        assert (await reader.get_figures(groups=3)).queues[0].ready == 1
        await reader.policies.queues()
        await reader.policies.limits()
        await reader.policies.groups("default", 5)
        await reader.unique_keys.list(None, None, 10)
        await reader.quarantine.list(TaskFilter(), 10, None)
        assert await reader.workflows.info(run) is not None
        await reader.workflows.list(None, 10)
        await reader.workflows.waiting(None, 10)
        state = reader.replica_state
        assert state is not None
        assert state.away is None, "the primary answered"


# -- what the lag does to signs of life ----------------------------------------------------------


async def test_heartbeats_are_judged_against_the_lag(replica: Replica) -> None:
    """A worker that beat a moment before the replica was cut off is as alive there as it was then."""
    factories.worker_state(replica.primary)
    factories.insert(replica.primary, "horsies_worker_instances", worker_id="worker-1", period_ms=100)
    replica.catch_up()
    cut(replica)
    async with Horsies(AppConfig(config(replica))) as app:
        reader = app.get_broker().for_reading()

        async def seen() -> WorkerLiveness:
            return (await reader.get_workers())[0].liveness

        # dead after 0.9 s by its own period, which the clock of the replica has long passed
        age = "SELECT clock_timestamp() - snapshot_at > interval '2 s' FROM horsies_worker_states"
        eventually(lambda: replica.db.value(age), timeout=20, describe="two seconds later")
        assert await seen() is WorkerLiveness.ALIVE
        state = reader.replica_state
        assert state is not None
        assert state.lag is not None
        assert state.lag > timedelta(seconds=1)
        assert state.is_worth_telling
        assert (await app.get_broker().get_workers())[0].liveness is WorkerLiveness.DEAD


# -- a replica that is away ----------------------------------------------------------------------


async def test_while_the_replica_is_away_the_primary_answers(replica: Replica) -> None:
    async with Horsies(AppConfig(config(replica))) as app:
        reader = app.get_broker().for_reading()
        assert await ids(reader) == set()
        replica.stop()
        try:
            task = factories.task(replica.primary)
            assert await ids(reader) == {task}
            state = reader.replica_state
            assert state is not None
            assert state.away is not None
            assert state.told.startswith("replica away, read from the primary: ")
        finally:
            replica.start()
        replica.catch_up()
        assert await ids(reader) == {task}
        state = reader.replica_state
        assert state is not None
        assert state.away is None


async def test_a_replica_that_is_away_is_not_asked_each_time(replica: Replica) -> None:
    """One that drops packets would cost the time limit of a connection for every read."""
    now = [100.0]
    one = replica_module.Replica(
        PostgresConfig(replica.primary.url, replica_url="postgresql://127.0.0.1:1/queue"), clock=lambda: now[0]
    )
    asked: list[str] = []

    async def primary() -> str:
        asked.append(one.state.away or "")
        return "primary"

    async def never(_connection: object) -> str:
        return "replica"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "TRY_AGAIN_S", 15.0)
        assert await one.first(never, primary) == "primary"
        first = one.state
        now[0] += 14.9
        assert await one.first(never, primary) == "primary"
        assert one.state is first
        now[0] += 0.2
        assert await one.first(never, primary) == "primary"
        assert one.state is not first
    assert all("ConnectionRefused" in told for told in asked)
    await one.close()


async def test_a_server_that_is_no_standby_is_not_read(replica: Replica) -> None:
    """A promoted replica that nothing writes to would show the past as the present, without any lag."""
    wrong = PostgresConfig(replica.primary.url, replica_url=replica.primary.url + "&application_name=other")
    async with Horsies(AppConfig(wrong)) as app:
        reader = app.get_broker().for_reading()
        assert await ids(reader) == set()
        state = reader.replica_state
        assert state is not None
        assert state.away == replica_module.NO_STANDBY


# -- dashboard, exporter, commands, doctor -------------------------------------------------------


async def test_the_dashboard_reads_the_replica_and_acts_on_the_primary(replica: Replica) -> None:
    task = factories.task(replica.primary)
    replica.catch_up()
    source = PostgresSource(config(replica))
    try:
        assert (await source.session()).rights.may_cancel
        await source.overview(HOUR)
        await source.breakdown(Query(), since=None)
        await source.workers()
        await source.stale()
        await source.schedules()
        await source.workflows(Query(), since=None, after=None, limit=10)
        await source.maintenance()
        assert await source.task(task) is not None
        assert re.fullmatch(r"replica, \d+\.\d s behind", source.origin())
        cut(replica)
        assert (await source.act("cancel", [Target(task, "add", "PENDING")])).done == 1
        shown = await source.tasks(Query(), since=None, after=None, limit=10)
        assert [one.status for one in shown.rows] == ["PENDING"]
        assert replica.primary.value("SELECT status FROM horsies_tasks") == "CANCELLED"
    finally:
        await source.close()


async def test_the_dashboard_reads_on_while_the_primary_is_away(replica: Replica) -> None:
    task = factories.task(replica.primary)
    replica.catch_up()
    source = PostgresSource(PostgresConfig(UNREACHABLE, replica_url=replica.db.url))
    try:
        shown = await source.tasks(Query(), since=None, after=None, limit=10)
        assert [one.id for one in shown.rows] == [task]
        with pytest.raises(SourceError):
            await source.session()
    finally:
        await source.close()


def test_the_exporter_serves_the_lag(replica: Replica, tmp_path: Path) -> None:
    factories.task(replica.primary)
    replica.catch_up()
    with exporter(replica.primary, tmp_path, "--replica-url", replica.db.url) as one:
        found = one.wait_for("horsies_replica_up", 1)
        assert found["horsies_queue_ready_tasks", "default"] == 1
        assert found["horsies_replica_lag_seconds"] < 60
        cut(replica)
        factories.task(replica.primary)
        assert one.scrape()["horsies_queue_ready_tasks", "default"] == 1
        replica.stop()
        try:
            found = one.wait_for("horsies_replica_up", 0)
            assert found["horsies_queue_ready_tasks", "default"] == 2
            assert "horsies_replica_lag_seconds" not in found
            assert "replica away, read from the primary" in one.log
        finally:
            replica.start()


def command(*words: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "horsies.cli", *words], env=environment(**changes), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_commands_list_from_the_replica(replica: Replica) -> None:
    cut(replica)
    factories.task(replica.primary)
    lag = "SELECT clock_timestamp() - pg_last_xact_replay_timestamp() > interval '1 s'"
    eventually(lambda: replica.db.value(lag), timeout=20, describe="a lag that is worth telling")
    urls = {"HORSIES_DATABASE_URL": replica.primary.url, "HORSIES_REPLICA_URL": replica.db.url}
    listed = command("tasks", "list", "--json", **urls)
    assert (listed.returncode, json.loads(listed.stdout)["tasks"]) == (0, [])
    assert "s behind" in listed.stderr
    # an action reads where it writes
    assert json.loads(command("tasks", "cancel", "--queue", "default", "--yes", "--json", **urls).stdout)["done"]
    # the variable belongs to HORSIES_DATABASE_URL: another database has another replica
    named = ("--database-url", replica.primary.url)
    assert len(json.loads(command("tasks", "list", "--json", *named, **urls).stdout)["tasks"]) == 1
    given = command("tasks", "list", "--json", *named, "--replica-url", replica.db.url)
    assert json.loads(given.stdout)["tasks"] == []


async def test_the_doctor_looks_at_the_replica(replica: Replica) -> None:
    async def found(url: str) -> list[str]:
        async with Horsies(AppConfig(PostgresConfig(replica.primary.url, replica_url=url))) as app:
            findings = await app.get_broker().diagnose()
        return [one.what for one in findings if one.check == "replica"]

    assert await found(replica.db.url) == []
    cut(replica)
    (told,) = await found(replica.db.url)
    assert told.startswith("the replica receives nothing; its last commit is ")
    (told,) = await found("postgresql://127.0.0.1:1/queue")
    assert told.startswith("the replica cannot be read: ConnectionRefusedError")
    (told,) = await found(replica.primary.url + "&application_name=other")
    assert told == "the server of replica_url is no standby"
