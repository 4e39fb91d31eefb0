"""What the fast road of a send must not cost: a batch that is sent again by hand is still one batch."""

import pytest

from horsies import TaskSendError
from tests.support.apps import add_task, async_app_on
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.postgres import Database


@pytest.mark.parametrize("when", When)
async def test_a_batch_is_retried_by_hand(db: Database, when: When) -> None:
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url, resilience={"send_attempts": 1}) as app:
            add = add_task(app)
            await add.send_many_async([(0,)])  # the statement is prepared, the schema checked
            proxy.cut_at("CALL horsies_send_tasks", when)
            with pytest.raises(TaskSendError) as raised:
                await add.send_many_async([(number,) for number in range(1, 4)])
            handles = await raised.value.retry_async()
            again = await raised.value.retry_async()
    assert handles == again
    assert db.value("SELECT count(*) FROM horsies_tasks") == 4
