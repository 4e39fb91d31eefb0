"""The names that the original horsies exported, in any of its versions 0.1.0a1 to 0.5.4, and a part of its tables."""

from typing import Final

NAMES: Final = [
    "AnyNode", "AppConfig", "BothDays", "BrokerErrorCode", "BrokerOperationError", "BrokerResult",
    "BuiltInTaskCode", "ByMonthDay", "ByWeekday", "ChildProcessStartHook", "ContractCode", "CronEnumRange",
    "CronEnumStep", "CronEnumValues", "CronEvery", "CronRange", "CronSchedule", "CronStep", "CronValues",
    "CustomQueueConfig", "DailySchedule", "DatabasePing", "DaySelector", "EitherDay", "Err", "ErrorCode",
    "EveryDay", "ExceptionMapper", "HandleErrorCode", "HandleOperationError", "HandleResult", "Horsies",
    "HourlySchedule", "IntervalSchedule", "JsonValue", "LibraryErrorCode", "Month", "MonthlySchedule",
    "MultipleValidationErrors", "NodeKey", "NotEligibleReason", "Ok", "OnError", "OperationalErrorCode",
    "OutcomeCode", "PayloadPolicy", "PostgresConfig", "QueueMode", "RecoveryConfig", "RerunEnqueuePolicy",
    "RerunEnqueued", "RerunInputCorrupt", "RerunInputUnavailable", "RerunKeyConflict", "RerunKeyReplay",
    "RerunNotEligible", "RerunOutcome", "RerunSourceAbsent", "RerunSourceLive", "RerunTask", "Result",
    "RetentionChoice", "RetentionClassConfig", "RetentionConfig", "RetrievalCode", "RetryPolicy", "ScheduleConfig",
    "SchedulePattern", "StrictJsonError", "SubWorkflowError", "SubWorkflowNode", "SubWorkflowRetryMode",
    "SubWorkflowSummary", "SuccessCase", "SuccessPolicy", "TASK_TERMINAL_STATES", "TaskAttemptInfo",
    "TaskAttemptOutcome", "TaskError", "TaskHandle", "TaskInfo", "TaskNode", "TaskResult", "TaskSchedule",
    "TaskSendError", "TaskSendErrorCode", "TaskSendOptions", "TaskSendPayload", "TaskSendResult", "TaskStatus",
    "ValidationReport", "WORKFLOW_TASK_TERMINAL_STATES", "WORKFLOW_TERMINAL_STATES", "Weekday", "WeeklySchedule",
    "WorkerPong", "WorkerResilienceConfig", "WorkerStateSnapshot", "WorkflowContext",
    "WorkflowContextMissingIdError", "WorkflowDefinition", "WorkflowHandle", "WorkflowHandleMissingIdError",
    "WorkflowMeta", "WorkflowSpec", "WorkflowStartError", "WorkflowStartErrorCode", "WorkflowStartResult",
    "WorkflowStatus", "WorkflowTaskInfo", "WorkflowTaskStatus", "WorkflowValidationError", "__version__",
    "from_node", "is_err", "is_ok", "pause_workflow", "pause_workflow_sync", "rerun_task", "resume_workflow",
    "resume_workflow_sync", "slugify", "start_workflow", "start_workflow_async",
]  # fmt: skip

TABLES: Final = """
    CREATE TABLE horsies_tasks (
        id varchar(36) PRIMARY KEY, task_name varchar(255) NOT NULL, queue_name varchar(100) NOT NULL, priority int,
        args text, kwargs text, status varchar(20) NOT NULL, enqueue_sha varchar(64) NOT NULL, sent_at timestamptz
    );
    CREATE TABLE horsies_task_attempts (
        id bigserial PRIMARY KEY, task_id varchar(36) REFERENCES horsies_tasks (id) ON DELETE CASCADE, attempt int
    );
    CREATE TABLE horsies_heartbeats (id serial PRIMARY KEY, task_id varchar(36), role varchar(20), sent_at timestamptz);
    CREATE TABLE horsies_worker_states (id serial PRIMARY KEY, worker_id varchar(255), snapshot_at timestamptz);
    CREATE TABLE horsies_schedule_state (schedule_name varchar(255) PRIMARY KEY, next_run_at timestamptz);
    CREATE TABLE horsies_workflows (id varchar(36) PRIMARY KEY, name varchar(255), status varchar(50));
    CREATE TABLE horsies_workflow_tasks (id varchar(36) PRIMARY KEY, workflow_id varchar(36), task_index int);
    INSERT INTO horsies_tasks VALUES ('an-old-task', 'charge', 'default', 1, NULL, NULL, 'PENDING', 'sha', now());
"""
"""Tables by which a database that 0.x uses is recognized; the real ones have more columns."""
