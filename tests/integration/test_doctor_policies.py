"""`horsies doctor` on groups and limits: what starves, what limits nothing, what code and database disagree on."""

import json

import pytest

from horsies import CustomQueueConfig, GroupPolicy, Limit, QueueMode, Rate
from horsies.operate.doctor import Finding, Severity
from tests.support import factories
from tests.support.factories import ago
from tests.support.findings import RECOVERY, fine, look, only, trouble
from tests.support.postgres import Database

APP = {
    "queue_mode": QueueMode.CUSTOM,
    "custom_queues": [
        CustomQueueConfig("mail", groups=GroupPolicy(max_concurrency=2, rate=Rate(100, 60)), limits=["stripe"])
    ],
    "limits": [Limit("stripe", max_concurrency=3)],
}
DECLARED = {
    "max_concurrency": 2, "rate": {"limit": 100, "per_seconds": 60, "burst": 10}, "fair": True, "limits": ["stripe"],
}  # fmt: skip


@pytest.fixture
def mail(db: Database) -> Database:
    """A live worker serves the queue `mail`."""
    factories.worker_state(db, recovery_config=RECOVERY, queues=["mail"])
    return db


def declare(db: Database, queue: dict[str, object] | None = None, limit: dict[str, object] | None = None) -> None:
    if queue is not None:
        declared = {"declared": json.dumps(queue), "declared_at": ago(hours=2)}
        factories.insert(db, "horsies_queue_state", queue_name="mail", **declared)
    if limit is not None:
        declared = {"declared": json.dumps(limit), "declared_at": ago(hours=2)}
        factories.insert(db, "horsies_limits", name="stripe", **declared)


def of(findings: list[Finding], check: str) -> list[str]:
    return [one.what for one in findings if one.check == check and one.severity is not Severity.OK]


# -- groups --------------------------------------------------------------------------------------


def waiting(db: Database, key: str, seconds: float) -> str:
    return factories.task(db, queue_name="mail", group_key=key, enqueued_at=ago(seconds=seconds))


def test_a_group_that_is_passed_over_starves(mail: Database) -> None:
    declare(mail, {"max_concurrency": 1})
    for number in range(5):
        waiting(mail, f"busy {number}", seconds=2)
    waiting(mail, "forgotten", seconds=600)
    found = look(mail)
    assert trouble(found).keys() == {"backlog", "groups"}
    (told,) = of(found, "groups")
    assert told.startswith(
        "group 'forgotten' of queue mail starves: of 1 waiting task none runs, one has been ready for 10 m"
    )
    assert "horsies queues groups mail" in trouble(found)["backlog"].fix


def test_a_group_at_its_limit_a_deep_one_and_a_general_backlog_do_not_starve(mail: Database) -> None:
    declare(mail, {"max_concurrency": 1})
    for number in range(5):
        waiting(mail, f"busy {number}", seconds=2)
    waiting(mail, "full", seconds=600)
    factories.task(mail, "RUNNING", queue_name="mail", group_key="full")
    for _ in range(100):
        waiting(mail, "deep", seconds=600)
    found = look(mail)
    assert of(found, "groups") == []
    assert [one.what for one in found if one.check == "groups"] == ["7 groups looked at, none starves"]
    mail.execute("UPDATE horsies_tasks SET enqueued_at = now() - interval '20 minutes' WHERE status = 'PENDING'")
    assert of(look(mail), "groups") == []


# -- limits --------------------------------------------------------------------------------------


def test_a_limit_that_no_queue_shares(mail: Database) -> None:
    declare(mail, limit={"max_concurrency": 3})
    found = only(look(mail), "limits", Severity.WARN)
    assert found.what == "no queue shares the limit 'stripe'"
    assert "DELETE FROM horsies_limits WHERE name = 'stripe'" in found.fix
    declare(mail, {"limits": ["stripe"]})
    assert fine(look(mail), "limits") == "1 shared limit, each used"


def test_a_queue_that_shares_a_limit_that_does_not_exist(mail: Database) -> None:
    declare(mail, {"limits": ["stripe"]})
    found = only(look(mail), "limits")
    assert found.what == "queue mail shares the limit 'stripe', which does not exist"


# -- policies ------------------------------------------------------------------------------------


def test_an_override_that_hides_what_code_declares(mail: Database) -> None:
    declare(mail, DECLARED, {"max_concurrency": 3})
    mail.execute("""UPDATE horsies_queue_state SET override_at = now() - interval '3 hours',
                    override = '{"max_concurrency": null, "fair": true}'""")
    found = only(look(mail), "policies", Severity.WARN)
    assert found.what == (
        "queue mail: an override hides what the code declares: max_concurrency none instead of 2, set 3 h ago"
    )
    assert found.fix == "if it is no longer needed: `horsies queues unset mail`"
    mail.execute("UPDATE horsies_queue_state SET override = NULL")
    mail.execute('UPDATE horsies_limits SET override = \'{"rate": {"limit": 5, "per_seconds": 1, "burst": 1}}\'')
    assert "rate (5 per 1 s (burst 1)) instead of none" in only(look(mail), "policies", Severity.WARN).what
    mail.execute("UPDATE horsies_limits SET override = '{\"max_concurrency\": 3}'")
    assert fine(look(mail), "policies") == "1 queue with a policy, as declared"


def test_an_app_that_declares_another_policy_than_the_database_has(mail: Database) -> None:
    declare(mail, DECLARED, {"max_concurrency": 3})
    assert trouble(look(mail, names=[], app=APP)) == {}
    mail.execute("UPDATE horsies_queue_state SET declared = declared || '{\"max_concurrency\": 7}'")
    mail.execute("UPDATE horsies_limits SET declared = '{\"max_concurrency\": 4}'")
    assert trouble(look(mail)) == {}, "no app was given"
    told = of(look(mail, names=[], app=APP), "policies")
    assert told == [
        "queue mail: this app declares another policy than the database has, declared 2 h ago: max_concurrency 2 "
        "here, 7 there",
        "limit stripe: this app declares another policy than the database has, declared 2 h ago: max_concurrency 3 "
        "here, 4 there",
    ]
    mail.execute("DELETE FROM horsies_queue_state; DELETE FROM horsies_limits")
    told = of(look(mail, names=[], app=APP), "policies")
    assert [one.partition(": max")[0].partition("has, ")[2] for one in told] == ["where no worker has declared one"] * 2
    mail.execute("UPDATE horsies_worker_states SET queues = '{default}'")
    assert of(look(mail, names=[], app=APP), "policies") == [], "none of its workers has started yet"
