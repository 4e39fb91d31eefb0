"""An order that waits for a person. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker order_approval:app
    HORSIES_DATABASE_URL=postgresql://... python order_approval.py

A small order is charged at once. A large one waits for the signal `approval`: charged on yes, refused on no, and
refused when no answer has come in time. Nothing runs while it waits. The last node takes the value of the branch that
was taken.
"""

import os
from datetime import timedelta

from horsies import (
    AppConfig,
    Horsies,
    OutcomeCode,
    PostgresConfig,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
    either,
    result_from,
    wait_for_signal,
)

PATIENCE = timedelta(seconds=float(os.environ.get("PATIENCE_S", "259200")))  # three days
app = Horsies(AppConfig(PostgresConfig()))


@app.task("is_large")
def is_large(amount: int) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=amount > 100)


@app.task("judge")
def judge(answer: TaskResult[bool, TaskError]) -> TaskResult[bool, TaskError]:
    if answer.is_ok():
        return TaskResult(ok=answer.ok_value)
    if answer.err_value.error_code == OutcomeCode.SIGNAL_TIMEOUT:
        return TaskResult(ok=False)  # silence is no
    return TaskResult(err=TaskError("NO_ANSWER", answer.err_value.message))


@app.task("charge")
def charge(number: int, amount: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"order {number}: {amount} charged")


@app.task("refuse")
def refuse(number: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"order {number}: refused")


@app.task("tell")
def tell(told: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=told)


class Order(WorkflowDefinition[str], app=app, name="order"):
    check_with = ({"number": 1, "amount": 500},)

    @classmethod
    def build_with(cls, number: int, amount: int) -> WorkflowSpec[str]:
        large = is_large.node(node_id="large")(amount)
        at_once = charge.node(node_id="at_once", unless=large)(number, amount)
        approval = wait_for_signal("approval", bool, timeout=PATIENCE, when=large)
        approved = judge.node(node_id="approved", allow_failed_deps=True)(result_from(approval))
        charged = charge.node(node_id="charged", when=approved)(number, amount)
        refused = refuse.node(node_id="refused", unless=approved)(number)
        told = tell.node()(either(at_once, charged, refused))
        nodes = [large, at_once, approval, approved, charged, refused, told]
        # a timeout is a failed node; it is foreseen here, so the run succeeds when it has come to its last node
        return cls.workflow(nodes, output=told, success_policy=SuccessPolicy([SuccessCase([told])]))


def main() -> None:
    runs = [
        Order.build_with(number, amount).start(unique_key=f"order-{number}", deadline=PATIENCE * 2)
        for number, amount in enumerate([50, 500, 700, 900], start=1)
    ]
    runs[1].signal("approval", True, signal_id="order-2-approved")
    again = runs[1].signal("approval", True, signal_id="order-2-approved")  # a webhook that comes twice
    runs[2].signal("approval", False)
    for run in runs:
        print(run.get(timeout_ms=60_000).unwrap())
    print(f"the second answer was {'delivered' if again.delivered else 'ignored'}")
    app.close()


if __name__ == "__main__":
    main()
