"""The doctor's checks on facts that a test server does not come by: clocks, slots, full queues, ancient servers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from horsies import Finding, PostgresConfig, Severity
from horsies.operate.doctor import restored, server, work
from horsies.operate.doctor.examination import CHECKS, findings, unreachable
from horsies.operate.doctor.finding import Facts, Pooler, Unavailable

SERVER = {
    "version": "16.1", "version_num": 160_001, "encoding": "UTF8", "in_recovery": False, "autovacuum": True,
    "database": "shop", "role": "me", "read_only": False, "notify_usage": 0.0,
}  # fmt: skip


def facts(*, more: dict[str, Any] | None = None, **found: Any) -> Facts:
    return Facts(found={"server_facts": [SERVER], **found}, **(more or {}))


def one(check: Any, given: Facts) -> Finding:
    (finding,) = list(check(given))
    return finding


@pytest.mark.parametrize(
    ("change", "severity", "told"),
    [
        ({}, Severity.OK, "PostgreSQL 16.1, encoding UTF8, database shop, role me"),
        ({"version_num": 130_010, "version": "13.10"}, Severity.PROBLEM, "older than PostgreSQL 14"),
    ],
)
def test_server(change: dict[str, Any], severity: Severity, told: str) -> None:
    finding = one(server.server, facts(server_facts=[{**SERVER, **change}]))
    assert finding.severity is severity
    assert told in finding.what


def test_standbys_and_read_only_sessions() -> None:
    for change, told in (({"in_recovery": True}, "standby"), ({"read_only": True}, "read-only")):
        said = list(server.server(facts(server_facts=[{**SERVER, **change}])))
        assert [finding.severity for finding in said] == [Severity.OK, Severity.PROBLEM]
        assert told in said[1].what


@pytest.mark.parametrize(("seconds", "word"), [(90, "1 m 30 s ahead of"), (-7, "7.0 s behind")])
def test_a_clock_that_is_off(seconds: float, word: str) -> None:
    finding = one(server.clock, facts(more={"clock_ahead": timedelta(seconds=seconds)}))
    assert finding.severity is Severity.WARN
    assert finding.what == f"this machine's clock is {word} the database's"
    assert one(server.clock, facts(more={"clock_ahead": timedelta(seconds=4)})).severity is Severity.OK


@pytest.mark.parametrize(("usage", "severity"), [(0.01, Severity.OK), (0.2, Severity.WARN), (0.7, Severity.PROBLEM)])
def test_the_notification_queue(usage: float, severity: Severity) -> None:
    given = facts(server_facts=[{**SERVER, "notify_usage": usage}], more={"notify_ms": 1.0})
    assert one(server.notifications, given).severity is severity


def test_slots_and_prepared_transactions() -> None:
    slot = {
        "kind": "slot", "pid": None, "name": "replica", "role": None, "application_name": None, "state": "inactive",
        "age": None, "transactions": 2_000_000,
    }  # fmt: skip
    given = facts(xmin_holders=[slot, {**slot, "transactions": 5}], hidden_sessions=[{"count": 0}])
    finding = one(server.xmin, given)
    assert finding.severity is Severity.PROBLEM
    assert finding.what == "replication slot 'replica' (inactive) holds back 2,000,000 transactions"
    prepared = {**slot, "kind": "prepared", "name": "x'y", "role": "r", "age": timedelta(hours=1)}
    finding = one(server.xmin, facts(xmin_holders=[prepared], hidden_sessions=[{"count": 0}]))
    assert "ROLLBACK PREPARED 'x''y'" in finding.fix


def test_what_a_pooler_means() -> None:
    def said(**seen: bool) -> list[tuple[Severity, str]]:
        pooler = Pooler(**{"between": True, "shared": True, "declared": True, "direct_between": False, **seen})
        return [(finding.severity, finding.what) for finding in server.pooler(facts(more={"pooler": pooler}))]

    assert said() == [(Severity.OK, "a pooler in transaction mode, as configured")]
    assert said(declared=False)[0][0] is Severity.PROBLEM
    assert said(shared=False, declared=False)[0] == (
        Severity.OK, "a pooler in session mode, as far as two connections can tell",
    )  # fmt: skip
    assert said(direct_between=True)[0] == (Severity.PROBLEM, "direct_url leads through a pooler too")
    assert said(between=False, shared=False)[0][0] is Severity.WARN


def test_a_check_that_cannot_look_says_so_and_silences_no_other() -> None:
    hidden, slow = Unavailable("denied", hidden=True), Unavailable("no answer within 5 s")
    missing = Unavailable("no table", missing=True)
    found = dict.fromkeys(("waiting_pairs", "in_flight_counts", "queue_states", "revisions"), missing)
    given = Facts(
        found={"server_facts": [SERVER], "connection_facts": hidden, "overdue": slow, "places": [], **found},
        workers=slow,
    )
    said = findings(given)
    assert next(one for one in said if one.check == "server").severity is Severity.OK
    assert [one.what for one in said if one.check == "connections"] == ["not visible to this role"]
    assert [one.what for one in said if one.check == "reaper"] == ["could not be looked at: no answer within 5 s"]
    assert any(one.check == "schema" and "there are no horsies tables" in one.what for one in said)
    assert {one.check for one in said} <= CHECKS.keys()


def test_an_unknown_fact_is_not_an_error() -> None:
    with pytest.raises(Unavailable):
        Facts(found={}).rows("missing")
    assert all(one.severity is not Severity.PROBLEM for one in findings(Facts(found={})) if one.check != "notify")


def test_retention_that_is_off_is_not_late() -> None:
    finding = one(work.retention, facts(oldest_ended=[{"age": timedelta(days=400)}]))
    assert finding.severity is Severity.OK
    assert one(work.retention, facts(oldest_ended=[])).what == "no ended task is kept"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (asyncpg.InvalidPasswordError('password authentication failed for user "u"'), "correct the password"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), "end idle sessions"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "try again in a moment"),
        (TimeoutError(), "firewall"),
        (ConnectionRefusedError(111, "refused"), "is the server running"),
        (asyncpg.ProtocolViolationError("unsupported startup parameter: search_path"), "pooler=True"),
        (ValueError("odd hunter2"), "see the message"),
    ],
)
def test_why_it_cannot_be_reached(error: Exception, fix: str) -> None:
    finding = unreachable(error, PostgresConfig("postgresql://u:hunter2@h/d"))
    assert finding.severity is Severity.PROBLEM
    assert fix in finding.fix
    assert "hunter2" not in finding.what


# -- a restored database -------------------------------------------------------------------------

SIGNS = {
    "newest": datetime(2026, 1, 31, 12, tzinfo=UTC), "silence": timedelta(hours=3), "up_for": timedelta(minutes=5),
    "timeline": 1, "is_copied": False, "waiting": 0, "slots": 0, "keys": 0, "runs": 0, "waits": 0,
}  # fmt: skip
FLIGHT = [{"queue_name": "mail", "claimed_by_worker_id": "one", "claimed": 1, "running": 2}]
TARGET = {"history": "1\t0/3000000\tno recovery target specified\n2\t0/5000000\tbefore 2026-01-31 12:00:00+00\n"}


def told_of_restore(
    change: dict[str, Any], history: Any = None, flight: Any = (), as_copied: bool | None = False
) -> Finding:
    found = {"history": None, "age": None} if history is None else {"age": timedelta(minutes=4), **history}
    return one(
        restored.restored,
        facts(
            restore_facts=[{**SIGNS, **change}],
            as_copied=Unavailable("no", hidden=True) if as_copied is None else [{"is_so": as_copied}],
            timeline_history=Unavailable("no", hidden=True) if history == {} else [found],
            in_flight_counts=flight,
            waiting_pairs=[],
        ),
    )


@pytest.mark.parametrize(
    ("change", "history", "flight", "severity", "told"),
    [
        ({"newest": None}, None, (), Severity.OK, "no worker has worked"),
        ({"silence": timedelta(seconds=2)}, None, FLIGHT, Severity.OK, "no sign that"),
        ({"up_for": timedelta(days=9)}, None, FLIGHT, Severity.OK, "no sign that"),  # workers died, nothing else
        ({}, None, (), Severity.OK, "no sign that"),  # workers were stopped, and the server restarted
        ({}, None, FLIGHT, Severity.WARN, "after a restored snapshot, or after an outage of everything"),
        ({"timeline": 7}, {}, (), Severity.OK, "no sign that"),
        ({"timeline": 7, "waiting": 3}, {}, (), Severity.WARN, "on timeline 7: it was once restored or promoted"),
        ({"timeline": 2, "waiting": 3}, {"history": "1\t0/3\tno recovery target specified\n"}, (), Severity.WARN,
         "which a promotion or a recovery without a target began since"),
        ({"timeline": 3}, TARGET, FLIGHT, Severity.PROBLEM, "(before 2026-01-31 12:00:00+00)"),
        ({"timeline": 3}, TARGET, (), Severity.WARN, "the last sign of a worker is 3 h old (2026-01-31 12:00:00 UTC)"),
        ({"timeline": 3, "silence": timedelta()}, TARGET, (), Severity.WARN, "4 m ago"),
        ({"timeline": 3, "silence": timedelta()}, {**TARGET, "age": timedelta(days=2)}, (), Severity.OK, "no sign"),
        # a timeline that began before workers wrote for the last time says nothing
        ({"timeline": 3, "waiting": 3}, {**TARGET, "age": timedelta(days=2)}, (), Severity.OK, "no sign"),
        ({"timeline": 3}, {**TARGET, "age": timedelta(days=2)}, FLIGHT, Severity.WARN, "an outage of everything"),
        ({"is_copied": True, "up_for": timedelta(days=9)}, None, FLIGHT, Severity.PROBLEM, "the rows were copied"),
    ],
)  # fmt: skip
def test_restored(change: dict[str, Any], history: Any, flight: Any, severity: Severity, told: str) -> None:
    finding = told_of_restore(change, history, flight)
    assert finding.severity is severity
    assert told in finding.what
    assert bool(finding.fix) is (severity is not Severity.OK)


@pytest.mark.parametrize(
    ("is_copied", "as_copied", "severity"),
    [
        (True, True, Severity.PROBLEM), (True, False, Severity.OK), (True, None, Severity.OK),
        (False, True, Severity.OK),  # the counts were reset, or workers have beaten since
    ],
)  # fmt: skip
def test_copied_rows_need_no_silence(is_copied: bool, as_copied: bool | None, severity: Severity) -> None:
    change = {"silence": timedelta(seconds=2), "up_for": timedelta(days=9), "is_copied": is_copied}
    assert told_of_restore(change, flight=FLIGHT, as_copied=as_copied).severity is severity


def test_a_restored_database_tells_what_it_holds() -> None:
    change = {"is_copied": True, "waiting": 100_000, "slots": 1, "keys": 2, "runs": 4, "waits": 1}
    finding = told_of_restore(change, flight=FLIGHT)
    assert finding.what.endswith(
        "The rows as they were then: 3 tasks in flight, at least 100,000 tasks waiting, 1 schedule with slots since, "
        "2 unique keys in time, 4 unfinished workflows, 1 wait for signals"
    )
    assert "`horsies queues pause mail`" in finding.fix
