"""`horsies workflows check` against real runs, and the release and fingerprint that a run keeps."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import BrokerError, from_node
from horsies.operate.workflow_check import MisfitKind
from tests.support import releases
from tests.support.apps import app_on, async_app_on
from tests.support.engine import Engine
from tests.support.operator import Operator, as_process
from tests.support.postgres import Database
from tests.support.releases import NEW, SAME
from tests.support.roles import accounts

pytestmark = pytest.mark.shared_database

COMPLETED = (
    "UPDATE horsies_workflow_tasks SET status = 'COMPLETED', result = %s, completed_at = now() WHERE node_id = %s"
)


@pytest.fixture
def old(db: Database) -> Iterator[SimpleNamespace]:
    with app_on(db, release="1.0") as app:
        yield releases.register_old(app)


def letter(t: SimpleNamespace, to: str = "one") -> Any:
    return t.app.workflow("order", [t.letter.node(node_id="letter")(to)])


def test_a_run_keeps_its_release_and_fingerprint(old: SimpleNamespace, db: Database, operator: Operator) -> None:
    spec = letter(old)
    run = spec.start(workflow_id="01890000-0000-7000-8000-000000000001")
    (row,) = db.execute("SELECT release, fingerprint, enqueue_sha FROM horsies_workflows")
    assert row[:2] == ("1.0", spec.fingerprint)
    assert "\nrelease  1.0\n" in operator("workflows", "show", run.workflow_id).out
    assert "release" not in operator("workflows", "show", run.workflow_id, "--mermaid").out
    assert operator.json("workflows", "show", run.workflow_id)["workflow"]["release"] == "1.0"
    with app_on(db, release="2.0") as later:  # the same start, repeated by another release
        again = letter(releases.register_old(later)).start(workflow_id=run.workflow_id)
    assert again.workflow_id == run.workflow_id
    assert db.execute("SELECT release, fingerprint, enqueue_sha FROM horsies_workflows") == [row]
    with app_on(db) as bare:
        none = letter(releases.register_old(bare)).start()
    assert operator.json("workflows", "show", none.workflow_id)["workflow"]["release"] is None
    assert "release" not in operator("workflows", "show", none.workflow_id).out


def test_no_run_needs_anything(old: SimpleNamespace, operator: Operator) -> None:
    assert operator("workflows", "check", NEW).out == "there is no live run\n"
    spec = letter(old)
    run = spec.start()
    ran = operator("workflows", "check", SAME)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "1 live run checked, 1 of them with an unchanged definition: this code can go on with them\n"
    run.cancel()
    assert operator("workflows", "check", NEW).out == "there is no live run\n"


def test_a_run_of_another_definition_is_compared(old: SimpleNamespace, operator: Operator) -> None:
    old.app.workflow("other", [old.charge.node()(5)]).start()
    found = operator.json("workflows", "check", SAME)
    assert (found["problems"], found["runs"], found["unchanged"], found["nodes"]) == ([], 1, 0, 1)
    assert found["is_complete"] is True


def test_problems_are_grouped_and_named(old: SimpleNamespace, operator: Operator, db: Database) -> None:
    price = old.price.node(node_id="price")("tea")
    order = old.app.workflow("shop", [price, old.charge.node(node_id="charge")(from_node(price))])
    runs = [order.start().workflow_id for _ in range(7)]
    lost = letter(old).start().workflow_id
    ran = operator("workflows", "check", NEW)
    assert ran.code == 1
    assert "8 live runs checked: 3 problems\n" in ran.out
    parts = ran.out.split("\n\n")
    missing = next(part for part in parts if "requires parameter 'customer'" in part)
    assert "  7 runs, 7 nodes:\n" in missing
    assert f"    {runs[0]}  charge of shop, release 1.0\n" in missing
    assert "    and 2 more; --json lists them\n" in missing
    assert "  fix: give 'customer' a default" in missing
    assert "parameter 'amount' takes int, and 'price' returns str" in ran.out
    assert f"task 'letter' is not registered\n  1 run, 1 node:\n    {lost}  letter of order, release 1.0\n" in ran.out

    found = operator.json("workflows", "check", NEW)
    assert operator("workflows", "check", NEW, "--json").code == 1
    by_kind = {one["kind"]: one for one in found["problems"]}
    assert set(by_kind) == {"MISSING_PARAMETER", "RESULT_TYPE", "UNKNOWN_TASK"}
    assert sorted(by_kind["MISSING_PARAMETER"]["workflow_ids"]) == sorted(runs)
    assert by_kind["MISSING_PARAMETER"]["nodes"] == 7
    assert by_kind["UNKNOWN_TASK"]["places"] == [
        {"workflow_id": lost, "workflow_name": "order", "release": "1.0", "node": "letter"}
    ]
    assert (by_kind["UNKNOWN_TASK"]["task_name"], found["runs"]) == ("letter", 8)

    cut = operator("workflows", "check", NEW, "--limit", "3")
    assert cut.code == 1
    assert "there are more than 3 live runs, and the newer ones were not looked at: raise --limit" in cut.out
    assert operator.json("workflows", "check", NEW, "--limit", "3")["is_complete"] is False


def test_a_paused_run_and_a_stored_result(old: SimpleNamespace, operator: Operator, db: Database) -> None:
    price = old.price.node(node_id="price")("tea")
    run = old.app.workflow("shop", [price, old.charge.node(node_id="charge", args_from={"amount": price})()]).start()
    run.pause()
    db.execute(COMPLETED, '{"ok":3}', "price")
    (found,) = operator.json("workflows", "check", NEW)["problems"]
    assert (found["kind"], found["subject"]) == ("MISSING_PARAMETER", "customer")  # the stored 3 fits
    db.execute(COMPLETED, '{"ok":"three"}', "price")
    kinds = {one["kind"]: one["what"] for one in operator.json("workflows", "check", SAME)["problems"]}
    assert list(kinds) == ["RESULT_REFUSED"]
    assert "parameter 'amount' refuses a stored result of an upstream" in kinds["RESULT_REFUSED"]
    db.execute("DELETE FROM horsies_workflows")
    db.execute("DELETE FROM horsies_tasks")


def test_what_is_inside_has_a_path(old: SimpleNamespace, operator: Operator, db: Database) -> None:
    items = old.items.node(node_id="items")(2)
    inner = old.app.workflow("inner", [old.letter.node(node_id="deep")("x")])
    gone = old.letter.node(node_id="gone", waits_for=[items])("x")
    each = old.charge.node(node_id="each").map(items)
    run = old.app.workflow("outer", [items, inner.node(node_id="sub"), gone, each]).start()

    def nodes() -> dict[str, list[str]]:
        found = operator.json("workflows", "check", NEW)
        assert all(place["workflow_id"] == run.workflow_id for one in found["problems"] for place in one["places"])
        return {one["kind"]: sorted(place["node"] for place in one["places"]) for one in found["problems"]}

    assert nodes() == {"MISSING_PARAMETER": ["each"], "UNKNOWN_TASK": ["gone", "sub/deep"]}
    # what a worker makes of the workflow and of the map
    for name, at, inside in (("inner", 1, "deep"), ("charge[]", 3, "item-0")):
        child = f"child-{at}"
        db.execute(
            "INSERT INTO horsies_workflows (id, name, status, parent_workflow_id, parent_task_index, root_workflow_id,"
            " depth, nodes_left) VALUES (%s, %s, 'RUNNING', %s, %s, %s, 1, 1)",
            child, name, run.workflow_id, at, run.workflow_id,
        )  # fmt: skip
        task = "letter" if at == 1 else "charge"
        kwargs = {"to": "x"} if at == 1 else {"amount": 1}
        db.execute(
            "INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, kwargs, queue_name,"
            " priority, status) VALUES (%s, %s, 0, %s, %s, %s, 'default', 100, 'READY')",
            f"node-{at}", child, inside, task, json.dumps(kwargs),
        )  # fmt: skip
        db.execute(
            "UPDATE horsies_workflow_tasks SET status = 'RUNNING', started_at = now(), sub_workflow_id = %s"
            " WHERE workflow_id = %s AND task_index = %s",
            child, run.workflow_id, at,
        )  # fmt: skip
    assert nodes() == {"MISSING_PARAMETER": ["each/item[0]"], "UNKNOWN_TASK": ["gone", "sub/deep"]}
    db.execute("DELETE FROM horsies_workflows")
    db.execute("DELETE FROM horsies_tasks")


async def test_every_stage_of_a_run(db: Database) -> None:
    """The code that started a run can go on with it at any time, and a later one is told where it cannot."""

    def answer(name: str, given: Mapping[str, Any]) -> Any:
        return {"items": [1, 2], "letter": 1, "charge": 1, "price": 1}[name]

    async with async_app_on(db) as app, Engine.on(db, ["items", "letter", "charge", "price"]) as engine:
        old = releases.register_old(app)
        items = old.items.node(node_id="items")(2)
        price = old.price.node(node_id="price")("tea")
        deep = old.charge.node(
            node_id="deep", args_from={"amount": (inside := old.price.node(node_id="inside")("x"))}
        )()
        inner = app.workflow("inner", [inside, deep], output=deep)
        each = old.charge.node(node_id="each", waits_for=[price]).map(items)
        spec = app.workflow("outer", [price, items, each, inner.node(node_id="sub", waits_for=[each])])
        await spec.start_async()
        broker = app.get_broker()
        seen: set[str] = set()
        for _ in range(20):
            same = await broker.check_workflows(app.registry)
            assert same.problems == []
            quick = await broker.check_workflows(app.registry, app.workflows.fingerprints())
            assert (quick.unchanged, quick.nodes) == (quick.runs, 0)
            for problem in (await broker.check_workflows(releases.new.registry)).problems:
                seen |= {f"{problem.kind} {problem.subject} {place.node}" for place in problem.places}
            rows = await engine.claim()
            engine.advancers[0].tasks_ended(await engine.end(rows, answer))
            await engine.advance()
            if not rows and not await engine.recover():
                break
    assert seen >= {
        "MISSING_PARAMETER customer each", "MISSING_PARAMETER customer each/item[0]",
        "MISSING_PARAMETER customer each/item[1]", "MISSING_PARAMETER customer sub/deep",
        "RESULT_TYPE amount sub/deep",
    }  # fmt: skip
    assert db.execute("SELECT status FROM horsies_workflows WHERE depth = 0") == [("COMPLETED",)]


def test_a_task_that_undoes_completed_nodes(old: SimpleNamespace, operator: Operator, db: Database) -> None:
    letter(old).start()
    db.execute("""UPDATE horsies_workflow_tasks SET compensate = '{"task_name": "recall"}'""")
    for _ in range(2):  # also of a run with an unchanged definition, and of a node that has completed
        (found,) = operator.json("workflows", "check", SAME)["problems"]
        assert (found["kind"], found["task_name"]) == ("UNKNOWN_TASK", "recall")
        db.execute(COMPLETED, '{"ok":1}', "letter")
    db.execute("DELETE FROM horsies_workflows")
    db.execute("DELETE FROM horsies_tasks")


def test_many_nodes_are_read_in_pages(old: SimpleNamespace, operator: Operator) -> None:
    nodes = [old.letter.node(node_id=f"n{at}")("x") for at in range(1_203)]
    old.app.workflow("wide", nodes).start()
    found = operator.json("workflows", "check", NEW)
    assert (found["nodes"], found["problems"][0]["nodes"], len(found["problems"][0]["places"])) == (1_203, 1_203, 1_000)


def test_the_roles(old: SimpleNamespace, operator: Operator, db: Database) -> None:
    letter(old).start()
    with accounts(db) as who:
        assert operator("workflows", "check", NEW, url=who["operator"].url).code == 1
        refused = operator("workflows", "check", NEW, url=who["viewer"].url)
        assert refused.code == 1
        assert refused.err == (
            "horsies: the check reads the arguments and results of runs, which are not visible to this role (messages, "
            "arguments, metadata and results need the operator role)\n"
        )
        assert refused.out == ""


async def test_the_broker_offers_the_same(db: Database) -> None:
    async with async_app_on(db, release="1.0") as app:
        old = releases.register_old(app)
        run = await letter(old).start_async()
        broker = app.get_broker()
        fine = await broker.check_workflows(app.registry, app.workflows.fingerprints())
        assert (fine.is_fine, fine.unchanged, fine.nodes) == (True, 1, 0)
        assert (await broker.check_workflows(app.registry)).nodes == 1
        found = await broker.check_workflows(releases.new.registry)
        assert not found.is_fine
        (problem,) = found.problems
        assert (problem.kind, problem.workflow_ids) == (MisfitKind.UNKNOWN_TASK, [run.workflow_id])
    with accounts(db) as who:
        async with async_app_on(who["viewer"]) as viewer:
            with pytest.raises(BrokerError, match="need the operator role"):
                await viewer.get_broker().check_workflows(releases.new.registry)


def test_wrong_usage_and_a_process_of_its_own(db: Database, operator: Operator, tmp_path: Any) -> None:
    assert operator("workflows", "check").code == 2
    assert "there is no module" in operator("workflows", "check", "nothing_here:app").err
    assert operator("workflows", "check", NEW, "--limit", "0").code == 2
    (tmp_path / "shop.py").write_text(
        "from horsies import AppConfig, Horsies, PostgresConfig\n"
        f"app = Horsies(AppConfig(PostgresConfig({db.url!r}), release='7'))\n"
    )
    ran = as_process("workflows", "check", "shop:app", url=None, cwd=tmp_path)
    assert (ran.code, ran.out, ran.err) == (0, "there is no live run\n", "")  # the database of the app
    helped = as_process("workflows", "check", "--help", url=None)
    assert "module:attribute, such as shop.tasks:app" in helped.out
    assert "--app" not in helped.out


def test_an_unchanged_run_is_skipped_with_what_is_inside(db: Database) -> None:
    async def check() -> tuple[int, int]:
        async with async_app_on(db) as app:
            old = releases.register_old(app)
            inner = app.workflow("inner", [old.letter.node(node_id="deep")("x")])
            await app.workflow("outer", [inner.node(node_id="sub")]).start_async()
            found = await app.get_broker().check_workflows(app.registry, app.workflows.fingerprints())
            return found.unchanged, found.nodes

    assert asyncio.run(check()) == (1, 0)
