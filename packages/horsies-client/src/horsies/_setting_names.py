"""What to write instead of settings of other task queues and of the original horsies (0.x). Loaded for unknown ones."""

from typing import Final

_NOTHING: Final = "leave it out: there is no such setting"
_BROKER: Final = "write AppConfig(PostgresConfig(url)): the database is broker and result backend"
_BEAT: Final = 'write schedule=ScheduleConfig([TaskSchedule("nightly", "task_name", Daily("02:30"))])'
_QUEUES: Final = 'write queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig("mail")]'
_ROUTES: Final = '@app.task("name", queue_name="mail") says the queue of a task'
_JSON: Final = "leave it out: values are JSON by the declared types; payload_codec= encrypts or compresses them"
_CRASHES: Final = "write RetryPolicy.crashes(3) as retry_policy= of each task that may run twice"
_TIMEOUT: Final = "write timeout_ms= of each task, in milliseconds"
_IMPORTS: Final = "import the modules that define tasks in the module of the app"
_ZONE: Final = "write TaskSchedule(timezone=...): it belongs to each schedule"
_EAGER: Final = "write `with testing.inline(app):` in tests"
_KEEP: Final = "write recovery=RecoveryConfig(terminal_record_retention_hours=...), or keep_for= of a task"
_RATE: Final = 'write limits=[Limit("bank", rate=Rate(100, 60))], and CustomQueueConfig(limits=["bank"])'
_POOL: Final = "write pool_min_size= and pool_max_size="
_DIRECT: Final = "write pooler=True, and direct_url= for what needs a session: listening and locks"
_DRIVER: Final = "leave it out: dead connections are found and replaced"

_OF_CELERY: Final[dict[str, str]] = {
    "broker_url": _BROKER, "result_backend": _BROKER, "backend": _BROKER, "broker_transport_options": _BROKER,
    "beat_schedule": _BEAT, "cron_jobs": _BEAT, "task_queues": _QUEUES, "task_create_missing_queues": _QUEUES,
    "task_routes": _ROUTES, "task_default_queue": _ROUTES, "task_annotations": "write the options at each @app.task",
    "task_serializer": _JSON, "result_serializer": _JSON, "accept_content": _JSON, "task_compression": _JSON,
    "task_acks_late": _CRASHES, "task_reject_on_worker_lost": _CRASHES,
    "task_time_limit": _TIMEOUT, "task_soft_time_limit": _TIMEOUT,
    "include": _IMPORTS, "imports": _IMPORTS, "timezone": _ZONE, "enable_utc": _ZONE,
    "task_always_eager": _EAGER, "task_eager_propagates": _EAGER,
    "result_expires": _KEEP, "task_default_rate_limit": _RATE,
    "task_ignore_result": "write store_result=False at each @app.task",
    "task_track_started": "leave it out: a task that runs is RUNNING",
    "task_default_priority": "write priority= of the task, or of its queue: CustomQueueConfig(priority=...)",
    "worker_concurrency": "write `horsies worker module:app --processes N`",
    "worker_max_tasks_per_child": "write `horsies worker module:app --max-tasks-per-child N`",
    "worker_max_memory_per_child": "write `horsies worker module:app --max-memory-per-child-mb N`",
    "worker_prefetch_multiplier": "write prefetch_buffer=, which is 0 unless you set it",
}  # fmt: skip

#: By class: what to write instead of an option that it does not have.
SETTINGS: Final[dict[str, dict[str, str]]] = {
    "AppConfig": _OF_CELERY | {
        "database_url": _BROKER, "retention": _KEEP,
        "payload": "write payload_warn_bytes= and payload_max_bytes=",
        "resend_on_transient_err": "write resilience=ResilienceConfig(send_attempts=...); it is on by default",
        "max_claim_renew_age_ms": _NOTHING,
    },
    "Horsies": _OF_CELERY | {
        "broker": _BROKER, "main": "leave the name out",
        "run_schema_migrations": "write AppConfig(auto_migrate=False); only workers change tables",
    },
    "PostgresConfig": {
        **dict.fromkeys(("pool_size", "max_overflow"), _POOL),
        **dict.fromkeys(
            ("worker_pool_size", "worker_max_overflow", "worker_child_pool_min_size", "worker_child_pool_max_size"),
            "leave it out: a worker needs few connections, and its children open theirs when a task sends",
        ),
        "session_database_url": _DIRECT, "pgbouncer_transaction_mode": _DIRECT,
        **dict.fromkeys(
            ("pool_pre_ping", "pool_recycle", "worker_child_pool_check", "tcp_keepalives", "tcp_keepalives_idle",
             "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout_ms"), _DRIVER,
        ),
        "pool_timeout": "write connect_timeout_ms= and command_timeout_ms=",
        "retain_rerun_input_default": "leave it out: an ended task has its arguments until it is pruned",
        "echo": "leave it out: log_statement of PostgreSQL shows statements",
    },
    "RecoveryConfig": {
        "worker_state_snapshot_interval_ms": "write worker_state_interval_ms=",
        **dict.fromkeys(
            ("auto_terminate_orphaned_workflow_tasks", "orphan_task_audit_interval_ms",
             "phase2_quarantine_after_attempts"), "leave it out: workflows are repaired by themselves",
        ),
    },
    "ResilienceConfig": {
        "db_retry_initial_ms": "write reconnect_initial_ms=", "db_retry_max_ms": "write reconnect_max_ms=",
        "db_retry_max_attempts": "leave it out: a worker tries on until its database is back",
    },
    "ScheduleConfig": {
        "enabled": "start no scheduler, or write TaskSchedule(enabled=False)",
        "check_interval_seconds": "leave it out: the scheduler wakes up when the next slot is due",
    },
    "TaskSchedule": {
        "task": "write task_name=", "schedule": "write pattern=", "cron": 'write pattern=Cron("...")',
        "crontab": 'write pattern=Cron("...")', "interval": "write pattern=Interval(seconds=...)",
        "options": "write queue_name=; the others are options of the task", "queue": "write queue_name=",
        "relative": "leave it out: slots are multiples of the clock",
    },
    "Cron": dict.fromkeys(
        ("minute", "hour", "day_of_week", "day_of_month", "month_of_year", "day", "month"),
        'write one text: Cron("30 2 * * mon-fri") has minute, hour, day of month, month and day of week',
    ),
    "RetryPolicy": {
        "backoff_strategy": "use RetryPolicy.fixed, .intervals or .exponential",
        "intervals": "use RetryPolicy.intervals([60, 300], auto_retry_for=[...])",
        "max_delay_seconds": "use RetryPolicy.exponential(5, max_retries=4, cap_seconds=60, auto_retry_for=[...])",
    },
}  # fmt: skip
