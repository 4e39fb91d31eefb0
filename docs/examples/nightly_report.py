"""A report over shards, some of which fail. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker nightly_report:app --processes 4
    HORSIES_DATABASE_URL=postgresql://... python nightly_report.py

Each shard is a workflow: it lists its accounts and reads each of them. Both maps are partial: what fails is a line of
the report, and does not keep the others from being counted.
"""

from pydantic import BaseModel

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    TaskError,
    TaskResult,
    WorkflowSpec,
    from_node,
    map_workflow,
)

app = Horsies(AppConfig(PostgresConfig()))


class ShardReport(BaseModel):
    shard: str
    total: int
    failed: list[str]


class Report(BaseModel):
    total: int
    failed: list[str]


@app.task("list_shards")
def list_shards() -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=["north", "south", "east", "west"])


@app.task("list_accounts")
def list_accounts(shard: str) -> TaskResult[list[int], TaskError]:
    if shard == "east":
        return TaskResult(err=TaskError("SHARD_DOWN", f"{shard} does not answer"))
    return TaskResult(ok=list(range(1, 11)))


@app.task("read_balance")
def read_balance(account: int, shard: str) -> TaskResult[int, TaskError]:
    if (shard, account) == ("south", 7):
        return TaskResult(err=TaskError("DAMAGED", f"account {account} of {shard} cannot be read"))
    return TaskResult(ok=account * 10)


@app.task("sum_shard")
def sum_shard(shard: str, balances: list[TaskResult[int, TaskError]]) -> TaskResult[ShardReport, TaskError]:
    total = sum(balance.ok_value for balance in balances if balance.is_ok())
    failed = [balance.err_value.message for balance in balances if balance.is_err()]
    return TaskResult(ok=ShardReport(shard=shard, total=total, failed=failed))


@app.task("sum_all")
def sum_all(shards: list[TaskResult[ShardReport, TaskError]]) -> TaskResult[Report, TaskError]:
    report = Report(total=0, failed=[])
    for shard in shards:
        if shard.is_ok():
            report.total += shard.ok_value.total
            report.failed += shard.ok_value.failed
        else:
            report.failed.append(shard.err_value.message)
    return TaskResult(ok=report)


def of_shard(shard: str) -> WorkflowSpec[ShardReport]:
    """Called once, when the workflow is defined; `shard` is a placeholder that is handed on to nodes."""
    accounts = list_accounts.node()(shard)
    balances = read_balance.node().map_partial(accounts, shard)
    summed = sum_shard.node()(shard, from_node(balances))
    return app.workflow("shard", [accounts, balances, summed], output=summed)


shards = list_shards.node()()
reports = map_workflow(shards, of_shard, partial=True, node_id="reports")
summed = sum_all.node()(from_node(reports))
nightly = app.workflow("nightly", [shards, reports, summed], output=summed)


def main() -> None:
    run = nightly.start()
    report = run.get(timeout_ms=60_000).unwrap()
    print(f"total {report.total}")
    for line in report.failed:
        print(f"failed: {line}")
    print(f"account 8 of south: {run.result_for('reports/item[1]/read_balance/item[7]').ok}")
    app.close()


if __name__ == "__main__":
    main()
