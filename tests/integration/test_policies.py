"""Policies of queues and shared limits, as operators read, override and unset them; groups and what holds them back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import ConfigurationError, PostgresBroker, Rate, TaskFilter, UsageError
from horsies._pg.channels import QUEUE_STATE
from horsies.errors import BrokerError
from horsies.operate.groups import MANY
from horsies.operate.policies import Policy
from tests.support import factories
from tests.support.apps import make_app
from tests.support.factories import ago, ahead
from tests.support.operator import Operator, as_process
from tests.support.postgres import Database
from tests.support.roles import accounts

RATE = {"limit": 100, "per_seconds": 60.0, "burst": 10}


def declare_queue(db: Database, name: str, **policy: object) -> None:
    factories.insert(db, "horsies_queue_state", queue_name=name, declared=json.dumps(policy), declared_at=ago(hours=1))


def declare_limit(db: Database, name: str, **policy: object) -> None:
    factories.insert(db, "horsies_limits", name=name, declared=json.dumps(policy), declared_at=ago(hours=1))


def grouped(
    db: Database, key: str, count: int = 1, status: str = "PENDING", queue: str = "mail", **columns: Any
) -> None:
    for _ in range(count):
        factories.task(db, status, queue_name=queue, group_key=key, **columns)


@asynccontextmanager
async def notified(db: Database) -> AsyncIterator[asyncio.Queue[str]]:
    """The payloads of `queue_state`."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(db.url)
    try:
        await connection.add_listener(QUEUE_STATE, lambda *notification: heard.put_nowait(str(notification[3])))
        yield heard
    finally:
        await connection.close()


@pytest.fixture
async def broker(db: Database) -> AsyncIterator[PostgresBroker]:
    async with make_app(db) as app:
        yield app.get_broker()


# -- broker --------------------------------------------------------------------------------------


async def test_an_override_holds_until_it_is_unset(db: Database, broker: PostgresBroker) -> None:
    declare_queue(db, "mail", max_concurrency=5, rate=RATE, fair=False)
    policies = broker.policies
    async with notified(db) as heard:
        before = await policies.queue("mail")
        assert before.effective == Policy(5, Rate(100, 60), fair=False)
        assert (before.override, before.overridden) == (None, ())
        changed = await policies.set_queue("mail", max_concurrency=None, fair=True)
        assert changed.effective == Policy(None, Rate(100, 60), fair=True)
        assert changed.overridden == ("max_concurrency", "fair")
        assert changed.override_at is not None
        changed = await policies.set_queue("mail", rate=Rate(5, burst=5))
        assert changed.effective == Policy(None, Rate(5, burst=5), fair=True)
        assert await policies.unset_queue("mail", ["fair"])
        assert (await policies.queue("mail")).overridden == ("max_concurrency", "rate")
        assert not await policies.unset_queue("mail", ["fair"])
        assert await policies.unset_queue("mail")
        after = await policies.queue("mail")
        assert (after.policy, after.override, after.override_at) == (before.policy, None, None)
        assert [await asyncio.wait_for(heard.get(), 10) for _ in range(4)] == ["mail"] * 4
        assert heard.empty()


async def test_a_queue_without_a_policy_gets_one_and_a_pause_stays(db: Database, broker: PostgresBroker) -> None:
    assert (await broker.policies.queue("mail")).effective == Policy()
    await broker.pause_queue("mail")
    await broker.policies.set_queue("mail", max_concurrency=2)
    await broker.policies.set_queue("new", max_concurrency=3)
    assert "mail" in await broker.get_paused_queues()
    assert {one.queue_name: one.effective.max_concurrency for one in await broker.policies.queues()} == {
        "mail": 2, "new": 3,
    }  # fmt: skip


