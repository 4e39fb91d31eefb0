"""What to use instead of names of the original horsies (0.x) and of other task queues, which do not exist here.
Loaded for unknown names only."""

from typing import Final

_SENDS: Final = "send() and start() return the handle, and raise TaskSendError"
_HANDLES: Final = "methods of handles return their value, and raise BrokerError or UsageError"
_BROKER: Final = "methods of the broker return their value, and raise BrokerError"
_CRON: Final = 'a pattern of cron is one text: Cron("30 2 * * 1-5")'
_RETRY: Final = "operators retry ended tasks with the same id: broker.retry(...), or `horsies tasks retry`"
_WORKERS: Final = "broker.get_worker_stats() and `horsies workers`"
_KEEP: Final = "RecoveryConfig has the retention of ended tasks, and @app.task(keep_for=) that of one task"

GONE: Final[dict[str, str]] = {
    "Result": _SENDS, "Ok": _SENDS, "Err": _SENDS, "is_ok": _SENDS, "is_err": _SENDS,
    "TaskSendResult": _SENDS, "TaskSendPayload": f"{_SENDS}, whose retry() sends the same tasks again",
    "TaskSendErrorCode": f"SendErrorCode; {_SENDS}",
    "TaskSendOptions": "task.with_options(...) returns a sender that has no name of its own",
    "WorkflowStartError": _SENDS, "WorkflowStartErrorCode": f"SendErrorCode; {_SENDS}", "WorkflowStartResult": _SENDS,
    "HandleErrorCode": _HANDLES, "HandleOperationError": _HANDLES, "HandleResult": _HANDLES,
    "BrokerErrorCode": _BROKER, "BrokerOperationError": f"BrokerError; {_BROKER}", "BrokerResult": _BROKER,
    "start_workflow": "workflow.start()", "start_workflow_async": "await workflow.start_async()",
    "pause_workflow": "await app.workflow_handle(workflow_id).pause_async()",
    "pause_workflow_sync": "app.workflow_handle(workflow_id).pause()",
    "resume_workflow": "await app.workflow_handle(workflow_id).resume_async()",
    "resume_workflow_sync": "app.workflow_handle(workflow_id).resume()",
    "SubWorkflowError": "an err with the code SUBWORKFLOW_FAILED, and WorkflowContext.summary_for(node)",
    "SubWorkflowRetryMode": "nothing: retry a run by its handle",
    "WorkflowTaskInfo": "WorkflowNodeInfo, or WorkflowNodeResult of handle.tasks(include_results=True)",
    "WorkflowContextMissingIdError": "nothing: a node has its id when its workflow is defined",
    "WorkflowHandleMissingIdError": "nothing: a node has its id when its workflow is defined",
    "slugify": "nothing: names of workflows and nodes may have any printable character",
    "TaskAttemptInfo": "TaskAttempt, from handle.attempts()",
    "LibraryErrorCode": "OperationalErrorCode, ContractCode, RetrievalCode and OutcomeCode",
    "ErrorCode": "the message of ConfigurationError, TaskDefinitionError or WorkflowDefinitionError",
    "ValidationReport": "the problems of ConfigurationError: error.problems",
    "MultipleValidationErrors": "ConfigurationError, which has all problems: error.problems",
    "WorkerResilienceConfig": "ResilienceConfig: reconnect_initial_ms, reconnect_max_ms, notify_poll_interval_ms",
    "IntervalSchedule": "Interval(seconds=..., minutes=...)", "HourlySchedule": "Hourly(minute, second)",
    "DailySchedule": 'Daily("03:30"), or Daily(time(3, 30))',
    "WeeklySchedule": 'Weekly(["monday"], "08:00")', "MonthlySchedule": 'Monthly(1, "08:00")',
    "CronSchedule": _CRON, "CronEvery": _CRON, "CronStep": _CRON, "CronValues": _CRON, "CronRange": _CRON,
    "CronEnumValues": _CRON, "CronEnumRange": _CRON, "CronEnumStep": _CRON, "DaySelector": _CRON, "EveryDay": _CRON,
    "ByMonthDay": _CRON, "ByWeekday": _CRON, "EitherDay": _CRON, "BothDays": _CRON, "Month": _CRON,
    "ChildProcessStartHook": "@app.on_child_start takes a function without parameters; @app.lifespan opens and closes",
    "PayloadPolicy": "AppConfig(payload_warn_bytes=, payload_max_bytes=)",
    "RetentionConfig": _KEEP, "RetentionClassConfig": _KEEP, "RetentionChoice": _KEEP,
    "DatabasePing": "`horsies doctor`", "WorkerPong": _WORKERS, "WorkerStateSnapshot": _WORKERS,
    "rerun_task": _RETRY, "RerunTask": _RETRY, "RerunEnqueuePolicy": _RETRY, "RerunOutcome": _RETRY,
    "RerunEnqueued": _RETRY, "RerunSourceLive": _RETRY, "RerunSourceAbsent": _RETRY, "RerunNotEligible": _RETRY,
    "RerunInputUnavailable": _RETRY, "RerunInputCorrupt": _RETRY, "RerunKeyConflict": _RETRY,
    "RerunKeyReplay": _RETRY, "NotEligibleReason": _RETRY,
    "JsonValue": "pydantic.JsonValue", "StrictJsonError": "TaskSendError with the code VALIDATION_FAILED",
}  # fmt: skip

