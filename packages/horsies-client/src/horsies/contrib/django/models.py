# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Read-only models of the tables that operators look at most. horsies makes these tables itself: Django's migrations
leave them alone."""

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from horsies.status import TaskStatus


def _table(name: str) -> str:
    """The table in the schema of `HORSIES["BROKER"]`. Django quotes the whole name once."""
    given: Any = getattr(settings, "HORSIES", {})
    schema: Any = given.get("BROKER", {}).get("schema") if isinstance(given, dict) else None
    return f'{schema}"."{name}' if schema else name


class HorsiesManager(models.Manager):
    """Reads the database that `HORSIES["DATABASE"]` names."""

    def get_queryset(self) -> Any:
        from horsies.contrib.django.conf import read_conf

        return super().get_queryset().using(read_conf().database)


class Task(models.Model):
    """A task. The actions of the admin change it through horsies, never by `save`."""

    id = models.CharField(primary_key=True, max_length=36)
    task_name = models.CharField(_("task"), max_length=255)
    queue_name = models.CharField(_("queue"), max_length=100)
    priority = models.IntegerField(_("priority"))
    status = models.CharField(_("status"), max_length=20, choices=[(one.value, one.value) for one in TaskStatus])
    args = models.TextField(_("positional arguments"), null=True)
    kwargs = models.TextField(_("arguments"), null=True)
    result = models.TextField(_("result"), null=True)
    error_code = models.TextField(_("error code"), null=True)
    failed_reason = models.TextField(_("reason"), null=True)
    sent_at = models.DateTimeField(_("sent"))
    enqueued_at = models.DateTimeField(_("due"))
    started_at = models.DateTimeField(_("started"), null=True)
    terminal_at = models.DateTimeField(_("ended"), null=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested"), null=True)
    good_until = models.DateTimeField(_("good until"), null=True)
    next_retry_at = models.DateTimeField(_("next retry"), null=True)
    retry_count = models.IntegerField(_("retries"))
    max_retries = models.IntegerField(_("most retries"))
    unique_key = models.CharField(_("unique key"), max_length=255, null=True)
    group_key = models.CharField(_("group"), max_length=255, null=True)
    metadata = models.JSONField(_("metadata"), null=True)
    progress = models.JSONField(_("progress"), null=True)
    claimed_by_worker_id = models.CharField(_("worker"), max_length=255, null=True)
    is_workflow_task = models.BooleanField(_("of a workflow"))

    objects: ClassVar[Any] = HorsiesManager()

    class Meta:
        managed = False
        db_table = _table("horsies_tasks")
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ("view",)
        permissions = (("retry_task", "Can retry tasks"), ("cancel_task", "Can cancel tasks"))

    def __str__(self) -> str:
        return f"{self.task_name} {self.id}"


class Attempt(models.Model):
    """A finished attempt of a task."""

    id = models.BigIntegerField(primary_key=True)
    task = models.ForeignKey(Task, models.DO_NOTHING, related_name="attempts", db_constraint=False)
    attempt = models.IntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=32)
    will_retry = models.BooleanField(_("will be retried"))
    started_at = models.DateTimeField(_("started"))
    finished_at = models.DateTimeField(_("ended"))
    error_code = models.TextField(_("error code"), null=True)
    error_message = models.TextField(_("message"), null=True)
    worker_id = models.CharField(_("worker"), max_length=255, null=True)

    objects: ClassVar[Any] = HorsiesManager()

    class Meta:
        managed = False
        db_table = _table("horsies_task_attempts")
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        ordering = ("attempt",)

    def __str__(self) -> str:
        return f"{self.attempt}: {self.outcome}"


class Schedule(models.Model):
    """The state of a schedule, of the code or made at run time."""

    schedule_name = models.CharField(_("name"), primary_key=True, max_length=255)
    next_run_at = models.DateTimeField(_("next run"), null=True)
    last_run_at = models.DateTimeField(_("last run"), null=True)
    last_task_id = models.CharField(_("last task"), max_length=36, null=True)
    run_count = models.IntegerField(_("runs"))
    paused_at = models.DateTimeField(_("paused"), null=True)
    run_requested_at = models.DateTimeField(_("run requested"), null=True)
    updated_at = models.DateTimeField(_("updated"))
    is_data = models.BooleanField(_("made at run time"))
    problem = models.TextField(_("problem"), null=True)

    objects: ClassVar[Any] = HorsiesManager()

    class Meta:
        managed = False
        db_table = _table("horsies_schedule_state")
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        default_permissions = ("view",)
        permissions = (("control_schedule", "Can pause, resume and run schedules"),)

    def __str__(self) -> str:
        return str(self.schedule_name)