async def test_what_a_policy_cannot_be_is_refused(db: Database, broker: PostgresBroker) -> None:
    policies = broker.policies
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        await policies.set_queue("mail", max_concurrency=0)
    with pytest.raises(ConfigurationError, match="Rate"):
        await policies.set_queue("mail", rate=5)  # type: ignore[typeddict-item]
    with pytest.raises(ConfigurationError, match="fair"):
        await policies.set_queue("mail", fair="yes")  # type: ignore[typeddict-item]
    with pytest.raises(ConfigurationError, match="queue_name"):
        await policies.set_queue("no such name!", max_concurrency=1)
    with pytest.raises(UsageError, match=r"nothing to override.*limits"):
        await policies.set_queue("mail")
    with pytest.raises(UsageError, match=r"there is no limit 'stripe' \(none is known\)"):
        await policies.set_queue("mail", limits=["stripe"])
    with pytest.raises(UsageError, match="no field 'speed'"):
        await policies.unset_queue("mail", ["speed"])
    with pytest.raises(UsageError, match="there is no limit 'stripe'"):
        await policies.set_limit("stripe", max_concurrency=1)
    with pytest.raises(UsageError, match="nothing to override"):
        await policies.set_limit("stripe")
    assert not await policies.unset_limit("stripe")
    assert not await policies.unset_queue("mail\0\ud800")
    assert db.execute("SELECT * FROM horsies_queue_state") == []


async def test_a_limit_is_shared_counted_and_overridden(db: Database, broker: PostgresBroker) -> None:
    declare_limit(db, "stripe", max_concurrency=3, rate=RATE)
    declare_queue(db, "mail", limits=["stripe"])
    declare_queue(db, "bills")
    grouped(db, "acme", 2, "RUNNING")
    factories.task(db, "CLAIMED", queue_name="bills")
    async with notified(db) as heard:
        await broker.policies.set_queue("bills", limits=["stripe"])
        (limit,) = await broker.policies.limits()
        assert (limit.queues, limit.running, limit.tokens, limit.burst) == (("bills", "mail"), 3, 10, 10)
        assert limit.throttle == "limit stripe is full (3 of 3)"
        limit = await broker.policies.set_limit("stripe", max_concurrency=None)
        assert (limit.throttle, limit.effective.max_concurrency) == (None, None)
        db.execute("UPDATE horsies_limits SET free_at = now() + interval '1 hour'")
        (limit,) = await broker.policies.limits()
        assert limit.tokens == 0
        assert (limit.throttle or "").startswith("limit stripe has no token for ")
        assert await broker.policies.unset_limit("stripe", ["max_concurrency"])
        told = [await asyncio.wait_for(heard.get(), 10) for _ in range(5)]
        assert told[0] == "bills"
        assert sorted(told[1:]) == ["bills", "bills", "mail", "mail"]


async def test_who_may_read_and_who_may_change_policies(db: Database) -> None:
    declare_limit(db, "stripe", max_concurrency=3)
    declare_queue(db, "mail", limits=["stripe"], rate=RATE)
    grouped(db, "acme", 3)
    db.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
    with accounts(db) as roles:
        async with make_app(roles["viewer"]) as app:
            policies = app.get_broker().policies
            assert (await policies.queue("mail")).effective.limits == ("stripe",)
            assert [one.name for one in await policies.limits()] == ["stripe"]
            assert [one.key for one in (await policies.groups("mail")).groups] == ["acme"]
            page = await app.get_broker().list_tasks(TaskFilter(group="acme"))
            assert [task.group for task in page.tasks] == ["acme"] * 3
            detail = await app.get_broker().get_task_detail(page.tasks[0].id)
            info = await app.get_broker().get_task_info(page.tasks[0].id)
            assert detail is not None
            assert info is not None
            assert (detail.group, info.group) == ("acme", "acme")
            for change in (
                policies.set_queue("mail", fair=False), policies.unset_queue("mail"),
                policies.set_limit("stripe", max_concurrency=1), policies.unset_limit("stripe"),
            ):  # fmt: skip
                with pytest.raises(BrokerError, match="permission denied"):
                    await change
        async with make_app(roles["operator"]) as app:
            policies = app.get_broker().policies
            await policies.set_queue("mail", fair=False)
            await policies.set_queue("new", fair=False)
            await policies.set_limit("stripe", max_concurrency=1)
            assert await policies.unset_queue("mail")
            assert await policies.unset_limit("stripe")
            assert [one.key for one in (await policies.groups("mail")).groups] == ["acme"]


