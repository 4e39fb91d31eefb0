"""Unique keys with the rights of `horsies-migrate grants`, which change the database: no other test shares it."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import TaskSendError
from horsies.errors import BrokerError
from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.roles import accounts

HOUR = timedelta(hours=1)
WAYS: list[dict[str, Any]] = [{"unique_for": HOUR}, {"on_conflict": "replace"}, {"debounce": HOUR}]


async def test_a_producers_rights_are_enough_and_a_viewers_are_not(db: Database) -> None:
    with accounts(db) as roles:
        async with async_app_on(roles["producer"]) as app:
            add = add_task(app)
            for options in WAYS:
                sender = add.with_options(unique_key=str(options), **options)
                first = await sender.send_async(1)
                assert (await sender.send_async(2)).task_id == first.task_id
            connection = await asyncpg.connect(roles["producer"].url)
            try:
                for statement in ("UPDATE horsies_tasks SET kwargs = '{}'", "SELECT * FROM horsies_unique_keys"):
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(statement)
            finally:
                await connection.close()
        async with async_app_on(roles["viewer"]) as app:
            with pytest.raises(TaskSendError) as refused:
                await add_task(app).with_options(unique_key="k", unique_for=HOUR).send_async(1)
            assert "permission denied for function horsies_send_unique" in str(refused.value)


async def test_only_an_operator_sees_and_frees_keys(db: Database) -> None:
    async with async_app_on(db) as app:
        await add_task(app).with_options(unique_key="k", unique_for=HOUR).send_async(1)
    with accounts(db) as roles:
        for role in ("viewer", "producer"):
            async with async_app_on(roles[role]) as app:
                for act in (app.get_broker().unique_keys.list(), app.get_broker().unique_keys.release("add", "k")):
                    with pytest.raises(BrokerError, match="permission denied"):
                        await act
        async with async_app_on(roles["operator"]) as app:
            assert len(await app.get_broker().unique_keys.list()) == 1
            assert (await app.get_broker().unique_keys.release("add", "k")).was_kept
