"""A producer with the rights of `horsies-migrate grants` sends grouped tasks. The grants change the database, which no
other test shares."""

import asyncpg

from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.roles import accounts

GROUP = "SELECT group_key FROM horsies_tasks WHERE id = %s"


async def test_a_producers_rights_are_enough(db: Database) -> None:
    with accounts(db) as roles:
        async with async_app_on(roles["producer"]) as app:
            add = add_task(app, group_by="a")
            one = await add.send_async(1)
            many = await add.send_many_async([(2,), (3,)])
            unique = await add.with_options(unique_key="k").send_async(4)
            run = await app.workflow("w", [add.node()(5), add_task(app, "plain").node()(6)]).start_async(group="run")
            connection = await asyncpg.connect(roles["producer"].url)
            try:
                mine = await add.with_options(connection=connection).send_many_async([(7,)])
            finally:
                await connection.close()
    assert [db.value(GROUP, handle.task_id) for handle in (one, *many, unique, *mine)] == ["1", "2", "3", "4", "7"]
    assert db.value("SELECT group_key FROM horsies_workflows WHERE id = %s", run.workflow_id) == "run"
    of_nodes = db.execute("SELECT group_key FROM horsies_tasks WHERE is_workflow_task ORDER BY group_key")
    assert of_nodes == [("5",), ("run",)]