# -- groups --------------------------------------------------------------------------------------


async def test_groups_say_what_waits_and_why(db: Database, broker: PostgresBroker) -> None:
    declare_queue(db, "mail", max_concurrency=2, rate=RATE)
    grouped(db, "full", 3, enqueued_at=ago(minutes=10))
    grouped(db, "full", 2, "RUNNING")
    grouped(db, "spent", 2)
    factories.insert(db, "horsies_rate_limits", name="mail", key="spent", free_at=ahead(hours=1))
    grouped(db, "later", 1, enqueued_at=ahead(hours=1))
    grouped(db, "free", 1, priority=5)
    grouped(db, "elsewhere", 9, queue="bills")
    factories.task(db, queue_name="mail")
    found = await broker.policies.groups("mail")
    assert (found.looked, found.is_complete, found.throttled) == (4, True, 2)
    groups = {one.key: one for one in found.groups}
    assert list(groups)[:2] == ["full", "spent"]
    assert {key: (one.waiting, one.running) for key, one in groups.items()} == {
        "full": (3, 2), "spent": (2, 0), "later": (1, 0), "free": (1, 0),
    }  # fmt: skip
    full, spent = groups["full"], groups["spent"]
    assert full.throttled_by == ("concurrency is full (2 of 2)",)
    assert full.throttled_for is not None
    assert 590 < full.throttled_for.total_seconds() < 700
    assert (spent.tokens, spent.burst, spent.rate_used) == (0, 10, 1)
    assert spent.next_token_in is not None
    assert spent.throttled_by[0].startswith("the rate has no token for ")
    assert (groups["free"].throttled_by, groups["free"].tokens) == ((), 10)
    assert (groups["later"].throttled_by, groups["later"].oldest_ready) == ((), None)
    assert len((await broker.policies.groups("mail", top=1)).groups) == 1


async def test_an_exhausted_shared_limit_throttles_every_group(db: Database, broker: PostgresBroker) -> None:
    declare_limit(db, "stripe", max_concurrency=1)
    declare_queue(db, "mail", limits=["stripe"])
    grouped(db, "acme", 2)
    factories.task(db, "RUNNING", queue_name="mail")
    (group,) = (await broker.policies.groups("mail")).groups
    assert group.throttled_by == ("limit stripe is full (1 of 1)",)


