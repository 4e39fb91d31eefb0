"""horsies: a task queue and workflow engine on PostgreSQL. This package is the client: define, send, wait.

    app = Horsies(AppConfig(PostgresConfig("postgresql://...")))

    @app.task("add")
    def add(a: int, b: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a + b)

    add.send(1, 2).get(timeout_ms=5_000)

Names are loaded on first use, so importing this package costs next to nothing.
"""

import sys
from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; importing typing takes 10 ms
if TYPE_CHECKING:
    from typing import Any

    from horsies.app import Horsies as Horsies
    from horsies.batch_tasks import (
        AsyncBatchTaskFunction as AsyncBatchTaskFunction,
        BatchTaskFunction as BatchTaskFunction,
    )
    from horsies.batches.handle import BatchHandle as BatchHandle
    from horsies.config import (
        AppConfig as AppConfig,
        CustomQueueConfig as CustomQueueConfig,
        GroupPolicy as GroupPolicy,
        Limit as Limit,
        PostgresConfig as PostgresConfig,
        QueueMode as QueueMode,
        Rate as Rate,
        RecoveryConfig as RecoveryConfig,
        ResilienceConfig as ResilienceConfig,
    )
    from horsies.context import (
        BatchCall as BatchCall,
        TaskContext as TaskContext,
        TaskStopped as TaskStopped,
        current_call as current_call,
        current_task as current_task,
    )
    from horsies.crash_points import crash_point as crash_point
    from horsies.deprecation import HorsiesDeprecationWarning as HorsiesDeprecationWarning
    from horsies.errors import (
        BrokerError as BrokerError,
        ClaimLostError as ClaimLostError,
        ConfigurationError as ConfigurationError,
        ContractCode as ContractCode,
        HorsiesError as HorsiesError,
        OperationalErrorCode as OperationalErrorCode,
        OutcomeCode as OutcomeCode,
        RetrievalCode as RetrievalCode,
        SchemaError as SchemaError,
        SendErrorCode as SendErrorCode,
        TaskDefinitionError as TaskDefinitionError,
        TaskSendError as TaskSendError,
        UsageError as UsageError,
    )
    from horsies.exception_codes import ExceptionMapper as ExceptionMapper
    from horsies.former_names import (
        WORKFLOW_TASK_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES,
        AnyNode as AnyNode,
        BuiltInTaskCode as BuiltInTaskCode,
        SchedulePattern as SchedulePattern,
        TaskAttemptOutcome as TaskAttemptOutcome,
        WorkflowTaskStatus as WorkflowTaskStatus,
        WorkflowValidationError as WorkflowValidationError,
    )
    from horsies.handle import (
        TaskHandle as TaskHandle,
        as_completed as as_completed,
        as_completed_async as as_completed_async,
        gather as gather,
        gather_async as gather_async,
    )
    from horsies.lifespan import Lifespan as Lifespan
    from horsies.middleware import AttemptEnd as AttemptEnd, Middleware as Middleware, Outgoing as Outgoing
    from horsies.operate.broker import PostgresBroker as PostgresBroker
    from horsies.operate.doctor import Finding as Finding, Severity as Severity
    from horsies.operate.filters import TaskCursor as TaskCursor, TaskFilter as TaskFilter
    from horsies.operate.schedule_views import ScheduleRun as ScheduleRun, StoredSchedule as StoredSchedule
    from horsies.operate.views import (
        ExpiredTask as ExpiredTask,
        Heartbeat as Heartbeat,
        QueueStatus as QueueStatus,
        RetryResult as RetryResult,
        ScheduleInfo as ScheduleInfo,
        StaleTask as StaleTask,
        TaskAttempt as TaskAttempt,
        TaskDetail as TaskDetail,
        TaskInfo as TaskInfo,
        TaskPage as TaskPage,
        TaskState as TaskState,
        TaskSummary as TaskSummary,
        WorkerLiveness as WorkerLiveness,
        WorkerStats as WorkerStats,
        WorkerStatus as WorkerStatus,
    )
    from horsies.payload_codec import (
        PayloadCodec as PayloadCodec,
        PayloadContext as PayloadContext,
        PayloadError as PayloadError,
    )
    from horsies.result import (
        Continue as Continue,
        TaskError as TaskError,
        TaskFailed as TaskFailed,
        TaskResult as TaskResult,
    )
    from horsies.retry import Jitter as Jitter, RetryPolicy as RetryPolicy
    from horsies.schedule import (
        Cron as Cron,
        Daily as Daily,
        Hourly as Hourly,
        Interval as Interval,
        Monthly as Monthly,
        Overlap as Overlap,
        ScheduleConfig as ScheduleConfig,
        SkippedTime as SkippedTime,
        TaskSchedule as TaskSchedule,
        Weekday as Weekday,
        Weekly as Weekly,
    )
    from horsies.snoozing import snooze as snooze
    from horsies.status import (
        NODE_TERMINAL_STATES as NODE_TERMINAL_STATES,
        TASK_TERMINAL_STATES as TASK_TERMINAL_STATES,
        WORKFLOW_TERMINAL_STATES as WORKFLOW_TERMINAL_STATES,
        AttemptOutcome as AttemptOutcome,
        CancelResult as CancelResult,
        NodeStatus as NodeStatus,
        TaskStatus as TaskStatus,
        WorkflowStatus as WorkflowStatus,
    )
    from horsies.tasks import (
        AsyncTaskFunction as AsyncTaskFunction,
        TaskCall as TaskCall,
        TaskFunction as TaskFunction,
        TaskStub as TaskStub,
    )
    from horsies.workflow.batch_reading import BatchProgress as BatchProgress, BatchSummary as BatchSummary
    from horsies.workflow.context import (
        NodeKey as NodeKey,
        WorkflowContext as WorkflowContext,
        WorkflowMeta as WorkflowMeta,
    )
    from horsies.workflow.definition import WorkflowDefinition as WorkflowDefinition
    from horsies.workflow.graph import (
        MapWorkflowNode as MapWorkflowNode,
        OnError as OnError,
        SubWorkflowNode as SubWorkflowNode,
        SuccessCase as SuccessCase,
        SuccessPolicy as SuccessPolicy,
        WorkflowDefinitionError as WorkflowDefinitionError,
    )
    from horsies.workflow.handle import WorkflowHandle as WorkflowHandle
    from horsies.workflow.info import (
        WorkflowInfo as WorkflowInfo,
        WorkflowNodeInfo as WorkflowNodeInfo,
        WorkflowNodeResult as WorkflowNodeResult,
    )
    from horsies.workflow.mapping import map_workflow as map_workflow
    from horsies.workflow.nodes import (
        MapNode as MapNode,
        TaskNode as TaskNode,
        either as either,
        from_node as from_node,
        result_from as result_from,
    )
    from horsies.workflow.outputless import OutputlessWorkflow as OutputlessWorkflow
    from horsies.workflow.signals import SignalError as SignalError, SignalReceipt as SignalReceipt
    from horsies.workflow.spec import WorkflowSpec as WorkflowSpec
    from horsies.workflow.summary import SubWorkflowSummary as SubWorkflowSummary
    from horsies.workflow.terminal import TerminalResults as TerminalResults
    from horsies.workflow.waits import (
        SignalNode as SignalNode,
        SleepNode as SleepNode,
        sleep as sleep,
        wait_for_signal as wait_for_signal,
    )

