"""What `from horsies import ...` promises. A name that changes here changes for every user: add with care, remove
only with a major release."""

import ast
import importlib
from pathlib import Path

import pytest

import horsies

PUBLIC = [
    "Cron", "Daily", "Hourly", "Interval", "Monthly", "Overlap", "ScheduleConfig", "ScheduleInfo", "SkippedTime",
    "TaskSchedule", "Weekday", "Weekly",
    "AppConfig", "AsyncTaskFunction", "AttemptOutcome", "BrokerError", "CancelResult", "ConfigurationError",
    "ContractCode", "CustomQueueConfig", "ExpiredTask", "Finding", "Heartbeat", "Horsies", "HorsiesError", "Jitter",
    "MapNode", "NODE_TERMINAL_STATES", "NodeKey", "NodeStatus", "OperationalErrorCode", "OutcomeCode",
    "PostgresBroker", "PostgresConfig", "QueueMode", "QueueStatus", "RecoveryConfig", "ResilienceConfig",
    "RetrievalCode", "RetryPolicy", "RetryResult", "SchemaError", "SendErrorCode", "Severity", "StaleTask",
    "SubWorkflowNode", "SuccessCase", "SuccessPolicy", "TASK_TERMINAL_STATES", "TaskAttempt", "TaskCall",
    "TaskContext", "TaskCursor", "TaskDefinitionError", "TaskDetail", "TaskError", "TaskFailed", "TaskFilter",
    "TaskFunction", "TaskHandle", "TaskInfo", "TaskNode", "TaskPage", "TaskResult", "TaskSendError", "TaskState",
    "TaskStatus", "TaskStopped", "TaskStub", "TaskSummary", "UsageError", "WORKFLOW_TERMINAL_STATES", "WorkerLiveness",
    "WorkerStats", "WorkerStatus", "WorkflowContext", "WorkflowDefinition", "WorkflowDefinitionError",
    "WorkflowHandle", "WorkflowInfo", "WorkflowMeta", "WorkflowNodeInfo", "WorkflowSpec", "WorkflowStatus",
    "as_completed", "as_completed_async", "current_task", "from_node", "gather", "gather_async", "result_from",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(horsies.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_and_comes_from_its_home(name: str) -> None:
    value = getattr(horsies, name)
    home = importlib.import_module(f"horsies.{horsies._HOME_OF[name]}")
    assert getattr(home, name) is value
    assert name in dir(horsies)


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    """The imports under TYPE_CHECKING are written by hand beside the table that serves them at run time."""
    tree = ast.parse(Path(horsies.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        alias.name: statement.module
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name  # the form that re-exports
    }
    assert seen == {name: f"horsies.{module}" for name, module in horsies._HOME_OF.items()}


def test_star_import_gives_all_of_them() -> None:
    namespace: dict[str, object] = {}
    exec("from horsies import *", namespace)
    assert set(PUBLIC) <= namespace.keys()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'horsies' has no attribute 'Celery'"):
        horsies.Celery  # noqa: B018