_APP: Final = "app = Horsies(AppConfig(PostgresConfig(url)))"
_TASK: Final = '@app.task("name")'
_GRAPH: Final = "app.workflow(name, nodes), with nodes like task.node()(...)"
_ENDS: Final = "nothing: a task returns ok, err or snooze(...)"
_STOPPED: Final = "TaskStopped"
_EVENTS: Final = "app.on_event(...), or a Middleware"
_LIMIT: Final = "AppConfig(limits=[Limit(...)]), or GroupPolicy"

#: Names of Celery, Dramatiq, RQ, procrastinate and others that could be imported from their package.
FOREIGN: Final[dict[str, str]] = {
    "Celery": _APP, "App": _APP, "Broker": _APP, "current_app": "the app itself, imported from its module",
    "shared_task": f"{_TASK}, on an app that both import", "task": _TASK, "actor": _TASK, "job": _TASK, "Task": _TASK,
    "chain": f"{_GRAPH}; from_node(a) is the value of a", "pipeline": f"{_GRAPH}; from_node(a) is the value of a",
    "chord": f"{_GRAPH}, .map(list_node) and a node that takes the list; or app.batch(calls, then=task.call())",
    "group": "task.send_many([task.call(...), ...]), and gather(handles)", "Group": "app.batch(calls)",
    "signature": "task.node()(...) in a workflow, or task.call(...) for send_many",
    "subtask": "task.node()(...) in a workflow, or task.call(...) for send_many",
    "xmap": "task.send_many([...])", "starmap": "task.send_many([...])", "chunks": "task.send_many([...])",
    "maybe_signature": _GRAPH, "AsyncResult": "app.handle(task_id, task)", "ResultSet": "gather(handles)",
    "GroupResult": "app.batch_handle(batch_id)", "EagerResult": "with testing.inline(app), of horsies.testing",
    "crontab": 'Cron("30 2 * * mon-fri")', "solar": "nothing: send with with_options(eta=...)",
    "SoftTimeLimitExceeded": _STOPPED, "TimeLimitExceeded": _STOPPED, "TimeLimit": _STOPPED, "Abort": _STOPPED,
    "Shutdown": _STOPPED, "JobTimeoutException": _STOPPED, "Retry": "RetryPolicy", "RetryStrategy": "RetryPolicy",
    "MaxRetriesExceededError": "nothing: handle.get() returns the err of the last attempt",
    "Ignore": _ENDS, "Reject": _ENDS,
    "states": "TaskStatus", "JobStatus": "TaskStatus", "signals": _EVENTS, "task_prerun": "Middleware.scope",
    "task_postrun": "Middleware.scope", "task_success": "Middleware.on_attempt_end", "task_retry": _EVENTS,
    "task_failure": "Middleware.on_attempt_end", "worker_process_init": "@app.lifespan, or @app.on_child_start",
    "worker_ready": "app.on_event(WorkerStarted)", "get_task_logger": "logging.getLogger(__name__)",
    "Queue": "CustomQueueConfig(name)", "Exchange": "CustomQueueConfig(name)", "Worker": "`horsies worker module:app`",
    "get_current_job": "current_task()", "get_current_task": "current_task()", "CurrentMessage": "current_task()",
    "JobContext": "current_task()", "set_broker": _APP, "get_broker": "app.get_broker()",
    "ConcurrentRateLimiter": _LIMIT, "BucketRateLimiter": _LIMIT, "WindowRateLimiter": _LIMIT, "rate_limit": _LIMIT,
}  # fmt: skip