_HOMES = {
    "app": ("Horsies",),
    "batch_tasks": ("AsyncBatchTaskFunction", "BatchTaskFunction"),
    "batches.handle": ("BatchHandle",),
    "operate.broker": ("PostgresBroker",),
    "config": (
        "AppConfig", "CustomQueueConfig", "GroupPolicy", "Limit", "PostgresConfig", "QueueMode", "Rate",
        "RecoveryConfig", "ResilienceConfig",
    ),
    "context": ("BatchCall", "TaskContext", "TaskStopped", "current_call", "current_task"),
    "errors": (
        "BrokerError", "ClaimLostError", "ConfigurationError", "ContractCode", "HorsiesError", "OperationalErrorCode",
        "OutcomeCode", "RetrievalCode", "SchemaError", "SendErrorCode", "TaskDefinitionError", "TaskSendError",
        "UsageError",
    ),
    "exception_codes": ("ExceptionMapper",),
    "former_names": (
        "WORKFLOW_TASK_TERMINAL_STATES", "AnyNode", "BuiltInTaskCode", "SchedulePattern", "TaskAttemptOutcome",
        "WorkflowTaskStatus", "WorkflowValidationError",
    ),
    "operate.doctor": ("Finding", "Severity"),
    "operate.filters": ("TaskCursor", "TaskFilter"),
    "handle": ("TaskHandle", "as_completed", "as_completed_async", "gather", "gather_async"),
    "operate.schedule_views": ("ScheduleRun", "StoredSchedule"),
    "operate.views": (
        "ExpiredTask", "Heartbeat", "QueueStatus", "RetryResult", "ScheduleInfo", "StaleTask", "TaskAttempt",
        "TaskDetail", "TaskInfo", "TaskPage", "TaskState", "TaskSummary", "WorkerLiveness", "WorkerStats",
        "WorkerStatus",
    ),
    "crash_points": ("crash_point",),
    "deprecation": ("HorsiesDeprecationWarning",),
    "lifespan": ("Lifespan",),
    "middleware": ("AttemptEnd", "Middleware", "Outgoing"),
    "payload_codec": ("PayloadCodec", "PayloadContext", "PayloadError"),
    "result": ("Continue", "TaskError", "TaskFailed", "TaskResult"),
    "retry": ("Jitter", "RetryPolicy"),
    "schedule": (
        "Cron", "Daily", "Hourly", "Interval", "Monthly", "Overlap", "ScheduleConfig", "SkippedTime", "TaskSchedule",
        "Weekday", "Weekly",
    ),
    "snoozing": ("snooze",),
    "status": (
        "NODE_TERMINAL_STATES", "TASK_TERMINAL_STATES", "WORKFLOW_TERMINAL_STATES", "AttemptOutcome", "CancelResult",
        "NodeStatus", "TaskStatus", "WorkflowStatus",
    ),
    "tasks": ("AsyncTaskFunction", "TaskCall", "TaskFunction", "TaskStub"),
    "workflow.batch_reading": ("BatchProgress", "BatchSummary"),
    "workflow.context": ("NodeKey", "WorkflowContext", "WorkflowMeta"),
    "workflow.definition": ("WorkflowDefinition",),
    "workflow.graph": (
        "MapWorkflowNode", "OnError", "SubWorkflowNode", "SuccessCase", "SuccessPolicy", "WorkflowDefinitionError",
    ),
    "workflow.handle": ("WorkflowHandle",),
    "workflow.info": ("WorkflowInfo", "WorkflowNodeInfo", "WorkflowNodeResult"),
    "workflow.mapping": ("map_workflow",),
    "workflow.nodes": ("MapNode", "TaskNode", "either", "from_node", "result_from"),
    "workflow.outputless": ("OutputlessWorkflow",),
    "workflow.signals": ("SignalError", "SignalReceipt"),
    "workflow.spec": ("WorkflowSpec",),
    "workflow.summary": ("SubWorkflowSummary",),
    "workflow.terminal": ("TerminalResults",),
    "workflow.waits": ("SignalNode", "SleepNode", "sleep", "wait_for_signal"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> "Any":
        module = _HOME_OF.get(name)
        if module is None:
            instead = None if name.startswith("_") else _instead_of(name)
            if instead is not None and sys._getframe(1).f_code.co_name == "_handle_fromlist":  # pyright: ignore[reportPrivateUsage]
                # `from horsies import` would replace the message of an AttributeError by its own.
                raise ImportError(instead, name="horsies", path=__file__)
            raise AttributeError(instead or f"module 'horsies' has no attribute {name!r}")
        value = getattr(import_module(f"horsies.{module}"), name)
        globals()[name] = value
        return value


def _instead_of(name: str) -> str | None:
    """What to use instead of a name of horsies 0.x or of another task queue."""
    from horsies._gone_names import FOREIGN, GONE

    if (instead := GONE.get(name)) is not None:
        return f"{name!r} was a name of horsies 0.x; use instead: {instead}"
    if (instead := FOREIGN.get(name)) is not None:
        return f"horsies has no {name!r}; use instead: {instead}"
    return None


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
