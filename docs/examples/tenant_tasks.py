"""The tenant of a request follows its tasks. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker tenant_tasks:app

The sender's `tenant` goes into the metadata of every task. A worker sets it again around each attempt, and tasks that
a task sends inherit it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from horsies import AppConfig, Horsies, Middleware, Outgoing, PostgresConfig, TaskContext, TaskError, TaskResult

tenant: ContextVar[str] = ContextVar("tenant")  # a web app sets it for each request


class Tenant(Middleware):
    def on_send(self, task: Outgoing) -> None:
        if "tenant" not in task.metadata:
            task.metadata["tenant"] = tenant.get()  # a LookupError refuses the send: no task without a tenant

    @contextmanager
    def scope(self, ctx: TaskContext) -> Iterator[None]:
        token = tenant.set(ctx.metadata["tenant"])
        try:
            yield
        finally:
            tenant.reset(token)


app = Horsies(AppConfig(PostgresConfig(), middleware=[Tenant()], propagate_metadata=["tenant"]))


@app.task("invoice")
def invoice(number: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"invoice {number} of {tenant.get()}")


@app.task("invoice_all")
async def invoice_all(count: int) -> TaskResult[list[str], TaskError]:
    handles = await invoice.send_many_async([(number,) for number in range(count)])
    return TaskResult(ok=[handle.task_id for handle in handles])
