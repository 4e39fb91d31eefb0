"""What `from horsies import ...` promises. A name that changes here changes for every user: add with care, remove
only with a major release."""

import ast
import difflib
import importlib
from pathlib import Path

import pytest

import horsies
from scripts.api.__main__ import FILE, snapshot
from scripts.deprecations import deprecations, overdue

PUBLIC = [
    "Cron", "Daily", "Hourly", "Interval", "Monthly", "Overlap", "ScheduleConfig", "ScheduleInfo", "SkippedTime",
    "TaskSchedule", "Weekday", "Weekly",
    "AsyncBatchTaskFunction", "BatchCall", "BatchTaskFunction", "current_call",
    "AttemptEnd", "Lifespan", "Middleware", "Outgoing",
    "AppConfig", "AsyncTaskFunction", "AttemptOutcome", "BatchHandle", "BatchProgress", "BatchSummary",
    "BrokerError", "CancelResult", "ClaimLostError", "ConfigurationError",
    "Continue", "ContractCode", "CustomQueueConfig", "ExpiredTask", "Finding", "GroupPolicy", "Heartbeat", "Horsies",
    "HorsiesError", "Jitter", "Limit", "MapNode", "MapWorkflowNode",
    "NODE_TERMINAL_STATES", "NodeKey", "NodeStatus",
    "OperationalErrorCode", "OutcomeCode",
    "PayloadCodec", "PayloadContext", "PayloadError",
    "PostgresBroker", "PostgresConfig", "QueueMode", "QueueStatus", "Rate", "RecoveryConfig", "ResilienceConfig",
    "RetrievalCode", "RetryPolicy", "RetryResult", "ScheduleRun", "SchemaError", "SendErrorCode", "Severity",
    "SignalError", "SignalNode",
    "SignalReceipt", "SleepNode", "StaleTask", "StoredSchedule",
    "SubWorkflowNode", "SuccessCase", "SuccessPolicy", "TASK_TERMINAL_STATES", "TaskAttempt", "TaskCall",
    "TaskContext", "TaskCursor", "TaskDefinitionError", "TaskDetail", "TaskError", "TaskFailed", "TaskFilter",
    "TaskFunction", "TaskHandle", "TaskInfo", "TaskNode", "TaskPage", "TaskResult", "TaskSendError", "TaskState",
    "TaskStatus", "TaskStopped", "TaskStub", "TaskSummary", "UsageError", "WORKFLOW_TERMINAL_STATES", "WorkerLiveness",
    "WorkerStats", "WorkerStatus", "WorkflowContext", "WorkflowDefinition", "WorkflowDefinitionError",
    "WorkflowHandle", "WorkflowInfo", "WorkflowMeta", "WorkflowNodeInfo", "WorkflowSpec", "WorkflowStatus",
    "as_completed", "as_completed_async", "crash_point", "current_task", "either", "from_node", "gather",
    "gather_async", "map_workflow", "result_from", "sleep", "snooze", "wait_for_signal",
    "HorsiesDeprecationWarning",
    "ExceptionMapper", "OnError", "OutputlessWorkflow", "SubWorkflowSummary", "TerminalResults", "WorkflowNodeResult",
    # names of horsies 0.x (horsies/former_names.py)
    "AnyNode", "BuiltInTaskCode", "SchedulePattern", "TaskAttemptOutcome", "WORKFLOW_TASK_TERMINAL_STATES",
    "WorkflowTaskStatus", "WorkflowValidationError",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(horsies.__all__) == sorted(PUBLIC)


def test_signatures_options_and_codes_are_those_of_the_snapshot() -> None:
    """A difference is a change for users: `just api` writes it down, and SemVer says which release may have it."""
    changes = [
        line
        for line in difflib.unified_diff(
            FILE.read_text().splitlines(), snapshot().splitlines(), "committed", "now", n=0
        )
        if not line.startswith("@@")
    ]
    assert not changes, "run `just api` and commit the difference:\n" + "\n".join(changes[:40])


def test_the_snapshot_tells_of_signatures_options_codes_metrics_and_functions() -> None:
    lines = FILE.read_text().splitlines()
    for line in (
        "horsies.TaskHandle.get(self, timeout_ms: int | None=None) -> TaskResult[T_co, TaskError]",
        "horsies.OutcomeCode.TASK_TIMEOUT = 'TASK_TIMEOUT'",
        "horsies.BuiltInTaskCode = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode",
        "horsies.events.WorkerStarted: class(Event)",
        "horsies tasks list --queue NAME  (repeatable)",
        "horsies worker, scheduler, exporter: 4 SCHEMA",
        "exporter: horsies_queue_ready_tasks{queue}",
    ):
        assert line in lines
    assert any(line.startswith("CREATE FUNCTION public.horsies_send(task_name text,") for line in lines)


def test_no_deprecated_name_has_outlived_its_promise() -> None:
    packages = Path(__file__).parents[2] / "packages"
    assert overdue(packages, horsies.__version__) == []
    assert all(one.since <= horsies.__version__ for one in deprecations(packages))


def test_the_names_of_the_testing_kit_are_these() -> None:
    kit = importlib.import_module("horsies.testing")
    assert set(kit.__all__) == {
        "Attempt", "Crash", "DrainReport", "OneTask", "Sends", "SentSignal", "SentTask", "StartedWorkflow",
        "TestDatabase", "crash_at", "crash_point", "inline", "real", "recorded", "run", "run_as", "run_async",
    }  # fmt: skip


def seen_by_type_checkers() -> dict[str, str]:
    """Each name that is imported under TYPE_CHECKING, with its module. These imports are written by hand, beside the
    table that serves the names at run time."""
    tree = ast.parse(Path(horsies.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: str(statement.module)
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name  # the form that re-exports
    }


def test_type_checkers_see_the_public_names() -> None:
    assert seen_by_type_checkers().keys() == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_what_type_checkers_take_it_for(name: str) -> None:
    home = importlib.import_module(seen_by_type_checkers()[name])
    assert getattr(home, name) is getattr(horsies, name)
    assert name in dir(horsies)


def test_star_import_gives_all_of_them() -> None:
    namespace: dict[str, object] = {}
    exec("from horsies import *", namespace)
    assert set(PUBLIC) <= namespace.keys()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="horsies has no 'Celery'; use instead: app = "):
        horsies.Celery  # noqa: B018
    with pytest.raises(AttributeError, match="module 'horsies' has no attribute 'nothing'"):
        horsies.nothing  # noqa: B018
