"""The tables, indexes and triggers that this release needs. A test compares them with a migrated database."""

from typing import Final

TABLES: Final = (
    "horsies_heartbeats", "horsies_limits", "horsies_queue_state", "horsies_rate_limits",
    "horsies_schedule_runs", "horsies_schedule_state", "horsies_schedulers", "horsies_schedules",
    "horsies_task_attempts", "horsies_task_names", "horsies_task_sets", "horsies_tasks",
    "horsies_unique_keys",
    "horsies_worker_instances", "horsies_worker_states", "horsies_workflow_signals", "horsies_workflow_tasks",
    "horsies_workflows",
)  # fmt: skip

HOT_TABLES: Final = ("horsies_tasks", "horsies_heartbeats", "horsies_worker_instances", "horsies_worker_states")
"""Tables with constant writes; dead rows in them slow down every claim."""

INDEXES: Final = (
    "ix_horsies_heartbeats_task",
    "ix_horsies_schedule_state_due", "ix_horsies_schedule_state_requested", "ix_horsies_schedule_state_unplanned",
    "ix_horsies_task_attempts_error_code", "ix_horsies_task_attempts_finished_at",
    "ix_horsies_task_names_missing",
    "ix_horsies_tasks_claim", "ix_horsies_tasks_error_code", "ix_horsies_tasks_good_until",
    "ix_horsies_tasks_grouped", "ix_horsies_tasks_grouped_age", "ix_horsies_tasks_grouped_in_flight",
    "ix_horsies_tasks_in_flight", "ix_horsies_tasks_kept", "ix_horsies_tasks_next_retry_at",
    "ix_horsies_tasks_terminal_at", "ix_horsies_tasks_unsuccessful", "ix_horsies_tasks_withdrawn",
    "ix_horsies_unique_keys_task_id", "ix_horsies_unique_keys_until",
    "ix_horsies_worker_instances_open", "ix_horsies_worker_states_worker",
    "ix_horsies_workflow_signals_name", "ix_horsies_workflow_signals_new",
    "ix_horsies_workflow_tasks_compensate", "ix_horsies_workflow_tasks_live", "ix_horsies_workflow_tasks_open",
    "ix_horsies_workflow_tasks_signal",
    "ix_horsies_workflow_tasks_sub_workflow_id", "ix_horsies_workflow_tasks_waiting",
    "ix_horsies_workflows_completed_at", "ix_horsies_workflows_finishing", "ix_horsies_workflows_live",
    "ix_horsies_workflows_parent_workflow_id", "ix_horsies_workflows_unsettled", "ix_horsies_workflows_wake_at",
    "pk_horsies_heartbeats", "pk_horsies_limits",
    "pk_horsies_queue_state", "pk_horsies_rate_limits",
    "pk_horsies_schedule_runs", "pk_horsies_schedule_state", "pk_horsies_schedulers", "pk_horsies_schedules",
    "pk_horsies_task_attempts", "pk_horsies_task_names",
    "pk_horsies_task_sets", "pk_horsies_tasks", "pk_horsies_unique_keys", "pk_horsies_worker_instances",
    "pk_horsies_worker_states", "pk_horsies_workflow_signals", "pk_horsies_workflow_tasks", "pk_horsies_workflows",
    "uq_horsies_task_attempts_task_id_attempt", "uq_horsies_tasks_unique_key",
    "uq_horsies_workflow_signals_consumed_by",
    "uq_horsies_workflow_tasks_compensates", "uq_horsies_workflow_tasks_task_id",
    "uq_horsies_workflow_tasks_workflow_id_node_id", "uq_horsies_workflow_tasks_workflow_id_task_index",
    "uq_horsies_workflows_unique_key",
)  # fmt: skip

TRIGGERS: Final = (
    "horsies_schedule_notify_trigger",
    "horsies_schedule_state_trigger",
    "horsies_schedule_version_trigger",
    "horsies_task_notify_trigger",
    "horsies_task_notify_update_trigger",
    "horsies_workflow_notify_trigger",
)
