"""One queue: its policy, its groups with the most waiting tasks and what holds them back, and the shared limits."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from horsies._text import plural
from horsies.operate.groups import GroupStatus
from horsies.operate.policies import QUEUE_FIELDS, Policy, QueuePolicy, SharedLimit
from horsies_tui.actions import BY_ID
from horsies_tui.data.filters import Query
from horsies_tui.data.models import QueueDetail
from horsies_tui.data.policies import Subject, state_of
from horsies_tui.data.source import Target
from horsies_tui.messages import ActionRequested
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.policy import PolicyScreen
from horsies_tui.text import as_json, dotted, number, span
from horsies_tui.themes import MUTED
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.texts import Fields
from horsies_tui.widgets.typed import table_id

_NAMES: Final = {
    "max_concurrency": "per group",
    "rate": "rate",
    "fair": "fair",
    "limits": "limits",
    "weight": "weight",
    "ageing_seconds": "ageing",
}
_GROUPS: Final[Columns[GroupStatus]] = (
    Column("group", 0, lambda one: one.key, least=12),
    Column("waiting", 7, lambda one: dotted(one.waiting, number) + "+" * one.is_least, right=True),
    Column("running", 7, lambda one: _part(one.running, one.max_concurrency), "RUNNING", right=True),
    Column("oldest", 6, lambda one: span(one.oldest_ready) if one.oldest_ready else "·", right=True),
    Column("tokens", 7, lambda one: _part(one.tokens, one.burst) if one.tokens is not None else "·",
           lambda one: "late" if one.tokens == 0 else MUTED, right=True),
    Column("throttled", 0, lambda one: "; ".join(one.throttled_by) or "·",
           lambda one: "late" if one.throttled_by else MUTED, least=20),
)  # fmt: skip
_LIMITS: Final[Columns[SharedLimit]] = (
    Column("limit", 0, lambda one: one.name, least=12),
    Column("running", 7, lambda one: _part(one.running, one.effective.max_concurrency),
           lambda one: "late" if one.throttle else "RUNNING", right=True),
    Column("tokens", 7, lambda one: _part(one.tokens, one.burst) if one.tokens is not None else "·", MUTED, right=True),
    Column("rate", 24, lambda one: str(one.effective.rate or "·"), MUTED),
    Column("queues", 0, lambda one: " ".join(one.queues) or "none", MUTED, above=90),
    Column("overridden", 10, lambda one: span(one.override_for) if one.overridden else "·",
           lambda one: "late" if one.overridden else MUTED, above=70, right=True),
)  # fmt: skip


def _part(used: int | None, of: int | None) -> str:
    return dotted(used, number) if of is None else f"{number(used or 0)}/{number(of)}"


class QueueScreen(LiveScreen[QueueDetail]):
    NAME = "queue"
    PLACE = "overview"
    KINDS = frozenset({"tasks", "queues"})
    ABOUT = (
        "One queue: the policy of its groups, its groups with the most waiting tasks, what holds them back (a full "
        "group, a rate without a token, an exhausted shared limit), and the limits that queues share. S overrides the "
        "policy of the queue, or of the limit under the cursor while that table has the focus (tab); U takes the "
        "override back. Enter on a group lists its tasks."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]
    AUTO_FOCUS = "#groups"

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def body(self) -> ComposeResult:
        yield Panel(f"queue {self._name}", Fields(""), empty="No policy.", id="policy")
        yield TablePanel(
            "groups", _GROUPS, lambda one: one.key, markable=False,
            empty="No task with a group waits or runs. A send with group=, or a task with group_by=, makes one appear.",
        )  # fmt: skip
        yield TablePanel(
            "limits", _LIMITS, lambda one: one.name, title="shared limits", markable=False,
            empty="No worker has declared a limit: AppConfig(limits=[Limit(...)]).",
        )  # fmt: skip

    async def look(self) -> QueueDetail:
        return await self.dash.source.queue(self._name)

    def show(self, data: QueueDetail) -> None:
        self.query_one("#policy", Panel).face("data")
        self.query_one(Fields).show([*_facts(data.policy), ("overridden", _since(data.policy))])
        found = data.groups
        note = f"{plural(found.throttled, 'group')} of {found.looked:,} throttled" if found.looked else ""
        self.panel("groups").show(found.groups, note if found.is_complete else f"{note}, there are more")
        self.panel("limits").show(data.limits)

    # -- acting ----------------------------------------------------------------------------------

    @property
    def subject(self) -> Subject:
        """Whose policy the actions change: the limit under the cursor, if that table has the focus, or the queue."""
        table = self.panel("limits").table
        key = table.cursor_key if table.has_focus else None
        return Subject("queue", self._name) if key is None else Subject("limit", key)

    def targets(self) -> Iterable[Target]:
        if (one := self._policy()) is not None:
            yield Target(str(self.subject), str(self.subject), state_of(one))

    def _policy(self) -> QueuePolicy | SharedLimit | None:
        subject = self.subject
        if self.data is None or subject.kind == "queue":
            return self.data.policy if self.data is not None else None
        return next((one for one in self.data.limits if one.name == subject.name), None)

    async def action_act(self, name: str) -> None:
        target, one = next(iter(self.targets()), None), self._policy()
        if name != "set_policy" or target is None or one is None or not self.dash.may(BY_ID[name]):
            await super().action_act(name)
            return

        def answered(change: str | None) -> None:
            if change:
                self.post_message(ActionRequested(name, (replace(target, change=change),)))

        self.dash.push_screen(PolicyScreen(self.subject, one), answered)

    def copied(self) -> str | None:
        if self.data is None:
            return None
        return as_json({"queue": self._name, "policy": dict(self.data.policy.policy)})

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if table_id(event) == "groups":
            self.dash.queries["tasks"] = Query(queue=self._name, group=str(event.row_key.value))
            await self.dash.run_action("go('tasks')")


def _facts(one: QueuePolicy) -> Iterable[tuple[str, object]]:
    declared = Policy.of(one.declared or {})
    for name in QUEUE_FIELDS:
        value = getattr(one.effective, name)
        if name in ("weight", "ageing_seconds") and value is None and name not in one.overridden:
            continue
        text = _text(value, name)
        if name in one.overridden:
            text += f"  (overridden; declared: {_text(getattr(declared, name), name)})"
        yield _NAMES[name], text


def _since(one: QueuePolicy) -> str:
    return f"{span(one.override_for)} ago" if one.overridden else "no"


def _text(value: object, name: str = "") -> str:
    if name in ("weight", "ageing_seconds"):
        return "none" if value is None else f"{value} s" if name == "ageing_seconds" else str(value)
    if isinstance(value, bool):
        return "one task of each group in turn" if value else "as many of a group as fit"
    if isinstance(value, int):
        return f"{value:,} at a time"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return "no limit" if value is None else str(value)
