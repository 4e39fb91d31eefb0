# pyright: strict
"""Edges of workflows are typed: a node's result where it is used, a run's output, the items of a map."""

from typing import assert_type

from horsies import (
    MapNode,
    NodeKey,
    OnError,
    OutputlessWorkflow,
    SubWorkflowNode,
    SubWorkflowSummary,
    TaskError,
    TaskNode,
    TaskResult,
    TerminalResults,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowNodeInfo,
    WorkflowNodeResult,
    WorkflowSpec,
    from_node,
    result_from,
)
from tests.typing.tasks import app


@app.task("pages")
def pages(site: str) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[site])


@app.task("words")
def words(page: str, *, least: int = 1) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(page) * least)


@app.task("total")
def total_of(numbers: list[int]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(numbers))


@app.task("verdict")
async def verdict(result: TaskResult[int, TaskError], ctx: WorkflowContext | None = None) -> TaskResult[str, TaskError]:
    return TaskResult(ok="good" if result.is_ok() and ctx else "bad")


found = pages.node(node_id="found")("example.org")
assert_type(found, TaskNode[list[str]])
assert_type(from_node(found), list[str])
assert_type(result_from(found), TaskResult[list[str], TaskError])
assert_type(found.key, NodeKey[list[str]])

counted = words.node().map(found, least=2)
assert_type(counted, MapNode[str, list[int]])
summed = total_of.node()(from_node(counted))
assert_type(summed, TaskNode[int])
judged = verdict.node(workflow_ctx_from=[found])(result_from(summed))
assert_type(judged, TaskNode[str])

pages.node()(from_node(summed))  # type: ignore[arg-type]
verdict.node()(from_node(summed))  # type: ignore[arg-type]
words.node().map(summed)  # type: ignore[arg-type]
words.node()()  # type: ignore[call-arg]

spec = app.workflow("counting", [found, counted, summed, judged], output=summed)
assert_type(spec, WorkflowSpec[int])
assert_type(spec.start(), WorkflowHandle[int])
assert_type(spec.start().get(), TaskResult[int, TaskError])
assert_type(spec.start().result_for(judged), TaskResult[str, TaskError])
without = app.workflow("without output", [found])
assert_type(without, OutputlessWorkflow)
assert_type(without.node(), SubWorkflowNode[None])
assert_type(without.start(), WorkflowHandle[TerminalResults])
assert_type(app.workflow_handle("id", without).get(), TaskResult[TerminalResults, TaskError])
in_class: WorkflowSpec[None] = without
assert_type(spec.node(), SubWorkflowNode[int])
assert_type(app.workflow_handle("id", spec), WorkflowHandle[int])


class Counting(WorkflowDefinition[int], app=app, name="counting words"):
    @classmethod
    def build_with(cls, site: str) -> WorkflowSpec[int]:
        first = pages.node()(site)
        many = words.node().map(first)
        last = total_of.node()(from_node(many))
        return cls.workflow([first, many, last], output=last)


class Named(WorkflowDefinition[int], app=app):
    name = "named by an attribute"
    first = pages.node()("example.org")
    last = total_of.node()(from_node(words.node().map(first)))

    class Meta:
        output = None
        on_error = "pause"


assert_type(Named.build(), WorkflowSpec[int])
inner = Counting.build_with("example.org").node()
assert_type(inner, SubWorkflowNode[int])
assert_type(verdict.node()(result_from(inner)), TaskNode[str])
Counting.build_with(from_node(summed))  # type: ignore[arg-type]


async def look(context: WorkflowContext) -> None:
    assert_type(context.result_for(found.key), TaskResult[list[str], TaskError])
    assert_type(context.result_for(found), TaskResult[list[str], TaskError])
    assert_type(context.result_for(inner), TaskResult[int, TaskError])
    handle = await spec.start_async()
    assert_type(await handle.get_async(), TaskResult[int, TaskError])


inner = spec.node()
app.workflow("around", [inner], on_error=OnError.PAUSE)
app.workflow("around", [inner], on_error="stop")  # type: ignore[call-overload]


@app.task(task_name="summarize", exception_mapper={OSError: "IO"}, default_unhandled_error_code="ODD")
def summarize(ctx: WorkflowContext, earlier: TaskResult[int, TaskError] | None = None) -> TaskResult[int, TaskError]:
    assert_type(ctx.has_result(inner), bool)
    assert_type(ctx.summary_for(inner), SubWorkflowSummary[int])
    assert_type(ctx.summary_for(inner).output, int | None)
    return earlier or TaskResult(ok=0)


summarize.node(workflow_ctx_from=[inner], args_from={"earlier": inner})
app.task(task_name="summarize", exception_mapper={"OSError": "IO"})  # type: ignore[dict-item]
app.task(task_name="summarize", unknown=1)  # type: ignore[call-overload]


def nodes_of(handle: WorkflowHandle[int]) -> None:
    assert_type(handle.tasks(), list[WorkflowNodeInfo])
    assert_type(handle.tasks(include_results=True), list[WorkflowNodeResult])
    _ = handle.tasks()[0].result  # type: ignore[attr-defined]