def fill(db: Database, tasks: int, groups: int) -> None:
    """Waiting tasks of `groups` groups; every second one is of the group `big`."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            f"""INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, enqueued_at, priority)
                SELECT lpad(i::text, 36, 'g'), 't', 'mail', CASE WHEN i % 2 = 0 THEN 'big' ELSE 'g' || i % {groups} END,
                       now() - interval '1 day' + i * interval '1 ms', 1 + i % 3
                  FROM generate_series(1, {tasks}) AS i"""  # type: ignore[arg-type]
        )


async def test_the_figures_of_many_groups_stay_bounded(db: Database, broker: PostgresBroker) -> None:
    """Neither more tasks nor more groups cost more, before ANALYZE and after VACUUM; the largest group is found."""
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    buffers = []
    for tasks, groups, upkeep in ((20_000, 2_000, "SELECT"), (60_000, 6_000, "SELECT"), (0, 0, "VACUUM ANALYZE")):
        if tasks:
            db.execute("TRUNCATE horsies_tasks CASCADE")
            fill(db, tasks, groups)
        db.execute(upkeep)
        found = await broker.policies.groups("mail", top=5)
        assert (found.groups[0].key, found.groups[0].waiting, found.groups[0].is_least) == ("big", MANY, True)
        assert not found.is_complete
        assert found.looked <= 300
        buffers.append(await read_buffers(db))
    assert max(buffers[1:]) < 1.3 * buffers[0]
    assert max(buffers) < 30_000


async def read_buffers(db: Database) -> int:
    from horsies._pg.statements import load

    connection = await asyncpg.connect(db.url)
    try:
        await connection.execute("SET plan_cache_mode = force_custom_plan; SET enable_bitmapscan = off")
        await connection.execute("SET enable_seqscan = off; SET jit = off; SET enable_sort = off")
        await connection.execute(f"PREPARE top AS {load('horsies._pg', 'policies.sql')['top_groups'].sql}")
        (row,) = await connection.fetch(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE top ('mail', 200, 1000, 300, 20, 100, 1000)"
        )
    finally:
        await connection.close()
    plan = json.loads(row[0])[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


# -- command line --------------------------------------------------------------------------------


def test_queues_show_set_and_unset(db: Database, operator: Operator) -> None:
    declare_queue(db, "mail", max_concurrency=5, rate=RATE)
    declare_limit(db, "stripe", max_concurrency=3)
    assert "mail" in operator("queues", "show").out
    ran = operator("queues", "set", "mail", "--max-concurrency", "none", "--rate", "10/1", "--burst", "3", "--no-fair",
                   "--limits", "stripe")  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.out.startswith(
        "set max_concurrency, rate, fair, limits of queue mail; it holds from the next claim on\n"
    )
    shown = operator("queues", "show", "mail")
    assert [line.split("  ")[0] for line in shown.out.splitlines()[1:7]] == [
        "max_concurrency per group", "rate per group", "fair", "limits", "weight", "ageing_seconds",
    ]  # fmt: skip
    assert [line[25:].split()[0] for line in shown.out.splitlines()[1:5]] == ["none", "10", "no", "stripe"]
    assert "100 per 60 s (burst 10)" in shown.out
    document = operator.json("queues", "show", "mail")
    assert document["effective"] == {
        "max_concurrency": None, "rate": {"limit": 10, "per_seconds": 1.0, "burst": 3}, "fair": False,
        "limits": ["stripe"], "weight": None, "ageing_seconds": None,
    }  # fmt: skip
    assert document["declared"]["max_concurrency"] == 5
    assert re.search(r"max_concurrency, rate, fair, limits \([\d.]+ m?s ago\)", operator("queues", "show").out)
    assert operator("queues", "unset", "mail", "rate", "max-concurrency").out == (
        "unset rate, max_concurrency of queue mail\n"
    )
    assert operator.json("queues", "show")["queues"][0]["override"] == {"fair": False, "limits": ["stripe"]}
    assert operator("queues", "unset", "mail").code == 0
    assert operator("queues", "set", "mail", "--weight", "2").code == 0
    assert operator("queues", "unset", "mail", "fair", "rate", "weight").out == (
        "unset weight of queue mail; there was no override of fair, rate\n"
    )
    again = operator("queues", "unset", "mail", "fair")
    assert (again.code, again.err) == (
        1, "horsies: queue 'mail' has no override of fair: there is nothing to unset\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("mail",), 2, "nothing to override: give one of --max-concurrency, --rate, --fair, --limits"),
        (("mail", "--rate", "fast"), 2, "'fast' is not a rate: write LIMIT/SECONDS, such as 100/60 for 100 starts"),
        (("mail", "--rate", "10/0"), 2, "per_seconds"),
        (("mail", "--rate", "10/1", "--burst", "11"), 2, "burst"),
        (("mail", "--burst", "2"), 2, "--burst is a part of a rate: give --rate as well"),
        (("mail", "--max-concurrency", "0"), 2, "'0' is not a whole number from 1 to 1,000,000, or none"),
        (
            ("mail", "--limits", "stripe"),
            1,
            "there is no limit 'stripe' (none is known): declare it in AppConfig.limits",
        ),
        (("mial", "--no-fair"), 1, "nothing is set for queue 'mial': no task and no worker has it so far"),
        (("no name!", "--no-fair"), 1, "queue"),
        (("mail", "--weight", "0"), 2, "'0' is not a whole number from 1 to 1,000, or none"),
        (("mail", "--ageing-seconds", "soon"), 2, "'soon' is not a duration"),
        (("mail", "--ageing-seconds", "0"), 2, "'0' is out of range: choose 100ms to 31d"),
    ],
)
def test_what_queues_set_refuses(
    db: Database, operator: Operator, arguments: tuple[str, ...], code: int, told: str
) -> None:
    factories.task(db, queue_name="mail")
    ran = operator("queues", "set", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert db.execute("SELECT * FROM horsies_queue_state") == []


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1m30s", 90), ("none", None)])
def test_ageing_is_a_duration_or_a_number_of_seconds(
    db: Database, operator: Operator, text: str, seconds: int | None
) -> None:
    factories.task(db, queue_name="mail")
    assert operator("queues", "set", "mail", "--ageing-seconds", text).code == 0
    assert operator.json("queues", "show")["queues"][0]["override"] == {"ageing_seconds": seconds}


def test_the_limit_of_the_queue_itself_is_told_apart(db: Database, operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "capped_shop.py").write_text(
        "from horsies import *\n"
        f"app = Horsies(AppConfig(PostgresConfig({db.url!r}), queue_mode=QueueMode.CUSTOM,\n"
        "    custom_queues=[CustomQueueConfig('slow', max_concurrency=1), CustomQueueConfig('fast')]))\n"
    )
    for queue, told in (("slow", "whole queue  max_concurrency 1, by the app"), ("fast", "no max_concurrency")):
        factories.task(db, queue_name=queue)
        out = as_process("queues", "show", queue, "--app", "capped_shop:app", url=None, cwd=tmp_path).out
        assert re.search(r"^max_concurrency per group +none", out, re.MULTILINE)
        assert told in out
    assert "whole queue" not in operator("queues", "show", "slow").out  # only the app knows it


def test_unknown_queues_and_fields(db: Database, operator: Operator) -> None:
    assert operator("queues", "show").out == "no queue has a policy\n"
    assert operator("queues", "show", "default").code == 0
    for verb in ("show", "groups", "unset"):
        ran = operator("queues", verb, "mial")
        assert ran.code == 1
        assert "there is no queue 'mial'" in ran.err
    assert "queue 'default' has no override" in operator("queues", "unset", "default").err
    assert operator("queues", "set", "mial", "--no-fair", "--force").code == 0
    wrong = operator("queues", "unset", "mial", "speed")
    assert wrong.code == 2
    assert "'speed' is not one of max_concurrency, rate, fair, limits" in wrong.err


def test_limits_list_set_and_unset(db: Database, operator: Operator) -> None:
    assert operator("limits").out == "no worker has declared a limit\n"
    declare_limit(db, "stripe", max_concurrency=3, rate=RATE)
    declare_queue(db, "mail", limits=["stripe"])
    grouped(db, "acme", 1, "RUNNING")
    head, line = operator("limits", "list").out.splitlines()
    assert head.split() == ["LIMIT", "RUNNING", "MAX", "RATE", "TOKENS", "QUEUES", "OVERRIDDEN"]
    assert line.split()[:3] == ["stripe", "1", "3"]
    assert line.split()[-3:] == ["10/10", "mail", "no"]
    assert operator("limits", "set", "stripe", "--max-concurrency", "1").code == 0
    (limit,) = operator.json("limits", "list")["limits"]
    assert (limit["max_concurrency"], limit["throttle"]) == (1, "limit stripe is full (1 of 1)")
    assert operator("limits", "unset", "stripe", "max-concurrency", "rate").out == (
        "unset max_concurrency of limit stripe; there was no override of rate\n"
    )
    assert operator("limits", "set", "stripe", "--max-concurrency", "1").code == 0
    assert operator("limits", "unset", "stripe").out == "unset the override of limit stripe\n"
    assert operator("limits", "unset", "stripe").code == 1
    unknown = operator("limits", "set", "strpe", "--rate", "none")
    assert (unknown.code, "there is no limit 'strpe' (known are stripe)" in unknown.err) == (1, True)


def test_queues_groups(db: Database, operator: Operator) -> None:
    declare_queue(db, "mail", max_concurrency=1)
    assert operator("queues", "groups", "mail").out == "no task of queue mail with a group waits or runs\n"
    grouped(db, "acme", 3)
    grouped(db, "acme", 1, "RUNNING")
    grouped(db, "other", 1)
    ran = operator("queues", "groups", "mail")
    assert [line.split()[:3] for line in ran.out.splitlines()[1:3]] == [["acme", "3", "1/1"], ["other", "1", "0/1"]]
    assert "concurrency is full (1 of 1)" in ran.out
    assert ran.out.endswith("1 group of 2 throttled\n")
    assert [one["key"] for one in operator.json("queues", "groups", "mail", "--top", "1")["groups"]] == ["acme"]


def test_tasks_by_group(db: Database, operator: Operator) -> None:
    grouped(db, "acme", 2)
    grouped(db, "acme", 1, "RUNNING")
    grouped(db, "acme", 1, "COMPLETED")
    grouped(db, "other", 1)
    factories.task(db)
    assert operator("tasks", "count", "--group", "acme").out == "4 tasks\n"
    assert operator("tasks", "count", "--group", "acme", "--group", "other").out == "5 tasks\n"
    listed = operator.json("tasks", "list", "--group", "acme")["tasks"]
    assert {task["group"] for task in listed} == {"acme"}
    assert ["group", "acme"] in operator("tasks", "show", listed[0]["id"]).lines
    assert operator("tasks", "count").out == "6 tasks\n"
    assert [(queue["name"], queue["ready"]) for queue in operator.json("queues")["queues"]] == [
        ("default", 1),
        ("mail", 3),
    ]


# -- claims --------------------------------------------------------------------------------------

CLAIM = """SELECT count(*) FROM horsies_claim_grouped('{mail}', '{}', '{}', true, '{}', '{}', '{}', '{}', '{}', 100, 50,
    0, 50, 0, '{}', '{}', '{add}', '{}', '{}', NULL, 1, 'w', 'h', '{}', NULL) WHERE id IS NOT NULL"""


@pytest.mark.breaks("T8")
async def test_a_change_holds_from_the_next_claim_on(db: Database, broker: PostgresBroker) -> None:
    declare_queue(db, "mail", max_concurrency=1)
    declare_limit(db, "stripe", max_concurrency=6)
    for key in ("acme", "globex"):
        grouped(db, key, 10)

    def claimed() -> int:
        return db.value(CLAIM)

    assert [claimed(), claimed()] == [2, 0]
    await broker.policies.set_queue("mail", max_concurrency=2)
    assert [claimed(), claimed()] == [2, 0]
    await broker.policies.set_queue("mail", max_concurrency=None, limits=["stripe"])
    assert [claimed(), claimed()] == [2, 0], "four of six run"
    await broker.policies.set_limit("stripe", max_concurrency=7)
    assert [claimed(), claimed()] == [1, 0]
    groups = (await broker.policies.groups("mail")).groups
    assert {one.throttled_by for one in groups} == {("limit stripe is full (7 of 7)",)}
    await broker.policies.unset_queue("mail")
    assert claimed() == 0, "one at a time again, and more run"
