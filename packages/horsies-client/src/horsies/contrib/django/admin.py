# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""The admin of tasks and schedules: read-only, with actions that go through horsies itself."""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import DatabaseError, connections, transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from horsies.contrib.django.models import Attempt, Schedule, Task
from horsies.contrib.django.paging import BOUND, BoundedPaginator
from horsies.contrib.django.project import project_app
from horsies.errors import HorsiesError
from horsies.operate import actions
from horsies.operate.actions import Outcome
from horsies.operate.broker import PostgresBroker
from horsies.status import TaskStatus

TIMEOUT_MS: Final = 5_000
_CUT: Final = 2_000
_SHOWN: Final = 100
"""Rows that the page of an action lists."""
_NAMED: Final = 3
"""Rows that a message names."""
_TIMED_OUT: Final = "57014"
Act = Callable[[PostgresBroker, Sequence[str]], Coroutine[Any, Any, Outcome]]


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows and runs actions; nothing is added, changed or deleted here."""

    actions_selection_counter = True
    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with a time limit: a filter that no index serves must not keep the database busy."""
        if request.method != "GET":
            return super().changelist_view(request, extra_context)
        alias = project_app().conf.database
        block: Any = transaction.atomic(using=alias)
        try:
            with block, connections[alias].cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {TIMEOUT_MS}")
                response = super().changelist_view(request, {"subtitle": self.bound_note(), **(extra_context or {})})
                # the rows are read while it is rendered
                return response.render() if isinstance(response, TemplateResponse) else response
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) != _TIMED_OUT or not request.GET:
                raise
            told = _(
                "No answer within %(seconds)g s: no index serves this filter. A state, an id or an error code does."
            )
            self.message_user(request, told % {"seconds": TIMEOUT_MS / 1000}, messages.ERROR)
            return HttpResponseRedirect(request.path)

    def bound_note(self) -> Any:
        return _("the first %(bound)d of those that match") % {"bound": BOUND}

    def confirmed(self, request: Any, queryset: Any, action: str, title: Any, warning: Any, act: Act) -> Any:
        """Ask on a page of its own, then act and report the outcome.

        "Select all" means the rows that the list can show, and no others. The page returns them in one field: Django
        refuses a form of more than 1,000.
        """
        if not request.POST.get("confirmed"):
            found = list(queryset[: BOUND + 1])
            context = {
                **self.admin_site.each_context(request), "title": title, "warning": warning, "rows": found[:BOUND],
                "action": action, "opts": self.model._meta, "media": self.media, "select": ACTION_CHECKBOX_NAME,
                "ids": json.dumps([str(row.pk) for row in found[:BOUND]]), "shown": _SHOWN,
                "bound": BOUND if len(found) > BOUND else None,
            }  # fmt: skip
            return TemplateResponse(request, "horsies_admin/confirm.html", context)
        asked = _ids(request)
        rows = list(queryset[:BOUND] if asked is None else queryset.filter(pk__in=asked))
        app = project_app()
        try:
            outcome = app.run_sync(action, lambda: act(app.get_broker(), [str(row.pk) for row in rows]))
        except HorsiesError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        left = dict(outcome.not_done)
        changed = [row for row in rows if row.pk not in left]
        if changed:
            entries: Any = LogEntry.objects
            entries.log_actions(request.user.pk, changed, CHANGE, change_message=str(title))
        if outcome.done:
            self.message_user(request, _("%(title)s: done for %(n)d.") % {"title": title, "n": outcome.done})
        if outcome.asked:
            told = _("%(title)s: asked for %(n)d, which a worker or a scheduler carries out.")
            self.message_user(request, told % {"title": title, "n": outcome.asked})
        known = {str(row.pk) for row in rows}
        gone = {pk: str(_("it is not in this list any more")) for pk in asked or () if pk not in known}
        self._report_not_done(request, {**left, **gone})
        return None

    def _report_not_done(self, request: HttpRequest, left: Mapping[str, str]) -> None:
        """One message for each reason, with a few of its rows."""
        by_reason: dict[str, list[str]] = {}
        for pk, why in left.items():
            by_reason.setdefault(why, []).append(pk)
        for why, pks in by_reason.items():
            rest = _(" and %(n)d others") % {"n": len(pks) - _NAMED} if len(pks) > _NAMED else ""
            self.message_user(request, f"{', '.join(pks[:_NAMED])}{rest}: {why}", messages.WARNING)


def _ids(request: Any) -> list[str] | None:
    """What the page of `confirmed` returns. None for a client that has sent the rows as the list does."""
    try:
        found: Any = json.loads(request.POST["ids"])
    except (KeyError, ValueError):
        return None
    return [str(one) for one in found[:BOUND]] if isinstance(found, list) else None


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(one.value, one.value) for one in TaskStatus]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        state = self.value()
        if state not in set(TaskStatus):
            return queryset
        if not TaskStatus(state).is_terminal:
            return queryset.filter(status=state)
        # the index of ended tasks
        return queryset.filter(status=state, terminal_at__isnull=False).order_by("-terminal_at")


class _ChoiceFilter(admin.SimpleListFilter):
    field: ClassVar[str]

    def names(self) -> Sequence[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(name, name) for name in self.names()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(**{self.field: self.value()})


class QueueFilter(_ChoiceFilter):
    title = _("queue")
    parameter_name = "queue"
    field = "queue_name"

    def names(self) -> Sequence[str]:
        return project_app().config.queue_names


class NameFilter(_ChoiceFilter):
    title = _("task")
    parameter_name = "task"
    field = "task_name"

    def names(self) -> Sequence[str]:
        return sorted(task.name for task in project_app().registry)


class AttemptInline(admin.TabularInline):
    model = Attempt
    extra = 0
    can_delete = False
    fields = ("attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message")
    readonly_fields = fields

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return request.user.has_perm("horsies.view_task")

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    list_display = ("id", "task_name", "queue_name", "status", "error_code", "sent_at", "terminal_at")
    list_filter = (StateFilter, QueueFilter, NameFilter)
    search_fields = ("id",)
    search_help_text = _("the whole id of a task, or an error code")
    ordering = ("-id",)
    sortable_by = ()
    inlines = (AttemptInline,)
    actions = ("retry", "cancel")
    fields = (
        "id", "task_name", "queue_name", "status", "shown_args", "shown_kwargs", "shown_result", "error_code",
        "failed_reason", "sent_at", "enqueued_at", "started_at", "terminal_at", "next_retry_at", "cancel_requested_at",
        "good_until", "retry_count", "max_retries", "priority", "unique_key", "group_key", "metadata", "progress",
        "claimed_by_worker_id", "is_workflow_task",
    )  # fmt: skip
    readonly_fields = ("shown_args", "shown_kwargs", "shown_result")

    def get_queryset(self, request: HttpRequest) -> Any:
        found = super().get_queryset(request)
        if request.resolver_match is not None and request.resolver_match.url_name == "horsies_task_changelist":
            return found.defer("args", "kwargs", "result", "metadata", "progress", "failed_reason")
        return found

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        term = search_term.strip()
        # both have an index
        return (queryset.filter(Q(id=term) | Q(error_code=term)), False) if term else (queryset, False)

    @admin.display(description=_("positional arguments"))
    def shown_args(self, task: Any) -> str:
        return _cut(task.args)

    @admin.display(description=_("arguments"))
    def shown_kwargs(self, task: Any) -> str:
        return _cut(task.kwargs)

    @admin.display(description=_("result"))
    def shown_result(self, task: Any) -> str:
        return _cut(task.result)

    def has_retry_permission(self, request: Any) -> bool:
        return request.user.has_perm("horsies.retry_task")

    def has_cancel_permission(self, request: Any) -> bool:
        return request.user.has_perm("horsies.cancel_task")

    @admin.action(description=_("Retry the selected tasks"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: Any) -> Any:
        warning = _("Tasks that failed, were cancelled or expired run again, under the same id. What they did before "
                    "is not undone: a mail that was sent is sent again.")  # fmt: skip
        return self.confirmed(request, queryset, "retry", _("Retry tasks"), warning, actions.retry)

    @admin.action(description=_("Cancel the selected tasks"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: Any) -> Any:
        warning = _("Waiting tasks end for good. Workers are asked to stop running ones, wherever they are.")
        return self.confirmed(request, queryset, "cancel", _("Cancel tasks"), warning, actions.cancel)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ("schedule_name", "next_run_at", "last_run_at", "run_count", "paused_at", "is_data", "problem")
    search_fields = ("schedule_name",)
    ordering = ("schedule_name",)
    sortable_by = ()
    actions = ("pause", "resume", "run_now")

    def has_control_permission(self, request: Any) -> bool:
        return request.user.has_perm("horsies.control_schedule")

    @admin.action(description=_("Pause the selected schedules"), permissions=["control"])
    def pause(self, request: HttpRequest, queryset: Any) -> Any:
        warning = _("Their slots pass without a run until they are resumed.")
        return self.confirmed(request, queryset, "pause", _("Pause schedules"), warning, partial(_for_each, "pause"))

    @admin.action(description=_("Resume the selected schedules"), permissions=["control"])
    def resume(self, request: HttpRequest, queryset: Any) -> Any:
        warning = _("They run again from their next slot on.")
        return self.confirmed(request, queryset, "resume", _("Resume schedules"), warning, partial(_for_each, "resume"))

    @admin.action(description=_("Run the selected schedules now"), permissions=["control"])
    def run_now(self, request: HttpRequest, queryset: Any) -> Any:
        warning = _("A scheduler runs each once, beside its slots, also when it is paused.")
        return self.confirmed(request, queryset, "run_now", _("Run schedules"), warning, partial(_for_each, "run_now"))


async def _for_each(verb: str, broker: PostgresBroker, names: Sequence[str]) -> Outcome:
    results = {name: await getattr(broker.schedules, verb)(name) for name in names}
    left = tuple(
        (name, "there is no such schedule, or nothing to change") for name, done in results.items() if not done
    )
    done = len(results) - len(left)
    return Outcome(0, done, left) if verb == "run_now" else Outcome(done, not_done=left)


def _cut(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= _CUT else f"{text[:_CUT]}… ({len(text):,} characters)"
